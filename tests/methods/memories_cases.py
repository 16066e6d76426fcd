"""What the tests of memories share."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types

KEY = jax.random.key(0)

T = 3

FULL = pytest.mark.full


def batch(index, reward, serial=0, each=1, **fields):
    """Return rows of hand-made groups, ``reward`` [groups, rows]; the tokens of a row are its serial number."""
    index, reward = (np.asarray(x) for x in (index, reward))
    count, rows = index.size, reward.size
    number = serial + np.arange(rows)
    whole = np.repeat(index, rows // count).astype(np.int32)
    return types.Rollout(  # NumPy arrays: making them compiles nothing
        mask=np.ones((rows, T), np.float32),
        reward=reward.reshape(-1).astype(np.float32),
        group=(100 * serial + np.arange(rows) // (rows // count)).astype(np.int32),
        index=whole,
        context=types.Context(whole[:, None], np.ones((rows, 1), np.float32)),
        action=types.Action(np.tile(number[:, None], T).astype(np.int32)),
        behaviour_logp=np.tile(-number[:, None], T).astype(np.float32),
        version=np.full((rows, T), serial, np.int32),
        valid=np.asarray(fields.pop("valid", np.ones(rows)), np.float32),
        episode=np.arange(rows, dtype=np.int32) // each,
        on_policy=np.ones(rows, np.float32),
        parts={"format": number.astype(np.float32)},
        **fields,
    )


def problems(size=10, rows=1):
    whole = jnp.arange(size)
    return types.Problems(size, 1, jnp.zeros_like, lambda text: [], lambda index: whole[index], rows=rows)


def rows_of(rollout, where=None):
    """Return the serial numbers of rows, which are their tokens."""
    token = np.asarray(rollout.action.token)[:, 0]
    return token.tolist() if where is None else token[np.asarray(where)].tolist()


@functools.cache
def jitted(piece):
    return jax.jit(piece.select, static_argnums=2)
