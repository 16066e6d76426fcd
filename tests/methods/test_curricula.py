"""Curricula: learning progress, prioritized replay, orders of difficulty, weights and scales of domains."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.transforms import reward, schedule, source, weight
from tests.support import tiny
from tests.transforms.source import domains_cases as by_domain
from tests.transforms.source import test_draws as by_prompt

KEY = jax.random.key(0)


def selecting(piece):
    """Return the compiled function from rows and a pool to the next pool."""
    return jax.jit(lambda rows, pool: piece.select(rows, pool, rows.reward.size, KEY)[1])


def choosing(piece, here, offered):
    """Return the compiled function from a pool to the prompts of a step."""
    return jax.jit(lambda pool, key=KEY: piece.choose(pool, here, jnp.asarray(offered), key).index)


def exactly(rate, samples=4):
    """Return rewards [P, samples] of which exactly these shares are 1."""
    return (np.arange(samples)[None, :] < np.round(samples * np.asarray(rate))[:, None]).astype(np.float32)


# --- learning progress --------------------------------------------------------------------------


@pytest.mark.full
def test_alp_is_the_change_of_a_domains_mean_reward_up_or_down():
    piece, last, progress = source.alp(learning_rate=0.3, random=0.25), {}, np.zeros(4)
    pool, select = by_domain.started(piece), selecting(piece)
    by_domain.close(by_domain.shares(piece, pool), np.array([1, 0, 1, 1]) / 3)  # nothing is known
    for rewards, domain in by_domain.steps_of(5):
        pool = select(by_domain.rollout(rewards, domain), pool)
        for d in {*domain.tolist()}:
            now = rewards[domain == d].mean()
            progress[d] = 0.3 * abs(now - last[d]) + 0.7 * progress[d] if d in last else 0.0
            last[d] = now
    np.testing.assert_allclose(pool["domains"]["progress"], progress, rtol=1e-5)
    want = 0.25 * np.array([1, 0, 1, 1]) / 3 + 0.75 * progress / progress.sum()
    by_domain.close(by_domain.shares(piece, pool), want)


@pytest.mark.full
def test_alp_draws_what_is_learned_or_forgotten_where_sec_draws_what_has_spread():
    of, rates = np.repeat(np.arange(3), 50), np.array([[0.5, 0.0, 1.0], [0.5, 0.25, 0.75], [0.5, 0.5, 0.5]])
    share = {}
    for piece in (source.alp(), source.sec(temperature=0.1)):
        pool, select = by_domain.started(piece, of, 3), selecting(piece)
        for rate in rates:
            pool = select(by_domain.rollout(exactly(rate), np.arange(3)), pool)
        share[piece.spec[:3]] = by_domain.shares(piece, pool, of=of, domains=3)
    by_domain.close(share["alp"], [0.2 / 3, 0.2 / 3 + 0.4, 0.2 / 3 + 0.4])  # a third of the random share, and half
    assert share["sec"][0] > 0.35  # p = 1/2 in every step has the largest mean |A|, and nothing is learned


# --- prompts ------------------------------------------------------------------------------------


@pytest.mark.parametrize("score", ["advantage", pytest.param("regret", marks=pytest.mark.full)])
def test_prioritized_replay_follows_rank_and_age(score):
    piece, size, keys = source.prioritized(score, temperature=0.5, staleness=0.3), 6, 4000
    pool, select, seen = by_prompt.begin(piece, size), selecting(piece), {}
    rng = np.random.default_rng(0)
    steps = [([0, 1, 2], 0), ([3, 4, 5], 1), ([1, 4, 0], 2)]  # the prompts and the number of each step
    for index, now in steps:
        rewards = rng.uniform(size=(3, 5))
        pool = select(by_prompt.rows(np.asarray(index), rewards), pool)
        for i, r in zip(index, rewards, strict=True):
            value = np.mean(abs(r - r.mean())) if score == "advantage" else r.max() - r.mean()
            seen[i] = (value, now)
    value, age = np.array([seen[i][0] for i in range(size)]), np.array([2 - seen[i][1] for i in range(size)])
    np.testing.assert_allclose(pool["statistics"]["score"], value, rtol=1e-5)
    np.testing.assert_array_equal(pool["statistics"]["age"], age)
    by_rank = (1.0 + np.argsort(np.argsort(-value))) ** (-1 / 0.5)
    r, a = by_rank / by_rank.sum(), age / age.sum()
    drawn = np.sort(by_prompt.choose(piece, keys, size, range(2), **pool["statistics"]), axis=1)
    for pair in itertools.combinations(range(size), 2):  # two places, each by rank or by age, without replacement
        q = sum(
            0.49 * r[i] * r[j] / (1 - r[i]) + 0.42 * r[i] * (a[j] / (1 - a[i])) + 0.09 * a[i] * a[j] / (1 - a[i])
            for i, j in (pair, pair[::-1])
        )
        assert abs(np.mean((drawn == pair).all(axis=1)) - q) < 5 * np.sqrt(q / keys) + 1e-3
    one = by_prompt.choose(piece, keys, size, range(1), **pool["statistics"])[:, 0]
    np.testing.assert_allclose(np.bincount(one, minlength=size) / keys, 0.7 * r + 0.3 * a, atol=2.5 / keys**0.5)


@pytest.mark.full
def test_prioritized_replay_meets_new_prompts_in_proportion_to_their_number():
    known = np.arange(8) < 6
    drawn = by_prompt.choose(source.prioritized(), 1000, 8, range(4), known=known, score=np.arange(8), age=np.ones(8))
    new = np.sum(drawn >= 6, axis=1)  # of 4 places, each with probability 1/4, and there are 2 of them
    assert abs(new.mean() - (4 * 0.25 * 0.75**3 + 2 * (1 - 0.75**4 - 4 * 0.25 * 0.75**3))) < 5 * np.sqrt(0.5 / 1000)
    assert np.mean(np.any(drawn == 5, axis=1)) > 0.9  # a small temperature takes the largest score
    assert all(len({*step}) == 4 for step in drawn.tolist())


@pytest.mark.full
def test_a_band_that_falls_keeps_the_hardest_prompts():
    piece = source.band(low=0.0, high=schedule.piecewise(((0, 1.0), (2, 0.25))))
    pool, of = by_prompt.begin(piece), by_prompt.problems()
    pool["pool"]["statistics"] = {"count": jnp.full(64, 100.0), "wins": jnp.arange(64.0)}
    drawn, choose = [], choosing(piece, of, range(56, 64))
    for _ in range(3):
        drawn.append(np.asarray(choose(pool)))
        pool = piece.observe(pool, {})
    assert {*drawn[0]} == {*drawn[1]} == set(range(56, 64))  # the shuffle, as all are within
    assert np.all(drawn[2] <= 25)


@pytest.mark.full
def test_a_rate_that_has_settled_is_that_of_the_first_rows():
    piece = source.band(low=0.1, high=0.6, forget=1.0, settle=8)
    rate = np.array([0.0, 0.25, 0.5, 1.0] * 2)  # no spread, within, within, too easy
    pool, select = by_prompt.begin(piece, 8), selecting(piece)
    for _ in range(2):
        pool = select(by_prompt.rows(np.arange(8), exactly(rate)), pool)
    pool = select(by_prompt.rows(np.arange(8), exactly(1 - rate)), pool)  # what the policy learns later
    np.testing.assert_array_equal(pool["statistics"]["count"], 8)
    np.testing.assert_allclose(pool["statistics"]["wins"], 8 * rate)
    drawn = choosing(piece, by_prompt.problems(8), range(4))(pool)
    assert {*np.asarray(drawn).tolist()} == {1, 2, 5, 6}


def test_weak_prompts_are_those_below_the_bound_that_fall():
    curve = np.zeros((64, 3))
    curve[:4] = [[0.4, 0.3, 0.1], [0.0, 0.45, 0.0], [0.4, 0.1, 0.3], [0.4, 0.4, 0.39]]
    curve[4:] = np.random.default_rng(0).permuted(np.tile([0.6, 0.3, 0.0], (60, 1)), axis=1)  # above the bound
    curve[10:20] = [[0.1, 0.2, 0.3]]  # rises
    weak = (curve.max(axis=1) < 0.5) & (np.polyfit(np.arange(3), curve.T, 1)[0] < -1e-9)
    assert {*np.flatnonzero(weak)} == {0, 2, 3}
    piece = source.weak(visits=3)
    drawn = by_prompt.choose(piece, 1, offered=range(56, 64), curve=curve, visits=np.full(64, 3.0))[0]
    assert {0, 2, 3} <= {*drawn} and {*drawn} - {0, 2, 3} <= set(range(56, 64))
    early = by_prompt.choose(piece, 1, curve=curve, visits=np.where(np.arange(64) < 56, 3.0, 2.0))[0]
    assert {*early} == set(range(56, 64))  # every prompt is seen three times first
    with pytest.raises(ValueError, match="visits=1: must be at least 2"):
        source.weak(visits=1)


# --- orders -------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_gaussian_over_ranks_draws_prompts_and_moves_with_the_accuracy():
    of, keys = np.array([1, 0, 1, 0, 2, 0]), 4000
    order, place = [1, 3, 5, 0, 2, 4], np.linspace(0, 1, 6)  # by domain, then by place in the task
    here = by_domain.problems(of, 3)
    piece = source.ranked(0.3, 0.4)
    pool = piece.init(by_domain.rollout(np.zeros((1, 1)), [0]), here)
    np.testing.assert_array_equal(pool["order"], order)
    p = np.exp(-((place - 0.3) ** 2) / (2 * 0.4**2))
    p /= p.sum()
    drawn = np.asarray(jax.vmap(choosing(piece, here, [0, 0]), (None, 0))(pool, jax.random.split(KEY, keys)))
    for (i, a), (j, b) in itertools.permutations(enumerate(order), 2):
        q = p[i] * p[j] / (1 - p[i])
        assert abs(np.mean((drawn == (a, b)).all(axis=1)) - q) < 5 * np.sqrt(q / keys) + 1e-3
    piece = source.ranked(schedule.adaptive_difficulty(step=0.5, slope=100.0), width=0.02)
    pool = piece.init(by_domain.rollout(np.zeros((1, 1)), [0]), here)
    choose = choosing(piece, here, [0])
    for first in ({1}, {5, 0}, {4}):  # ranks 0, 2 or 3, 5
        assert {*np.asarray(choose(pool)).tolist()} <= first
        pool = piece.observe(pool, {"accuracy": jnp.asarray(1.0)})


@pytest.mark.default_tier(1)
def test_the_next_block_is_sorted_by_what_the_policy_can_do_now():
    piece, size, places, blocks = source.adcl(blocks=3), 22, 3, 3
    rng, here = np.random.default_rng(0), by_prompt.problems(22)
    pool, order = piece.init(by_prompt.rows([0], np.zeros((1, 1))), here), np.arange(21).reshape(3, 7)
    choose = choosing(piece, here, [0] * 2 * places)
    step = jax.jit(lambda rows, pool: piece.select(rows, pool, places * 4, KEY))
    rate, block_order = np.zeros(size), [*range(7)]
    for block in range(5):  # more than an epoch
        rate = np.where(np.isin(np.arange(size), order[(block + 1) % blocks]), rng.integers(0, 5, size) / 4, rate)
        for first in (0, 3, 4):  # of 7 prompts, 3 a step
            index = np.asarray(choose(pool))
            np.testing.assert_array_equal(index[:places], block_order[first : first + places])
            np.testing.assert_array_equal(index[places:], order[(block + 1) % blocks][first : first + places])
            rewards = exactly(np.where(np.arange(6) < places, rng.random(6), rate[index]))  # of what is trained: any
            rows, pool = step(by_prompt.rows(index, rewards), pool)
            np.testing.assert_array_equal(rows.index, np.repeat(index[:places], 4))  # those scored are not trained on
            np.testing.assert_array_equal(rows.reward, rewards[:places].reshape(-1))
        following = order[(block + 1) % blocks]
        block_order = following[np.argsort(-rate[following], kind="stable")].tolist()
    with pytest.raises(ValueError, match="blocks=1: must be at least 2"):
        source.adcl(blocks=1)
    with pytest.raises(ValueError, match="blocks=3: a block has 7 prompts, and a step 8; give fewer blocks"):
        piece.choose(pool, here, jnp.zeros(16, jnp.int32), KEY)


def test_an_easier_variant_follows_a_failure_at_once_and_a_harder_one_a_success():
    piece, rungs, problems, places = source.ladder(rungs=3, passed=0.5), 3, 12, 4
    here = by_prompt.problems(rungs * problems + 1)
    pool = piece.init(by_prompt.rows([0], np.zeros((1, 1))), here)
    choose = choosing(piece, here, [0] * places)
    select = selecting(piece)
    rung, down, rng = np.zeros(problems, int), set(), np.random.default_rng(0)
    for number in range(40):
        index = np.asarray(choose(pool, jax.random.key(number)))
        problem = index // rungs
        assert len({*problem.tolist()}) == places
        np.testing.assert_array_equal(index % rungs, rung[problem])
        assert down <= {*problem.tolist()} if len(down) <= places else {*problem.tolist()} <= down
        rate = rng.choice([0.0, 0.25, 0.5, 1.0], places)
        pool = select(by_prompt.rows(index, exactly(rate)), pool)
        for i, r in zip(problem, rate, strict=True):
            down.discard(int(i))
            if r < 0.5 and rung[i] > 0:
                down.add(int(i))
            rung[i] = np.clip(rung[i] + (1 if r >= 0.5 else -1), 0, rungs - 1)
    np.testing.assert_array_equal(pool["rung"], rung)
    assert {*rung.tolist()} == {0, 1, 2}
    with pytest.raises(ValueError, match="rungs=3: a step draws 13 problems, and the task has 12"):
        piece.choose(pool, here, jnp.zeros(13, jnp.int32), KEY)
    with pytest.raises(ValueError, match=r"rungs=3: the task has 100,000 problems .* use a task with fewer prompts"):
        piece.init(None, by_prompt.problems(300_000))


# --- weights and scales of domains --------------------------------------------------------------


def test_a_domain_has_a_weight_in_the_policy_term_and_a_scale_of_its_reward():
    rows = by_domain.rollout([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], [1, 0, 1])
    before = types.Loss(terms={"policy": jnp.full((6, 1), 2.0)})
    piece = weight.by_domain((0.25, 3.0))
    out = piece.apply(before, rows, types.Scores(), (), KEY)
    np.testing.assert_allclose(out.terms["policy"][:, 0], 2.0 * np.array([3, 3, 0.25, 0.25, 3, 3]))
    paid, _ = reward.by_domain((10.0, -1.0)).apply(rows, (), KEY)
    np.testing.assert_allclose(paid.reward, [-1, -2, 30, 40, -5, -6])
    moving = reward.by_domain((1.0, schedule.linear(0.0, 1.0, 2)))
    np.testing.assert_allclose(moving.apply(rows, moving.init(), KEY)[0].reward, [0, 0, 3, 4, 0, 0])
    lacking, _ = reward.by_domain((10.0,)).apply(rows, (), KEY)  # refused by the check of finite losses
    np.testing.assert_array_equal(np.isnan(lacking.reward), [True, True, False, False, True, True])


@pytest.mark.full
def test_a_step_scores_the_next_block_and_trains_on_this_one_by_the_weight_of_its_domain():
    program = tiny.program(
        "reinforce()",
        task="arithmetic(digits=(1, 2), working=False)",
        seam__source="adcl(candidates=64)",
        seam__reward="affine(bias=1.0) | by_domain((2.0, 1.0))",
        seam__weight="by_domain((linear(0.0, 1.0, 1), 5.0))",
        log__rollout_rows=32,
    )
    step, key = program.steps[-1], program.key
    state = step.begin(None, key)
    order = np.asarray(state.pool["order"])
    for number in range(2):  # 8 of the 16 prompts of the first block, which have one digit
        state, metrics = step.fused(state, key)
        np.testing.assert_array_equal(metrics["rows"].index, np.repeat(order[0, number * 8 :][:8], 4))
        assert not np.any(metrics["rows"].domain) and metrics["valid_rows"] == 32
        assert (float(metrics["gradient_norm"]) > 0) == (number == 1)  # the weight of the domain was 0, then 1
        assert int(state.pool["step"]) == number + 1
