"""What the tests of prefix share."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types

PROBLEMS = types.Problems(
    size=6,
    domains=1,
    domain=jnp.zeros_like,
    encode=lambda text: [ord(c) - ord("a") for c in text],
    shuffled=lambda index: index,
)


def batch(reward, *, samples, width=8, length=None, **fields):
    """Return scored rows of prompts 0, 1, ...; token t of row b is 10 b + t."""
    reward = np.asarray(reward, np.float32)
    rows, column = reward.size, np.arange(width, dtype=np.int32)[None, :]
    length = np.full(rows, width, np.int32) if length is None else np.asarray(length, np.int32)
    number, one = np.arange(rows, dtype=np.int32), np.ones(rows, np.float32)
    mask = (column < length[:, None]).astype(np.float32)
    values = {
        "mask": mask,
        "reward": reward,
        "group": number // samples + 7,
        "index": number // samples,
        "episode": number,
        "valid": one,
        "entropy": 0 * mask,
        "on_policy": one,
        "finish": np.full(rows, types.Finish.STOP, np.int32),
        "action": types.Action(token=10 * number[:, None] + column, length=length),
        "context": types.Context(token=np.full((rows, 3), 99, np.int32), mask=np.ones((rows, 3), np.float32)),
        "extra": {"pass": 0 * one, "head": 0 * mask},
    }
    return types.Rollout(**(values | fields))


def second_of(edit, samples, reward=1.0, width=8):
    """Return rows of a second pass: token 1000, and reward 1 unless ``reward`` says otherwise."""
    count = edit.row.size * samples
    rows = batch(np.broadcast_to(reward, count), samples=samples, width=width)
    return rows.replace(
        action=rows.action.replace(token=0 * rows.action.token + 1000),
        valid=np.repeat(edit.used, samples).astype(np.float32),
        extra={**rows.extra, "pass": np.ones(count, np.float32)},
    )


def edited(piece, rows, *, count, solutions=None, pool=()):
    return edits(piece, rows, count=count, solutions=solutions, pool=pool)(jax.random.key(0))


def edits(piece, rows, *, count, solutions=None, pool=()):
    run = jax.jit(piece.again.edit, static_argnums=(1, 4))
    return lambda key: jax.device_get(run(pool, PROBLEMS, rows, solutions, count, key))


def merge(piece, first, second, edit):
    return jax.device_get(jax.jit(piece.again.merge)(first, second, edit))


def shown(*length, width=8):
    return types.Action(
        token=jnp.tile(100 + jnp.arange(width, dtype=jnp.int32), (len(length), 1)),
        length=jnp.asarray(length, jnp.int32),
    )
