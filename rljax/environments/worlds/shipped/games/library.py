"""pgx, imported when it is needed: its modules compute with JAX while they are imported."""

import functools
import importlib.util
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types

State = Any  # pgx.State


def require() -> None:
    """Raise ValueError if pgx is not installed."""
    if importlib.util.find_spec("pgx") is None:
        raise ValueError("game needs pgx: pip install rljax-lm[worlds], or in the checkout pip install '.[worlds]'")


@functools.cache
def environment(name: str) -> Any:
    """Return a ``pgx.Env``; its arrays are concrete, also if a function is being traced."""
    require()
    with jax.ensure_compile_time_eval():
        import pgx

        return pgx.make(name)  # pyright: ignore[reportArgumentType]  pgx lists its names as literals


def begin(name: str, key: types.Key) -> State:
    """Return the first state of a game; cards are dealt by the key."""
    return _carried(environment(name).init(key))


def step(name: str, state: State, action: types.Array) -> State:
    """Return the state after an action, an int32 scalar, of the player whose turn it is."""
    return _carried(environment(name).step(state, action))


def _carried(state: State) -> State:
    """Return a state without its observation, which is not read, and with the same types after every step."""
    state = state.replace(observation=jnp.zeros((0,), bool))
    return jax.tree.map(lambda x: jnp.asarray(x).astype(jnp.asarray(x).dtype), state)  # weak types become strong
