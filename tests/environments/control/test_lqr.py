"""The regulator: its Riccati recursion and expected returns, against simulations and a minimisation of the cost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import linalg

from rljax.environments.control.shipped import lqr
from tests.environments.control import flying


def stationary(system: lqr.System, discount: float = 1.0) -> np.ndarray:
    """Return the gain K ``[C, S]`` of the best policy u = K x for the discounted cost of infinitely many steps.

    It is that of ``riccati`` with sqrt(discount) A and sqrt(discount) B, many steps before the end.
    """
    root = discount**0.5
    return lqr.riccati(dataclasses.replace(system, A=root * system.A, B=root * system.B, horizon=2000))[0][0]


def expected_return(system: lqr.System, gain: np.ndarray, spread: float, moment: np.ndarray) -> float:
    """Return the expected return of the policy u_t ~ N(K_t x_t, spread^2 I), exactly.

    The second moment of the state, M = E xx', evolves by M' = (A + BK) M (A + BK)' + spread^2 BB' + noise^2 I, and a
    step costs tr(QM) + tr(R (KMK' + spread^2 I)).

    Args:
      system: of S states and C controls, for H steps.
      gain: K, ``[C, S]``, or ``[H, C, S]`` for each step.
      spread: standard deviation of the controls.
      moment: of the first state, ``[S, S]``; xx' for one state x, I for all problems.

    Returns:
      The sum of the expected rewards.
    """
    A, B, total = system.A, system.B, 0.0
    for K in np.broadcast_to(gain, (system.horizon, B.shape[1], B.shape[0])):
        control = K @ moment @ K.T + spread**2 * np.eye(B.shape[1])
        total -= float(np.sum(system.Q * moment) + np.sum(system.R * control))
        moment = (A + B @ K) @ moment @ (A + B @ K).T + spread**2 * B @ B.T + system.noise**2 * np.eye(B.shape[0])
    return total


RULES = lqr.Lqr(states=3, controls=2, noise=0.1, price=0.5, horizon=8, radius=1.05)


def gaussian(rules, state, key):
    """Act by a fixed linear policy with noise of 0.2."""
    control = jnp.asarray(GAIN, jnp.float32) @ state["state"] + 0.2 * jax.random.normal(
        jax.random.fold_in(key, 1), (2,)
    )
    return control / rules.scale


def best(rules, state, key):
    """Act by the first of the best gains, which is nearly the best one for all steps."""
    return jnp.asarray(lqr.riccati(rules.system)[0][0], jnp.float32) @ state["state"] / rules.scale


GAIN = 0.7 * lqr.riccati(RULES.system)[0][0]


@pytest.mark.full
def test_the_mean_return_of_a_linear_policy_is_the_expected_one():
    _, _, moved = flying.episodes(RULES, gaussian, "train", jnp.arange(2**14))
    totals = np.asarray(jnp.sum(moved.reward, axis=1), np.float64)
    expected = expected_return(RULES.system, GAIN, 0.2, np.eye(3))
    assert abs(totals.mean() - expected) < 4 * totals.std() / np.sqrt(len(totals))


def test_the_return_of_each_first_state_is_the_expected_one_without_noise():
    rules = lqr.Lqr(states=3, controls=2, price=0.5, horizon=8, radius=1.05)
    gain = lqr.riccati(rules.system)[0][0]
    states, actions, moved = jax.device_get(flying.episodes(rules, best, "heldout", jnp.arange(64)))
    for first, rewards in zip(states["state"][:, 0].astype(float), moved.reward, strict=True):
        expected = expected_return(rules.system, gain, 0.0, np.outer(first, first))
        np.testing.assert_allclose(rewards.sum(), expected, rtol=1e-4)
    assert np.abs(actions).max() < 1 and not moved.done.any()
    assert rules.solved(jax.tree.map(lambda x: x[:, -1], states), moved.reward.sum(axis=1)).all()
    assert not rules.solved(jax.tree.map(lambda x: x[:, -1], states), 1.3 * moved.reward.sum(axis=1)).any()


def test_the_stationary_gain_is_that_of_the_algebraic_equation():
    system, discount = RULES.system, 0.9
    A, B = discount**0.5 * system.A, discount**0.5 * system.B
    P = linalg.solve_discrete_are(A, B, system.Q, system.R)
    expected = -np.linalg.solve(system.R + B.T @ P @ B, B.T @ P @ A)
    np.testing.assert_allclose(stationary(system, discount), expected, rtol=1e-8)


def test_the_cost_to_go_is_the_least_of_the_quadratic_in_all_controls():
    system, first = RULES.system, np.random.default_rng(0).normal(size=3)
    gains, costs, rests = lqr.riccati(system)
    H, (S, C) = system.horizon, system.B.shape
    # all states are linear in the first one and the controls: x = F x_0 + G u
    F = np.stack([np.linalg.matrix_power(system.A, t) for t in range(H)]).reshape(H * S, S)
    G = np.zeros((H, S, H, C))
    for t in range(H):
        for s in range(t):
            G[t, :, s] = np.linalg.matrix_power(system.A, t - 1 - s) @ system.B
    G = G.reshape(H * S, H * C)
    Q, R = np.kron(np.eye(H), system.Q), np.kron(np.eye(H), system.R)
    controls = -np.linalg.solve(R + G.T @ Q @ G, G.T @ Q @ F @ first)
    x = F @ first + G @ controls
    np.testing.assert_allclose(first @ costs[0] @ first, x @ Q @ x + controls @ R @ controls, rtol=1e-9)
    np.testing.assert_allclose(gains[0] @ first, controls[:C], rtol=1e-9)
    # noise costs what its covariance does in the cost to go of the states that it disturbs
    total = expected_return(system, gains, 0.0, np.outer(first, first))
    np.testing.assert_allclose(-total, first @ costs[0] @ first + rests[0], rtol=1e-9)
    assert rests[-1] == 0 < rests[0] and not costs[-1].any()


def test_no_perturbed_gain_is_better():
    system, draws = RULES.system, np.random.default_rng(1)
    gains, *_ = lqr.riccati(system)
    value = expected_return(system, gains, 0.0, np.eye(3))
    for _ in range(20):
        other = gains + 0.05 * draws.normal(size=gains.shape)
        assert expected_return(system, other, 0.0, np.eye(3)) < value
    assert expected_return(system, gains, 0.1, np.eye(3)) < value


def test_the_system_has_its_spectral_radius_and_its_seed():
    radius = np.abs(np.linalg.eigvals(RULES.system.A)).max()
    np.testing.assert_allclose([radius, *np.linalg.norm(RULES.system.B, axis=0)], [1.05, 1, 1])
    assert np.abs(lqr.Lqr(seed=1).system.A - lqr.Lqr().system.A).max() > 0.1


def test_best_actions_hardly_ever_reach_1():
    rules = lqr.Lqr(seed=3)
    _, actions, _ = flying.episodes(rules, best, "train", jnp.arange(1024))
    assert 0.5 < jnp.max(jnp.abs(actions)) < 1.1 and jnp.mean(jnp.abs(actions) > 1) < 1e-4
