"""What the tests of sampling share."""

import functools
import typing

import jax
import jax.numpy as jnp
import numpy as np

from rljax import models, sampling, types
from tests.support import drawing

STOP = 0

PAD = 2

OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}

# No probability in TABLE comes nearer than 0.02 to a threshold of these.
SETTINGS = [
    OFF,
    OFF | {"top_p": 0.62},
    OFF | {"temperature": 0.6, "min_p": 0.45},
    {"temperature": 1.4, "top_k": 2, "top_p": 0.62, "min_p": 0.2},
]

TABLE = np.array([[-0.5, 0.9, 1.1], [0.1, -1.5, 0.5], [-0.5, -0.2, -0.1], [-0.4, 0.9, 1.2], [0.6, 0.2, -0.5]])


class Memory(typing.NamedTuple):
    """The toy policy's cache: the sum of token + 1 over the real tokens of each prompt and of each row."""

    prompt: jax.Array  # [P]
    row: jax.Array  # [B]


class Toy(typing.NamedTuple):
    """A policy as functions."""

    decode_params: typing.Callable
    prefill: typing.Callable
    extend: typing.Callable
    select: typing.Callable
    logits: typing.Callable


def toy_prefill(params, token, mask, samples, columns, block, image=None):
    """Hidden state of a position: the sum of token + 1 over the real tokens up to it."""
    state = jnp.cumsum((token + 1) * mask, axis=1)
    return state[:, :, None], Memory(state[:, -1], jnp.zeros((token.shape[0] * samples,)))


def toy_extend(params, token, mask, cache):
    row = cache.row + (token + 1) * mask
    return (jnp.repeat(cache.prompt, row.shape[0] // cache.prompt.shape[0]) + row)[:, None], cache._replace(row=row)


def toy_select(cache, prompts, rows):
    return Memory(cache.prompt if prompts is None else cache.prompt[prompts], cache.row[rows])


def toy_logits(params, hidden):
    """Row ``state mod M`` of the table ``params [M, V]``."""
    return params[hidden[..., 0].astype(jnp.int32) % params.shape[0]]


TOY = Toy(lambda params: params, toy_prefill, toy_extend, toy_select, toy_logits)


def prompts_of(*texts: tuple[int, ...], width: int) -> types.Prompts:
    token = np.full((len(texts), width), 1, np.int32)  # a real id under the padding must not matter
    mask = np.zeros((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        token[row, width - len(text) :] = text
        mask[row, width - len(text) :] = 1
    return types.Prompts(token=jnp.asarray(token), mask=jnp.asarray(mask), index=jnp.arange(len(texts)))


def keys_for(prompts: int, samples: int, seed: int = 0) -> types.Key:
    index = jnp.repeat(jnp.arange(prompts), samples)
    return sampling.row_keys(jax.random.key(seed), 0, index, jnp.tile(jnp.arange(samples), prompts))


@functools.cache
def compiled(model, settings: tuple, options: tuple):
    arguments = drawing.arguments(**dict(settings), **dict(options))
    return jax.jit(functools.partial(sampling.generate, model, **arguments))


def draw(params, prompts, keys, settings, model: sampling.Policy = TOY, **options) -> sampling.Sample:
    options = {"samples": 1, "length": 3, "stop": (STOP,), "pad": PAD} | options
    run = compiled(model, tuple(settings.items()), tuple(options.items()))
    return jax.tree.map(np.asarray, run(jax.tree.map(jnp.float32, params), prompts, keys))


def softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - np.max(logits))
    return weight / weight.sum()


PROMPT = (1, 2)

DRAWS = 4096


@functools.cache
def drawn(setting: int) -> sampling.Sample:
    prompts = prompts_of(PROMPT, width=3)
    return draw(TABLE, prompts, keys_for(1, DRAWS), SETTINGS[setting], samples=DRAWS, rescore="kept")


TRANSFORMER = models.build(
    models.Architecture(vocabulary=37, layers=2, width=16, heads=4, kv_heads=2, hidden=16, tied=False)
)

TEXTS = ((3, 4, 5, 6), (7,), (8, 9))

SHAPE = {"samples": 3, "length": 6, "stop": (0, 1, 2, 3), "pad": 0, "rescore": "kept"}


@functools.cache
def parameters() -> types.Tree:
    params = jax.jit(TRANSFORMER.init)(jax.random.key(0))
    return params | {"unembedding": 2 * params["unembedding"]}  # less even than at the start


FILTERED = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02}
