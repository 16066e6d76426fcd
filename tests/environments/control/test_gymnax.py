"""Environments of gymnax as worlds: their steps, and where they end. Without the package only the error is tested."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments
from rljax.environments.control import rules as control
from rljax.environments.control.shipped import cartpole, pendulum
from rljax.environments.control.shipped.gymnax import Gymnax
from tests.environments.control import flying

installed = pytest.mark.skipif(importlib.util.find_spec("gymnax") is None, reason="needs gymnax")


@pytest.mark.skipif(importlib.util.find_spec("gymnax") is not None, reason="gymnax is here")
def test_without_the_package_its_extra_is_named():
    with pytest.raises(ValueError, match="pip install rljax-lm\\[gymnax\\]"):
        environments.lookup("gymnax")()


@installed
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_steps_equal_those_of_the_world_of_the_same_name(name):
    rules = Gymnax(environment=name)
    ours = cartpole.Cartpole() if name == "CartPole-v1" else pendulum.Pendulum()
    assert rules.actions == ours.actions and rules.horizon == ours.horizon
    states, actions, moved = jax.device_get(flying.episodes(rules, flying.random, "train", jnp.arange(8), 40))
    theirs = states["state"]
    if name == "CartPole-v1":
        motion = np.stack([theirs.x, theirs.x_dot, theirs.theta, theirs.theta_dot], axis=-1)
        context = np.tile(np.float32([0.5, 0.1, 1, 9.8]), (8, 41, 1))
        inner = {"context": context, "motion": motion}
    else:
        inner = np.stack([np.remainder(theirs.theta + np.pi, 2 * np.pi) - np.pi, theirs.theta_dot], axis=-1)
    before = jax.tree.map(lambda x: x[:, :-1], inner)
    _, expected = jax.vmap(jax.vmap(lambda s, a: ours.step(s, a, None)))(before, actions)
    alive = np.cumsum(moved.done, axis=1) - moved.done == 0
    np.testing.assert_allclose(moved.reward[alive], expected.reward[alive], rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(moved.done[alive], expected.done[alive])
    scale = [2.4, 2, 12 * np.pi / 180, 2] if name == "CartPole-v1" else [1, 1, 8]
    seen = np.asarray(jax.vmap(jax.vmap(ours.observe))(inner)) * scale
    np.testing.assert_allclose(np.asarray(states["seen"])[:, :-1][alive], seen[:, :-1][alive], rtol=1e-4, atol=1e-4)


@installed
@pytest.mark.full
def test_environments_have_flat_observations_and_the_contract():
    import gymnax

    refused = []
    for name in {*gymnax.registered_envs} - {"MNISTBandit-bsuite"}:  # which downloads its pictures
        rules = Gymnax(environment=name, steps=12)
        try:
            kind = rules.actions
        except ValueError:
            refused.append(name)
            continue
        assert isinstance(kind, control.Discrete | control.Box)
        with jax.numpy_rank_promotion("allow"):  # which some of them use
            states, _, moved = flying.episodes(rules, flying.random, "heldout", jnp.arange(2))
        observed = jax.vmap(jax.vmap(rules.observe))(states)
        assert observed.shape == (2, 13, rules.observed) and observed.dtype == jnp.float32, name
        assert moved.reward.shape == (2, 12) and moved.reward.dtype == jnp.float32, name
        assert moved.done.dtype == jnp.bool_ and jnp.all(jnp.isfinite(observed)), name
    assert not refused


@installed
def test_the_time_limit_does_not_end_an_episode():
    rules = Gymnax(environment="Pendulum-v1")
    _, _, moved = flying.episodes(rules, flying.random, "train", jnp.arange(2), 210)
    assert rules.horizon == 200 and not moved.done.any()
    assert Gymnax(threshold=-200.0).solved(None, jnp.float32(-199)) and not Gymnax().solved(None, jnp.float32(1e9))


@installed
def test_an_unknown_environment_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="nearest: 'CartPole-v1'"):
        environments.lookup("gymnax")("Cartpol-v1")
