"""The study of over-optimization: best-of-n, the fits, and its page from given values."""

import dataclasses
import itertools
import json
import math

import numpy as np
import pytest

from experiments.overoptimisation import gold, page, scaling


def test_best_of_n_is_the_mean_over_all_subsets():
    r = np.random.default_rng(0)
    proxy, value = r.integers(0, 4, (3, 6)), r.normal(size=(3, 6))  # some scores are equal
    numbers = (1, 2, 3, 5, 6)
    for n, got in zip(numbers, scaling.best_of_n(proxy, value, numbers), strict=True):
        chosen = []
        for p, v in zip(proxy, value, strict=True):
            for subset in map(list, itertools.combinations(range(6), n)):
                chosen.append(v[subset][p[subset] == p[subset].max()].mean())
        assert got == pytest.approx(np.mean(chosen), abs=1e-12)
    with pytest.raises(ValueError, match=r"n: got \(7,\), must be in \[1, 6\]"):
        scaling.best_of_n(proxy, value, (7,))


def test_the_kl_of_best_of_n_is_that_of_the_largest_of_n_uniform_scores():
    u = (np.arange(200_000) + 0.5) / 200_000  # midpoints; the density of the largest is n u^(n - 1)
    for n in (1, 2, 7, 64):
        log_density = np.log(n) + (n - 1) * np.log(u)
        assert scaling.best_of_n_kl(n) == pytest.approx(np.mean(np.exp(log_density) * log_density), abs=1e-4)


@pytest.mark.parametrize("logarithm", [False, True])
def test_a_fit_finds_the_form_that_made_the_points_and_its_peak(logarithm):
    kl = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0])
    d = np.sqrt(kl[1:])
    made = np.concatenate([[0.0], d * (0.5 - 0.2 * (np.log(d) if logarithm else d))])
    of = scaling.fit(kl, made, logarithm)
    assert (of.alpha, of.beta, of.explained) == pytest.approx((0.5, 0.2, 1.0))
    grid = np.linspace(0.01, 8.0, 100_000)
    assert math.sqrt(of.peak) == pytest.approx(grid[np.argmax(of(grid))], abs=1e-4)
    noisy = scaling.fit(kl, made + np.array([0.3, 0.1, -0.1, 0.2, 0.0, -0.2, 0.1]), logarithm)
    rest = made[1:] + np.array([0.1, -0.1, 0.2, 0.0, -0.2, 0.1]) - noisy(d)  # least squares: orthogonal to both terms
    assert [rest @ d, rest @ (d * np.log(d) if logarithm else d * d)] == pytest.approx([0, 0], abs=1e-12)
    assert noisy.explained < 1 and scaling.fit(kl, kl, logarithm).peak == math.inf
    assert math.isnan(scaling.fit([0.0, 1.0], [0.0, 1.0], logarithm).alpha)


def test_a_run_is_read_where_it_first_reaches_a_kl():
    kl, value = [0.0, 1.0, 9.0, 4.0], [0.0, 10.0, 30.0, 0.0]
    assert [scaling.at(kl, value, x) for x in (0.0, 0.25, 1.0, 4.0)] == [0.0, 5.0, 10.0, 20.0]
    assert math.isnan(scaling.at(kl, value, 16.0))


def seed(end):
    proxy, right = [0.1 * n for n in page.N], [0.3 + 0.001 * n for n in page.N]
    best = page.Curve([*page.N], [scaling.best_of_n_kl(n) for n in page.N], proxy, right)
    rl = page.Curve([0, 5, 10], [0.0, 1.0, 9.0], [-1.0, 2.0, 12.0], [0.25, 0.75, end])
    return {name: page.Arm(0.9, best, rl) for name in gold.ARMS}


def test_the_page_has_the_peak_of_gold_and_what_the_proxy_is_there(tmp_path):
    size = dataclasses.replace(gold.QUICK, seeds=(0, 1))
    stored = {"size": {k: v for k, v in dataclasses.asdict(size).items() if k != "seeds"}}
    stored["seeds"] = {n: {k: dataclasses.asdict(arm) for k, arm in seed(0.1 * n).items()} for n in range(2)}
    file = tmp_path / "gold.json"
    file.write_text(json.dumps(stored))
    base, turns, beside, forms = page.table(gold.run(size, file)).split("\n\n")  # nothing is left to run

    def cells(text, name="worst of 3"):
        row = next(line for line in text.splitlines() if line.startswith(f"| {name} |"))
        return [x.split(" [")[0] for x in row.strip("| ").split(" | ")[1:]]

    assert base == "Verified accuracy of the base: 25.0 %."
    assert cells(turns) == ["90.0", "50.0", "1.00", "3.00", "-20.0", "9.00", "13.00", "2 of 2"]
    # RL at KL 0.636: 50 sqrt(0.636) = 39.9; at 1.835, between the two later points: 50 - 70 (1.3547 - 1) / 2 = 37.6
    assert not page.turned(page.Curve([0, 1], [0.0, 1.0], [0.0, 1.0], [0.5, 0.46]))
    assert not page.turned(page.Curve([0, 1], [0.0, 1.0], [1.0, 0.0], [0.5, 0.3]))  # the proxy fell too
    assert cells(beside)[:4] == ["0.3", "39.9", "1.5", "37.6"]
    assert len(cells(forms)) == 8
    with pytest.raises(ValueError, match="has seeds of the size"):
        gold.run(dataclasses.replace(size, pool=8), file)
