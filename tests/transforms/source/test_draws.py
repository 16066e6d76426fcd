"""Draws: what is counted of each prompt, which prompts follow from it, and what a task is too large for."""

import contextlib
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.methods.source import histories
from rljax.run import programs, session
from rljax.run.records import checkpoints
from rljax.transforms import source
from tests.support import tiny

N, P, G = 64, 8, 8  # prompts, prompts of a step, samples of each
KINDS = np.repeat([0.0, 0.5, 0.9, 1.0], N // 4)  # success rate of each prompt
ALL = {
    "mopps": source.mopps(),
    "vade": source.vade(),
    "learnability": source.learnability(),
    "by_failure": source.by_failure(),
    "by_deviation": source.by_deviation(),
    "hard_replay": source.hard_replay(),
    "band": source.band(),
    "retire": source.retire(),
    "regret": source.regret(),
    "prioritized": source.prioritized(),
    "lim": source.lim(visits=3, keep=0.8),
}


def problems(size=N):
    return types.Problems(
        size=size,
        domains=1,
        domain=jnp.zeros_like,
        encode=lambda text: [],
        shuffled=lambda index: (index * 29 + 7) % size,  # a permutation of sizes that 29 does not divide
    )


def rows(index, reward, **fields):
    """Return a rollout of prompts ``index`` [P] with rewards [P, G]."""
    count, samples = reward.shape
    return types.Rollout(
        mask=jnp.ones((count * samples, 1)),
        reward=jnp.asarray(reward, jnp.float32).reshape(-1),
        group=jnp.repeat(jnp.arange(count), samples),
        index=jnp.repeat(jnp.asarray(index, jnp.int32), samples),
        **fields,
    )


def begin(piece, size=N):
    return piece.init(rows(np.zeros(1), np.zeros((1, 1))), problems(size))


@functools.partial(jax.jit, static_argnums=(0, 2), static_argnames="every")
def simulated(piece, rate, rounds, key, every=0):
    """Return the prompts drawn ``[rounds, P]`` and the last pool.

    Prompt i succeeds with probability rate[i, v] at its v-th visit, or with ``every``, in rounds v * every and later.
    """

    def step(carry, number):
        pool, visits = carry
        each = jax.random.fold_in(key, number)
        epoch = jax.random.permutation(jax.random.fold_in(key, -1 - number * P // N), N)
        offered = jax.lax.dynamic_slice_in_dim(epoch, number * P % N, P)
        index = piece.choose(pool, problems(), offered, each).index
        past = jnp.full_like(index, number // every) if every else visits[index]
        chance = rate[index, jnp.minimum(past, rate.shape[1] - 1)]
        wins = jax.random.uniform(jax.random.fold_in(each, 1), (P, G)) < chance[:, None]
        _, pool = piece.select(rows(index, wins), pool, P * G, each)
        return (pool, visits.at[index].add(1)), index

    (pool, _), drawn = jax.lax.scan(step, (begin(piece), jnp.zeros(N, jnp.int32)), jnp.arange(rounds))
    return drawn, pool


def shares(piece, rounds=80, after=40):
    """Return the share of each of ``KINDS`` in later rounds, after checks that hold for every draw."""
    drawn, _ = simulated(piece, jnp.asarray(KINDS, jnp.float32)[:, None], rounds, jax.random.key(0))
    assert all(len(set(step)) == P for step in drawn.tolist())  # none twice in a step
    assert len(np.unique(drawn)) == N  # none is starved
    return np.bincount(np.asarray(drawn[after:]).reshape(-1) // (N // 4), minlength=4) / drawn[after:].size


# the shuffle draws each kind with share 1/4; the least or largest share that the piece must reach, by success rate
EXPECTED = {
    "mopps": {0.5: (0.9, 1)},  # 16 prompts at the target for 8 places
    "vade": {0.5: (0.8, 1)},  # others are tried again as they are forgotten
    "learnability": {0.5: (0.55, 1)},  # 1/2 + 1/2 * 1/4 less what both draw
    "by_failure": {0.0: (0.5, 1), 0.9: (0, 0.12), 1.0: (0, 0.05)},  # weights 1, 1/2, 1/10, 0
    "by_deviation": {0.5: (0.33, 1), 0.9: (0.28, 1), 0.0: (0, 0.2), 1.0: (0, 0.2)},  # weights .05, .55, .35, .05
    "hard_replay": {0.0: (0.38, 1)},  # 3/4 * 1/4 + 1/4, less what both draw
    "band": {0.5: (0.9, 1)},
    "retire": {1.0: (0, 0), 0.0: (0.35, 1), 0.5: (0.35, 1)},
    "regret": {0.5: (0.55, 1), 0.0: (0, 0.12), 1.0: (0, 0.12)},  # weights .025, .525, .15, .025
    "prioritized": {0.5: (0.65, 1), 0.0: (0, 0.12), 1.0: (0, 0.12)},  # 9/10 of the places to the largest of 64 scores
}


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in ("mopps", "retire") else pytest.mark.full) for n in EXPECTED]
)
def test_a_draw_follows_the_success_rates_of_a_simulated_learner(name):
    share = dict(zip((0.0, 0.5, 0.9, 1.0), shares(ALL[name]), strict=True))
    for rate, (low, high) in EXPECTED[name].items():
        assert low <= share[rate] <= high, share


@pytest.mark.full
def test_vade_tries_forgotten_prompts_again_as_the_policy_improves():
    later = np.asarray([0.5, 1.0, 1.0, 1.0]).repeat(N // 4)  # of kinds 0, 1/2, 0.9 and 1, after 60 rounds
    rate = jnp.asarray(np.stack([KINDS, later], axis=1), jnp.float32)
    share = {}
    for name in ("mopps", "vade"):
        drawn, _ = simulated(ALL[name], rate, 90, jax.random.key(0), every=60)
        share[name] = np.mean(np.asarray(drawn[70:]) < N // 4)
    assert share["vade"] > 0.75 and share["vade"] > share["mopps"] + 0.25, share


@pytest.mark.full
def test_lim_draws_prompts_whose_curve_is_the_mean_curve():
    kinds = np.asarray([[0, 0, 0], [0.25, 0.5, 0.75], [1, 1, 1], [0, 0, 1]])
    # The mean is 0.31, 0.38, 0.69, so that s is 0.26, 0.98, 0 and 0.65; noise of 8 samples takes 0.08 from the second.
    drawn, pool = simulated(ALL["lim"], jnp.asarray(np.repeat(kinds, N // 4, axis=0)), 48, jax.random.key(0))
    drawn = np.asarray(drawn)
    for epoch in range(3):  # each prompt once in N / P rounds, until each was seen three times
        assert len(np.unique(drawn[epoch * N // P : (epoch + 1) * N // P])) == N
    later = np.bincount(drawn[3 * N // P :].reshape(-1) // (N // 4), minlength=4) / drawn[3 * N // P :].size
    assert later[1] == 1, later
    assert pool["statistics"]["visits"].max() == 3


def test_the_alignment_of_curves_is_that_of_the_paper():
    curve = np.random.default_rng(0).uniform(size=(5, 4)).astype(np.float32)
    curve[3] = curve[[0, 1, 2, 4]].mean(axis=0)  # the mean of all is then this one
    mean = curve.mean(axis=0)
    want = [
        1 - sum((r - m) ** 2 for r, m in zip(c, mean, strict=True)) / sum((1 - m) ** 2 for m in mean) for c in curve
    ]
    np.testing.assert_allclose(histories.alignment(jnp.asarray(curve)), want, rtol=1e-5)
    assert want[3] == pytest.approx(1)
    np.testing.assert_array_equal(histories.alignment(jnp.ones((2, 3))), 1)  # nothing is left to learn


# --- statistics ---------------------------------------------------------------------------------


def mixed():
    """Return rows of every kind, and the rewards that count of each prompt."""
    rng = np.random.default_rng(1)
    index, samples = np.asarray([3, 9, 3, 40, 7, 11]), 4
    reward = rng.choice([0.0, 1.0, 0.5, -1.0], size=(6, samples))
    counts = rng.uniform(size=(3, 6, samples)) < 0.8  # valid, written by the policy, of the first pass
    counts[0, 4] = False  # nothing of prompt 7 counts
    valid, mine, first = (jnp.asarray(x, jnp.float32).reshape(-1) for x in counts)
    out = rows(index, reward, valid=valid, on_policy=mine, extra={"pass": 1 - first})
    rewards = {}
    for i, r, c in zip(np.repeat(index, samples), reward.reshape(-1), counts.all(axis=0).reshape(-1), strict=True):
        rewards.setdefault(int(i), []).extend([r] if c else [])
    return out, {i: r for i, r in rewards.items() if r}


def after(piece, times=2):
    """Return the statistics after ``times`` steps of ``mixed``, with 12 candidates, of which 40 is none."""
    out, rewards = mixed()
    pool, select = begin(piece, 12), jax.jit(lambda pool: piece.select(out, pool, 24, jax.random.key(0)))
    for _ in range(times):
        returned, pool = select(pool)
        jax.tree.map(np.testing.assert_array_equal, returned, out)
    del rewards[40]
    return jax.device_get(pool["statistics"]), rewards


@pytest.mark.parametrize(
    ("piece", "drawn", "others"), [(source.mopps(decay=0.5), 0.5, 1), (source.vade(0.75, 0.5), 0.75, 0.5)]
)
def test_posteriors_are_those_of_numpy(piece, drawn, others):
    got, rewards = after(piece)
    for i in range(12):
        a = b = 1.0
        for _ in range(2):
            keep = drawn if i in rewards else others
            a = keep * a + (1 - keep) * 1 + sum(r > 0 for r in rewards.get(i, []))
            b = keep * b + (1 - keep) * 1 + sum(r <= 0 for r in rewards.get(i, []))
        assert (got["wins"][i], got["losses"][i]) == pytest.approx((a, b))


def test_totals_regrets_and_curves_are_those_of_numpy():
    totals, rewards = after(source.band(forget=0.5))
    regret, _ = after(source.regret())
    lim, _ = after(source.lim(visits=3))
    for i in range(12):
        r = np.asarray(rewards.get(i, []))
        assert totals["count"][i] == pytest.approx(1.5 * r.size)
        assert totals["wins"][i] == pytest.approx(1.5 * (r > 0).sum())
        assert regret["regret"][i] == pytest.approx(r.max() - r.mean() if r.size else 0, abs=1e-6)
        assert regret["known"][i] == (r.size > 0)
        rate = (r > 0).mean() if r.size else 0
        np.testing.assert_allclose(lim["curve"][i], [rate, rate, 0], rtol=1e-6)
        assert lim["visits"][i] == (2 if r.size else 0)


# --- choices ------------------------------------------------------------------------------------


def choose(piece, keys=1, size=N, offered=range(P), **statistics):
    """Return the prompts drawn with several keys, ``[keys, P]``."""
    pool, offered = begin(piece, size), jnp.asarray([*offered])
    pool["statistics"].update({k: jnp.asarray(x, jnp.float32) for k, x in statistics.items()})
    drawn = jax.vmap(lambda key: piece.choose(pool, problems(size), offered, key).index)
    return np.asarray(jax.jit(drawn)(jax.random.split(jax.random.key(0), keys)))


def test_mopps_takes_the_nearest_to_the_target_among_a_random_pool():
    rate, keys, rng = (np.arange(N) + 1) / (N + 2), 200, np.random.default_rng(0)
    sure = {"wins": 1e7 * rate, "losses": 1e7 * (1 - rate)}  # draws from these posteriors differ little from the rate
    drawn = choose(source.mopps(target=0.8, pool=2), keys, **sure)
    assert all(len(set(x)) == P for x in drawn)
    pools = [np.sort(np.abs(rate[rng.permutation(N)[: 2 * P]] - 0.8))[:P] for _ in range(keys)]
    away = np.sort(np.abs(rate[drawn] - 0.8), axis=1)  # of the nearest, the second ..., over all draws
    np.testing.assert_allclose(away.mean(axis=0), np.mean(pools, axis=0), atol=0.02)


def test_a_weighted_draw_has_the_probabilities_of_drawing_without_replacement():
    wins, losses, keys = np.asarray([1.0, 2, 3, 3]), np.asarray([3.0, 2, 1, 9]), 4000
    w = losses / (wins + losses)
    drawn = choose(source.by_failure(), keys, size=4, offered=range(2), wins=wins, losses=losses)
    for i, j in itertools.permutations(range(4), 2):
        p = w[i] / w.sum() * w[j] / (w.sum() - w[i])
        assert abs(np.mean((drawn == (i, j)).all(axis=1)) - p) < 4 * np.sqrt(p * (1 - p) / keys)


@pytest.mark.parametrize(
    "piece",
    [source.learnability(share=0.0), source.hard_replay(share=0.0), source.retire(), source.band(), source.lim()],
)
def test_what_the_shuffle_gives_is_drawn_where_the_statistics_say_nothing(piece):
    offered = [5, 60, 2, 33, 9, 41, 17, 28]
    assert set(choose(piece, offered=offered)[0]) == set(offered)


def test_what_is_left_out_fills_a_step_only_if_nothing_else_is_left():
    count = np.full(N, 10.0)
    solved = np.where(np.arange(N) < N - 3, 10.0, 0.0)
    assert set(range(N - 3, N)) < set(choose(source.retire(), count=count, wins=solved)[0])
    rate = np.where(np.arange(N) < 6, 0.5, np.arange(N) / N)  # 6 within [0.49, 0.51], and 32 of 64
    near = choose(source.band(0.49, 0.51), count=count, wins=10 * rate)[0]
    assert set(near) == {0, 1, 2, 3, 4, 5, 32} | ({31} if 31 in near else {33})
    forgotten = choose(source.band(0.9, 1.0), count=np.where(np.arange(N) < P, 0.9, 10.0), wins=np.zeros(N))
    assert set(forgotten[0]) == set(range(P))


def test_few_candidates_are_a_fixed_part_of_the_task_and_only_they_are_drawn():
    piece = source.learnability(candidates=20)
    index = np.asarray(begin(piece, 1000)["candidate"])
    np.testing.assert_array_equal(index, np.sort((np.arange(20) * 29 + 7) % 1000))
    drawn = choose(piece, 20, size=1000)
    assert all(len(set(x)) == P for x in drawn)
    assert set(drawn.reshape(-1)) == set(index)


# --- limits -------------------------------------------------------------------------------------


def test_a_task_that_is_too_large_is_refused_before_anything_runs():
    fields = {"phases": ("main",), "task": "arithmetic(operands=2, digits=4, working=False)"}
    with pytest.raises(
        ValueError, match=r"^source mopps\(.*candidates=0\): the task has 90,000,000 .* 360,000,000 bytes"
    ):
        programs.build(tiny.config(seam__source="mopps()", **fields))
    with pytest.raises(ValueError, match=r"^candidates=5: a step draws 8 different prompts, and there are 5; set"):
        choose(source.band(candidates=5))
    with pytest.raises(ValueError, match=r"low=0.8 is above high=0.2\."):
        source.band(0.8, 0.2)


@pytest.mark.full
def test_the_memory_of_a_pool_is_printed_before_the_run():
    program = tiny.program(seam__source="mopps(candidates=41)", mesh__data=8)
    with contextlib.ExitStack() as stack:
        run = stack.enter_context(session.Session(program, session.claim(stack, program.resolved, None)))
        lines = list(run.greeting())  # 41 candidates of one int32 and two float32, which 8 devices cannot split
    assert lines == ["phase main: mopps(target=0.5, decay=1.0, pool=16, candidates=41) keeps 492 B on each device"]


@pytest.mark.full
def test_a_run_goes_on_from_a_checkpoint_with_the_same_statistics_and_parameters(tmp_path):
    program = tiny.program(seam__source="mopps(candidates=40)")
    step, key = program.steps[-1], program.key
    state, _ = step.fused(step.begin(None, key), key)
    counted = jax.device_get(state.pool["statistics"])
    assert np.sum(counted["wins"] + counted["losses"] - 2) == 8 * 4  # the rows of a step
    with checkpoints.Checkpointer(tmp_path / "run", max_to_keep=1) as saver:
        saver.save(1, state, {})
    restored, _, _ = checkpoints.Checkpointer(tmp_path / "run").restore(step.shape)
    one, two = (jax.device_get(step.fused(x, key)[0]) for x in (state, restored))
    assert jax.tree.structure(one) == jax.tree.structure(two)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
