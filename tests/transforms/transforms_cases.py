"""What the tests of transforms share."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types

KEY = jax.random.key(0)

MASK = [[1, 1, 0], [1, 0, 1], [1, 1, 1], [1, 0, 0], [1, 1, 0]]


def floats(x):
    return jnp.asarray(x, jnp.float32)


def record(mask=MASK, reward=(1, 0, 1, 1, 1), group=(5, 5, -2, -2, 9), **fields):
    """Return a rollout; by default a group with spread, one without and one of a single row."""
    arrays = {k: floats(v) if isinstance(v, list) else v for k, v in fields.items()}
    return types.Rollout(mask=floats(mask), reward=floats(reward), group=jnp.asarray(group), **arrays)


def one_row(mask, **fields):
    return record([mask], (fields.pop("reward", 0.0),), (0,), **{k: [v] for k, v in fields.items()})


def apply(piece, *records, state=None):
    """Apply a piece from its first state and return what it makes of the record."""
    out = piece.apply(*records, piece.init() if state is None else state, KEY)
    return out if isinstance(piece, types.LossTransform) else out[0]


def close(a, b, **tolerance):
    np.testing.assert_allclose(np.asarray(a), np.asarray(b), **{"rtol": 1e-5, "atol": 1e-6, **tolerance})
