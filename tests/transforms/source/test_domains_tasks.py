"""Domains of tasks, numbers of sources that move, and draws by domain: tasks with domains."""

import json
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.curriculum import rollouts as study
from rljax import types
from rljax.algorithms import interpreter
from rljax.data import tokenizers
from rljax.environments.questions import own
from rljax.training import problems as problems_lib
from rljax.training import rows as rows_lib
from rljax.training.learning import row_metrics
from tests.support import tiny
from tests.transforms.source.domains_cases import BYTES, bound, rollout


def decoded(token, mask):
    return [BYTES.decode(t[m > 0].tolist()) for t, m in zip(np.asarray(token), np.asarray(mask), strict=True)]


def test_sums_of_mixed_difficulty_take_turns_and_the_splits_stay_disjoint():
    task, texts = bound(digits=(1, 2), working=False), {}
    assert task.domains == 2 and task.domain_names == ("1 digit", "2 digits")
    for split, place in (("train", 0), ("heldout", 2)):
        index = jnp.arange(300, dtype=jnp.int32)
        prompts, domain = jax.jit(lambda i, s=split: (task.prompts(i, s), task.domain(i, s)))(index)
        np.testing.assert_array_equal(domain, index % 2)
        np.testing.assert_array_equal(prompts.index, index)
        texts[split] = decoded(prompts.token, prompts.mask)
        forms = (r"\d\+\d=", r"\d\d\+\d\d=")
        assert all(re.fullmatch(forms[i % 2], text) for i, text in enumerate(texts[split])), texts[split][:4]
        assert task.text(place, split) == texts[split][place]
    assert len({*texts["train"][::2]}) == 90 and len({*texts["heldout"][::2]}) == 10  # of the 100 with one digit
    assert not {*texts["train"]} & {*texts["heldout"]}
    assert (task.size("train"), task.size("heldout")) == (2 * 9000, 2 * 1000)
    with pytest.raises(ValueError, match=r"digits: \(2,\) is not a number, or several different ones"):
        bound(digits=(2,))


@pytest.mark.full
def test_sums_of_mixed_difficulty_are_judged_by_their_own_task():
    task, index = bound(digits=(1, 2)), jnp.arange(8, dtype=jnp.int32)
    answers = [str(sum(map(int, task.text(i, "train")[:-1].split("+")))) for i in range(8)]
    rows = [[*BYTES.encode(a), BYTES.eos] for a in answers]
    token, mask = tokenizers.padded(rows, task.completion_length, BYTES.pad)
    shown = task.demonstrations(index, "train", jax.random.key(0))
    verify = jax.jit(lambda token, mask: task.verify(index, "train", token, mask).reward)
    for pair in ((token, mask), shown):
        np.testing.assert_array_equal(verify(*pair), 1.0)
        assert not np.any(verify(jnp.roll(pair[0], 1, axis=0), jnp.roll(pair[1], 1, axis=0)))
    assert all(text.endswith((";" + a, a)) for text, a in zip(decoded(*shown), answers, strict=True))


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def test_a_column_of_a_file_is_the_domain(tmp_path):
    kinds = ["b", "a", "b", 3, "a", "b"]
    path = write(tmp_path / "q.jsonl", [{"question": f"q{i}", "answer": "1", "kind": k} for i, k in enumerate(kinds)])
    more = write(tmp_path / "h.jsonl", [{"question": "new", "answer": "1", "kind": "late"}])
    task = own.jsonl(path, heldout=str(more), domain="kind", chat=False)
    assert task.domain_names == ("b", "a", "3", "late") and task.domains == 4
    assert own.jsonl(path, heldout=0.5, chat=False).domains == 1
    bound_task = task.bind(BYTES)
    got = jax.jit(lambda index: bound_task.domain(index, "train"))(jnp.arange(8))
    np.testing.assert_array_equal(got, [0, 1, 0, 2, 1, 0, 0, 1])
    np.testing.assert_array_equal(bound_task.domain(jnp.arange(1), "heldout"), [3])


def test_rows_without_a_domain_and_too_many_domains_are_refused_by_file_and_line(tmp_path):
    rows = [{"question": f"q{i}", "answer": "1", "kind": i} for i in range(1026)]
    with pytest.raises(ValueError, match=r"all\.jsonl.*1025.*more than 1,024 values; '1024' is one too many"):
        own.jsonl(write(tmp_path / "all.jsonl", rows), domain="kind", chat=False)
    del rows[2]["kind"]
    with pytest.raises(ValueError, match=r"some\.jsonl.*3.*'kind' \(domain\) is missing"):
        own.jsonl(write(tmp_path / "some.jsonl", rows), domain="kind", chat=False)


def test_metrics_are_split_by_domain():
    reward = np.array([[1, 0], [1, 1], [0, 0], [1, 0]])
    rows = rollout(reward, [2, 0, 0, 2])
    rows = rows.replace(valid=jnp.asarray([1, 1, 1, 1, 1, 0, 1, 1.0]))
    got = {k: float(v) for k, v in row_metrics.of_domains(rows, ("x", "y", "z")).items()}
    want = {"x": (2 / 3, 3 / 7), "y": (0, 0), "z": (0.5, 4 / 7)}
    for name, (mean, share) in want.items():
        assert got[f"reward/domain/{name}"] == pytest.approx(mean) == got[f"accuracy/domain/{name}"]
        assert got[f"share/domain/{name}"] == pytest.approx(share)
    assert row_metrics.domains(bound(digits=(1, 2))) == ("1 digit", "2 digits")
    assert row_metrics.domains(bound()) == ()


@pytest.mark.full
def test_a_step_draws_and_reports_by_domain():
    program = tiny.program(
        "golongrl()",
        task="arithmetic(digits=(1, 2), working=False)",
        seam__source="sec(temperature=linear(1.0, 0.5, 5), candidates=64)",
        log__rollout_rows=32,
    )
    step, key = program.steps[-1], program.key
    state = step.begin(None, key)
    kept = {*np.asarray(state.pool["pool"]["prompts"].index).tolist()}
    after, metrics = step.fused(state, key)
    rows = metrics["rows"]
    np.testing.assert_array_equal(rows.domain, step.setup.task.domain(rows.index, "train"))
    assert {*np.asarray(rows.index).tolist()} <= kept and len({*np.asarray(rows.index).tolist()}) == 8
    assert int(after.pool["numbers"]["temperature"]) == 1
    for number, name in enumerate(step.setup.task.domain_names):
        here = np.asarray(rows.domain) == number
        assert 0 < float(metrics[f"share/domain/{name}"]) == pytest.approx(np.mean(here))
        assert float(metrics[f"reward/domain/{name}"]) == pytest.approx(np.asarray(rows.reward)[here].mean())
    # golongrl reads them: the same rows, with successes, against the spread of each domain by hand
    of = np.asarray(rows.domain)[::4]
    won = np.random.default_rng(0).random((8, 4)) < np.where(of == 0, 0.6, 0.2)[:, None]
    spread = np.array([math.sqrt(won[of == d].var(axis=1, ddof=1).mean()) for d in (0, 1)])
    assert abs(spread[0] - spread[1]) > 0.02
    rows = rows.replace(reward=jnp.asarray(won.reshape(-1), jnp.float32), advantage=None)
    scaled = jax.jit(lambda r: interpreter.transform(step.setup.algorithm, r, after.algorithm, key)[0].advantage)(rows)
    want = (won - won.mean(axis=1, keepdims=True)) / spread[of][:, None]
    np.testing.assert_allclose(scaled, want.reshape(-1, 1) * rows.mask, atol=1e-4)


@pytest.mark.full
def test_rows_of_a_host_task_have_its_domains(tmp_path):
    kinds = [{"question": f"{i}+1=", "answer": str(i + 1), "kind": "xyz"[i % 3]} for i in range(20)]
    path = write(tmp_path / "q.jsonl", kinds)
    setup = tiny.program("grpo(kl=0.0)", task=f"jsonl({str(path)!r}, domain='kind')").steps[-1].setup
    index = jnp.arange(6, dtype=jnp.int32)
    token = jnp.zeros((6, setup.task.prompt_length), jnp.int32)
    rows = rows_lib.blank(setup, index, index, types.Context(token, token * 1.0))
    np.testing.assert_array_equal(rows.domain, setup.task.domain(index, "train"))
    assert problems_lib.of(setup, jax.random.key(0)).domains == 3 and len({*np.asarray(rows.domain).tolist()}) > 1


def test_rollouts_of_the_study_are_interpolated_between_measurements():
    flat = [[0.0]] * 3
    assert study.Curve([0, 100, 200], [0.5, 0.8, 1.0], flat).needed == pytest.approx(150)
    assert study.Curve([0, 100, 200], [0.95, 0.8, 1.0], flat).needed == 0
    assert study.Curve([0, 100, 200], [0.5, 0.8, 0.89], flat).needed == math.inf


def test_the_page_of_the_study_counts_a_seed_that_does_not_reach_the_target_with_its_budget(tmp_path):
    def curve(*accuracy):
        return study.Curve([16 * n for n in range(len(accuracy))], list(accuracy), [[a] for a in accuracy])

    curves = {"uniform": [curve(0.5, 1.0), curve(0.5, 0.7, 0.8)], "sec": [curve(0.8, 0.9), curve(0.5, 0.6, 0.89)]}
    rows = study.table(curves, study.QUICK).splitlines()[2:]
    assert rows[0].startswith("| uniform | 1 of 2 | >= 22 ")  # (12.8 + 32) / 2
    assert rows[1].startswith("| sec | 1 of 2 | >= 24 ") and f"| {math.sqrt(16 / 12.8):.2f} [" in rows[1]
    study.draw(curves, tmp_path / "rollouts.png")
    assert (tmp_path / "rollouts.png").stat().st_size
