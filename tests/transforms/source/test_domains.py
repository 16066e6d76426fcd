"""Domains of tasks, numbers of sources that move, and draws by domain."""

import collections
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.transforms import define, schedule, source
from tests.transforms.source.domains_cases import (
    OF,
    SIZES,
    close,
    drawn,
    problems,
    rollout,
    shares,
    started,
    steps_of,
)


def softmax(x, counts=SIZES):
    weight = np.exp(np.asarray(x, float) - np.max(x)) * (np.asarray(counts) > 0)
    return weight / weight.sum()


# --- the draw -------------------------------------------------------------------------


def test_prompts_are_those_of_the_drawn_domains_without_replacement_while_there_are_any():
    piece = source.mixed((1.0, 5.0, 1.0, 2.0))
    pool = started(piece)
    close(shares(piece, pool), np.array([1, 0, 1, 2]) / 4)  # domain 1 has no prompts
    for key in range(5):
        index = drawn(piece, pool, places=30, key=key)
        for d, size in enumerate(SIZES):
            times = np.bincount(index[OF[index] == d], minlength=len(OF))[d == OF]
            assert times.size == size
            assert times.size == 0 or times.max() - times.min() <= 1
    alone = started(source.mixed((0.0, 1.0, 0.0, 0.0)))  # only a domain without prompts has weight
    assert {*OF[drawn(source.mixed((0.0, 1.0, 0.0, 0.0)), alone)]} == {0, 2, 3}


def test_only_candidates_are_drawn():
    piece = source.mixed((1.0, 1.0, 1.0, 1.0), candidates=10)
    kept = {int(i) for i in (np.arange(10) * 7 + 3) % len(OF)}
    assert {*drawn(piece, started(piece)).tolist()} == kept


@pytest.mark.parametrize(
    "piece", [source.sec(), source.dump(), source.shortfall(), source.ordered(0.5), source.mixed((1.0,))]
)
def test_a_task_without_domains_is_refused_by_name(piece):
    with pytest.raises(ValueError, match=rf"{piece.spec.partition('(')[0]}: the task reports no domains"):
        started(piece, np.zeros(4, int), 1)


def test_weights_of_a_mixture_are_checked():
    with pytest.raises(ValueError, match="the sum must be above 0"):
        source.mixed((0.0, 0.0))
    with pytest.raises(ValueError, match="2 weights, but the task has 4 domains"):
        started(source.mixed((0.5, 0.5)))


def test_draws_over_the_order_of_difficulty():
    of, k = np.repeat(np.arange(4), (10, 20, 30, 40)), np.arange(4)
    here = {"of": of, "domains": 4}
    for s in (0.0, 0.3, 1.0):
        piece = source.ordered(s)
        want = (1 - s) * (3 - k) + s * k
        close(shares(piece, started(piece, **here), **here), want / want.sum())
        piece = source.gaussian(s, 0.3)
        want = np.exp(-((k / 3 - s) ** 2) / (2 * 0.3**2))
        close(shares(piece, started(piece, **here), **here), want / want.sum())
    for share, want in ((0.05, [5, 0, 0, 0]), (0.25, [10, 15, 0, 0]), (1.0, [10, 20, 30, 40])):
        piece = source.easiest(share)
        close(shares(piece, started(piece, **here), **here), np.array(want) / sum(want))


# --- bandits --------------------------------------------------------------------------


def advantages(reward):
    """Return |r - mean| / std of groups [P, G], 0 where all are equal."""
    out = np.zeros_like(reward, float)
    for i, r in enumerate(reward):
        if r.max() > r.min():
            out[i] = abs(r - r.mean()) / math.sqrt(np.mean((r - r.mean()) ** 2))
    return out


@pytest.mark.full
def test_sec_is_the_moving_average_of_absolute_advantages():
    piece, q = source.sec(learning_rate=0.3, temperature=0.2), np.zeros(4)
    pool = started(piece)
    for reward, domain in steps_of(1):
        rows, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        assert rows.reward.size == reward.size
        for d in {*domain.tolist()}:
            q[d] = 0.3 * advantages(reward)[domain == d].mean() + 0.7 * q[d]
        np.testing.assert_allclose(pool["domains"], q, rtol=1e-5)
    close(shares(piece, pool), softmax(q / 0.2))
    flat = rollout([[0.0, 1.0, 1.0, 1.0]], [2], on_policy=[1, 1, 1, 0])  # a row by another author does not count
    _, pool = source.sec(1.0).select(flat, pool, 4, jax.random.key(0))
    np.testing.assert_allclose(pool["domains"][2], 2 * math.sqrt(2 / 3 * 1 / 3), rtol=1e-5)


@pytest.mark.full
def test_dump_is_an_upper_confidence_bound_over_a_window():
    piece, windows = source.dump(window=10, temperature=0.5), [collections.deque(maxlen=10) for _ in SIZES]
    pool, seen = started(piece), np.zeros(4)
    for reward, domain in steps_of(2):
        _, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        for a, d in zip(advantages(reward), domain, strict=True):
            windows[d].extend(a)
            seen[d] += len(a)
        mean = np.array([np.mean(w) if w else 0.0 for w in windows])
        np.testing.assert_array_equal(pool["domains"]["seen"], seen)
        counts = np.clip(seen, 1, 10)
        np.testing.assert_allclose(pool["domains"]["advantage"].sum(axis=1) / counts, mean, rtol=1e-4, atol=1e-6)
    assert seen.max() > 10  # more than the window, in one step too
    close(shares(piece, pool), softmax((mean + np.sqrt(2 * np.log(seen.sum() + 1) / (seen + 1))) / 0.5))


@pytest.mark.full
def test_shortfall_is_what_a_domain_lacks_of_the_target():
    piece, mean = source.shortfall(target=1.5, temperature=0.4, learning_rate=0.25), np.zeros(4)
    pool = started(piece)
    for reward, domain in steps_of(3):
        _, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        for d in {*domain.tolist()}:
            mean[d] = 0.25 * reward[domain == d].mean() + 0.75 * mean[d]
    np.testing.assert_allclose(pool["domains"], mean, rtol=1e-5)
    close(shares(piece, pool), softmax(np.maximum(0, 1.5 - mean) / 0.4))


def test_an_adversary_adds_up_what_a_domain_lacks():
    piece, weight = source.adversarial(rate=0.7, uniform=0.2), np.zeros(4)
    pool = started(piece)
    for reward, domain in steps_of(4):
        _, pool = piece.select(rollout(reward, domain), pool, reward.size, jax.random.key(0))
        for d in {*domain.tolist()}:
            weight[d] += 0.7 * (1 - reward[domain == d].mean())
    adversary = np.exp(weight) / np.exp(weight).sum()
    np.testing.assert_allclose(np.exp(pool["domains"]), adversary, rtol=1e-4)
    share = np.where(np.array(SIZES) > 0, 0.2 / 4 + 0.8 * adversary, 0.0)
    close(shares(piece, pool), share / share.sum())


SAMPLES = 8


def simulated(piece, steps, rate=lambda trained: np.array([1.0, 0.5, 0.0]), places=16):
    """Return the pool and the domains drawn in each step, with a learner of these success rates."""
    of, rng = np.repeat(np.arange(3), 50), np.random.default_rng(0)
    here = problems(of, 3)
    pool = piece.init(rollout(np.zeros((2, 2)), [0, 0]), here)
    choose = jax.jit(lambda pool, key: piece.choose(pool, here, jnp.zeros(places, jnp.int32), key).index)
    select = jax.jit(lambda rows, pool: piece.select(rows, pool, places * SAMPLES, jax.random.key(0))[1])
    trained, history = np.zeros(3), []
    for step in range(steps):
        domain = of[np.asarray(choose(pool, jax.random.key(step)))]
        reward = rng.random((places, SAMPLES)) < rate(trained)[domain][:, None]
        pool = select(rollout(reward, domain), pool)
        trained += np.bincount(domain, minlength=3)
        history.append(np.bincount(domain, minlength=3) / places)
    return pool, np.array(history)


def test_sec_finds_what_can_be_learned():
    # exact: E mean|A| over groups of 8 = sum over k of C(8, k) / 2^8 * 2 sqrt(k/8 (1 - k/8))
    expected = sum(math.comb(8, k) / 2**8 * 2 * math.sqrt(k / 8 * (1 - k / 8)) for k in range(9))
    _, history = simulated(source.sec(learning_rate=0.5, temperature=0.3), 120)
    want = softmax(np.array([0.0, expected, 0.0]) / 0.3, (1, 1, 1))
    np.testing.assert_allclose(history[40:].mean(axis=0), want, atol=0.06)


@pytest.mark.parametrize(
    "piece",
    [source.sec(temperature=0.2), source.dump(), pytest.param(source.alp(), marks=pytest.mark.full)],
    ids=["sec", "dump", "alp"],
)
def test_a_bandit_follows_the_learner_to_the_next_domain(piece):
    def rate(trained):  # a domain is learned in 200 prompts, and the next can be learned from then on
        skill = np.minimum(trained / 200, 1.0)
        return np.array([skill[0], skill[1] * (skill[0] >= 1), skill[2] * (skill[1] >= 1)])

    _, history = simulated(piece, 130, rate)
    peaks = [np.argmax(np.convolve(history[:, d], np.ones(15), "valid")) for d in range(3)]
    assert peaks[0] < peaks[1] < peaks[2], peaks
    uniform = simulated(source.mixed((1.0, 1.0, 1.0)), 130, rate)[1]
    assert np.all(abs(uniform.mean(axis=0) - 1 / 3) < 0.05)


def test_shortfall_draws_what_is_not_learned():
    _, history = simulated(source.shortfall(temperature=0.2), 60)
    np.testing.assert_allclose(
        history[20:].mean(axis=0), softmax(np.array([0.0, 0.5, 1.0]) / 0.2, (1, 1, 1)), atol=0.05
    )


# --- numbers that move ----------------------------------------------------------------


METRICS = {"accuracy": jnp.asarray(1.0)}


def test_a_constant_schedule_is_the_number():
    plain, moving = source.sec(0.5, 0.2), source.sec(schedule.linear(0.5, 0.5, 3), schedule.linear(0.2, 0.2, 3))
    pool, numbers = started(plain), started(moving)
    for reward, domain in steps_of(4, count=2):
        rows = rollout(reward, domain)
        pool, numbers = (
            p.select(rows, x, reward.size, jax.random.key(0))[1] for p, x in ((plain, pool), (moving, numbers))
        )
        pool, numbers = plain.observe(pool, METRICS), moving.observe(numbers, METRICS)
    jax.tree.map(np.testing.assert_array_equal, pool, numbers["pool"])
    np.testing.assert_array_equal(drawn(plain, pool), drawn(moving, numbers))
    assert {k: int(v) for k, v in numbers["numbers"].items()} == {"learning_rate": 2, "temperature": 2}


def test_a_draw_moves_with_its_schedule_and_with_a_metric():
    here = {"of": np.repeat(np.arange(4), 25), "domains": 4}
    for centre in (schedule.linear(0.0, 1.0, 3), schedule.adaptive_difficulty(step=1 / 3, slope=100.0)):
        piece = source.gaussian(centre=centre, width=0.05)
        pool = started(piece, **here)
        for step in range(4):
            assert {*here["of"][drawn(piece, pool, **here)]} == {step}
            pool = piece.observe(pool, METRICS)
    piece = source.mixed((1.0, schedule.linear(0.0, 3.0, 1), 0.0, 0.0))
    pool = started(piece, **here)
    close(shares(piece, pool, **here), [1, 0, 0, 0])
    close(shares(piece, piece.observe(pool, METRICS), **here), [0.25, 0.75, 0, 0])
    assert piece.spec == "mixed(weights=(1.0, linear(start=0.0, end=3.0, steps=1), 0.0, 0.0), candidates=0)"


def test_an_oscillating_share_returns_and_an_adaptive_one_is_clamped():
    swing, state, values = schedule.oscillating(0.25, 1.0, 4), None, []
    for _ in range(6):
        state = swing.init() if state is None else swing.update(state, {})
        values.append(float(swing.value(state)))
    np.testing.assert_allclose(values, [0.25, 0.5, 1.0, 0.5, 0.25, 0.5], rtol=1e-6)
    climb = schedule.adaptive_difficulty(initial=0.99, target=0.5, slope=2.0, step=0.02)
    below = climb.update(climb.init(), {"accuracy": jnp.asarray(0.2)})
    np.testing.assert_allclose(below, 0.99 + 0.02 * math.tanh(2 * -0.3), rtol=1e-6)
    assert climb.update(climb.init(), METRICS) == 1.0


@define.source
def passed(share: types.Fraction = 0.5, scale: types.Number = 1.0, longer: types.Number = 1.0):
    """Pass rows again; only ``scale`` of the edit can move."""

    def edit(pool, problems, rollout, solutions, count, key):
        return types.Edit(row=rollout.group, used=rollout.group > 0, token=rollout.group, mask=rollout.reward * scale)

    again = types.Again(
        edit=edit, merge=lambda first, second, e: first.replace(reward=longer * first.reward), share=share
    )
    return types.Source(again=again)


@define.source
def branching(bound: types.Number = 1.0):
    """Decide by a number in Python."""
    return types.Source(oversample=2 if bound > 1 else 1)


MOVING = schedule.linear(1.0, 3.0, 2)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: source.dynamic(oversample=MOVING), "oversample must be a whole number"),
        (lambda: source.dump(window=MOVING), "dump: window cannot be a schedule; window must be a whole number"),
        (lambda: passed(share=MOVING), r"passed: share cannot be a schedule; it decides Again\.share"),
        (lambda: branching(bound=MOVING), "branching: bound cannot be a schedule; it decides what is compiled"),
    ],
)
def test_numbers_that_fix_shapes_cannot_move(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_the_edit_of_a_second_pass_reads_a_number_that_moves_and_its_merge_cannot():
    piece, rows = passed(scale=MOVING), rollout([[1.0, 2.0]], [0])
    pool = piece.init(rows, problems())
    for want in (1.0, 2.0, 3.0):
        edit = piece.again.edit(pool, problems(), rows, None, 1, None)
        np.testing.assert_allclose(edit.mask, [want, 2 * want])
        pool = piece.observe(pool, METRICS)
    np.testing.assert_array_equal(piece.again.merge(rows, rows, None).reward, rows.reward)
    piece = passed(longer=MOVING)
    with pytest.raises(ValueError, match=r"longer cannot be a schedule; Again\.merge reads it"):
        piece.again.merge(rows, rows, None)
