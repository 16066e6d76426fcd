"""Worlds in the step of a run: over a mesh, in segments, resumed; and worlds with defects."""

import functools
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.run import loop
from rljax.training.producers import play
from tests.support import tiny

# --- worlds with defects --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("defect", "message"),
    [
        ("turn", "completion_length is 7, and a turn has up to 9 tokens"),
        ("turns", "max_turns is 0: expected a whole number of at least 1"),
        ("begin", "begin: KeyError: 'no problems'"),
        ("prompt", r"prompt: prompt is int32\[2\]: expected int32\[3\]"),
        ("step", "step: RuntimeError: out of cards"),
        ("state", "step: the state was .* and became .*'new'"),
        ("drifts", "step: the state was .* and became .*'turn': 'float32"),
        ("long", r"Reply.token is int32\[1, 4\]: expected int32\[1, 3\]"),
        ("float", r"Reply.token is float32\[1, 3\]: expected int32\[1, 3\]"),
        ("reward", r"Reply.reward is float32\[\]: expected float32\[1\]"),
        ("done", r"Reply.done is float32\[\]: expected bool\[\]"),
        ("parts", r"Reply.parts has \['twos'\]: expected \['ones'\], as World.parts"),
        ("extra", r"Reply.extra has \[\]: expected \['coin'\], as World.extra"),
    ],
)
def test_a_world_with_a_defect_is_refused_before_anything_compiles(defect, message):
    with pytest.raises(ValueError, match=f"(?s)task 'two_turns': {message}|task 'two_turns': step: {message}"):
        tiny.program("reinforce()", task=f"tests.support.worlds.broken({defect!r})")


# --- in the step ----------------------------------------------------------------------------------


CALLS = {"two": "cards(length=9)", "pages": "two_turns('chapters')"}


def started(call, algorithm="reinforce()", **fields):
    program = tiny.program(algorithm, task=f"tests.support.worlds.{call}", **fields)
    (step,) = program.steps
    return program, step, step.begin(None, program.key)


@pytest.mark.full
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_rows_of_eight_devices_are_those_of_one(call):
    one, step, state = started(call)
    _, step_8, state_8 = started(call, mesh__data=8)
    rows, rows_8 = (jax.device_get(s.rollout(x, one.key)) for s, x in ((step, state), (step_8, state_8)))
    assert rows.mask.sum() > 32 and (rows.mask == 0).sum() > 16
    for name in ("mask", "turn", "token_reward", "reward", "valid", "outcome", "episode", "agent", "finish"):
        np.testing.assert_array_equal(getattr(rows, name), getattr(rows_8, name))
    np.testing.assert_array_equal(rows.action.token, rows_8.action.token)
    np.testing.assert_allclose(rows.behaviour_logp, rows_8.behaviour_logp, atol=1e-5)


@pytest.mark.full
def test_an_update_on_eight_devices_is_that_on_one():
    one, step, state = started(CALLS["pages"])
    many, step_8, state_8 = started(CALLS["pages"], mesh__data=8)
    updated, metrics = step.update(state, step.rollout(state, one.key), one.key)
    updated_8, metrics_8 = step_8.update(state_8, step_8.rollout(state_8, many.key), many.key)
    for x, y in zip(jax.tree.leaves(updated.params), jax.tree.leaves(updated_8.params), strict=True):
        np.testing.assert_allclose(x, y, atol=1e-5)
    np.testing.assert_allclose(metrics["loss"], metrics_8["loss"], atol=1e-5)


@pytest.mark.full
def test_a_pool_of_segments_holds_the_conversations_of_a_plain_rollout():
    program, step, state = started("two_turns()", seam__source="partial(segment=3, oversample=2)")
    frozen, plain, compared = jax.device_get(state.params), {}, 0
    sample = jax.jit(functools.partial(play.seated, step.setup), static_argnums=(1, 4))
    for number in range(7):
        now = frozen, ("policy",), state.step, step.next_prompts(state, program.key), "train", program.key
        drawn, before = jax.device_get(sample(*now)[0]), int(state.cursor[0])
        state, metrics = step.fused(state.replace(params=jax.device_put(frozen, step.sharding.params)), program.key)
        for p in range(before, int(state.cursor[0])):
            plain[p] = jax.tree.map(lambda x, rows=drawn.group == p: x[rows], drawn.replace(action=drawn.action.token))
        rows = jax.device_get(state.pool["rows"])
        ended = rows.finish != types.Finish.UNFINISHED
        for group in set(rows.group[ended].tolist()):
            for b, there in enumerate(np.flatnonzero(rows.group == group)):
                if not ended[there]:
                    continue
                np.testing.assert_array_equal(rows.action.token[there], plain[group].action[b])
                for name in ("mask", "turn", "token_reward", "outcome", "finish", "valid", "domain"):
                    np.testing.assert_array_equal(getattr(rows, name)[there], getattr(plain[group], name)[b], name)
                np.testing.assert_allclose(rows.behaviour_logp[there], plain[group].behaviour_logp[b], atol=1e-5)
                compared += rows.version[there, 0] != number
        assert np.isfinite(metrics["loss"])
    assert compared > 20


@pytest.mark.full
def test_a_run_with_conversations_in_flight_resumes_bit_for_bit(tmp_path):
    config = tiny.config("reinforce()", phases=("main",), phase__main__steps=5, task="tests.support.worlds.two_turns()")
    config.seam.source = "partial(segment=2, oversample=2)"
    config.phase.main.evaluate = ""
    whole = loop.train(config, str(tmp_path / "whole"), progress=False, devices=jax.devices()[:1])
    assert float(whole.history[1]["carried"]) > 0
    shutil.copytree(tmp_path / "whole", tmp_path / "cut")
    for step in (3, 4, 5):  # as if killed after the logs of step 5 and before the checkpoint of step 3
        shutil.rmtree(tmp_path / "cut" / "checkpoints" / str(step), ignore_errors=True)
    again = loop.train(config, str(tmp_path / "cut"), progress=False, devices=jax.devices()[:1])
    for name in ("metrics.jsonl", "rollouts.jsonl"):
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name
    jax.tree.map(np.testing.assert_array_equal, *(jax.device_get(run.state) for run in (whole, again)))


@pytest.mark.full
def test_an_episode_whose_reply_is_too_long_does_not_count():
    program, step, state = started("echo()")
    rows = jax.device_get(step.rollout(state, program.key))
    assert 0 < rows.valid.mean() < 1 and np.all(rows.mask.sum(axis=1) > 0)
    replied = np.sum(np.arange(rows.mask.shape[1])[None] < rows.action.length[:, None], axis=1) - rows.mask.sum(axis=1)
    assert replied.max() <= 4
    spoilt = rows.replace(token_reward=np.where(rows.valid[:, None] > 0, rows.token_reward, 1e6).astype(np.float32))
    results = []
    for batch in (rows, spoilt):
        new, metrics = step.update(jax.tree.map(jnp.copy, state), jax.device_put(batch), program.key)
        results.append((new.params, {k: x for k, x in metrics.items() if k != "rows"}))
        assert metrics["valid_rows"] == rows.valid.sum()
        assert metrics["trained_tokens"] == (rows.mask * rows.valid[:, None]).sum()
    jax.tree.map(np.testing.assert_array_equal, *jax.device_get(results))
