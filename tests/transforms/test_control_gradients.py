"""Policy gradients of a linear Gaussian policy in a linear system, against the gradient of its exact return.

u_t ~ N(K x_t + b, sigma^2 I), x' = A x + B u + noise w, a step is paid -(x'Qx + u'Ru). Mean and second moment of the
state evolve in closed form, and so does the value function, a quadratic for each step.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.environments.control.shipped import lqr
from rljax.models import actors
from rljax.models.actors import distributions
from rljax.sampling import acting
from rljax.transforms import advantage, reduce, surrogate

HORIZON = 8
RULES = lqr.Lqr(states=2, controls=1, noise=0.2, bound=50.0, horizon=HORIZON, radius=0.9, seed=3)
SCALE = RULES.scale  # the control of an action of 1, which no control reaches
POINT = {"K": np.array([[-0.3, 0.2]]), "b": np.array([0.4]), "log_sigma": np.array([-0.7])}
KEY = jax.random.key(11)


class _Linear:
    """An actor of the policy; actions are controls in units of the largest control."""

    scored = (True,)

    def policy(self, params, observation):
        mean = (observation @ params["K"].T + jnp.broadcast_to(params["b"], (*observation.shape[:-1], 1))) / SCALE
        log_std = jnp.broadcast_to(params["log_sigma"] - np.log(SCALE), mean.shape)
        return distributions.Gaussian(mean, log_std)

    def draw(self, params, observation, keys, legal, temperature, shared):
        policy = self.policy(params, observation)
        taken = jax.vmap(lambda p, key: p.draw(key))(policy, keys)
        return actors.Drawn(taken, policy.acted(taken), policy.logp(taken), policy.entropy())


# --- the truth ----------------------------------------------------------------------------------------


def exact_return(K, b, log_sigma):
    """Return the expected return over all problems, x_0 ~ N(0, I), by its moments."""
    s, variance = RULES.system, np.exp(2 * log_sigma[0])
    m, M, total = np.zeros(2), np.eye(2), 0.0
    for _ in range(HORIZON):
        xu = M @ K.T + np.outer(m, b)
        uu = K @ M @ K.T + K @ np.outer(m, b) + np.outer(b, m) @ K.T + np.outer(b, b) + variance * np.eye(1)
        total -= np.trace(s.Q @ M) + np.trace(s.R @ uu)
        M = s.A @ M @ s.A.T + s.A @ xu @ s.B.T + s.B @ xu.T @ s.A.T + s.B @ uu @ s.B.T + s.noise**2 * np.eye(2)
        m = (s.A + s.B @ K) @ m + s.B @ b
    return total


def exact_values(x):
    """Return V_t(x_t) of states ``[N, T + 1, 2]``, 0 behind the last step."""
    s, (K, b), variance = RULES.system, (POINT["K"], POINT["b"]), np.exp(2 * POINT["log_sigma"][0])
    F, g, out = s.A + s.B @ K, s.B @ b, np.zeros(x.shape[:2])
    P, p, c = np.zeros((2, 2)), np.zeros(2), 0.0
    for t in reversed(range(HORIZON)):
        c = b @ s.R @ b + variance * np.trace(s.R + s.B.T @ P @ s.B) + g @ P @ g + 2 * p @ g + c
        c += s.noise**2 * np.trace(P)
        p = K.T @ s.R @ b + F.T @ (P @ g + p)
        P = s.Q + K.T @ s.R @ K + F.T @ P @ F
        out[:, t] = -(np.einsum("ni,ij,nj->n", x[:, t], P, x[:, t]) + 2 * x[:, t] @ p + c)
    return out


def exact_gradient(eps=1e-5):
    """Return the gradient in K, b and log sigma, ``[4]``, by differences."""
    point = np.concatenate([POINT["K"][0], POINT["b"], POINT["log_sigma"]])
    ends = [(point + e, point - e) for e in np.eye(4) * eps]
    return np.array(
        [np.subtract(*(exact_return(x[None, :2], x[2:3], x[3:]) for x in pair)) / (2 * eps) for pair in ends]
    )


# --- the estimates ------------------------------------------------------------------------------------


@functools.cache
def sampled(rows):
    """Return the rows of some episodes with the exact values, and the gradient [rows, T + 1, 4] of each log-prob."""
    actor, params = _Linear(), jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), POINT)
    keys = jax.random.split(KEY, rows)
    episodes, trace = jax.jit(
        lambda: acting.unroll(actor, RULES, params, acting.begun(RULES, jnp.arange(rows), "train"), keys, HORIZON, 1.0)
    )()
    assert np.all(np.abs(trace.taken) < 1) and np.all(episodes.finish == types.Finish.LENGTH)
    wide = jax.tree.map(lambda x: jnp.pad(jnp.moveaxis(x, 0, 1), [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2)), trace)
    observation = wide.observation.at[:, -1].set(episodes.system["state"])
    value = exact_values(np.asarray(observation, np.float64))
    rollout = types.Rollout(
        mask=wide.mask, reward=jnp.zeros(rows), group=jnp.arange(rows), token_reward=wide.reward,
        behaviour_logp=wide.logp, raw_logp=wide.logp, finish=episodes.finish, value=jnp.asarray(value, jnp.float32),
        motion=actors.Motion(observation, wide.taken),
    )  # fmt: skip
    slope = jax.jit(
        jax.vmap(jax.vmap(jax.grad(lambda p, x, u: actor.policy(p, x).logp(u)), (None, 0, 0)), (None, 0, 0))
    )
    each = slope(params, observation, wide.taken)
    return rollout, np.concatenate([np.asarray(each[n], np.float64).reshape(rows, HORIZON + 1, -1) for n in POINT], -1)


def estimates(call, rows):
    """Return the estimate of the gradient from each row, ``[rows, 4]``, as the loss of an algorithm has it."""
    rollout, slope = sampled(rows)
    algorithm = {
        "reinforce": algorithms.TABLE["reinforce"](),
        **{
            f"gae({lam})": algorithms.compose(
                advantage=[advantage.gae(1.0, lam)],
                loss=[surrogate.reinforce()],
                reduce=reduce.mean_over_rows_of_sums(),
            )
            for lam in (1.0, 0.9)
        },
    }[call]
    inner = interpreter.init(algorithm)
    done, _ = interpreter.transform(algorithm, rollout, inner, KEY)
    (objective,), (held,) = algorithm.objectives, inner["objectives"]
    ready, held = interpreter.prepare_minibatch(objective, done, None, held, KEY)
    pull = jax.grad(lambda logp: interpreter.loss(objective, ready, types.Scores(logp=logp), held, KEY)[0])
    weight = -np.asarray(pull(rollout.behaviour_logp), np.float64) * rows
    return np.einsum("nt,ntp->np", weight, slope)


def test_the_exact_values_are_those_of_the_exact_return():
    """E V_0(x_0) over x_0 ~ N(0, I) is the expected return: a quadratic has its mean at six points (+-sqrt(2) e_i)."""
    points = np.concatenate([np.sqrt(2) * np.eye(2), -np.sqrt(2) * np.eye(2)])
    x = np.zeros((4, HORIZON + 1, 2))
    x[:, 0] = points
    assert exact_values(x)[:, 0].mean() == pytest.approx(exact_return(**POINT), rel=1e-12)


@pytest.mark.full
@pytest.mark.default_tier("4000")
@pytest.mark.parametrize("rows", [4_000, 100_000])
def test_estimates_have_the_exact_gradient_as_their_mean_and_a_baseline_less_variance(rows):
    """Within 4 standard errors; the exact values leave lambda below 1 unbiased too, and lower the variance further."""
    exact, spread = exact_gradient(), {}
    for call in ("reinforce", "gae(1.0)", "gae(0.9)"):
        each = estimates(call, rows)
        error = each.std(axis=0, ddof=1) / np.sqrt(rows)
        assert np.all(np.abs(each.mean(axis=0) - exact) <= 4 * error), (call, each.mean(axis=0), exact, error)
        assert np.any(np.abs(exact) > 6 * error)  # it is no test of zero against noise
        spread[call] = each.var(axis=0).sum()
    assert spread["reinforce"] > 2 * spread["gae(1.0)"] and spread["gae(1.0)"] > spread["gae(0.9)"]
