"""Hindsight: what a world says of other goals, against the world played with them, and rows that get them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.control.shipped import point_maze
from rljax.methods.source import memory
from rljax.models import actors
from rljax.run import programs
from rljax.transforms.source import chain, segments
from tests.environments.worlds import world_oracles
from tests.support import control, tiny

ONE, STEPS, ROWS = jax.devices()[:1], 40, 48
TASK = point_maze.point_maze(side=3, walls=0.5, horizon=STEPS)
RULES = TASK.rules


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
    fields |= {"finish": end, "on_policy": np.ones(ROWS, np.float32), "outcome": zero}
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
    after = jax.jit(lambda key: memory.hindsight(0.7).relabel(before, TASK, key))(jax.random.key(1))
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
        assert after.outcome[i] == types.Outcome.CORRECT
        np.testing.assert_array_equal(mask, np.arange(STEPS) < length)
        np.testing.assert_allclose(way[i, : length + 1], seen[i, : length + 1], atol=1e-5)
        np.testing.assert_array_equal(after.token_reward[i, :length], paid[i, :length])
        np.testing.assert_array_equal(after.token_reward[i, length:], 0)
    same = memory.hindsight(0.0).relabel(before, TASK, jax.random.key(1))
    assert tiny.equal(same, before)


@pytest.mark.full
def test_no_goal_that_makes_a_held_out_problem_is_trained_on():
    before = rows().replace(index=jnp.arange(ROWS, dtype=jnp.int32))
    levels = jax.vmap(lambda i: RULES.begin(i, "train"))(jnp.arange(ROWS))
    maze = RULES._maze
    held = jax.vmap(maze._held)(levels["ways"], jax.vmap(RULES._cell)(levels["place"]))
    assert not np.any(np.asarray(held)[np.arange(ROWS), levels["goal"]])  # of the problems as they are
    for drawn in (0.1, 0.4, 0.9):
        new, possible = jax.jit(TASK.relabelled)(before, jnp.full(ROWS, drawn))
        way = np.asarray(new.motion.observation)[:, 0]
        goal = cell(way[:, :2] + 2 * way[:, 6:8])
        want = ~np.asarray(held)[np.arange(ROWS), goal] & (goal != cell(way))
        np.testing.assert_array_equal(possible, want)
        assert 0 < want.sum() < ROWS


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


# --- conversations --------------------------------------------------------------------------------


@functools.cache
def conversations():
    """Return a world of texts, and rows of random moves in it."""
    world = environments.lookup("maze")(side=3, moves=2, walls=0.5)
    world = world.bind(tokenizers.make("char", world.corpus()))
    encode, rng, key = world.tokenizer.encode, np.random.default_rng(0), jax.random.key(0)
    begin, zero = jax.jit(lambda i: world.begin(i, "train", key)), jnp.int32(0)
    prompt = jax.jit(lambda state: world.prompt(state, zero))
    step = jax.jit(lambda state, token, mask: world.step(state, zero, token, mask, key))
    n, wide = 24, world.completion_length
    token, mask, turn = (np.zeros((n, wide), kind) for kind in (np.int32, np.float32, np.int32))
    paid, contexts = np.zeros((n, wide), np.float32), []
    for row in range(n):
        state, place = begin(row), 0
        contexts.append(jax.device_get(prompt(state)))
        for number in range(world.max_turns):
            text = "?" if rng.random() < 0.1 else "".join(rng.choice(list("NESW"), rng.integers(0, 3)))
            ids = [*encode(text), world.tokenizer.eos]
            padded = np.pad(ids, (0, world.turn_length - len(ids)))
            state, reply = step(state, padded, (np.arange(len(padded)) < len(ids)).astype(np.float32))
            over = bool(reply.done) or number == world.max_turns - 1
            answer = np.asarray(reply.token[0])[(np.asarray(reply.mask[0]) > 0) & (not over)]
            for part, own in ((ids, 1.0), (answer, 0.0)):
                where = slice(place, place + len(part))
                token[row, where], mask[row, where], turn[row, where] = part, own, number
                place += len(part)
            paid[row, place - len(answer) - 1] = reply.reward[0]
            if over:
                break
    read, shown = (np.stack(x) for x in zip(*contexts, strict=True))
    zero = np.zeros(n, np.int32)
    fields = {"mask": mask, "reward": np.zeros(n, np.float32), "group": zero, "token_reward": paid, "turn": turn}
    fields |= {
        "finish": np.full(n, int(types.Finish.STOP), np.int32),
        "on_policy": np.ones(n, np.float32),
        "outcome": zero,
        "index": np.arange(n, dtype=np.int32),
    }
    rows = types.Rollout(**fields, context=types.Context(read, shown), action=types.Action(token))
    return world, jax.tree.map(jnp.asarray, rows)


def turns_of(world, rows, row):
    """Return the texts that a row's policy wrote, by turn."""
    mask, turn, token = (np.asarray(x[row]) for x in (rows.mask, rows.turn, rows.action.token))
    return [world.tokenizer.decode(token[(mask > 0) & (turn == k)][:-1]) for k in range(int(turn[mask > 0].max()) + 1)]


@pytest.mark.full
def test_conversations_with_other_goals_are_those_that_plain_python_plays():
    """Of the same turns, with the problem that the new prompt shows, which is no held-out one."""
    (world, before), make = conversations(), world_oracles.ORACLES["maze"][1]
    after = jax.jit(lambda key: memory.hindsight(0.8).relabel(before, world, key))(jax.random.key(1))
    jax.tree.map(np.testing.assert_array_equal, after.context.token, before.context.token)  # as it was sampled
    read, real = before.context.training
    before = before.replace(context=before.context.replace(train_token=read, train_mask=real))
    changed = np.asarray(after.on_policy) == 0
    assert 8 < changed.sum() < len(changed)
    earlier = 0
    for row in range(len(changed)):
        if not changed[row]:
            jax.tree.map(lambda x, y, row=row: np.testing.assert_array_equal(x[row], y[row]), after, before)
            continue
        shown = np.asarray(after.context.train_mask[row]) > 0
        text = world.tokenizer.decode(np.asarray(after.context.train_token[row])[shown])
        old = world.tokenizer.decode(np.asarray(before.context.token[row])[np.asarray(before.context.mask[row]) > 0])
        assert text[:3] == old[:3] and text[5:] == old[5:]  # start and map
        oracle, done = make(text, world, ()), False
        turns, paid = turns_of(world, after, row), np.asarray(after.token_reward[row])
        whole = turns_of(world, before, row)
        assert turns == whole[: len(turns)]
        earlier += len(turns) < len(whole)
        mask, turn = np.asarray(after.mask[row]), np.asarray(after.turn[row])
        for number, written in enumerate(turns):
            _, reward, done, outcome = oracle.turn(written)
            mine = paid[(mask > 0) & (turn == number)]
            assert mine[-1] == reward and not mine[:-1].any() and done == (number == len(turns) - 1)
        assert done and outcome == after.outcome[row] and after.finish[row] == types.Finish.STOP
        assert paid[mask == 0].sum() == 0
        state = jax.device_get(world.begin(int(before.index[row]), "train", jax.random.key(0)))
        goal = (ord(text[3]) - ord("a")) + 3 * (ord(text[4]) - ord("1"))
        assert not world.rules._held(jnp.asarray(state["ways"]), state["start"])[goal]
    assert earlier > 3


@pytest.mark.full
def test_a_step_on_conversations_relabels_what_is_replayed():
    c = tiny.config("sac()", task="maze(side=3)", seam__source="replay(1.0, 2) | hindsight(1.0)", batch__samples=2)
    for name in ("q", "q_2"):
        c.module[name] = programs.schema.module(weights="random")
        c.module[f"{name}_target"] = programs.schema.module(follows=name, rate=0.5)
    program = programs.build(c, devices=ONE)
    step = program.steps[0]
    assert step.setup.shared(step.setup.rows) == 0  # rows of a prompt may now read different ones
    state = step.begin(None, program.key)
    for _ in range(3):
        state, metrics = step.fused(state, program.key)
    assert float(metrics["fired"]) == 1.0 and np.isfinite(metrics["q/loss/value"])


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
            tiny.config(task="maze(objects=2)", seam__source="replay() | hindsight()"),
            r"those of 'maze' do not",
        ),
        (
            control.config("point_maze(reward='shaped')", seam__source="unrolled(2) | hindsight()"),
            r"those of 'point_maze' do not",
        ),
        (
            tiny.config(task="think_longer(maze(side=3))", seam__source="replay() | hindsight()"),
            r"needs rules that relabel goals",  # the turns of a wrapper are not those of its world
        ),
        (
            tiny.config(task="maze(side=3)", seam__source="replay() | hindsight()", sampler__stop=("S",)),
            r"config\.sampler\.stop .* plays turns again, which must end by end-of-sequence alone",
        ),
        (
            control.config("point_maze(side=3)", seam__source="unrolled(2) | hindsight()", model__denoising__steps=3),
            r"config\.model\.denoising\.steps.* relabels single steps",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            programs.build(c, devices=ONE)
    with pytest.raises(ValueError, match="hindsight is there twice"):
        chain.chain((segments.unrolled(2), memory.hindsight(), memory.hindsight(0.5)))
