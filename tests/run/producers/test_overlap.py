"""Updates whose rows arrive in parts, against the same updates on whole rollouts."""

import jax
import numpy as np
import pytest

from rljax.config import resolve
from rljax.run import loop
from tests.run.producers import test_ahead
from tests.run.producers.test_ahead import ONE, TWO, task  # noqa: F401  pytest finds the fixture here
from tests.support import tiny


def config(algorithm="grpo(kl=0.01)", **fields):
    """Return a config of three micro-batches."""
    return test_ahead.config(
        algorithm=algorithm, **{"batch__prompts": 6, "learner__microbatches": 3, "phase__main__steps": 3, **fields}
    )


def train(c, workdir=None, devices=ONE):
    return loop.train(c, workdir, progress=False, devices=devices)


def check(parts, whole):
    """Compare a run in parts with one on whole rollouts."""
    for mine, other in zip(jax.tree.leaves(parts.state.params), jax.tree.leaves(whole.state.params), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    for mine, other in zip(parts.history, whole.history, strict=True):
        assert mine["separable"] == 1 and {*other} <= {*mine}
        for name in {*other} - {"phase"}:
            np.testing.assert_allclose(mine[name], other[name], rtol=2e-4, atol=1e-5, err_msg=name)
    assert any(h["gradient_norm"] > 0 for h in whole.history)
    compiled = parts.program.steps[0].overlapped
    assert compiled.accumulate._cache_size() == compiled.finish._cache_size() == 1


# The factor of coefficients between parts differs: rows, tokens, groups; and those of two objectives.
@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        ("grpo(kl=0.01)", {"model__adapter_rank": 2}),
        ("dapo()", {"seam__source": "task()"}),
        ("grpo()", {"seam__reduce": "mean_over_prompts()"}),
        ("ppo()", {"seam__advantage": "gae()"}),
    ],
    ids=["rows", "tokens", "groups", "critic"],
)
def test_gradients_by_parts_are_the_gradient(algorithm, fields):
    whole = train(config(algorithm, **fields))
    check(train(config(algorithm, run__overlap=True, mesh__rollout=1, **fields), devices=TWO), whole)


@pytest.mark.full
@pytest.mark.parametrize("devices", [0, 1])
def test_completions_that_the_host_scores_arrive_in_parts(devices, task, tmp_path):  # noqa: F811
    whole = train(config(task=task))
    c = config(task=task, run__overlap=True, mesh__rollout=devices, checkpoint__max_to_keep=9)
    parts = train(c, tmp_path / "run", ONE if devices == 0 else TWO)
    check(parts, whole)
    logs = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    test_ahead.cut(tmp_path / "run", 1)
    calls = test_ahead.MOOD["calls"]
    again = train(c, tmp_path / "run", ONE if devices == 0 else TWO)
    assert tiny.equal(parts.state, again.state) and logs == (tmp_path / "run" / "metrics.jsonl").read_bytes()
    assert test_ahead.MOOD["calls"] == calls  # the journal answers


@pytest.mark.full
@pytest.mark.parametrize(
    ("algorithm", "fields", "message"),
    [
        ("ppo()", {}, "the advantage of a row depend on rows of other groups in ppo"),
        (
            "dapo()",
            {"seam__source": "task()", "seam__penalty": "+ entropy(0.1, reduce=mean_over_rows())", "seed": 5},
            "coefficients",
        ),
    ],
)
def test_rows_that_depend_on_later_ones_are_refused(algorithm, fields, message):
    with pytest.raises(ValueError, match=message):
        train(config(algorithm, run__overlap=True, mesh__rollout=1, **fields), devices=TWO)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"run__lag": 1}, "config.run.lag=1 overlaps whole rollouts"),
        ({"learner__microbatches": 1}, "Set config.learner.microbatches above 1"),
        ({"learner__epochs": 2}, "several gradient steps"),
        ({"seam__source": "dynamic()"}, "dynamic.* selects"),
        ({"log__diagnostics": ("noise",)}, "config.log.diagnostics reads the gradients"),
        ({"task": test_ahead.WORLD}, "has several turns"),
    ],
)
def test_what_has_no_parts_is_refused(fields, message):
    with pytest.raises(ValueError, match=f"config.run.overlap=True .phase 'main'.: .*{message}"):
        resolve.run(config(**{"run__overlap": True, **fields}))
