"""Draws by a Gaussian mixture over parameters and learning progress."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rljax.environments.control.shipped.cartpole import Cartpole
from rljax.methods.source import gaussians
from rljax.transforms import source
from tests.transforms.source import test_draws as by_prompt

N, WINDOW = 300, 20
PLACES = np.random.default_rng(0).uniform(size=(N, 2)).astype(np.float32)


def problems(size=N):
    table = jnp.asarray(PLACES[:size])
    return dataclasses.replace(by_prompt.problems(size), parameters=lambda index: table[index])


def begin(piece, here):
    return piece.init(by_prompt.rows(np.zeros(1), np.zeros((1, 1))), here)


def test_the_density_of_a_mixture_is_that_of_its_gaussians():
    rng = np.random.default_rng(1)
    root = np.tril(rng.normal(size=(3, 2, 2))) + 2 * np.eye(2)
    of = gaussians.Mixture(jnp.asarray([0.2, 0.8, 0.0]), jnp.asarray(rng.normal(size=(3, 2))), jnp.asarray(root))
    x = rng.normal(size=(50, 2))
    got = np.asarray(gaussians.joint(of, jnp.asarray(x)))
    for k in (0, 1):
        want = np.log(of.weight[k]) + stats.multivariate_normal(of.mean[k], root[k] @ root[k].T).logpdf(x)
        np.testing.assert_allclose(got[:, k], want, rtol=1e-4, atol=1e-5)
    assert np.all(got[:, 2] == -np.inf)


def test_a_fit_finds_gaussians_that_are_apart():
    rng, counts = np.random.default_rng(2), (100, 60, 40)
    means = np.array([[0.1, 0.2, 0.9], [0.8, 0.3, 0.1], [0.5, 0.9, 0.5]])
    parts = [m + 0.03 * rng.normal(size=(n, 3)) for m, n in zip(means, counts, strict=True)]
    x = np.concatenate(parts).astype(np.float32)
    of = jax.jit(gaussians.fit, static_argnums=1)(jnp.asarray(x), 6, jax.random.key(0))
    weight, mean = np.asarray(of.weight), np.asarray(of.mean)
    nearest = np.argmin(np.sum((mean[:, None] - means) ** 2, axis=2), axis=1)
    for k, part in enumerate(parts):  # several Gaussians may share one
        mine = np.where(nearest == k, weight, 0.0)
        np.testing.assert_allclose(mine.sum(), len(part) / len(x), atol=1e-3)
        np.testing.assert_allclose(mine @ mean / mine.sum(), part.mean(axis=0), atol=2e-3)
    true = [
        np.log(n / len(x)) + stats.multivariate_normal(m, 0.03**2).logpdf(x) for m, n in zip(means, counts, strict=True)
    ]
    got = jax.nn.logsumexp(gaussians.joint(of, jnp.asarray(x)), axis=1)
    assert float(jnp.sum(got)) > np.sum(np.logaddexp.reduce(true, axis=0))  # the fit maximizes the likelihood


def test_of_one_gaussian_the_fewest_are_kept():
    x = np.random.default_rng(3).normal(size=(250, 3)).astype(np.float32)
    of = gaussians.fit(jnp.asarray(x), 8, jax.random.key(0))
    assert np.sum(np.asarray(of.weight) > 0) <= 3  # AIC pays 20 for each further one


def test_parameters_are_drawn_from_gaussians_in_proportion_to_their_progress():
    mean = jnp.asarray([[0.2, 0.2, 0.3], [0.8, 0.5, 0.1], [0.5, 0.9, -0.2], [0.9, 0.9, 0.6]])
    root = jnp.broadcast_to(0.01 * jnp.eye(3), (4, 3, 3))
    of = gaussians.Mixture(jnp.asarray([0.1, 0.5, 0.4, 0.0]), mean, root)
    point, progress = gaussians.drawn(of, 4096, jax.random.key(0))
    np.testing.assert_allclose(progress, 0.4, rtol=1e-6)  # neither loss nor a Gaussian that is not used counts
    place = np.argmin(np.sum((np.asarray(point)[:, None] - np.asarray(mean[:, :2])) ** 2, axis=2), axis=1)
    np.testing.assert_allclose(np.bincount(place, minlength=4) / 4096, [0.75, 0.25, 0, 0], atol=0.035)
    np.testing.assert_allclose(np.asarray(point)[place == 0].std(axis=0), 0.01, rtol=0.1)


def test_progress_is_the_change_against_the_nearest_prompt_seen_before():
    piece, here, rng = source.alp_gmm(window=WINDOW, most=2, candidates=0), problems(), np.random.default_rng(4)
    pool, last, recent = begin(piece, here), {}, [None] * WINDOW
    select = jax.jit(lambda rows, pool: piece.select(rows, pool, rows.reward.size, jax.random.key(0))[1])
    count = 0
    for _ in range(8):
        index, rewards = rng.choice(N, 6, replace=False), rng.integers(0, 2, (6, 2)).astype(np.float32)
        pool, before = select(by_prompt.rows(index, rewards), pool), dict(last)
        for i, r in zip(index, rewards.mean(axis=1), strict=True):
            near = min(before, key=lambda j, i=i: np.sum((PLACES[i] - PLACES[j]) ** 2), default=None)
            recent[count % WINDOW] = [*PLACES[i], 0.0 if near is None else abs(r - before[near])]
            last[i], count = r, count + 1
    np.testing.assert_allclose(pool["recent"], recent, atol=1e-6)
    assert int(pool["count"]) == count
    assert {int(i) for i in np.flatnonzero(np.asarray(pool["known"]))} == {*last}


def test_draws_go_where_progress_is_once_the_window_is_full():
    piece, here, size = source.alp_gmm(window=WINDOW, most=3, random=0.25, candidates=0), problems(), 24
    choose = jax.jit(lambda pool, key: piece.choose(pool, here, jnp.arange(size), key).index)
    corner = np.all(PLACES < 0.4, axis=1)
    recent = np.concatenate([PLACES[:WINDOW], 1.0 * corner[:WINDOW, None]], axis=1)
    recent[:8, :2] = [0.2, 0.2] + 0.05 * np.random.default_rng(5).normal(size=(8, 2))
    recent[:, 2] = np.all(recent[:, :2] < 0.4, axis=1)
    pool = begin(piece, here) | {"recent": jnp.asarray(recent, jnp.float32)}
    share = {}
    for count in (WINDOW - 1, WINDOW):
        drawn = np.stack([choose(pool | {"count": jnp.int32(count)}, jax.random.key(k)) for k in range(40)])
        assert all(len({*step}) == size for step in drawn.tolist())  # none twice in a step
        share[count] = corner[drawn].mean()
    assert abs(share[WINDOW - 1] - corner.mean()) < 0.06  # uniform
    assert share[WINDOW] > 0.75 + 0.25 * corner.mean() - 0.08


def test_a_task_without_parameters_and_too_few_candidates_are_refused():
    with pytest.raises(ValueError, match="alp_gmm: the task reports no parameters"):
        begin(source.alp_gmm(), by_prompt.problems())
    piece, few = source.alp_gmm(candidates=3), problems()
    with pytest.raises(ValueError, match="a step draws 4 different prompts, and there are 3"):
        piece.choose(begin(piece, few), few, jnp.arange(4), jax.random.key(0))
    with pytest.raises(ValueError, match="window=5 prompts are fewer than most=10"):
        source.alp_gmm(window=5)


def test_the_parameters_of_cartpole_are_its_context_in_its_intervals():
    rules, index = Cartpole(length=(0.2, 1.0), gravity=(5.0, 25.0), heldout_gravity=(26.0, 30.0)), jnp.arange(64)
    for split in ("train", "heldout"):
        got = np.asarray(rules.parameters(index, split))
        context = np.asarray(jax.vmap(lambda i, split=split: rules.begin(i, split)["context"])(index))
        want = np.clip((context[:, [0, 3]] - [0.2, 5.0]) / [0.8, 20.0], 0, 1)
        np.testing.assert_allclose(got, want, atol=1e-6)
    assert got[:, 1].min() == 1.0  # held out beyond the interval of training
    assert not hasattr(Cartpole(), "parameters")
