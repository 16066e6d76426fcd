"""Budgets: the samples of each prompt against an exhaustive division, and unequal groups in a step."""

import dataclasses
import itertools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.config import compatible, resolve
from rljax.methods.source import budgets
from rljax.training import checks, steps
from rljax.transforms import source
from rljax.transforms.source import chain
from tests.support import tiny
from tests.transforms.source.test_filters import EASY, HALF, HARD, KEY, batch, problems, select

OFFERED = jnp.arange(4, dtype=jnp.int32)


def worth(n, p):
    """Return the value of n samples of a prompt with success rate p."""
    return (1 - p**n - (1 - p) ** n) * p * (1 - p) ** 2


def started(piece, rows):
    return jax.jit(lambda r: piece.init(r, problems()))(rows)


def samples_of(piece, pool, offered=OFFERED):
    choice = jax.jit(lambda pool, offered: piece.choose(pool, problems(), offered, KEY))(pool, offered)
    np.testing.assert_array_equal(choice.index, offered)
    return np.asarray(choice.samples)


def test_knapsack_is_the_best_division_of_all():
    piece = source.knapsack(least=2, most=16)
    pool = started(piece, batch([HALF] * 4))
    for p in ((0.1, 0.3, 0.5, 0.9), (0.02, 0.5, 0.6, 0.97), (0.5, 0.5, 0.5, 0.5)):
        samples = samples_of(piece, {**pool, "rate": pool["rate"].at[:4].set(jnp.array(p))})
        assert samples.sum() == 16 and samples.min() >= 2
        every = (n for n in itertools.product(range(2, 11), repeat=4) if sum(n) == 16)
        best = max(sum(worth(n, q) for n, q in zip(ns, p, strict=True)) for ns in every)
        np.testing.assert_allclose(sum(worth(n, q) for n, q in zip(samples, p, strict=True)), best, rtol=1e-6)


def test_knapsack_gives_solved_prompts_the_least_and_what_is_left_to_those_never_solved():
    piece = source.knapsack(least=2, most=10)
    pool = started(piece, batch([HALF] * 4))
    _, pool = select(piece, batch([EASY, HARD, HALF, HARD]), pool, 16)
    np.testing.assert_allclose(pool["rate"][:5], [1, 0, 0.5, 0, 0.5])  # the last has not been visited
    np.testing.assert_array_equal(samples_of(piece, pool), [2, 2, 10, 2])
    few = {**pool, "rate": pool["rate"].at[:4].set(jnp.array([1.0, 0.0, 1.0, 0.0]))}
    np.testing.assert_array_equal(samples_of(piece, few), [2, 6, 2, 6])
    with pytest.raises(ValueError, match=r"config\.batch\.samples: 16 rows for 4 prompts: .*from least = 5"):
        source.knapsack(least=5).choose(pool, problems(), OFFERED, KEY)
    with pytest.raises(ValueError, match="to most = 3"):
        source.knapsack(most=3).choose(pool, problems(), OFFERED, KEY)
    half = {**pool, "rate": pool["rate"].at[:2].set(jnp.array([0.5, 0.0])), "rows": jnp.zeros(128, bool)}
    gains = samples_of(source.knapsack(least=2, most=128), half, OFFERED[:2])
    np.testing.assert_array_equal(gains, [126, 2])  # any gain is more than none
    for piece in (source.knapsack, source.inverse_success):
        with pytest.raises(ValueError, match="most=2: must be above least=2"):
            piece(least=2, most=2)


def test_the_budget_by_1_over_p_is_that_of_sainte_lague():
    piece = source.inverse_success(least=2, most=32)
    pool = started(piece, batch([[0] * 16] * 4))
    np.testing.assert_array_equal(samples_of(piece, pool), 16)
    wins = [16, 0, 4, 8]
    _, pool = select(piece, batch([[1] * w + [0] * (16 - w) for w in wins]), pool, 64)
    np.testing.assert_allclose(pool["wins"][:4], wins)
    p, want = (1 + np.array(wins)) / (17 + 16), np.full(4, 2)
    while want.sum() < 64:  # one sample at a time, to the largest quotient below the most
        want[np.argmax(np.where(want < 32, 1 / p / (want + 0.5), 0))] += 1
    np.testing.assert_array_equal(samples_of(piece, pool), want)
    assert want[1] == max(want) and want[0] == min(want)
    _, pool = select(piece, batch([[1] * 16]), pool, 16)  # one prompt is visited again; the other counts stay
    np.testing.assert_allclose(pool["wins"][:4], [0.9 * 16 + 16, 0, 4, 8])
    np.testing.assert_allclose(pool["count"][:4], [0.9 * 16 + 16, 16, 16, 16], rtol=1e-6)


def test_prompts_beyond_the_candidates_stand_for_candidates():
    piece = source.knapsack(candidates=8)
    pool = started(piece, batch([HALF] * 4))
    choice = piece.choose(pool, problems(), OFFERED + 9, KEY)
    assert {*np.asarray(choice.index)} <= {*np.asarray(pool["candidates"])} and pool["rate"].size == 8
    apart = piece.choose(pool, problems(), jnp.array([1, 9, 17, 25]), KEY)  # 1 modulo 8
    assert len({*np.asarray(apart.index)}) == 4  # no prompt twice in a step


def test_adaptive_draws_as_many_prompts_as_the_share_that_survives_asks_for():
    piece = source.adaptive(oversample=4, decay=0.5)
    rows = batch([HALF] * 8)
    pool, offered = started(piece, rows), jnp.arange(8, dtype=jnp.int32)
    np.testing.assert_array_equal(samples_of(piece, pool, offered), [4, 4] + [0] * 6)  # a batch has two prompts
    seen = batch([HALF, EASY] + [HARD] * 6)
    seen = seen.replace(valid=(seen.group < 2) * 1.0)  # the other places were not sampled
    kept, pool = select(piece, seen, pool, 8)
    np.testing.assert_array_equal(kept.valid, np.repeat([1, 0], 4))
    assert pool["share"] == 0.75  # of 1 and 1/2
    np.testing.assert_array_equal(samples_of(piece, pool, offered), [4] * 3 + [0] * 5)
    _, crashed = select(piece, seen.replace(valid=0 * seen.valid), pool, 8)
    assert crashed["share"] == 0.75  # nothing was seen
    for _ in range(6):
        _, pool = select(piece, seen.replace(reward=seen.reward * 0), pool, 8)
    np.testing.assert_array_equal(samples_of(piece, pool, offered), 4)  # no more than the places there are


def test_samples_are_allotted_to_the_largest_values_and_their_sum_is_exact():
    value = -np.sort(-np.random.default_rng(0).uniform(size=(5, 7)), axis=1).astype(np.float32)
    for total in (10, 11, 29, 45):
        samples = np.asarray(budgets.allot(jnp.asarray(value), 2, total))
        assert samples.sum() == total and samples.min() >= 2
        taken = np.concatenate([v[: n - 2] for v, n in zip(value, samples, strict=True)])
        np.testing.assert_allclose(np.sort(taken), np.sort(value.reshape(-1))[::-1][: total - 10][::-1])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "guess()"}, r"unequal samples, and task 'guess' is a world"),
        ({"seam__source": "knapsack() | partial(4, 1)"}, r"rows in flight are of equal groups"),
        ({"seam__source": "knapsack() | guided(1)"}, r"demonstrations take the last samples of equal groups"),
        ({"algorithm": "dpo()", "learner__microbatches": 2}, r"must be 1, as dpo.* reads whole groups"),
        ({"learner__lanes": 2}, r"config\.learner\.lanes=2 .*: must be 0"),
    ],
)
def test_what_reads_equal_groups_refuses_unequal_samples(fields, message):
    with pytest.raises(ValueError, match=message):
        resolve.phases(tiny.config(**{"seam__source": "knapsack()", **fields}))


@pytest.mark.parametrize(
    ("reward", "chunks", "message"),
    [
        (lambda completion, target: 1.0, 2, r"config\.verifier\.chunks=2 \(phase 'main'\): must be 1"),
        (lambda completions, target: 1.0, 1, r"reward function of task 'judged' judges batch\.samples rows together"),
    ],
)
def test_a_host_task_is_judged_in_one_chunk_and_row_by_row(reward, chunks, message):
    phase = resolve.phases(tiny.config(seam__source="knapsack()", verifier__chunks=chunks))[-1]
    task = types.SimpleNamespace(host=True, name="judged", parts=(), reward=reward)
    with pytest.raises(ValueError, match=message):
        compatible._source(dataclasses.replace(phase, task=task))


def test_a_world_refuses_places_without_samples():
    setup = tiny.program("grpo(kl=0.0)", task="guess()").steps[-1].setup
    algorithm = dataclasses.replace(setup.algorithm, source=source.adaptive(2))
    with pytest.raises(Exception, match="world, which plays equal numbers"):
        checks.check(tiny.changed(setup, algorithm=algorithm))


def step_of(*pieces):
    program = tiny.program("grpo(kl=0.0)")
    setup = program.steps[-1].setup
    algorithm = dataclasses.replace(setup.algorithm, source=chain.chain(pieces))
    step = steps.make_step(tiny.changed(setup, algorithm=algorithm))
    return step, step.begin(None, program.key), program.key


@pytest.mark.full
def test_a_step_samples_the_budget_and_observes_the_rates():
    step, state, key = step_of(source.knapsack())
    rates = np.asarray(state.pool["rate"])
    for _ in range(2):
        wanted = np.asarray(step.next_prompts(state, key).samples)
        rows = step.rollout(state, key)
        np.testing.assert_array_equal(np.unique(rows.group, return_counts=True)[1], wanted)
        state, metrics = step.fused(state, key)
        assert np.isfinite(metrics["loss"]) and metrics["valid_rows"] == 32
    assert np.any(np.asarray(state.pool["rate"]) != rates)


@pytest.mark.full
def test_places_without_samples_are_not_decoded_and_change_nothing_in_the_others():
    adaptive, state, key = step_of(source.adaptive(2))
    rows = jax.device_get(adaptive.rollout(state, key))
    plain, _, _ = step_of(source.task())
    want = jax.device_get(plain.rollout(state.replace(pool=()), key))
    np.testing.assert_array_equal(rows.valid, np.repeat([1, 0], 32))
    np.testing.assert_array_equal(rows.action.token[:32], want.action.token)
    np.testing.assert_array_equal(rows.reward[:32], want.reward)
    assert not np.any(rows.mask[32:])
