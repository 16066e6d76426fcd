"""What the tests of second pass share."""

import jax.numpy as jnp
import numpy as np

from rljax import types

P, G, L, T = 3, 4, 3, 5  # of the plain functions

EOS = 9


def problems(encode=lambda text: [ord(c) for c in text]):
    return types.Problems(P, 1, jnp.zeros_like, encode, lambda index: index)


def solutions(lengths=(5, 3, 1)):
    """Return a demonstration of each row: 100 p + t, and the end."""
    token = 100 * np.arange(P)[:, None] + np.arange(T)[None]
    length = np.array(lengths)
    token = np.where(np.arange(T) == length[:, None] - 1, EOS, token)
    return types.Action(np.repeat(token, G, axis=0), length=np.repeat(length, G))


def scored(reward, more=0, second=0):
    """Return rows of P prompts with rewards [P, G], or rows of a second pass."""
    reward = np.asarray(reward, np.float32).reshape(-1)
    rows = reward.size
    number, ones = np.arange(rows, dtype=np.int32), np.ones(rows, np.float32)
    prompt = np.tile(np.arange(1, L + 1, dtype=np.int32), (rows, 1)) + 10 * (number // G)[:, None]
    mask = (np.arange(L) >= (number // G % 2)[:, None]) * ones[:, None]  # every second prompt is shorter
    pad = ((0, 0), (more, 0))
    return types.Rollout(
        mask=np.ones((rows, T), np.float32),
        reward=reward,
        group=7 + number // G,
        context=types.Context(np.pad(prompt, pad), np.pad(mask, pad)),
        action=types.Action(1000 * (1 + second) + 10 * number[:, None] + np.arange(T), length=np.full(rows, T)),
        valid=ones,
        outcome=(reward > 0).astype(np.int32),
        episode=number,
        on_policy=ones,
        finish=np.full(rows, int(types.Finish.STOP)),
        index=20 + number // G,
        extra={"pass": np.full(rows, second, np.float32)},
    )
