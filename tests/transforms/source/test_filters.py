"""Filters of scored groups and of single rows, against NumPy; and what each of them changes in a step."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.algorithms import interpreter
from rljax.config import resolve
from rljax.training import steps
from rljax.transforms import source
from rljax.transforms.source import chain, groups
from tests.support import tiny

KEY = jax.random.key(0)
WIDTH = 6


def batch(reward, first=0, length=None, version=0, advantage=True):
    """Return scored rows of rewards [P, G], and their group-relative advantages."""
    reward = np.asarray(reward, np.float32)
    prompts, samples = reward.shape
    count = reward.size
    length = np.full(count, WIDTH) if length is None else np.asarray(length).reshape(-1)
    mask = (np.arange(WIDTH) < length[:, None]).astype(np.float32)
    away = reward - reward.mean(axis=1, keepdims=True)
    spread = reward.std(axis=1, keepdims=True)
    a = (away / np.where(spread > 0, spread, 1)).reshape(-1, 1).astype(np.float32) * mask
    rows = types.Rollout(
        mask=mask,
        reward=reward.reshape(-1),
        group=np.repeat(np.arange(prompts, dtype=np.int32) + first, samples),
        index=np.repeat(np.arange(prompts, dtype=np.int32) + first, samples),
        action=types.Action(token=np.tile(np.arange(count, dtype=np.int32)[:, None] + 100 * first, (1, WIDTH))),
        behaviour_logp=-mask,
        version=np.full(mask.shape, version, np.int32),
        valid=np.ones(count, np.float32),
        episode=np.arange(count, dtype=np.int32),
        on_policy=np.ones(count, np.float32),
        advantage=a if advantage else None,
    )
    return jax.tree.map(jnp.asarray, rows)


def problems(size=64):
    return types.Problems(size, 1, jnp.zeros_like, lambda text: [], lambda index: index)


def select(piece, rows, pool, count, key=KEY):
    """Select with one compiled program, which is faster than one for each operation."""
    return jax.jit(piece.select, static_argnums=2)(rows, pool, count, key)


def started(piece, rows):
    return piece.init(rows.replace(advantage=None), problems())


def names(rows):
    """Return the identity of each row, which its first token holds."""
    return np.asarray(rows.action.token)[:, 0]


# --- groups -------------------------------------------------------------------------------------

EASY, HARD, HALF, QUARTER = [1, 1, 1, 1], [0, 0, 0, 0], [1, 0, 1, 0], [0, 0, 1, 0]


def test_the_band_keeps_groups_of_middling_accuracy_and_stores_what_the_batch_cannot_hold():
    piece = source.balanced(low=0.3, high=0.7, oversample=2, age=2)
    rows = batch([HALF, QUARTER, HALF, HALF], advantage=False)
    kept, pool = select(piece, rows, started(piece, rows), 8, KEY)
    assert sorted(set(np.asarray(kept.group))) == [0, 2] and np.all(kept.valid == 1)  # 1/4 is below the band
    flat = batch([EASY, HARD, QUARTER, EASY], first=10, version=1, advantage=False)
    kept, pool = select(piece, flat, pool, 8, KEY)
    np.testing.assert_array_equal(kept.group, np.repeat([3, 10], 4))  # the stored group, then one to fill the batch
    np.testing.assert_array_equal(kept.valid, np.repeat([1, 0], 4))
    np.testing.assert_array_equal(kept.on_policy, np.repeat([0, 1], 4))
    np.testing.assert_array_equal(kept.version[:, 0], np.repeat([0, 1], 4))
    np.testing.assert_array_equal(names(kept)[:4], np.arange(12, 16))
    assert len(set(np.asarray(kept.episode))) == 8
    kept, _ = select(piece, batch([HARD] * 4, first=20, advantage=False), pool, 8, KEY)
    assert not np.any(kept.valid)  # every stored group is used once


@pytest.mark.parametrize(("age", "used"), [(1, [1, 0, 0]), (2, [1, 1, 0]), (3, [1, 1, 1])])
def test_a_stored_group_is_dropped_when_it_is_too_old(age, used):
    piece = source.balanced(oversample=4, age=age)
    rows = batch([HALF] * 4, advantage=False)
    _, pool = select(piece, rows, started(piece, rows), 4, KEY)  # a batch of one group, and a memory of one
    for step in range(3):
        alone = jax.tree.map(lambda x: x, pool)
        kept, _ = select(piece, batch([HARD] * 4, first=10, advantage=False), alone, 4, KEY)
        assert np.all(kept.valid == used[step])
        _, pool = select(piece, batch([HALF, HARD, HARD, HARD], first=20, advantage=False), pool, 4, KEY)


def test_fresh_groups_come_before_stored_ones_and_newer_before_older():
    piece = source.balanced(oversample=2, age=5)
    first = batch([HALF] * 4, advantage=False)
    _, pool = select(piece, first, started(piece, first), 8, KEY)  # 2 and 3 are stored
    kept, pool = select(piece, batch([HALF, HALF, HALF, HARD], first=10, advantage=False), pool, 8, KEY)
    np.testing.assert_array_equal(kept.group, np.repeat([10, 11], 4))
    kept, _ = select(piece, batch([HARD] * 4, first=20, advantage=False), pool, 8, KEY)
    np.testing.assert_array_equal(kept.group, np.repeat([12, 2], 4))


def rounds_by_hand(reward, rounds, keep, both):
    """Return (rows drawn, rows kept) of one prompt, as a loop over its rounds."""
    drawn, each = [], len(reward) // rounds
    for r in range(rounds):
        drawn += range(r * each, (r + 1) * each)
        right = [i for i in drawn if reward[i] > 0.7]
        wrong = [i for i in drawn if reward[i] <= 0.7]
        if (len(right) >= -(-keep // 2) and len(wrong) >= keep // 2) if both else right:
            break
    more = max(-(-keep // 2), keep - len(wrong))
    kept = right[:more]
    return drawn, kept + wrong[: max(keep // 2, keep - len(right))]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("keep", [3, 4])
def test_rounds_end_as_the_loop_does_and_keep_both_kinds(both, keep):
    reward = (np.random.default_rng(0).uniform(size=(40, 12)) < np.linspace(0, 1, 40)[:, None]).astype(np.float32)
    rows, _ = select(source.rounds(4, keep, both), batch(reward), (), 480, KEY)
    valid, kept = (np.asarray(x).reshape(40, 12) for x in (rows.valid, rows.parts["kept"]))
    for p in range(40):
        want_drawn, want_kept = rounds_by_hand(reward[p], 4, keep, both)
        assert list(np.flatnonzero(valid[p])) == want_drawn
        assert list(np.flatnonzero(kept[p])) == sorted(want_kept)


def test_rounds_supply_the_part_that_reinforce_ada_reads_and_the_baseline_is_of_all_rows_drawn():
    piece = source.rounds(2, 2)
    phase = resolve.phases(tiny.config("reinforce_ada()", seam__source="rounds(2, 2)"))[-1]
    assert phase.algorithm.source.spec.startswith("rounds(rounds=2, keep=2")
    with pytest.raises(ValueError, match="kept"):
        resolve.phases(tiny.config("reinforce_ada()"))
    rows, _ = select(piece, batch([[0, 0, 0, 1], [0, 1, 1, 1]], advantage=False), (), 8, KEY)
    rows = jax.jit(lambda r: phase.algorithm.transforms[0].apply(r, (), KEY)[0])(rows)
    # the first prompt needs both rounds: mean 1/4; the second one, whose mean is 1/2
    np.testing.assert_allclose(rows.advantage[:, 0], [-0.25, -0.25, -0.25, 0.75, -0.5, 0.5, 0, 0])
    np.testing.assert_array_equal(rows.parts["kept"], [1, 0, 0, 1, 1, 1, 0, 0])


# --- single rows --------------------------------------------------------------------------------


def test_selective_replay_drops_rows_without_advantage_and_draws_by_its_size():
    piece, rows = source.selective_replay(), batch([[0, 0, 0, 1], HARD, EASY, HALF] * 32)
    strength = np.abs(np.asarray(rows.advantage)).max(axis=1)
    kept, _ = select(piece, rows, (), 512, KEY)
    taken, times = np.unique(names(kept), return_counts=True)
    assert {*taken} == {*np.flatnonzero(strength > 0)}  # every informative row once, and no other
    again = np.zeros(512)
    again[taken] = times - 1
    rare, common = strength > 1.5, (strength > 0) & (strength < 0.7)  # |A| = sqrt(3) and 1 / sqrt(3)
    total = strength.sum()
    for which in (rare, common, np.isclose(strength, 1.0)):
        share = strength[which].sum() / total
        assert abs(again[which].sum() / 256 - share) < 4 * np.sqrt(share * (1 - share) / 256)
    np.testing.assert_array_equal(kept.advantage[:, 0], np.asarray(rows.advantage)[names(kept), 0])
    assert len(set(np.asarray(kept.episode))) == 512


def test_selective_replay_draws_from_earlier_steps_and_keeps_a_batch_without_any_advantage():
    piece, rows = source.selective_replay(batches=2), batch([HALF, HARD])
    _, pool = select(piece, rows, started(piece, rows), 8, KEY)
    flat = batch([HARD, EASY], first=10, version=3)
    kept, pool = select(piece, flat, pool, 8, KEY)
    assert {*names(kept)} <= {0, 1, 2, 3} and np.all(kept.on_policy == 0) and np.all(kept.version == 0)
    np.testing.assert_array_equal(np.abs(kept.advantage), 1)  # of the group that the rows were sampled in
    kept, _ = select(piece, flat, pool, 8, KEY)  # the memory has flat rows only
    np.testing.assert_array_equal(names(kept), names(flat))
    with pytest.raises(ValueError, match="selective_replay: stored rows keep no token rewards"):
        select(piece, flat.replace(token_reward=flat.mask), pool, 8, KEY)


def test_pairs_are_best_with_worst_and_the_outer_ones_are_candidates():
    reward = np.random.default_rng(1).permutation(24).reshape(4, 6).astype(np.float32)
    rows = batch(reward)
    kept, _ = select(source.pairs(keep=0.5, draws=1, oversample=2), rows, (), 12, KEY)
    order = np.argsort(reward, axis=1) + 6 * np.arange(4)[:, None]
    candidates = {(p[-1 - i], p[i]) for p in order for i in range(2)}  # the best two and the worst two
    drawn = names(kept).reshape(-1, 2)
    assert {tuple(x) for x in drawn} <= candidates and len({tuple(x) for x in drawn}) == 6
    a, b = (np.asarray(kept.advantage[i::2, 0]) for i in (0, 1))
    assert np.all(a > 0) and np.all(b < 0)


def test_pairs_are_drawn_by_their_advantages_and_once_in_each_part():
    rows = batch([[1, 0, 0, 0, 0, 0, 0, 0], HALF * 2] * 32)  # |A1| + |A2| = 3.02 and 2
    rows = rows.replace(advantage=jnp.where((rows.group % 2 == 0)[:, None], rows.advantage, rows.advantage * 0.1))
    kept, _ = select(source.pairs(keep=0.25, draws=16), rows, (), 512, KEY)
    drawn = np.asarray(kept.group).reshape(16, 16, 2)[..., 0]
    assert all(len({*part}) == 16 for part in drawn)  # a group has one candidate
    assert np.mean(drawn % 2 == 0) > 0.8  # weights 3.02 and 0.2
    flat, _ = select(source.pairs(keep=0.25, draws=1), batch([HARD, EASY]), (), 8, KEY)
    assert np.asarray(flat.valid).sum() == 4  # two candidates: their pairs are used and the places beyond are invalid
    with pytest.raises(ValueError, match=r"pairs\(draws=3\): must divide the 4 pairs"):
        select(source.pairs(draws=3), rows, (), 8, KEY)


def test_recompose_takes_short_right_and_long_wrong_rows_and_pays_back_the_others():
    length = np.array([[1, 4, 2, 3], [6, 1, 3, 5]])
    rows = batch([HALF, HALF], length=length)
    piece = source.recompose(oversample=2, compensation=0.0)
    kept, pool = select(piece, rows, started(piece, rows), 4, KEY)
    assert {*names(kept)} == {0, 1, 6, 7}  # right: lengths 1 of 1, 2; 3 of 6, 3; wrong: 4 of 4, 3; 5 of 1, 5
    assert np.sum(pool["filled"]) == 4 and np.all(kept.on_policy == 1)
    later = batch([HALF, HALF], first=10, length=length, version=1)
    kept, pool = select(source.recompose(compensation=1.0, decay=1.0), later, pool, 4, KEY)
    assert {*names(kept)} == {2, 3, 4, 5} and np.all(kept.on_policy == 0) and np.all(kept.version == 0)
    np.testing.assert_array_equal(np.abs(kept.advantage).max(axis=1), 1)
    assert {*np.asarray(pool["rows"].action.token)[np.asarray(pool["filled"]), 0]} == {*names(later)}


def test_compensation_becomes_rarer():
    piece, rows = source.recompose(oversample=1, compensation=1.0, decay=0.5), batch([HALF])
    pool = jax.tree.map(jnp.ones_like, started(piece, rows))

    def compensated(step, key):
        at = {**pool, "filled": jnp.ones(4, bool), "step": step}
        return piece.select(rows, at, 4, key)[0].version[0, 0]

    steps, keys = jnp.repeat(jnp.array([0, 1, 6]), 256), jax.random.split(KEY, 768)
    share = jax.jit(jax.vmap(compensated))(steps, keys).reshape(3, 256).mean(axis=1)
    assert share[0] == 1 and abs(share[1] - 0.5) < 0.15 and share[2] < 0.1


def test_one_right_and_one_wrong_row_of_each_prompt_that_has_both():
    rows = batch([[1, 1, 0, 0], HARD, EASY, [0, 1, 0, 0]])
    seen, run = set(), jax.jit(lambda key: source.one_of_each(oversample=2).select(rows, (), 8, key)[0])
    for seed in range(8):
        kept = run(jax.random.key(seed))
        used = np.asarray(kept.valid) > 0
        assert sorted(zip(np.asarray(kept.group)[used], np.asarray(kept.reward)[used], strict=True)) == [
            *((0, 0), (0, 1), (3, 0), (3, 1))
        ]
        seen |= {*names(kept)[used]}
    assert seen == {0, 1, 2, 3, 12, 13, 14, 15}


@pytest.mark.full
def test_oreal_trains_a_pair_of_each_prompt_and_its_actor_waits():
    """A weight that is 0 in the first 10 steps is OREAL's frozen actor; the reference is the policy until then."""
    wait = "+ constant(piecewise(((0, 0.0), (10, 1.0))))"
    fields = {"seam__source": "one_of_each(2)", "seam__weight": wait}
    algorithm = resolve.phases(tiny.config("oreal()", **fields))[-1].algorithm
    state, (o,) = interpreter.init(algorithm), algorithm.objectives
    rows = batch([[1, 0, 0, 0], [1, 1, 1, 0]], advantage=False)
    rows = rows.replace(outcome=rows.reward.astype(jnp.int32), ref_logp=rows.behaviour_logp)

    @jax.jit
    def chosen(rows):
        return algorithm.source.select(interpreter.transform(algorithm, rows, state, KEY)[0], (), 4, KEY)[0]

    kept = chosen(rows)
    weight = {1: (1, 1 / 3), 3: (1 / 3, 1)}  # leave-one-out: 1 and -1/3 of one right, 1/3 and -1 of three
    want = np.array([w * (1.0, -0.5)[i] for right in (1, 3) for i, w in enumerate(weight[right])]) / (2 * WIDTH)

    @jax.jit
    def slope(state):
        inner = state["objectives"][0]
        batch, inner = interpreter.prepare_minibatch(o, kept, types.Scores(logp=kept.behaviour_logp), inner, KEY)

        def loss(logp):
            return interpreter.loss(o, batch, types.Scores(logp=logp), inner, KEY)[0]

        return -jax.grad(loss)(kept.behaviour_logp)[:, 0], interpreter.observe(algorithm, state, {})

    for step in range(12):
        moved, state = slope(state)
        order = np.lexsort((-np.asarray(kept.reward), np.asarray(kept.group)))  # the right row of a prompt first
        np.testing.assert_allclose(np.asarray(moved)[order], want * (step >= 10), atol=1e-7)


# --- in a step ----------------------------------------------------------------------------------


def test_a_rank_counts_the_rows_of_a_segment():
    ids, key = np.array([3, 1, 3, 3, 1]), np.array([2.0, 5.0, 1.0, 2.0, 4.0])
    rank, size = groups.rank(jnp.asarray(ids), jnp.asarray(key))
    np.testing.assert_array_equal(rank, [1, 1, 0, 2, 0])
    np.testing.assert_array_equal(size, [3, 2, 3, 3, 2])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "memory()"}, r"selects single rows, and an episode of task 'memory' has several"),
        ({"algorithm": "dpo()", "learner__minibatches": 2}, r"must be 1, as dpo.* reads whole groups"),
        ({"learner__lanes": 2}, r"config\.learner\.lanes=2 .*: must be 0"),
        ({"seam__source": "partial(4) | pairs()"}, r"selects single rows, and rows in flight need whole groups"),
    ],
)
def test_what_reads_equal_groups_refuses_single_rows(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(**{"seam__source": "pairs()", **fields}))


def test_a_chain_with_a_filter_of_rows_selects_after_the_advantages():
    both = chain.chain((source.dynamic(2), source.pairs(draws=1)))
    assert not both.grouped and both.oversample == 2 and chain.chain((source.dynamic(2), source.replay())).grouped


@pytest.mark.full
def test_a_step_trains_on_the_rows_that_the_pieces_return():
    program = tiny.program("grpo()")
    setup = program.steps[-1].setup
    pieces = source.selective_replay(2), source.pairs(keep=1.0, draws=1), source.recompose(2, 1.0, 1.0)
    algorithm = dataclasses.replace(setup.algorithm, source=chain.chain(pieces))
    step = steps.make_step(tiny.changed(setup, algorithm=algorithm))
    state = step.begin(None, program.key)
    for _ in range(2):
        state, metrics = step.fused(state, program.key)
        assert np.isfinite(metrics["loss"]) and metrics["skipped"] == 0
    assert metrics["age"] == 1  # the second batch is the buffer's
