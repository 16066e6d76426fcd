"""Memories against simulations in plain Python: what is stored, found, drawn, removed, and put into which group."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.algorithms import interpreter
from rljax.methods.source import store
from rljax.transforms import advantage, source
from rljax.transforms.source import groups
from tests.methods.memories_cases import FULL, KEY, batch, jitted, problems, rows_of

# --- the frame ------------------------------------------------------------------------


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


def test_demonstrations_are_refused():
    rows = batch([0, 1], np.zeros((2, 2)))
    with pytest.raises(ValueError, match="the source gives demonstrations"):
        store.empty(rows.replace(action=None), 3)


# --- successes in groups --------------------------------------------------------------


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


# --- whole batches --------------------------------------------------------------------


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


def test_replay_of_unequal_groups_takes_those_that_have_the_same_rows():
    def uneven(sizes, first):
        number = np.repeat(np.arange(len(sizes)), sizes)
        rows = batch(np.zeros(4), np.zeros((4, 4)))
        return rows.replace(group=jnp.asarray(number), index=jnp.asarray(first + number))

    piece = source.replay(1.0, 1)
    before, now = uneven((2, 6, 2, 6), 0), uneven((2, 4, 4, 6), 10)
    pool = piece.init(before, problems())
    _, pool = jitted(piece)(before, pool, 16, KEY)
    mixed, _ = jitted(piece)(now, pool, 16, KEY)
    np.testing.assert_array_equal(mixed.index, np.repeat([0, 11, 12, 3], (2, 4, 4, 6)))
    np.testing.assert_array_equal(mixed.group, np.repeat(np.arange(4), (2, 4, 4, 6)))


def test_replay_refuses_a_part_of_the_batch():
    rows = batch(np.zeros(4), np.zeros((4, 2)))
    pool = source.replay().init(rows, problems())
    with pytest.raises(ValueError, match="write it before the pieces that choose"):
        source.replay().select(groups.take(rows, jnp.arange(4)), pool, 4, KEY)
