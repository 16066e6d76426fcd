"""How far the sampler's log-probabilities are from the trainer's, by cause: ``python -m rljax bench gap``."""

import dataclasses
import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax import models, sampling, types
from rljax.bench import shapes
from rljax.models import precision
from rljax.models.scores import scoring
from rljax.run.reports.pages import tables


class Cause(NamedTuple):
    """What differs between the sampler and the trainer; the rest is bfloat16 with plain attention, unrolled."""

    sampler: Mapping[str, Any] = MappingProxyType({})  # fields of the sampling architecture
    trainer: Mapping[str, Any] = MappingProxyType({})  # fields of the scoring architecture
    vocabulary: int = 128  # tokens of the vocabulary that are scored at once; 0: all
    rounded: bool = False  # whether the sampler's norm scales and biases are rounded to bfloat16
    excess: bool = False  # whether XLA may omit roundings to bfloat16, its default


_WIDE = {"dtype": "float32"}
CAUSES = {
    "float32: order of sums": Cause(_WIDE, _WIDE),
    "bfloat16: order of sums": Cause(),
    "and logits of the whole vocabulary": Cause(vocabulary=0),
    "and blocked attention": Cause(trainer={"attention": "blocked"}),
    "and roundings that XLA omits": Cause(excess=True),
    "and norms, biases rounded to sample": Cause(rounded=True),
    "and matrices in int8 to sample": Cause({"decode_weights": "int8"}),
    "sampled in bfloat16, scored in float32": Cause(trainer=_WIDE),
}


def _params(architecture: models.Architecture) -> types.Tree:
    """Return initial parameters, but with norm scales and biases that vary, as in a trained model."""
    rng = np.random.default_rng(0)

    def one(path: Any, w: jax.Array) -> jax.Array:
        return w + jnp.asarray(rng.normal(0, 0.3, w.shape), w.dtype) if precision.is_vector(path) else w

    return jax.tree_util.tree_map_with_path(one, models.build(architecture).init(jax.random.key(0)))


def measure(cause: Cause, shape: str, prompts: int, samples: int, prompt: int, length: int) -> np.ndarray:
    """Sample with one model and score with another.

    Args:
      cause: what differs between them.
      shape: a name in ``shapes.SHAPES``.
      prompts: number of prompts.
      samples: completions of each prompt.
      prompt: tokens per prompt.
      length: tokens per completion.

    Returns:
      The difference of the log-probs of every token, ``[prompts * samples, length]``, nats.
    """
    fields, vocabulary = shapes.SHAPES[shape]
    plain = models.Architecture(
        **{"bias": ("query", "key", "value"), "head_norm": True, **fields, "vocabulary": vocabulary, "scan": False}
    )
    sampler, trainer = (
        models.build(dataclasses.replace(plain, **{"dtype": "bfloat16", **changes}))
        for changes in (cause.sampler, cause.trainer)
    )
    params = _params(plain)
    narrow = lambda path, w: w.astype(jnp.bfloat16).astype(w.dtype) if precision.is_vector(path) else w  # noqa: E731
    jit = functools.partial(jax.jit, compiler_options={"xla_allow_excess_precision": cause.excess})
    token = jax.random.randint(jax.random.key(1), (prompts, prompt), 0, vocabulary)
    texts = types.Prompts(token, jnp.ones(token.shape), jnp.arange(prompts))
    row = jnp.arange(prompts * samples)
    keys = sampling.row_keys(jax.random.key(2, impl="threefry2x32"), 0, row // samples, row % samples)
    config, ends = sampling.SamplerConfig(), sampling.Ends()
    draw = functools.partial(sampling.generate, sampler, config=config, ends=ends, samples=samples, length=length)
    drawn = jit(lambda params: draw(params, texts, keys))(
        jax.tree_util.tree_map_with_path(narrow, params) if cause.rounded else params
    )
    whole = [jnp.repeat(x, samples, axis=0) for x in (texts.token, texts.mask)]
    rows = types.Rollout(
        drawn.mask, drawn.mask[:, 0], row, context=types.Context(*whole), action=types.Action(drawn.token)
    )
    score = functools.partial(scoring.score, trainer, needs=types.Needs(), vocabulary=cause.vocabulary)
    return np.asarray(jit(lambda params: score(params, rows).logp)(params) - drawn.behaviour_logp)


def gap(shape: str, prompts: int, samples: int, prompt: int, length: int) -> dict[str, Any]:
    """Measure every cause.

    Args:
      shape: as in ``measure``, like the others.
      prompts: number of prompts.
      samples: completions of each prompt.
      prompt: tokens per prompt.
      length: tokens per completion.

    Returns:
      A record with "causes": the mean and the largest absolute difference of each, in nats.
    """
    records = []
    for name, cause in CAUSES.items():
        apart = np.abs(measure(cause, shape, prompts, samples, prompt, length))
        records.append({"cause": name, "mean": float(apart.mean()), "max": float(apart.max())})
    return {"shape": shape, "tokens": prompts * samples * length, "causes": records}


def table(record: dict[str, Any]) -> str:
    """Return a record of ``gap`` as text."""
    rows = [[r["cause"], f"{r['mean']:.1e}", f"{r['max']:.1e}"] for r in record["causes"]]
    lines = tables.Table(["", "mean", "largest"], rows).lines()
    return "\n".join([f"{record['shape']}, {record['tokens']} tokens, nats", *lines])
