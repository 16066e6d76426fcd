"""Memories against simulations in plain Python: memories that choose; in the loop."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.config import resolve, schema
from rljax.run import programs
from rljax.run.records import checkpoints
from rljax.training import phases, states
from rljax.transforms import source
from tests.methods.memories_cases import FULL, KEY, T, batch, jitted, problems, rows_of
from tests.support import tiny

# --- memories that choose -------------------------------------------------------------


@FULL
def test_exgrpo_draws_medium_prompts_with_their_success_of_lowest_entropy():
    piece = source.exgrpo(share=0.5, capacity=6, width=0.1, start=0.2)
    entropy = np.tile(np.asarray([0.9, 0.1, 0.5, 0.3, *[1.0] * 12], np.float32)[:, None], T)
    rows = batch([1, 2, 3, 4], [[1, 0, 1, 0], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0, 0, 1]]).replace(entropy=entropy)
    pool = piece.init(rows, problems())
    offered = jnp.asarray([5, 6, 7, 8])
    assert np.asarray(piece.choose(pool, problems(), offered, KEY).index).tolist() == [5, 6, 7, 8]  # it is empty
    _, pool = jitted(piece)(rows, pool, 16, KEY)
    assert {*np.asarray(pool["memory"].index)[np.asarray(pool["memory"].filled)].tolist()} == {1, 4} and pool["open"]
    many = jax.jit(jax.vmap(lambda pool, k: piece.choose(pool, problems(), offered, k).index, (None, 0)))
    first = many(pool, jax.random.split(KEY, 2000))
    first = np.asarray(first)
    assert np.all(first[:, :2] == [5, 6]) and {*np.asarray(first[:, 2:]).reshape(-1).tolist()} == {1, 4}
    odds = np.mean(np.asarray(first[:, 2]) == 1)  # the densities of 1/2 and 1/4 at center 1/2, width 0.1
    np.testing.assert_allclose(odds, 1 / (1 + math.exp(-0.5 * 2.5**2)), atol=0.03)
    new = batch([5, 1, 4, 1], np.zeros((4, 4)), 50).replace(entropy=entropy)
    mixed, pool = jitted(piece)(new, pool, 16, KEY)
    assert [rows_of(mixed)[i] for i in (3, 7, 11, 15)] == [53, 57, 15, 2]  # of prompt 1, row 2 has the lower entropy
    solved = batch([9, 1, 4, 9], np.ones((4, 4)), 70).replace(entropy=entropy)
    _, pool = jitted(piece)(solved, pool, 16, KEY)
    assert not np.any(pool["memory"].filled)  # a prompt that is solved whole is retired


@FULL
def test_exgrpo_waits_for_a_batch_above_its_start():
    piece = source.exgrpo(share=0.5, capacity=6, start=0.5)
    rows = batch([1, 2], [[1, 0], [0, 0]]).replace(entropy=np.ones((4, T), np.float32))
    _, pool = jitted(piece)(rows, piece.init(rows, problems()), 4, KEY)
    assert not pool["open"] and np.any(pool["memory"].filled)
    assert np.asarray(piece.choose(pool, problems(), jnp.asarray([5, 6]), KEY).index).tolist() == [5, 6]


def test_base_samples_splits_prompts_by_what_the_first_policy_solves():
    piece, zero = source.base_samples(steps=2, solved=0.75), np.zeros((2, 4))
    first = batch([1, 2, 8, 8], [[1, 1, 1, 0], [1, 1, 0, 0], *zero])
    pool = piece.init(first, problems())
    mixed, pool = jitted(piece)(first, pool, 16, KEY)
    assert not np.any(mixed.valid)
    _, pool = jitted(piece)(batch([3, 4, 8, 8], [[0, 0, 0, 0], [1, 1, 1, 1], *zero], 16), pool, 16, KEY)
    mixed, after = jitted(piece)(batch([1, 2, 3, 4], np.ones((4, 4)), 50), pool, 16, KEY)
    shown = [*[0, 0, 0, 1], *[1] * 8, *[0, 0, 0, 1]]
    assert np.asarray(mixed.valid).tolist() == shown
    assert np.asarray(mixed.on_policy).tolist() == [*[1, 1, 1, 0], *[1] * 8, *[1, 1, 1, 0]]
    assert rows_of(mixed)[3] in (0, 1, 2) and rows_of(mixed)[15] in (20, 21, 22, 23)
    np.testing.assert_array_equal(after.filled, pool.filled)  # nothing more is stored


def test_unsolved_trains_on_demonstrations_when_there_are_as_many_as_groups():
    piece = source.unsolved()
    assert piece.demonstrated == 1
    pool, waiting, trained = piece.init(batch(np.zeros(3), np.zeros((3, 3))), problems()), [], 0
    draw = np.random.default_rng(3)
    for number in range(20):
        index, reward = draw.integers(0, 8, 3), (draw.random((3, 3)) < 0.3).astype(float)
        reward[:, 2] = 1  # the demonstrations
        rows = batch(index, reward, 9 * number).replace(on_policy=np.tile(np.asarray([1, 1, 0], np.float32), 3))
        mixed, pool = jitted(piece)(rows, pool, 9, KEY)
        token, valid = rows_of(mixed), np.asarray(mixed.valid).reshape(3, 3)
        np.testing.assert_array_equal(valid, [[0, 0, 1]] * 3 if len(waiting) >= 3 else [[1, 1, 0]] * 3)
        if len(waiting) >= 3:
            assert [token[i] for i in (2, 5, 8)] == [row for _, row in waiting[:3]]
            prompts = np.asarray(mixed.context.token).reshape(3, 3)
            assert [*prompts[:, 0]] == [p for p, _ in waiting[:3]] and np.all(prompts == prompts[:, :1])
            waiting, trained = waiting[3:], trained + 1
        else:
            assert token == rows_of(rows)
        for g in range(3):
            if reward[g, :2].max() == 0:
                waiting = [(p, row) for p, row in waiting if p != index[g]] + [(index[g], 9 * number + 3 * g + 2)]
    assert trained > 3


# --- in the loop ----------------------------------------------------------------------


@FULL
def test_a_run_stores_successes_and_its_pool_survives_a_checkpoint(tmp_path):
    program = tiny.program("grpo(kl=0.0)", seam__source="arpo(capacity=12)")
    step, key = program.steps[0], program.key
    state, pool = step.begin(None, key), jax.device_get(step.begin(None, key).pool)
    for _ in range(3):
        rows = jax.device_get(step.rollout(state, key))
        want, pool = jitted(step.setup.algorithm.source)(rows, pool, 32, KEY)
        state, metrics = step.fused(state, key)
    assert np.isfinite(metrics["loss"]) and metrics["skipped_in_row"] == 0
    assert {*rows.parts} == {*pool.rows.parts} and np.all(want.valid == 1)
    np.testing.assert_array_equal(state.pool.index, pool.index)
    np.testing.assert_array_equal(state.pool.rows.action.token, pool.rows.action.token)
    with checkpoints.Checkpointer(tmp_path / "run", max_to_keep=1) as saver:
        saver.save(3, state, {})
        saver.wait()
    restored, _, _ = checkpoints.Checkpointer(tmp_path / "run").restore(step.shape)
    assert jax.tree.structure(restored.pool) == jax.tree.structure(state.pool)
    jax.tree.map(np.testing.assert_array_equal, restored.pool, state.pool)


@FULL
def test_remix_reads_the_policy_one_step_before():
    """In the first step pi_{k-1} is the policy itself; then it is that of the step before, whoever wrote the row."""
    sizes = {"model__width": 8, "model__heads": 1, "model__hidden": 8, "log__rollout_rows": 32}
    program = tiny.program("remix(kl=0.1, base=0.0)", phase__main__warmup=0, **sizes)
    step, key, policies, metrics = program.steps[0], program.key, [], {}
    setup, state = step.setup, step.begin(None, program.key)
    score = jax.jit(lambda p, rows: phases.score(setup, "policy", p, rows, types.Needs(), kept=False).logp)
    for number in range(3):
        policies.append(jax.device_get(state.params["policy"]))
        state, metrics = step.fused(state, key)
        rows = metrics["rows"]
        kept, earlier = rows.extra["previous_logp"] * rows.mask, policies[max(number - 1, 0)]
        np.testing.assert_allclose(kept, score(earlier, rows) * rows.mask, atol=1e-5)
        jax.tree.map(np.testing.assert_array_equal, state.snapshot, policies[-1])
        if number:
            assert np.abs(kept - score(policies[number], rows) * rows.mask).max() > 1e-4
    assert metrics["loss/kl"] > 0 and np.min(rows.on_policy) == 0
    broken = jax.tree.map(lambda x: x * jnp.nan, state.params)
    state, metrics = step.fused(state.replace(params=broken), key)  # its update is skipped
    assert metrics["skipped"] > 0
    jax.tree.map(np.testing.assert_array_equal, state.snapshot, policies[-1])


@FULL
def test_a_seat_of_the_snapshot_is_not_the_policy_one_step_before():
    """The phases of a run carry an earlier policy over only where it is of the same kind."""
    game = {"task": "game('kuhn_poker')", "algorithm": "reinforce()"}
    c = tiny.config(**game, phases=("seats", "remix"), mesh__data=1)
    c.phase.seats = schema.phase(steps=1, world={"players": ("policy", "snapshot")})
    c.phase.remix = schema.phase(steps=1, algorithm="remix()", task="arithmetic(operands=2, digits=1, working=False)")
    seats, remix = programs.build(c, devices=jax.devices()[:1]).steps
    assert states.carried(seats.setup, seats.setup, seats.shape).snapshot
    assert not states.carried(remix.setup, seats.setup, seats.shape).snapshot


def test_the_policy_one_step_before_and_a_seat_of_the_snapshot_exclude_each_other():
    with pytest.raises(ValueError, match=r"expected 'policy' alone, as the snapshot is the policy one step earlier"):
        resolve.phases(tiny.config("remix()", task="game('kuhn_poker')", world__players=("policy", "snapshot")))
