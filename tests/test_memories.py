"""Memories against simulations in plain Python: what is stored, found, drawn, removed, and put into which group."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.algorithms import interpreter
from rljax.config import resolve, schema
from rljax.run import checkpoints, programs
from rljax.training import phases, states
from rljax.transforms import advantage, source
from rljax.transforms.source import groups, store
from tests import tiny

KEY = jax.random.key(0)
T = 3
FULL = pytest.mark.full


def batch(index, reward, serial=0, each=1, **fields):
    """Return rows of hand-made groups, ``reward`` [groups, rows]; the tokens of a row are its serial number."""
    index, reward = (np.asarray(x) for x in (index, reward))
    count, rows = index.size, reward.size
    number = serial + np.arange(rows)
    whole = np.repeat(index, rows // count).astype(np.int32)
    return types.Rollout(  # NumPy arrays: making them compiles nothing
        mask=np.ones((rows, T), np.float32),
        reward=reward.reshape(-1).astype(np.float32),
        group=(100 * serial + np.arange(rows) // (rows // count)).astype(np.int32),
        index=whole,
        context=types.Context(whole[:, None], np.ones((rows, 1), np.float32)),
        action=types.Action(np.tile(number[:, None], T).astype(np.int32)),
        behaviour_logp=np.tile(-number[:, None], T).astype(np.float32),
        version=np.full((rows, T), serial, np.int32),
        valid=np.asarray(fields.pop("valid", np.ones(rows)), np.float32),
        episode=np.arange(rows, dtype=np.int32) // each,
        on_policy=np.ones(rows, np.float32),
        parts={"format": number.astype(np.float32)},
        **fields,
    )


def problems(size=10, rows=1):
    whole = jnp.arange(size)
    return types.Problems(size, 1, jnp.zeros_like, lambda text: [], lambda index: whole[index], rows=rows)


def rows_of(rollout, where=None):
    """Return the serial numbers of rows, which are their tokens."""
    token = np.asarray(rollout.action.token)[:, 0]
    return token.tolist() if where is None else token[np.asarray(where)].tolist()


@functools.cache
def jitted(piece):
    return jax.jit(piece.select, static_argnums=2)


# --- the frame --------------------------------------------------------------------------------


class Simulated:
    """A store as a list of (prompt, priority, number, step, row)."""

    def __init__(self, capacity, most, age):
        self.capacity, self.most, self.age = capacity, most, age
        self.entries, self.clock, self.count = [], 0, 0

    def tick(self):
        """Begin a step."""
        self.clock += 1
        self.entries = [e for e in self.entries if self.age is None or self.clock - e[3] <= self.age]

    def put(self, prompts, priorities, stored, rows):
        """Store rows."""
        """Store rows."""
        for prompt, priority, wanted, row in zip(prompts, priorities, stored, rows, strict=True):
            if wanted:
                self.entries.append((prompt, priority, self.count, self.clock, row))
                self.count += 1
        best = sorted(self.entries, key=lambda e: (e[1], e[2]), reverse=True)
        kept = [e for i, e in enumerate(best) if sum(f[0] == e[0] for f in best[:i]) < self.most]
        self.entries = kept[: self.capacity]


@pytest.mark.parametrize(
    ("capacity", "most", "age"), [pytest.param(5, 1, None, marks=FULL), (7, 2, 3), pytest.param(4, 3, 1, marks=FULL)]
)
def test_a_store_keeps_what_a_list_keeps(capacity, most, age):
    draw = np.random.default_rng(capacity)
    step = jax.jit(lambda s, rows, stored, worth: store.put(store.tick(s, age), rows, stored, worth, most))
    find = jax.jit(lambda s, wanted, nth: store.lookup(s, wanted, nth))
    simulated = Simulated(capacity, most, age)
    pool = store.empty(batch(np.zeros(8), np.zeros(8)), capacity)
    for number in range(30):
        prompts, worth = draw.integers(0, 6, 8), draw.integers(0, 3, 8).astype(float)
        stored = draw.random(8) < 0.4
        rows = batch(prompts, np.zeros(8), 8 * number)
        pool = step(pool, rows, jnp.asarray(stored), jnp.asarray(worth))
        simulated.tick()
        simulated.put(prompts, worth, stored, rows_of(rows))
        filled = np.asarray(pool.filled)
        numbers = zip(pool.index, pool.priority, pool.number, pool.step, rows_of(pool.rows), strict=True)
        have = {tuple(float(x) for x in e) for e, there in zip(numbers, filled, strict=True) if there}
        assert have == {tuple(float(x) for x in e) for e in simulated.entries}
        for nth in range(2):
            place, there = find(pool, jnp.arange(7), jnp.full((7,), nth))
            for prompt in range(7):
                newest = sorted((e[2] for e in simulated.entries if e[0] == prompt), reverse=True)
                assert bool(there[prompt]) == (len(newest) > nth)
                assert not there[prompt] or pool.number[place[prompt]] == newest[nth]


def test_entries_are_drawn_by_weight_without_replacement():
    pool = store.empty(batch([0], [0]), 5).replace(
        filled=jnp.asarray([True, True, False, True, True]), priority=jnp.asarray([1.0, 3.0, 9.0, 0.0, 6.0])
    )
    place, there = jax.jit(jax.vmap(lambda k: store.draw(pool, 4, k)))(jax.random.split(KEY, 4000))
    assert np.all(np.asarray(there) == [True, True, True, False])
    assert all(set(p) == {0, 1, 4} for p in np.asarray(place)[:50, :3].tolist())
    share = np.bincount(np.asarray(place)[:, 0], minlength=5) / 4000
    np.testing.assert_allclose(share, [0.1, 0.3, 0, 0, 0.6], atol=4 * math.sqrt(0.25 / 4000))


def test_an_entry_is_an_episode_of_all_its_rows():
    rows = batch([3, 5], np.zeros((2, 4)), each=2)
    pool = jax.jit(store.put)(store.empty(rows, 3, 2), rows, jnp.asarray([False, True, True, False]), jnp.zeros(4))
    new = batch([5, 3], np.zeros((2, 4)), 50, each=2)
    mixed, mine = jax.jit(store.insert)(pool, new, jnp.ones((4,), bool))
    assert rows_of(mixed) == [50, 51, 4, 5, 54, 55, 2, 3]
    np.testing.assert_array_equal(mixed.episode, new.episode)
    np.testing.assert_array_equal(mixed.group, new.group)
    assert np.asarray(mine).tolist() == [False, False, True, True] * 2


def test_bytes_are_those_of_the_pool_and_demonstrations_are_refused():
    rows = batch([0, 1], np.zeros((2, 2)))
    pool = source.arpo(capacity=7).init(rows, problems(rows=2))
    assert store.nbytes(rows, 7, 2) == sum(x.nbytes for x in jax.tree.leaves(pool))
    row = sum(x.nbytes for x in jax.tree.leaves(rows)) // 4
    assert store.nbytes(rows, 8, 2) - store.nbytes(rows, 7, 2) == 2 * row + 17
    with pytest.raises(ValueError, match="the source gives demonstrations"):
        store.empty(rows.replace(action=None), 3)


# --- successes in groups ------------------------------------------------------------------------


@functools.cache
def success_rules(name):
    """Return the piece, whether a group of these rewards gets stored rows, how many, and how many a prompt keeps."""
    return {
        "arpo": (source.arpo(capacity=3, age=6), lambda r: max(r) <= 0, 1, 1),
        "rlep": (source.rlep(added=2, kept=3, capacity=6), lambda r: True, 2, 3),
        "guided_if": (source.guided_if(0.4, capacity=4), lambda r: np.mean(r) < 0.4, 1, 1),
    }[name]


@pytest.mark.parametrize("name", ["arpo", pytest.param("rlep", marks=FULL), pytest.param("guided_if", marks=FULL)])
def test_stored_successes_are_put_where_the_method_says(name):
    piece, wanted, most, kept = success_rules(name)
    draw, shape = np.random.default_rng(7), (5, 4)
    pool = piece.init(batch(np.zeros(5), np.zeros(shape)), problems())
    capacity, age = (pool.index.size, 6 if name == "arpo" else None)
    simulated, put = Simulated(capacity, kept, age), 0
    for number in range(40):
        index = draw.integers(0, 7, 5)
        reward = (draw.random(shape) < draw.choice([0.0, 0.3, 1.0], (5, 1))).astype(float)
        rows = batch(index, reward, 20 * number)
        mixed, pool = jitted(piece)(rows, pool, 20, jax.random.fold_in(KEY, number))
        simulated.tick()
        for g in range(5):
            here = slice(4 * g, 4 * g + 4)
            there = {e[4] for e in simulated.entries if e[0] == index[g]}
            count = min(most, len(there)) if wanted(reward[g]) else 0
            got, fresh = rows_of(mixed)[here], rows_of(rows)[here]
            assert got[: 4 - count] == fresh[: 4 - count]
            stored = got[4 - count :]
            assert set(stored) <= there and len(set(stored)) == count
            assert np.asarray(mixed.on_policy)[here].tolist() == [1.0] * (4 - count) + [0.0] * count
            put += count
        old = np.asarray(mixed.on_policy) == 0
        np.testing.assert_array_equal(np.asarray(mixed.behaviour_logp)[old, 0], [-x for x in rows_of(mixed, old)])
        np.testing.assert_array_equal(mixed.parts["format"], rows_of(mixed))
        assert np.all(np.asarray(mixed.version)[old, 0] < 20 * number) and np.all(np.asarray(mixed.reward)[old] == 1)
        np.testing.assert_array_equal(mixed.group, rows.group)
        np.testing.assert_array_equal(mixed.index, rows.index)
        simulated.put(np.repeat(index, 4), np.zeros(20), reward.reshape(-1) > 0, rows_of(rows))
    assert put > 10


def arpo_after(*batches):
    """Return the rows of the last of several batches of 5 groups of 4 after ARPO, and the pool."""
    piece, _, _, _ = success_rules("arpo")
    pool = piece.init(batches[0], problems())
    for rows in batches:
        mixed, pool = jitted(piece)(rows, pool, 20, KEY)
    return mixed, pool


@jax.jit
def advantages(rollout):
    pieces = (advantage.center_by_group(), advantage.scale_by_group())
    algorithm = types.Algorithm(objectives=(), transforms=pieces)
    return interpreter.transform(algorithm, rollout, interpreter.init(algorithm), KEY)[0].advantage[:, 0]


FIRST = ([4, 6, 7, 8, 9], [[0, 1, 0, 0], [1, 0, 0, 1], *np.zeros((3, 4))])


def test_a_failed_group_has_advantages_after_one_success_was_put_in_and_others_keep_theirs():
    rows = batch([4, 5, 6, 6, 7], [*np.zeros((2, 4)), [0, 1, 0, 0], [1, 1, 1, 1], np.zeros(4)], 50)
    mixed, _ = arpo_after(batch(*FIRST), rows)
    before, after = advantages(rows), advantages(mixed)
    assert np.all(np.asarray(before)[:8] == 0) and np.all(np.asarray(after)[4:8] == 0)  # prompt 5 was never solved
    # one success of four: mean 1/4, variance (3/16 + 9/16) / 3, so deviations of -1/2 and 3/2 standard deviations
    np.testing.assert_allclose(after[:4], [-0.5, -0.5, -0.5, 1.5], rtol=1e-4)
    np.testing.assert_array_equal(after[4:], before[4:])
    assert rows_of(mixed) == [50, 51, 52, 1, *rows_of(rows)[4:]]


def test_a_group_that_does_not_count_or_has_another_prompt_gets_nothing():
    valid = [*np.zeros(4), 0, 0, 1, 0, *np.ones(12)]
    rows = batch([4, 4, 4, 1, 2], np.zeros((5, 4)), 50, valid=valid)
    token = rows.context.token + (np.arange(20) // 4 == 2)[:, None].astype(np.int32)  # the third asks something else
    mixed, _ = arpo_after(batch(*FIRST), rows.replace(context=rows.context.replace(token=token)))
    assert rows_of(mixed) == [*rows_of(rows)[:7], 1, *rows_of(rows)[8:]]


def test_only_rows_of_the_policy_under_the_prompt_of_the_task_are_stored():
    other, again = np.ones(20, np.float32), np.zeros(20, np.float32)
    other[:4], again[4:8] = 0, 1
    _, pool = arpo_after(batch(np.arange(5), np.ones((5, 4)), extra={"pass": again}).replace(on_policy=other))
    assert sorted(np.asarray(pool.index)[np.asarray(pool.filled)].tolist()) == [2, 3, 4]


def test_a_demonstration_counts_where_the_samples_of_its_group_do_badly():
    rows = batch([1, 2, 3, 4], [[0, 0, 1], [1, 0, 1], [1, 1, 0], [0, 0, 1]], valid=[*np.ones(9), 0, 0, 1])
    rows = rows.replace(on_policy=np.tile(np.asarray([1, 1, 0], np.float32), 4))  # the last of each is shown
    mixed, _ = jitted(source.guided_below(0.5))(rows, (), 12, KEY)
    # means of the samples: 0, 0.5, 1, and none that counts
    assert np.asarray(mixed.valid).tolist() == [1, 1, 1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    assert rows_of(mixed) == rows_of(rows) and source.guided_below().demonstrated == 1


# --- whole batches ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [pytest.param(1, marks=FULL), 2])
def test_replay_takes_groups_of_the_last_batches(steps):
    piece, seen = source.replay(0.5, steps), set()
    pool = piece.init(batch(np.zeros(4), np.zeros((4, 2))), problems())
    for number in range(12):
        rows = batch(np.arange(4), np.zeros((4, 2)), 8 * number)
        mixed, pool = jitted(piece)(rows, pool, 8, jax.random.fold_in(KEY, number))
        fresh, got = rows_of(rows), rows_of(mixed)
        assert got[:4] == fresh[:4]
        behind = (np.asarray(fresh) - got) // 8  # how many steps old
        assert np.all(behind == (np.asarray(fresh) - got) / 8)
        assert np.all(behind[4:] <= steps) and np.all((behind[4:] > 0) == (number > 0))
        np.testing.assert_array_equal(mixed.on_policy, behind == 0)
        np.testing.assert_array_equal(mixed.parts["format"], got)
        seen |= {*behind[4:].tolist()} if number >= steps else set()
    assert seen == {*range(1, steps + 1)}


def test_replay_refuses_a_part_of_the_batch():
    rows = batch(np.zeros(4), np.zeros((4, 2)))
    pool = source.replay().init(rows, problems())
    with pytest.raises(ValueError, match="write it before the pieces that choose"):
        source.replay().select(groups.take(rows, jnp.arange(4)), pool, 4, KEY)


# --- memories that choose -----------------------------------------------------------------------


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


# --- in the loop ----------------------------------------------------------------------------------


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
