"""What the tests of modules share."""

import jax
import jax.numpy as jnp

import rljax
from rljax import types
from tests.support import tiny

ONE = jax.devices()[:1]


def with_modules(algorithm="grpo(kl=0.0)", seam="learned()", **modules):
    """Return a config of a reward phase and a main phase that reads it."""
    c = tiny.config(algorithm)
    c.phases = ("reward", "main")
    c.phase.reward = rljax.phase(algorithm="bradley_terry()", steps=2, warmup=1)
    c.phase.main.seam.reward = seam
    for name, module in modules.items():
        c.module[name] = module
    return c


def rows(scores, given=(1.0, 0.0, 1.0)):
    given = jnp.asarray(given)
    held = {name: types.Scores(reward=jnp.asarray(x, jnp.float32)) for name, x in scores.items()}
    return types.Rollout(jnp.ones((3, 2)), given, jnp.zeros(3, int), scores=held)
