"""Environments of Brax as worlds: their steps, and where they end. Without the package only the error is tested."""

import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments
from rljax.environments.control import drawn
from rljax.environments.control.shipped import brax
from tests.environments.control import flying

installed = pytest.mark.skipif(importlib.util.find_spec("brax") is None, reason="needs brax")


@pytest.mark.skipif(importlib.util.find_spec("brax") is not None, reason="brax is here")
def test_without_the_package_its_extra_is_named():
    with pytest.raises(ValueError, match="pip install rljax-lm\\[brax\\]"):
        environments.lookup("brax")()


@installed
@pytest.mark.full
@pytest.mark.parametrize("name", ["inverted_pendulum", "hopper"])
def test_steps_equal_those_of_the_package(name):
    from brax import envs

    rules = brax.Brax(environment=name, steps=30)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):  # which the package uses
        states, actions, moved = flying.episodes(rules, flying.random, "heldout", jnp.arange(2))
        theirs, key = envs.get_environment(name, backend="spring"), drawn.key(brax._SEED, 1, "heldout")
        state, step = theirs.reset(key), jax.jit(theirs.step)
        for t in range(30):
            np.testing.assert_allclose(states["seen"][1, t], state.obs, atol=2e-3)
            state = step(state, actions[1, t])
            np.testing.assert_allclose(moved.reward[1, t], state.reward, atol=2e-3)
            assert moved.done[1, t] == (state.done > 0)
            if state.done:
                break
    assert t > 5 and np.abs(moved.reward).max() > 0
    assert states["seen"].shape == (2, 31, rules.observed) and moved.done.dtype == jnp.bool_


@installed
def test_an_unknown_environment_is_an_error_with_the_nearest_name():
    with pytest.raises(ValueError, match="nearest: 'hopper'"):
        environments.lookup("brax")("hoper")
