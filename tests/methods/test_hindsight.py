"""Hindsight: what a world says of other goals, against the world played with them, and rows that get them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.environments.control.shipped import point_maze
from rljax.methods.source import memory
from rljax.models import actors
from rljax.run import programs
from rljax.transforms.source import chain, segments
from tests.support import control, tiny

ONE, STEPS, ROWS = jax.devices()[:1], 40, 48
RULES = point_maze.point_maze(side=3, walls=0.5, horizon=STEPS).rules


@jax.jit
def episodes(index, actions, goal):
    """Return observations ``[T + 1, O]``, rewards and whether the goal was reached, ``[T]``; goal -1: the true one."""
    state = RULES.begin(index, "train")
    state = state | {"goal": jnp.where(goal < 0, state["goal"], goal)}

    def step(state, action):
        after, moved = RULES.step(state, action, jax.random.key(0))
        return after, (RULES.observe(state), moved.reward, moved.done)

    last, (seen, paid, done) = jax.lax.scan(step, state, actions)
    return jnp.concatenate([seen, RULES.observe(last)[None]]), paid, done


@functools.cache
def played():
    """Return actions ``[B, T, 2]`` that push for a while in one direction, and the episodes with the true goals."""
    push = jax.random.uniform(jax.random.key(0), (ROWS, STEPS // 8, 2), minval=-1.0)
    actions = jnp.repeat(push, 8, axis=1)
    return actions, jax.vmap(episodes)(jnp.arange(ROWS), actions, jnp.full(ROWS, -1))


def rows():
    """Return the episodes as rows, cut where they end."""
    actions, (seen, paid, done) = jax.device_get(played())
    live = np.cumsum(done, axis=1) - done == 0
    wide = [np.pad(x, [(0, 0), (0, 1)]).astype(np.float32) for x in (live, paid * live)]
    taken, zero = np.pad(actions, [(0, 0), (0, 1), (0, 0)]), np.zeros(ROWS, np.int32)
    end = np.where(done.any(1), int(types.Finish.STOP), int(types.Finish.LENGTH)).astype(np.int32)
    fields = {"mask": wide[0], "reward": np.zeros(ROWS, np.float32), "group": zero, "token_reward": wide[1]}
    fields |= {"finish": end, "on_policy": np.ones(ROWS, np.float32)}
    return jax.tree.map(jnp.asarray, types.Rollout(**fields, motion=actors.Motion(seen, taken)))


def cell(seen):
    column, row = np.floor((np.asarray(seen)[..., :2] + 1) * RULES.side / 2).astype(np.int32).T
    return (row * RULES.side + column).T


@pytest.mark.full
def test_rewards_of_another_goal_are_those_that_the_world_pays_for_the_same_actions():
    """And with the cell of the true goal nothing changes."""
    actions, (seen, paid, done) = played()
    relabel = jax.jit(jax.vmap(jax.vmap(RULES.relabel, (0, 0, None))))
    for place in (1, STEPS // 2, STEPS):
        reached = seen[:, place]
        want_seen, want_paid, want_done = jax.vmap(episodes)(jnp.arange(ROWS), actions, jnp.asarray(cell(reached)))
        new, moved = relabel(seen[:, :-1], seen[:, 1:], reached)
        np.testing.assert_allclose(new, want_seen[:, :-1], atol=1e-5)
        np.testing.assert_array_equal(moved.reward, want_paid)
        np.testing.assert_array_equal(moved.done, want_done)
        assert np.all(np.asarray(moved.done)[:, place - 1])
    solved = np.flatnonzero(np.asarray(done).any(1))
    assert 3 < solved.size < ROWS
    arrival = seen[solved, np.asarray(done)[solved].argmax(1) + 1]
    new, moved = relabel(seen[solved, :-1], seen[solved, 1:], arrival)
    np.testing.assert_allclose(new, seen[solved, :-1], atol=1e-5)
    np.testing.assert_array_equal(moved.reward, paid[solved])


@pytest.mark.full
def test_relabelled_rows_end_where_they_arrive_and_others_stay():
    """Each new row is the episode that the world plays with the goal that its observations show."""
    before, (actions, _) = rows(), played()
    after = jax.jit(lambda key: memory.hindsight(0.7).relabel(before, RULES.relabel, key))(jax.random.key(1))
    way = np.asarray(after.motion.observation)
    goal = cell(way[:, 0, :2] + 2 * way[:, 0, 6:8])
    changed = np.asarray(after.on_policy) == 0
    assert 8 < changed.sum() < ROWS
    seen, paid, done = jax.device_get(jax.vmap(episodes)(jnp.arange(ROWS), actions, jnp.asarray(goal)))
    for i in range(ROWS):
        mask = np.asarray(after.mask[i, :-1])
        if not changed[i]:
            jax.tree.map(lambda x, y, i=i: np.testing.assert_array_equal(x[i], y[i]), after, before)
            continue
        length = int(done[i].argmax()) + 1  # there is an arrival, since the goal is where the row was
        assert done[i].any() and length <= before.mask[i].sum() and after.finish[i] == types.Finish.STOP
        np.testing.assert_array_equal(mask, np.arange(STEPS) < length)
        np.testing.assert_allclose(way[i, : length + 1], seen[i, : length + 1], atol=1e-5)
        np.testing.assert_array_equal(after.token_reward[i, :length], paid[i, :length])
        np.testing.assert_array_equal(after.token_reward[i, length:], 0)
    same = memory.hindsight(0.0).relabel(before, RULES.relabel, jax.random.key(1))
    assert tiny.equal(same, before)


@pytest.mark.full
def test_a_step_relabels_replayed_windows_and_the_memory_keeps_the_true_goals():
    task, flow = "point_maze(side=3, horizon=20)", "unrolled(10) | replay(1.0, 2) | hindsight(1.0)"
    c = control.config(task, "sac()", seam__source=flow, model__mlp__squash=True)
    for name in ("q", "q_2"):
        c.module[name] = programs.schema.module(weights="random")
        c.module[f"{name}_target"] = programs.schema.module(follows=name, rate=0.5)
    program = programs.build(c, devices=ONE)
    step = program.steps[0]
    state = step.begin(None, program.key)
    for _ in range(3):
        state, metrics = step.fused(state, program.key)
    assert float(metrics["fired"]) == 1.0 and np.isfinite(metrics["q/loss/value"])
    stored = state.pool["replay"]["rows"]
    way = stored.motion.observation[:, :, 6:8] + (stored.motion.observation[:, :, :2] + 1) / 2
    np.testing.assert_allclose(way, jnp.broadcast_to(way[:, :1], way.shape), atol=1e-5)
    index = stored.index[np.asarray(stored.mask.sum(1) > 0)]
    goal = jax.vmap(lambda i: RULES._middle(program.tasks[0].rules.begin(i, "train")["goal"]))(index) / 3
    np.testing.assert_allclose(way[np.asarray(stored.mask.sum(1) > 0), 0], goal, atol=1e-5)


def test_worlds_without_goals_and_two_pieces_are_refused():
    for c, message in (
        (
            control.config(seam__source="unrolled(2) | hindsight()"),
            r"hindsight\(.* needs rules that relabel goals, and those of 'tables'",
        ),
        (
            tiny.config(seam__source="hindsight()"),
            r"hindsight\(.* needs rules that relabel goals, and those of 'arithmetic'",
        ),
        (
            control.config("point_maze(reward='shaped')", seam__source="unrolled(2) | hindsight()"),
            r"those of 'point_maze' do not",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            programs.build(c, devices=ONE)
    with pytest.raises(ValueError, match="hindsight is there twice"):
        chain.chain((segments.unrolled(2), memory.hindsight(), memory.hindsight(0.5)))
