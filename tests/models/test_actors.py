"""Actors: distributions against SciPy, grids and enumeration; the running normalization; scores against draws."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from rljax import types
from rljax.models import actors
from rljax.models.actors import distributions, mlp
from rljax.transforms import ops

draws = np.random.default_rng(0)
full = lambda *values: [pytest.param(value, marks=pytest.mark.full) for value in values]  # noqa: E731
ALPHAS = ("alpha_0.5", "alpha_0.3", "alpha_-0.2", "alpha_1.1", "alpha_0", "alpha_1")


# --- categorical --------------------------------------------------------------------------------------

LOGITS, OTHERS = draws.normal(size=(2, 6, 5)).astype(np.float32) * 2.0
LEGAL = draws.random((6, 5)) < 0.6
LEGAL[np.arange(6), np.arange(6) % 5] = True
LEGAL[0], LEGAL[1] = True, np.arange(5) == 1  # all; one


def chances(logits, temperature=1.0):
    """Return p of the legal actions, 0 for the others, [6, 5] float64."""
    p = np.where(LEGAL, np.exp(np.float64(logits) / temperature), 0.0)
    return p / p.sum(axis=1, keepdims=True)


def plogp(p, q):
    """Return p log q, 0 where p is 0."""
    return np.where(p > 0, p * np.log(np.where(p > 0, q, 1.0)), 0.0)


def divergence(name, p, q, integral):
    """Return a divergence of densities from its definition; ``integral`` adds over the points."""
    if name == "total_variation":
        return integral(np.abs(p - q)) / 2
    if name.startswith("js"):
        b = float(name[3:] or 0.5)
        m = b * q + (1 - b) * p
        return integral(b * (plogp(q, q) - plogp(q, m)) + (1 - b) * (plogp(p, p) - plogp(p, m)))
    if name == "hellinger":
        return 1 - integral(np.sqrt(p * q))
    alpha = {"reverse_kl": 1.0, "forward_kl": 0.0}.get(name)
    alpha = float(name.removeprefix("alpha_")) if alpha is None else alpha
    if alpha in (0.0, 1.0):
        left, right = (p, q) if alpha else (q, p)
        return integral(plogp(left, left) - plogp(left, right))
    both = (p > 0) & (q > 0)
    overlap = np.where(both, np.where(both, p, 1.0) ** alpha * np.where(both, q, 1.0) ** (1 - alpha), 0.0)
    return (1 - integral(overlap)) / (alpha * (1 - alpha))


@pytest.mark.parametrize("temperature", [0.4, *full(1.0, 3.0)])
def test_a_categorical_is_over_the_legal_actions(temperature):
    p, q = chances(LOGITS, temperature), chances(OTHERS, temperature)
    one, other = (distributions.Categorical.of(x, LEGAL).tempered(temperature) for x in (LOGITS, OTHERS))
    actions = np.broadcast_to(np.arange(5, dtype=np.int32)[:, None], (5, 6))
    logp = jnp.stack([one.logp(a) for a in actions], axis=1)
    np.testing.assert_allclose(np.exp(logp), p, atol=1e-6)
    np.testing.assert_allclose(one.entropy(), -plogp(p, p).sum(axis=1), atol=1e-5)
    np.testing.assert_allclose(one.square_prob(), (p**2).sum(axis=1), atol=1e-6)
    for name in (*ops.DIVERGENCES, *ALPHAS, "js_0.2"):
        expected = divergence(name, p, q, lambda x: x.sum(axis=1))
        np.testing.assert_allclose(one.divergence(name, other), expected, rtol=1e-4, atol=2e-6, err_msg=name)
    np.testing.assert_array_equal(one.mode(), p.argmax(axis=1))
    plain = chances(LOGITS) ** (1 / temperature)
    np.testing.assert_allclose(p, plain / plain.sum(axis=1, keepdims=True), atol=1e-12)  # what tempered means


def test_draws_of_a_categorical_are_legal_and_as_frequent_as_they_should_be():
    n, p = 20_000, chances(LOGITS, 0.7)
    policy = distributions.Categorical.of(LOGITS, LEGAL).tempered(0.7)
    keys = jax.random.split(jax.random.key(0), n)
    taken = np.asarray(jax.vmap(lambda key: jax.vmap(lambda d: d.draw(key))(policy))(keys))
    counts = np.stack([np.bincount(x, minlength=5) for x in taken.T])
    assert taken.dtype == np.int32 and np.all(counts[~LEGAL] == 0)
    assert np.all(np.abs(counts - n * p) <= 5 * np.sqrt(n * p * (1 - p)) + 1e-9)


@pytest.mark.full
def test_illegal_actions_have_no_gradient():
    def total(logits):
        one, other = (distributions.Categorical.of(x, LEGAL) for x in (logits, OTHERS))
        scores = [one.entropy(), one.square_prob(), *(one.divergence(n, other) for n in ops.DIVERGENCES)]
        return sum(map(jnp.sum, scores)) + jnp.sum(one.logp(jnp.argmax(jnp.asarray(LEGAL), axis=1)))

    gradient = np.asarray(jax.grad(total)(jnp.asarray(LOGITS)))
    assert np.all(np.isfinite(gradient)) and np.all(gradient[~LEGAL] == 0) and np.any(gradient[LEGAL] != 0)


# --- Gaussian -----------------------------------------------------------------------------------------

MEAN, LOG_STD = np.array([[0.3, -0.7], [-1.1, 0.2]]), np.array([[-0.4, 0.3], [0.1, -0.8]])
MEAN_2, LOG_STD_2 = np.array([[-0.2, 0.1], [0.4, 0.5]]), np.array([[-0.1, 0.2], [0.3, -0.6]])
AXIS = np.linspace(-14.0, 14.0, 1401)
STEP = AXIS[1] - AXIS[0]


def gaussian(mean=MEAN, log_std=LOG_STD, squash=False):
    return distributions.Gaussian(jnp.asarray(mean), jnp.asarray(log_std), squash)


def density(mean, log_std):
    """Return the density [1401, 1401] of one state on the grid, or [1401] of one number."""
    each = [scipy.stats.norm.pdf(AXIS, m, np.exp(s)) for m, s in zip(mean, log_std, strict=True)]
    return each[0] if len(each) == 1 else np.multiply.outer(*each)


@pytest.mark.full
@pytest.mark.parametrize("size", [2, *full(1)])
def test_scores_of_gaussians_are_integrals(size):
    """The trapezoidal rule on a wide grid integrates smooth functions that vanish at its ends to all digits."""
    with jax.enable_x64(True):
        one, other = gaussian(MEAN[:, :size], LOG_STD[:, :size]), gaussian(MEAN_2[:, :size], LOG_STD_2[:, :size])
        u = draws.normal(size=(2, size))
        expected = scipy.stats.norm.logpdf(u, MEAN[:, :size], np.exp(LOG_STD[:, :size])).sum(axis=1)
        np.testing.assert_allclose(one.logp(jnp.asarray(u)), expected, rtol=1e-12)
        for state in range(2):
            p = density(MEAN[state, :size], LOG_STD[state, :size])
            q = density(MEAN_2[state, :size], LOG_STD_2[state, :size])

            def integral(x):
                return x.sum() * STEP**size

            np.testing.assert_allclose(one.entropy()[state], -integral(plogp(p, p)), rtol=1e-9)
            np.testing.assert_allclose(one.square_prob()[state], integral(p**2), rtol=1e-9)
            for name in ("reverse_kl", "forward_kl", "hellinger", *ALPHAS):
                expected = divergence(name, p, q, integral)
                np.testing.assert_allclose(one.divergence(name, other)[state], expected, rtol=1e-6, err_msg=name)


def test_a_divergence_whose_integral_does_not_exist_is_infinite():
    wide, narrow = gaussian(log_std=np.zeros((2, 2))), gaussian(log_std=np.full((2, 2), -1.0))
    assert np.all(np.isposinf(wide.divergence("alpha_2", narrow)))  # 2 - e^2 < 0
    assert np.all(np.isfinite(narrow.divergence("alpha_2", wide)))


def test_a_tempered_gaussian_is_proportional_to_the_power_of_its_density():
    for temperature in (0.3, 2.0):
        with jax.enable_x64(True):
            u = jnp.asarray(AXIS[500:901, None])
            one = distributions.Gaussian(jnp.full_like(u, 0.3), jnp.full_like(u, -0.4))
            quotient = one.tempered(temperature).logp(u) - one.logp(u) / temperature
            np.testing.assert_allclose(quotient, quotient[0], atol=1e-9)
            whole = distributions.Gaussian(jnp.full((1401, 1), 0.3), jnp.full((1401, 1), -0.4)).tempered(temperature)
            np.testing.assert_allclose(np.exp(whole.logp(AXIS[:, None])).sum() * STEP, 1.0, rtol=1e-9)


@pytest.mark.parametrize("name", ["js", "total_variation", "js_0.2", "reversed_kl"])
def test_divergences_without_a_closed_form_are_refused(name):
    with pytest.raises(ValueError, match=f"divergence '{name}': has no closed form between Gaussians; choose reverse_"):
        gaussian().divergence(name, gaussian())
    with pytest.raises(ValueError, match="square_prob: has no closed form"):
        gaussian(squash=True).square_prob()


@pytest.mark.parametrize(("mean", "std"), [(0.2, 0.3), (-0.8, 1.0), (0.0, 1.5)])
def test_the_density_of_tanh_integrates_to_one_and_its_entropy_is_the_integral(mean, std):
    with jax.enable_x64(True):
        one = distributions.Gaussian(jnp.full((1,), mean), jnp.full((1,), np.log(std)), squash=True)
        logp = jax.jit(lambda u: one.logp(u[None]))

        def of(a):
            return float(logp(np.arctanh(a)))

        ends = {"points": (-0.99, 0.99), "limit": 200, "epsabs": 1e-9}
        mass, _ = scipy.integrate.quad(lambda a: np.exp(of(a)), -1 + 1e-12, 1 - 1e-12, **ends)
        entropy, _ = scipy.integrate.quad(lambda a: -np.exp(of(a)) * of(a), -1 + 1e-12, 1 - 1e-12, **ends)
        assert mass == pytest.approx(1.0, abs=1e-6)
        assert float(one.entropy()) == pytest.approx(entropy, abs=1e-3)


@pytest.mark.parametrize("squash", [False, True])
def test_draws_have_the_moments_of_their_density(squash):
    n, temperature = 40_000, 0.6
    one = gaussian(MEAN[0].astype(np.float32), LOG_STD[0].astype(np.float32), squash).tempered(temperature)
    u = np.asarray(jax.vmap(one.draw)(jax.random.split(jax.random.key(1), n)), np.float64)
    std = np.exp(LOG_STD[0]) * np.sqrt(temperature)
    np.testing.assert_allclose(u.mean(axis=0), MEAN[0], atol=5 * std.max() / np.sqrt(n))
    np.testing.assert_allclose(np.cov(u.T), np.diag(std**2), atol=5 * np.sqrt(2 / n))
    for number in range(2):
        p = scipy.stats.norm.pdf(AXIS, MEAN[0, number], std[number])
        read = np.tanh(AXIS) if squash else np.clip(AXIS, -1, 1)
        mean, square = (p * read).sum() * STEP, (p * read**2).sum() * STEP
        acted = np.asarray(one.acted(jnp.asarray(u[:, number])), np.float64)
        assert acted.mean() == pytest.approx(mean, abs=5 * np.sqrt((square - mean**2) / n))
        assert np.mean(acted**2) == pytest.approx(square, abs=5 / np.sqrt(n))


def numbers(mean, log_std, u, squash):
    """Return log-prob, entropy and divergences of one state in NumPy, as one vector."""
    std, other = np.exp(log_std), np.exp(LOG_STD_2[0])
    inner = np.log(1 - np.tanh(u) ** 2).sum() if squash else 0.0
    out = [scipy.stats.norm.logpdf(u, mean, std).sum() - inner]
    bent = [AXIS * s * 0.6 + m for s, m in zip(std, mean, strict=True)]  # 8.4 deviations to each side
    slope = [np.log(4.0) - 2 * x - 2 * np.logaddexp(0, -2 * x) for x in bent]
    weight = np.exp(-0.5 * (AXIS * 0.6) ** 2) / np.sqrt(2 * np.pi) * 0.6 * STEP
    out.append(np.log(std * np.sqrt(2 * np.pi * np.e)).sum() + (sum(weight @ x for x in slope) if squash else 0.0))
    out.append(np.sum(np.log(other / std) + (std**2 + (mean - MEAN_2[0]) ** 2) / (2 * other**2) - 0.5))
    spread = std**2 + other**2
    near = np.sqrt(2 * std * other / spread) * np.exp(-((mean - MEAN_2[0]) ** 2) / (4 * spread))
    return np.array([*out, 1 - near.prod()])


@pytest.mark.full
@pytest.mark.parametrize("squash", [True, *full(False)])
def test_gradients_of_gaussian_scores_are_finite_differences(squash):
    u, eps = np.array([0.6, -0.9]), 1e-5

    def scores(mean, log_std):
        one = distributions.Gaussian(mean, log_std, squash)
        other = distributions.Gaussian(jnp.asarray(MEAN_2[0]), jnp.asarray(LOG_STD_2[0]), squash)
        each = [one.divergence(name, other) for name in ("reverse_kl", "hellinger")]
        return jnp.stack([one.logp(jnp.asarray(u)), one.entropy(), *each])

    with jax.enable_x64(True):
        point = jnp.asarray(MEAN[0]), jnp.asarray(LOG_STD[0])
        np.testing.assert_allclose(scores(*point), numbers(*map(np.asarray, point), u, squash), atol=1e-4)
        jacobian = jnp.concatenate(jax.jacrev(scores, argnums=(0, 1))(*point), axis=1)
    both = np.concatenate([MEAN[0], LOG_STD[0]])
    for number in range(4):
        up, down = (numbers(*np.split(both + sign * eps * np.eye(4)[number], 2), u, squash) for sign in (1, -1))
        np.testing.assert_allclose(
            jacobian[:, number], (up - down) / (2 * eps), rtol=1e-4, atol=3e-4 if squash else 1e-7
        )


# --- the network --------------------------------------------------------------------------------------


@pytest.mark.full
def test_merged_statistics_are_those_of_all_observations():
    shape = actors.Mlp(layers=1, width=4, normalise=True)
    params = shape.init(jax.random.key(0), 3, 2, 1.0)
    raw, plain = draws.normal(size=(2, 3)).astype(np.float32), dataclasses.replace(shape, normalise=False)
    np.testing.assert_array_equal(shape.apply(params, raw), plain.apply(params, raw))  # before the first statistics
    counted, seen = np.zeros((0, 3)), jax.jit(shape.observed)
    for size, scale in ((3, 1.0), (5, 40.0), (2, 0.01), (4, 1.0)):
        batch = (draws.normal(size=(size, 6, 3)) * scale + 7.0).astype(np.float32)
        weight = (draws.random((size, 6)) < (0.7 if size < 4 or scale > 1 else 0.0)).astype(np.float32)
        batch[weight == 0] = np.nan  # what is masked must not matter
        params = seen(params, batch, weight)
        counted = np.concatenate([counted, batch[weight > 0]])
        statistics = params[mlp.STATISTICS]
        assert statistics["count"] == len(counted)
        np.testing.assert_allclose(statistics["mean"], counted.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(statistics["square"] / len(counted), counted.var(axis=0), rtol=1e-4)
    scaled = np.clip((raw - counted.mean(axis=0)) / counted.std(axis=0), -10, 10).astype(np.float32)
    np.testing.assert_allclose(shape.apply(params, raw), plain.apply(params, scaled), atol=1e-4)
    far = jnp.full((1, 3), 1e9)
    np.testing.assert_allclose(shape.apply(params, far), plain.apply(params, jnp.full((1, 3), 10.0)), atol=1e-5)


@pytest.mark.parametrize("activation", ["silu", *full("tanh", "relu")])
def test_the_network_is_the_one_of_its_settings(activation):
    shape = actors.Mlp(layers=2, width=8, activation=activation)
    params = shape.init(jax.random.key(3), 3, 2, 0.01)
    x = draws.normal(size=(4, 5, 3))
    expected = x
    bend = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0), "silu": lambda z: z / (1 + np.exp(-z))}[activation]
    for number, scale in enumerate((2.0, 2.0, 1e-4)):
        kernel = np.asarray(params[f"layer_{number}"]["kernel"], np.float64)
        assert np.all(params[f"layer_{number}"]["bias"] == 0)
        gram = kernel @ kernel.T if kernel.shape[0] <= kernel.shape[1] else kernel.T @ kernel
        np.testing.assert_allclose(gram, scale * np.eye(len(gram)), atol=1e-5 * scale)
        expected = expected @ kernel
        expected = expected if number == 2 else bend(expected)
    np.testing.assert_allclose(shape.apply(params, x.astype(np.float32)), expected, atol=1e-6)


# --- the actor ----------------------------------------------------------------------------------------

B, T, A = 3, 4, 3
OBSERVATION = draws.normal(size=(B, T, 2)).astype(np.float32)
ALLOWED = np.array(draws.random((B, T, A)) < 0.6)
ALLOWED[..., 1] = True
KEYS = jax.random.split(jax.random.key(9), B)


def actor(kind, **options):
    std = "output" if kind == "spread" else "free"
    shape = actors.Mlp(layers=1, width=4, squash=kind == "squashed", log_std=-0.3, normalise=True, std=std)
    return actors.Actor(shape, 2, "categorical" if kind == "categorical" else "gaussian", A, **options)


def parameters(one, seed=0):
    """Return parameters away from the start, with statistics."""
    params = one.init(jax.random.key(seed))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(seed + 1), x.shape), params)
    return {**params, mlp.STATISTICS: {"count": 4.0, "mean": jnp.array([0.1, -0.2]), "square": jnp.array([2.0, 9.0])}}


@pytest.mark.default_tier("squashed-0.6")
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("kind", ["categorical", "gaussian", "squashed", "spread"])
def test_scores_of_rows_are_what_the_draws_reported(kind, temperature):
    one = actor(kind)
    params, reference = parameters(one), parameters(one, seed=5)
    legal = ALLOWED if kind == "categorical" else None
    draw = jax.jit(lambda x, a: one.draw(params, x, KEYS, a, temperature))
    drawn = [draw(OBSERVATION[:, t], None if legal is None else legal[:, t]) for t in range(T)]
    taken, logp, entropy = (jnp.stack([getattr(d, f) for d in drawn], axis=1) for f in ("taken", "logp", "entropy"))
    mask = jnp.asarray(np.arange(T)[None] < np.array([[4], [2], [0]]), jnp.float32)
    rows = types.Rollout(mask, jnp.zeros(B), jnp.zeros(B, int), motion=actors.Motion(OBSERVATION, taken, legal))
    needs = types.Needs(entropy=True, square_prob=kind != "squashed", divergence=frozenset({"reverse_kl"}))
    scores = one.score(params, rows, needs, temperature=temperature, reference=reference)
    np.testing.assert_allclose(scores.logp, logp * mask, atol=1e-6)
    np.testing.assert_allclose(scores.entropy, entropy, atol=1e-6)
    assert (scores.square_prob is None) == (kind == "squashed")
    policy, other = (one.policy(p, OBSERVATION, legal).tempered(temperature) for p in (params, reference))
    np.testing.assert_allclose(scores.divergence["reverse_kl"], policy.divergence("reverse_kl", other), atol=1e-6)
    if legal is not None:
        assert np.all(np.take_along_axis(legal, np.asarray(taken)[..., None], axis=-1))
    # greedy: the mode, scored at temperature 1; nothing depends on the keys
    greedy = one.draw(params, OBSERVATION[:, 0], KEYS, None if legal is None else legal[:, 0], 0.0)
    plain = one.policy(params, OBSERVATION[:, 0], None if legal is None else legal[:, 0])
    np.testing.assert_array_equal(greedy.taken, plain.mode())
    np.testing.assert_allclose(greedy.entropy, plain.entropy(), atol=1e-6)


def test_other_modules_are_teachers_with_parameters_of_their_own():
    one, other = actor("gaussian"), actor("gaussian")
    params, taught = parameters(one), parameters(other, seed=8)
    rows = types.Rollout(jnp.ones((B, T)), jnp.zeros(B), jnp.zeros(B, int))
    rows = rows.replace(motion=actors.Motion(OBSERVATION, jnp.zeros((B, T, A))))
    needs = types.Needs(divergence=frozenset({"forward_kl/teacher"}))
    scores = one.score(params, rows, needs, teachers={"teacher": (other, taught)})
    ((name, value),) = scores.divergence.items()
    mean, mean_2 = (np.asarray(one.architecture.apply(p, OBSERVATION), np.float64) for p in (params, taught))
    s, s_2 = (np.exp(np.asarray(p["log_std"], np.float64)) for p in (params, taught))
    expected = np.sum(np.log(s / s_2) + (s_2**2 + (mean - mean_2) ** 2) / (2 * s**2) - 0.5, axis=-1)
    assert name == "forward_kl/teacher"
    np.testing.assert_allclose(value, expected, rtol=1e-4)


@pytest.mark.parametrize("bins", [None, (-1.0, 2.0, 4)])
def test_a_critic_has_values_and_no_log_probs(bins):
    one = actor("categorical", output="scalar", bins=bins)
    params = parameters(one)
    rows = types.Rollout(jnp.ones((B, T)), jnp.zeros(B), jnp.zeros(B, int))
    scores = one.score(params, rows.replace(motion=actors.Motion(OBSERVATION, jnp.zeros((B, T), int))), types.Needs())
    out = np.asarray(one.architecture.apply(params, OBSERVATION), np.float64)
    assert scores.logp is None and out.shape == (B, T, 1 if bins is None else 4)
    if bins is None:
        np.testing.assert_allclose(scores.value, out[..., 0], atol=1e-6)
        return
    p = np.exp(out) / np.exp(out).sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(scores.value, p @ np.array([-1.0, 0.0, 1.0, 2.0]), atol=1e-6)
    np.testing.assert_allclose(scores.value_logits, out, atol=1e-6)


@pytest.mark.parametrize("field", ["log_normaliser", "reward", "process"])
def test_scores_that_an_actor_does_not_have_are_refused_by_name(field):
    words = types.SCORES[field].words
    with pytest.raises(ValueError, match=f"needs {words} .{field}., and an actor has entropy, square_prob, value"):
        actor("gaussian").check(types.Needs(**{field: True}))
    with pytest.raises(ValueError, match="the rows have no motion"):
        actor("gaussian").score({}, types.Rollout(jnp.ones((B, T)), jnp.zeros(B), jnp.zeros(B, int)), types.Needs())


def test_parameters_have_axes_and_differ_by_kind():
    for kind, output in itertools.product(("categorical", "gaussian"), ("logits", "scalar")):
        one = actor(kind, output=output)
        params = one.init(jax.random.key(0))
        assert ("log_std" in params) == (kind == "gaussian" and output == "logits")
        axes = jax.tree.leaves(one.axes, is_leaf=lambda x: isinstance(x, tuple))
        assert [len(a) for a in axes] == [x.ndim for x in jax.tree.leaves(params)]


def test_a_network_outputs_means_and_bounded_log_deviations():
    one = actor("spread")
    params = parameters(one)
    assert "log_std" not in params
    out = np.asarray(one.architecture.apply(params, OBSERVATION), np.float64)
    policy = one.policy(params, OBSERVATION)
    np.testing.assert_array_equal(policy.mean, out[..., :A].astype(np.float32))
    np.testing.assert_allclose(policy.log_std, out[..., A:] - 0.3, atol=1e-6)
    last = {"kernel": params["layer_1"]["kernel"], "bias": jnp.array([0.0] * A + [9.0, -99.0, 0.0])}
    bounded = one.policy({**params, "layer_1": last}, OBSERVATION).log_std
    assert np.all(bounded[..., 0] == 2.0) and np.all(bounded[..., 1] == -20.0) and np.all(abs(bounded[..., 2]) < 19.0)


@pytest.mark.full
@pytest.mark.parametrize(("noise", "temperature"), [("learned", 0.6), ("sde", 1.0)])
def test_a_chain_is_the_product_of_its_steps(noise, temperature):
    """x_{k+1} ~ N(x + v / K, std_k^2), or with the SDE's drift v + g^2 s / 2 and variance g^2 / K, at t = k / K."""
    K, chain = 3, actors.Denoising(steps=3, noise=noise, log_std=-0.3)
    one = actors.Actor(actors.Mlp(layers=1, width=4), 2, "denoiser", A, chain)
    params = one.init(jax.random.key(0))
    params = jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(1), x.shape), params)
    drawn = jax.jit(lambda x: one.draw(params, x, KEYS, temperature=temperature))(OBSERVATION[:, 0])
    chain, logp, entropy = np.asarray(drawn.taken, np.float64), 0.0, 0.0
    layers = [{k: np.asarray(x, np.float64) for k, x in params[f"layer_{n}"].items()} for n in range(2)]
    for k in range(K):
        x, t = chain[:, k], k / K
        inputs = np.concatenate([OBSERVATION[:, 0], x, np.tile(np.eye(K)[k], (B, 1))], axis=1)
        v = np.tanh(inputs @ layers[0]["kernel"] + layers[0]["bias"]) @ layers[1]["kernel"] + layers[1]["bias"]
        mean, std = x + v / K, np.exp(np.asarray(params.get("log_std", np.zeros((K, A))))[k])
        if noise == "sde":
            square = np.exp(-0.6) * (1 - t)
            mean, std = x + (v + square / 2 * (t * v - x) / (1 - t)) / K, np.full(A, np.sqrt(square / K))
        steps = scipy.stats.norm(mean, std * np.sqrt(temperature))
        logp, entropy = logp + steps.logpdf(chain[:, k + 1]).sum(axis=1), entropy + steps.entropy().sum(axis=1)
    np.testing.assert_allclose(drawn.logp, logp, atol=1e-4)
    np.testing.assert_allclose(drawn.entropy, entropy, atol=1e-4)
    np.testing.assert_allclose(drawn.action, np.clip(chain[:, -1], -1, 1), atol=1e-6)
    rows = types.Rollout(jnp.ones((B, 1)), jnp.zeros(B), jnp.zeros(B, int))
    rows = rows.replace(motion=actors.Motion(OBSERVATION[:, :1], drawn.taken[:, None]))
    scores = one.score(params, rows, types.Needs(entropy=True), temperature=temperature)
    np.testing.assert_allclose(scores.logp[:, 0], drawn.logp, atol=1e-5)


@pytest.mark.full
def test_the_likelihood_of_a_demonstrated_chain_is_flow_matching():
    """The gradient of -log p is that of sum_k |v(x_k, t) - (a - z)|^2 / (2 K^2 std^2) at x_k = (1 - t) z + t a."""
    K, std = 4, 0.5
    chain = actors.Denoising(steps=K, log_std=float(np.log(std)))
    one = actors.Actor(actors.Mlp(layers=1, width=4), 2, "denoiser", A, chain)
    params, seen = one.init(jax.random.key(2)), OBSERVATION[:, 0]
    action = jnp.asarray(draws.uniform(-1, 1, size=(B, A)), jnp.float32)
    chain = one.stored(action, KEYS)
    z = chain[:, 0]
    np.testing.assert_allclose(chain[:, -1], action, atol=1e-6)
    assert np.ptp(z) > 0.5

    def matching(params):
        total = 0.0
        for k in range(K):
            x, time = z + k / K * (action - z), jnp.tile(jnp.eye(K)[k], (B, 1))
            v = one.architecture.apply(params, seen, x, time)
            total += jnp.sum((v - (action - z)) ** 2) / (2 * K**2 * std**2)
        return total

    likelihood = jax.grad(lambda p: -jnp.sum(one.policy(p, seen, taken=chain).logp(chain)))(params)
    for name, expected in jax.grad(matching)(params).items():
        if name != "log_std":
            jax.tree.map(
                lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-3, atol=1e-4), likelihood[name], expected
            )


def test_demonstrated_actions_are_stored_as_the_distribution_draws_them():
    action = jnp.asarray([[-1.0, 0.3, 0.99]] * B, jnp.float32)
    for squash in (False, True):
        one = actors.Actor(actors.Mlp(layers=1, width=4, squash=squash), 2, "gaussian", A)
        taken = one.stored(action, KEYS)
        acted = distributions.Gaussian(taken, taken, squash).acted(taken)
        np.testing.assert_allclose(acted, np.clip(action, -0.999, 0.999) if squash else action, atol=1e-6)


# --- a flow and its stochastic equation ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Flow:
    """The exact velocity E[a - z | x_t = x] of x_t = (1 - t) z + t a with z ~ N(0, 1) and a ~ N(0.7, 0.4^2)."""

    steps: int

    def apply(self, params, observation, x, time):
        """Return the velocity."""
        t = (time @ jnp.arange(self.steps, dtype=time.dtype))[..., None] / self.steps
        variance = (1 - t) ** 2 + t**2 * 0.16
        return 0.7 + (t * 0.16 - (1 - t)) / variance * (x - t * 0.7)


def flow_moments(steps, log_std):
    """Return mean and variance after each step, [K, 2]: the mean of a step is affine in the state."""
    chain = actors.Denoising(steps=steps, noise="sde", log_std=log_std)
    actor = actors.Actor(Flow(steps), 1, "denoiser", 1, chain)
    mean, variance, moments = 0.0, 1.0, []
    for step in range(steps):
        policy = actor.transition({}, jnp.zeros((2, 1)), jnp.array([[0.0], [1.0]]), jnp.full(2, step))
        at_0, at_1 = np.asarray(policy.mean, float)[:, 0]
        mean = at_0 + (at_1 - at_0) * mean
        variance = (at_1 - at_0) ** 2 * variance + np.exp(2 * float(policy.log_std[0, 0]))
        moments.append((mean, variance))
    return np.array(moments)


@pytest.mark.full
@pytest.mark.parametrize("log_std", [0.5, *full(-1.0)])
def test_the_stochastic_equation_has_the_marginals_of_the_flow(log_std):
    coarse, fine = (flow_moments(steps, log_std) for steps in (50, 100))
    limit = 2 * fine[1::2] - coarse  # the error of Euler's method is of first order in the step
    t = np.arange(1, 51) / 50
    np.testing.assert_allclose(limit, np.stack([0.7 * t, (1 - t) ** 2 + 0.16 * t**2], axis=1), atol=5e-4)
    assert np.abs(fine[-1] - limit[-1]).max() < 0.6 * np.abs(coarse[-1] - limit[-1]).max()
