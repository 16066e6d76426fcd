"""Chains of denoising: positions, steps without noise, shared states, demonstrations, densities by quadrature."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.denoising import quadrature
from rljax import environments, transforms, types
from rljax.models import actors
from rljax.sampling import acting
from rljax.transforms import advantage

B, K, A = 6, 4, 2
KEYS = jax.random.split(jax.random.key(3), B)
SHARED = jax.random.split(jax.random.key(4), B)
NOISES = ["sde", *[pytest.param(noise, marks=pytest.mark.full) for noise in ("learned", "renoised")]]
SEEN = jnp.asarray(np.random.default_rng(0).normal(size=(B, 2)), jnp.float32)
MEAN, STD = 0.7, 0.4  # of the demonstrations of ``Flow``


def build(architecture=None, size=A, **settings):
    """Return a denoiser of actions in the plane."""
    chain = actors.Denoising(**{"steps": K, "log_std": -0.3, **settings})
    return actors.Actor(architecture or actors.Mlp(layers=1, width=8), 2, "denoiser", size, chain)


@functools.cache
def parameters(noise="learned"):
    params = build(noise=noise).init(jax.random.key(1))
    return jax.tree.map(lambda x: x + 0.3 * jax.random.normal(jax.random.key(2), x.shape), params)


@dataclasses.dataclass(frozen=True)
class Flow:
    """The exact velocity E[a - z | x_t = x] of x_t = (1 - t) z + t a with z ~ N(0, I) and a ~ N(MEAN, STD^2 I)."""

    steps: int

    def apply(self, params, observation, x, time):
        """Return the velocity, moved by a constant for each step where ``params`` has them."""
        t = (time @ jnp.arange(self.steps, dtype=time.dtype))[..., None] / self.steps
        t = jnp.broadcast_to(t, x.shape)
        v = MEAN + (t * STD**2 - (1 - t)) / ((1 - t) ** 2 + t**2 * STD**2) * (x - t * MEAN)
        return v + jnp.broadcast_to(time @ params["moved"], x.shape) if "moved" in params else v


@pytest.mark.full
@pytest.mark.parametrize("noise", NOISES)
def test_a_position_for_each_step_has_the_same_draws_and_their_log_probs_add_up(noise):
    whole, apart = (build(noise=noise, positions=positions) for positions in ("action", "step"))
    one, other = (a.draw(parameters(noise), SEEN, KEYS, temperature=0.7) for a in (whole, apart))
    np.testing.assert_array_equal(one.action, other.action)
    np.testing.assert_array_equal(one.taken[:, :-1], other.taken[:, :, 0])
    np.testing.assert_array_equal(one.taken[:, 1:], other.taken[:, :, 1])
    assert other.logp.shape == (B, K) and np.ptp(other.logp) > 0.1
    np.testing.assert_allclose(jnp.sum(other.logp, axis=1), one.logp, atol=1e-5)
    np.testing.assert_allclose(jnp.sum(other.entropy, axis=1), one.entropy, atol=1e-5)
    # as rows: two actions of B / 2 rows, and a last place for the state behind them
    pairs = other.taken.reshape(B // 2, 2 * K, 2, A)
    seen = jnp.repeat(SEEN, K, axis=0).reshape(B // 2, 2 * K, 2)
    motion = actors.Motion(*(jnp.pad(x, [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2)) for x in (seen, pairs)))
    mask = jnp.pad(jnp.ones((B // 2, 2 * K)), ((0, 0), (0, 1)))
    rows = types.Rollout(mask, jnp.zeros(B // 2), jnp.zeros(B // 2, int), motion=motion)
    scores = apart.score(parameters(noise), rows, types.Needs(), temperature=0.7)
    np.testing.assert_allclose(scores.logp[:, :-1].reshape(B, K), other.logp, atol=1e-5)


@pytest.mark.full
def test_steps_without_noise_follow_the_flow_and_have_no_log_prob():
    one = build(noise="sde", positions="step", first=1, last=3)
    drawn = one.draw(parameters("sde"), SEEN, KEYS)
    assert one.scored == (False, True, True, False)
    for k, noisy in enumerate(one.scored):
        x, after = drawn.taken[:, k, 0], drawn.taken[:, k, 1]
        time = jnp.broadcast_to(jnp.eye(K)[k], (B, K))
        straight = x + one.architecture.apply(parameters("sde"), SEEN, x, time) / K
        assert np.all(np.isclose(after, straight, atol=1e-6)) != noisy
    rules = environments.lookup("modes")().rules
    unroll = jax.jit(lambda begun: acting.unroll(one, rules, parameters("sde"), begun, KEYS, 2, 1.0))
    after, trace = unroll(acting.begun(rules, jnp.arange(B), "train"))
    trained = np.tile([0, 1, 1, 0, 0, 0, 0, 0], (B, 1)).T  # the episode has one step of time
    np.testing.assert_array_equal(trace.mask, trained)
    np.testing.assert_array_equal(trace.logp != 0, trained > 0)
    np.testing.assert_array_equal(trace.reward != 0, np.tile([0, 0, 1, 0, 0, 0, 0, 0], (B, 1)).T)
    np.testing.assert_array_equal(jnp.sum(trace.reward, axis=0), after.total)


@pytest.mark.full
def test_the_first_steps_have_a_network_that_the_others_do_not_train():
    split = 3
    one, plain = (build(actors.Mlp(1, 8, normalise=True), positions="step", split=s) for s in (split, 0))
    params = jax.tree.map(lambda x: x + 0.1, one.init(jax.random.key(1)))
    early = {**params, **params["early"]}
    assert set(early) - set(plain.init(jax.random.key(1))) == {"early"}
    x, step = jnp.asarray(np.random.default_rng(1).normal(size=(K, A)), jnp.float32), jnp.arange(K)
    whole = one.transition(params, SEEN[:K], x, step).mean
    for of, inside in ((early, step < split), (params, step >= split)):
        np.testing.assert_array_equal(whole[inside], plain.transition(of, SEEN[:K], x, step).mean[inside])
    taken = one.draw(params, SEEN, KEYS).taken

    def likelihood(params, k):
        return jnp.sum(one.policy(params, SEEN[:, None].repeat(K, 1), taken=taken).logp(taken)[:, k])

    for k in range(K):
        moved = jax.tree.map(jnp.any, jax.grad(likelihood)(params, k))
        layers = [name for name in moved if name.startswith("layer")]
        assert all(moved["early"][name]["bias"] == (k < split) for name in layers)
        assert all(moved[name]["bias"] == (k >= split) for name in layers)


@pytest.mark.full
def test_samples_of_a_prompt_share_the_first_states():
    """The keys of a prompt decide them, so that the first sample, which has the same key, is drawn as without."""
    alike = jnp.stack([SHARED[0]] * B)
    keys = KEYS.at[0].set(SHARED[0])
    for count in (0, 1, 3):
        one = build(noise="sde", shared=count)
        chain = one.draw(parameters("sde"), jnp.zeros((B, 2)), keys, shared=alike).taken
        plain = one.draw(parameters("sde"), jnp.zeros((B, 2)), keys).taken
        same = np.all(np.asarray(chain) == np.asarray(chain[:1]), axis=(0, 2))
        np.testing.assert_array_equal(same, np.arange(K + 1) < count)
        np.testing.assert_allclose(chain[0], plain[0], atol=1e-6)


@pytest.mark.full
@pytest.mark.parametrize("noise", NOISES)
def test_a_demonstrated_chain_is_most_probable_under_the_exact_flow(noise):
    """At v(x, t) = E[a - z | x] the expected gradient of the likelihood is 0 in a shift of v at every step."""
    count = 40_000
    one = build(Flow(K), size=1, noise=noise)
    keys = jax.random.split(jax.random.key(5), count)
    action = MEAN + STD * jax.random.normal(jax.random.key(6), (count, 1))
    silent = {"log_std": jnp.full((K, 1), -0.3)} if noise == "learned" else {}

    def gradients(moved):
        chain = one.stored(action, keys)
        seen = jnp.zeros((count, 2))

        def likelihood(moved, chain, seen):
            params = {"moved": moved, **silent}
            return one.policy(params, seen[None], taken=chain[None]).logp(chain[None])[0]

        return chain, jax.vmap(jax.grad(likelihood), (None, 0, 0))(moved, chain, seen)

    exact, (chain, slope) = jnp.zeros((K, 1)), jax.jit(gradients)(jnp.zeros((K, 1)))
    error = np.std(slope, axis=0)[:, 0] / np.sqrt(count)
    assert np.all(np.abs(np.mean(slope, axis=0)[:, 0]) < 4 * error), exact
    _, off = jax.jit(gradients)(jnp.full((K, 1), 0.3))
    assert np.all(np.mean(off, axis=0)[:, 0] < -4 * error)
    if noise != "sde":  # which has the marginals of the flow as the steps become small
        t = np.arange(K + 1) / K
        last = np.exp(-0.6) * (noise == "renoised") * (np.arange(K + 1) == K)
        np.testing.assert_allclose(jnp.mean(chain, axis=0)[:, 0], MEAN * t, atol=0.03)
        np.testing.assert_allclose(jnp.var(chain, axis=0)[:, 0], (1 - t) ** 2 + (STD * t) ** 2 + last, atol=0.03)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"steps": 0}, "log_std=-0.3: has no effect with steps=0. Remove it."),
        ({"shared": 9}, "shared=9: must be at most steps=4"),
        ({"last": 3}, "first, last: steps without noise have no density; set positions='step'"),
        ({"first": 3, "last": 3, "positions": "step"}, "first=3: must be below last=3"),
        ({"noise": "white"}, "noise"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings, words):
    with pytest.raises(ValueError, match=words):
        build(**settings)


# --- credit -------------------------------------------------------------------------------------------------


@pytest.mark.full
def test_credit_of_turns_is_that_of_actions_and_discounts_denoising_steps():
    """GAE over turns of K positions each equals GAE over actions, also where windows cut the episode."""
    draws, steps = np.random.default_rng(7), 5
    value, reward = draws.normal(size=(B, steps + 1)), draws.normal(size=(B, steps))
    length = np.array([5, 3, 5, 1, 2, 5])
    live = np.arange(steps)[None] < length[:, None]
    value = np.where(np.arange(steps + 1)[None] > length[:, None], np.take_along_axis(value, length[:, None], 1), value)
    finish = np.array([0, 1, 1, 1, 0, 0])  # LENGTH or STOP

    def rows(K, scored):
        spread = lambda x: np.pad(np.repeat(x, K, axis=1), ((0, 0), (0, 1)))  # noqa: E731
        positions = np.tile(scored, steps)
        paid = np.tile(np.arange(K) == np.flatnonzero(scored).max(), steps)
        return types.Rollout(
            mask=jnp.asarray(1.0 * spread(live) * np.append(positions, 0)), reward=jnp.zeros(B), group=jnp.arange(B),
            motion=actors.Motion(jnp.zeros((B, steps * K + 1, 1)), jnp.zeros((B, steps * K + 1))),
            token_reward=jnp.asarray(spread(reward * live) * np.append(paid, 0)), finish=jnp.asarray(finish),
            value=jnp.asarray(np.concatenate([np.repeat(value[:, :-1], K, axis=1), value[:, -1:]], axis=1)),
            turn=jnp.asarray(spread(np.tile(np.arange(steps), (B, 1))), jnp.int32), valid=jnp.ones(B),
        )  # fmt: skip

    def applied(r, *pieces):
        chain = transforms.chain(*pieces, kind=types.RolloutTransform)
        return chain.apply(r, chain.init(), jax.random.key(0))[0]

    with jax.enable_x64(True):
        actions = applied(rows(1, (1,)), advantage.gae(0.9, 0.8))
        for scored in ((1, 1, 1), (0, 1, 1), (1, 1, 0)):
            r = rows(3, scored)
            turns = applied(r, advantage.turn_gae(0.9, 0.8))
            for name in ("advantage", "returns"):
                each = np.asarray(getattr(turns, name))[:, :-1].reshape(B, steps, 3)
                expected = np.asarray(getattr(actions, name))[:, :-1] * live
                for k in np.flatnonzero(scored):
                    np.testing.assert_allclose(each[:, :, k] * live, expected, atol=1e-6)
            halved = applied(turns, advantage.discount_in_turn(0.5)).advantage
            behind = np.cumsum(scored[::-1])[::-1] - scored
            factor = np.append(np.tile(0.5**behind, steps), 1)
            np.testing.assert_allclose(halved * r.mask, np.asarray(turns.advantage) * factor * r.mask, atol=1e-6)


# --- quadrature ---------------------------------------------------------------------------------------------


@pytest.mark.full
def test_quadrature_has_the_moments_of_a_linear_chain_and_its_gradient_is_that_of_reinforce():
    """The exact flow of a Gaussian is linear, so that every state is Gaussian; r = cos(x_1) + x_2^2."""
    one = build(Flow(K), noise="sde", log_std=0.0, positions="step")
    zero = jnp.zeros(2)
    density = np.asarray(quadrature.densities(one, {}, zero), np.float64)
    grid, mean, variance = quadrature.points(), 0.0, 1.0
    for k, p in enumerate(density):
        p = p / p.sum()
        np.testing.assert_allclose(grid.T @ p, [mean, mean], atol=4e-3)
        np.testing.assert_allclose((grid**2).T @ p - (grid.T @ p) ** 2, [variance] * 2, atol=1.5e-2)
        if k < K:
            policy = one.transition({}, jnp.zeros((2, 2)), jnp.array([[0.0, 0.0], [1.0, 1.0]]), jnp.full(2, k))
            at_0, at_1 = np.asarray(policy.mean, float)[:, 0]
            mean = at_0 + (at_1 - at_0) * mean
            variance = (at_1 - at_0) ** 2 * variance + np.exp(2 * float(policy.log_std[0, 0]))

    def reward(x):
        return jnp.cos(x[..., 0]) + x[..., 1] ** 2

    def expected(moved):
        p = quadrature.densities(one, {"moved": moved}, zero)[-1]
        return jnp.sum(p * reward(jnp.asarray(grid, jnp.float32))) / jnp.sum(p)

    moved = jnp.zeros((K, A))
    exact = np.asarray(jax.jit(jax.grad(expected))(moved))
    count = 60_000
    seen, keys = jnp.zeros((count, 2)), jax.random.split(jax.random.key(8), count)
    drawn = one.draw({"moved": moved}, seen, keys)
    paid = reward(drawn.taken[:, -1, 1])

    def chained(moved, taken):
        return jnp.sum(one.policy({"moved": moved}, jnp.zeros((1, K, 2)), taken=taken[None]).logp(taken[None]))

    slopes = jax.jit(jax.vmap(jax.grad(chained), (None, 0)))(moved, drawn.taken) * (paid - paid.mean())[:, None, None]
    error = np.std(slopes, axis=0) / np.sqrt(count)
    np.testing.assert_array_less(np.abs(np.mean(slopes, axis=0) - exact), 4.5 * error + 1e-3)
    assert np.abs(exact).max() > 20 * error.max()


def test_the_best_trade_is_the_density_tilted_by_the_reward():
    """E_q r - beta KL(q || p) = beta log Z at q = p exp(r / beta) / Z, and less at every other density."""
    draws, beta = np.random.default_rng(9), 0.3
    grid = quadrature.points()
    p, r = np.exp(-np.sum(grid**2, axis=1)) / np.pi, np.sin(3 * grid[:, 0])
    best = quadrature.tilted(p, r, beta)
    assert best.sum() * quadrature.CELL == pytest.approx(1.0, abs=1e-6)

    def traded(q):
        return np.sum(q * r) / q.sum() - beta * quadrature.divergence(q, p)

    assert traded(best) == pytest.approx(beta * np.log(np.sum(p * np.exp(r / beta)) / p.sum()), abs=1e-9)
    for other in (p, best * np.exp(0.1 * draws.normal(size=best.shape)), best * (1 + 0.1 * np.sin(grid[:, 1]))):
        assert traded(other) < traded(best) - 1e-5
