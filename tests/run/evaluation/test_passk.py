"""pass@k and its intervals against enumeration, values derived by hand, and measured coverage."""

import itertools

import numpy as np
import pytest

from rljax.run.evaluation import passk


def by_enumeration(correct, samples, k, quantifier):
    """Return the fraction of k-subsets of n outcomes, c of them correct, in which any or all are correct."""
    outcomes = [True] * correct + [False] * (samples - correct)
    return np.mean([quantifier(subset) for subset in itertools.combinations(outcomes, k)])


@pytest.mark.parametrize(("estimator", "quantifier"), [(passk.pass_at_k, any), (passk.pass_hat_k, all)])
def test_equals_enumeration_of_all_subsets(estimator, quantifier):
    for samples in range(1, 8):
        counts, tries = range(samples + 1), range(1, samples + 1)
        expected = [[by_enumeration(c, samples, k, quantifier) for k in tries] for c in counts]
        np.testing.assert_allclose(estimator(list(counts), samples, list(tries)), expected, rtol=1e-14, atol=1e-15)


def test_the_best_of_k_equals_enumeration_of_all_subsets():
    rng = np.random.default_rng(1)
    score, right = rng.integers(0, 3, (5, 7)), rng.random((5, 7)) < 0.4  # with equal scores
    want = np.zeros((5, 7))
    for p, k in itertools.product(range(5), range(1, 8)):
        won = []
        for drawn in itertools.combinations(range(7), k):
            most = max(score[p, i] for i in drawn)
            won.append(np.mean([right[p, i] for i in drawn if score[p, i] == most]))
        want[p, k - 1] = np.mean(won)
    np.testing.assert_allclose(passk.best_of_k(score, right, range(1, 8)), want, atol=1e-12)
    by_right = passk.best_of_k(right, right, [1, 4])  # a model that knows: pass@k
    np.testing.assert_allclose(by_right, passk.pass_at_k(right.sum(axis=1), 7, [1, 4]), atol=1e-12)
    for values, k in (([1.0], [1]), (np.zeros((1, 2)), [3])):
        with pytest.raises(ValueError):
            passk.best_of_k(values, np.zeros((1, 2)), k)


def test_the_majority_equals_enumeration_of_all_subsets():
    answer, right = np.array([[3, 3, 5, 5, 8, -1, 3], [4, 4, 4, -1, -1, 9, 9]]), np.zeros((2, 7), bool)
    right[0, [2, 3]], right[1, [0, 1]] = True, True  # 5 is right; 4 is right in two of three samples

    def wins(p, subset):
        votes = [answer[p, i] for i in subset if answer[p, i] >= 0]
        best = {a for a in votes if votes.count(a) == max(map(votes.count, votes))}
        return np.mean([right[p, answer[p] == a].mean() for a in best]) if best else 0.0

    want = [[np.mean([wins(p, s) for s in itertools.combinations(range(7), k)]) for k in range(1, 8)] for p in (0, 1)]
    got = passk.majority_at_k(answer, right, range(1, 8), draws=14_000)
    np.testing.assert_allclose(got, want, atol=0.02)
    once = passk.majority_at_k(answer, right, [1, 7], draws=1)
    np.testing.assert_allclose(once, np.array(want)[:, [0, 6]], rtol=1e-12)
    np.testing.assert_allclose(once[:, 0], right.mean(axis=1), rtol=1e-12)
    np.testing.assert_array_equal(passk.majority_at_k([[-1, -1]], [[False, False]], [1, 2]), [[0, 0]])
    for values, k in (([[1, 2]], [3]), ([1, 2], [1])):
        with pytest.raises(ValueError, match=r"shapes|must be in"):
            passk.majority_at_k(values, np.zeros((1, 2)), k)


def test_one_sample_gives_the_fraction_correct_and_more_samples_than_failures_give_one():
    np.testing.assert_allclose(passk.pass_at_k([0, 3, 10], 10, [1])[:, 0], [0.0, 0.3, 1.0], rtol=1e-15)
    # n - c = 2 failures: any 3 samples include a success; 2 samples miss with probability 1 / C(5, 2).
    np.testing.assert_array_equal(passk.pass_at_k([3], 5, [3, 4, 5]), [[1.0, 1.0, 1.0]])
    np.testing.assert_allclose(passk.pass_at_k([3], 5, [2]), [[0.9]], rtol=1e-15)


def test_large_counts_do_not_overflow():
    # c = 1: the probability that the one success is among k of n is k / n.
    k = [2**i for i in range(17)]
    np.testing.assert_allclose(passk.pass_at_k([1], 100_000, k)[0], np.array(k) / 100_000, rtol=1e-9)


def test_samples_may_differ_by_prompt_and_k_may_come_in_any_order():
    estimate = passk.pass_at_k(np.array([1, 2]), np.array([2, 4]), [2, 1])
    # 1 of 2: both samples, 1; 2 of 4: 1 - C(2,2)/C(4,2) = 5/6.
    np.testing.assert_allclose(estimate, [[1.0, 0.5], [5 / 6, 0.5]], rtol=1e-15)


def test_unbiased_over_repeated_sampling():
    """Monte Carlo: the mean estimate from n = 6 at p = 0.2 is 1 - 0.8^k, which the plug-in estimate is not."""
    correct = np.random.default_rng(0).binomial(6, 0.2, size=200_000)
    truth = 1 - 0.8 ** np.array([1, 2, 4])
    np.testing.assert_allclose(passk.pass_at_k(correct, 6, [1, 2, 4]).mean(0), truth, atol=0.004)
    assert abs((1 - (1 - correct / 6) ** 4).mean() - truth[2]) > 0.03


def test_wilson_by_hand():
    # z^2 = 3.841459. 0 of 10: high = z^2 / (n + z^2) = 3.841459 / 13.841459; n of n is its mirror.
    assert passk.wilson(0, 10) == pytest.approx((0.0, 3.841459 / 13.841459), abs=1e-7)
    assert passk.wilson(10, 10) == pytest.approx((10 / 13.841459, 1.0), abs=1e-7)
    assert passk.wilson(0, 10)[0] == 0.0 and passk.wilson(10, 10)[1] == 1.0
    # 5 of 10: center 1/2 and half width z sqrt(1/40 + z^2/400) / (1 + z^2/10) = z / (2 sqrt(n + z^2)).
    half = 1.959964 / (2 * 13.841459**0.5)
    assert passk.wilson(5, 10) == pytest.approx((0.5 - half, 0.5 + half), abs=1e-6)
    # The ends solve |p - x| = z sqrt(x (1 - x) / n), z = 1.644854 at 90 %.
    for end in passk.wilson(3, 17, level=0.9):
        assert abs(3 / 17 - end) == pytest.approx(1.644854 * (end * (1 - end) / 17) ** 0.5, abs=1e-6)


def test_bootstrap_is_seeded_and_ordered():
    values = np.random.default_rng(1).random((40, 3))
    low, high = passk.bootstrap(values, seed=5)
    assert low.shape == high.shape == (3,)
    assert (low < values.mean(0)).all() and (values.mean(0) < high).all()
    np.testing.assert_array_equal(passk.bootstrap(values, seed=5), (low, high))
    assert not np.array_equal(passk.bootstrap(values, seed=6)[0], low)
    narrow, _ = passk.bootstrap(values, seed=5, level=0.5)
    assert (narrow > low).all()
    # Equal values in all prompts have an interval of width 0; [P] is one column.
    np.testing.assert_allclose(passk.bootstrap(np.full(9, 0.25)), [[0.25], [0.25]], rtol=1e-12)


def test_bootstrap_has_a_positive_width_where_all_prompts_fail_or_succeed():
    low, high = passk.bootstrap(np.array([[0.0, 1.0, 0.0]] * 15 + [[0.0, 1.0, 1.0]]))
    # Wilson at 0 of n: high = z^2 / (n + z^2) = 3.8415 / 19.8415; at n of n the mirror image
    np.testing.assert_allclose((low[0], high[0]), (0.0, 0.19361), atol=1e-5)
    np.testing.assert_allclose((low[1], high[1]), (1 - 0.19361, 1.0), atol=1e-5)
    assert 0 <= low[2] < 1 / 16 < high[2] < 0.25


def test_bootstrap_of_many_prompts_in_batches():
    # Width of the mean of P uniform values is close to 2 * 1.96 / sqrt(12 P).
    low, high = passk.bootstrap(np.random.default_rng(2).random(20_000), resamples=400)
    assert (high - low)[0] == pytest.approx(2 * 1.96 / (12 * 20_000) ** 0.5, rel=0.2)


def test_bootstrap_intervals_have_about_the_stated_coverage():
    """200 benchmarks of 60 prompts: 95 % intervals contain the true pass@2 within 5 standard errors of 95 %."""
    rng = np.random.default_rng(3)
    truth = 1 - 3 / 5  # p ~ Beta(1, 3), so q = 1 - p ~ Beta(3, 1) and E[q^2] = 3/5
    hits = 0
    for trial in range(200):
        correct = rng.binomial(8, rng.beta(1, 3, size=60))
        low, high = passk.bootstrap(passk.pass_at_k(correct, 8, [2]), seed=trial, resamples=300)
        hits += bool(low[0] <= truth <= high[0])
    assert 0.87 <= hits / 200 <= 0.99


def test_errors_name_the_field_and_the_range():
    cases = [
        (lambda: passk.pass_at_k([3], 4, [5]), r"k: got \[5\], must be in \[1, 4\]"),
        (lambda: passk.pass_at_k([3], 4, [0]), r"k: got \[0\]"),
        (lambda: passk.pass_at_k([3], 4, []), r"k: got \[\]"),
        (lambda: passk.pass_at_k([1, 5], 4, [1]), r"correct: got 5 of 4 samples for prompt 1"),
        (lambda: passk.pass_at_k([-1], 4, [1]), r"correct: got -1"),
        (lambda: passk.pass_at_k([], 4, [1]), r"correct: got shape \(0,\)"),
        (lambda: passk.pass_at_k([0.5], 4, [1]), r"correct: got float64, must be integers"),
        (lambda: passk.pass_at_k([1, 2], [4, 4, 4], [1]), r"samples: got shape \(3,\)"),
        (lambda: passk.pass_at_k([1, 1], [4, 2], [3]), r"k: got \[3\], must be in \[1, 2\]"),
        (lambda: passk.pass_hat_k([3], 4, [5]), r"k: got \[5\]"),
        (lambda: passk.wilson(1, 0), r"total: got 0"),
        (lambda: passk.wilson(11, 10), r"successes: got 11, must be in \[0, 10\]"),
        (lambda: passk.wilson(1, 10, level=1.0), r"level: got 1\.0"),
        (lambda: passk.bootstrap(np.zeros((0, 2))), r"values: got shape \(0, 2\)"),
        (lambda: passk.bootstrap(np.zeros((2, 2, 2))), r"values: got shape \(2, 2, 2\)"),
        (lambda: passk.bootstrap([0.5], resamples=0), r"resamples: got 0"),
        (lambda: passk.bootstrap([0.5], level=0.0), r"level: got 0\.0"),
    ]
    for call, pattern in cases:
        with pytest.raises(ValueError, match=pattern):
            call()
