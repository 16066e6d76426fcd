"""Sampling in segments: rows continue where they were cut, and equal the rows of one uninterrupted call."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rljax import types
from rljax.models.scores import shapes
from rljax.sampling import decode, stopping
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig
from rljax.transforms import ops
from rljax.transforms.source import groups

Array = types.Array


def resume(
    model: samples_lib.Policy,
    params: types.Tree,
    prompts: types.Prompts,
    keys: types.Key,
    sample: samples_lib.Sample,
    fresh: Array,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    segment: int,
    enough: int | None = None,
    pause: tuple[int, ...] = (),
) -> samples_lib.Sample:
    """Continue unfinished completions by at most ``segment`` tokens each.

    [prompt | tokens emitted so far] is prefilled again, so the whole cache is computed by ``params``, whichever version
    wrote the tokens. Position t of row b is drawn with ``fold_in(keys[b], t)``, as in ``generate``: with the same
    parameters, segments of any length give the tokens of one ``generate`` (up to the rounding of another batch shape).
    The reported values of earlier tokens do not change. Each row has a copy of its prompt's keys and values here,
    while ``generate`` stores one per prompt.

    Args:
      model: as in ``generate``.
      params: the model's parameters.
      prompts: P prompts ``[P, L]``, left-padded; P divides B.
      keys: ``[B]`` typed keys, of each row's first segment.
      sample: the completions so far, ``[B, T]``; rows with ``finish`` UNFINISHED are continued.
      fresh: ``[B]`` bool, rows that start over, whatever ``sample`` has for them.
      config: as in ``generate``; blocks of the cache cover this segment's columns, and with ``compact`` rows
        that have ended are left out from the first token on.
      ends: as in ``generate``; a text may begin in one segment and end in another.
      segment: the most tokens that a row gets.
      enough: all rows are cut as soon as all rows of so many prompts have ended; None: they are not.
      pause: token ids behind which a row is cut.

    Returns:
      The completions: ``finish`` is LENGTH in rows cut at T, UNFINISHED in those cut before; ``steps`` and ``slots``
      count this call only.

    Raises:
      ValueError: segment is below 1, or a shape does not match.
    """
    rows, length = sample.token.shape
    if segment < 1:
        raise ValueError(f"resume: segment = {segment}: expected at least 1")
    shapes.check({"keys": keys, "fresh": fresh, "sample.finish": sample.finish}, (rows,), "[B] of sample.token")
    shapes.check({"prompts.token": prompts.token}, (None, None), "[P, L]")
    shapes.check({"prompts.mask": prompts.mask}, prompts.token.shape, "[P, L] of prompts.token")
    if rows % prompts.token.shape[0]:
        raise ValueError(f"resume: {prompts.token.shape[0]} prompts must divide the {rows} rows of sample.token")
    segment = min(segment, length)
    sample = renewed(sample, fresh, ends.pad)
    state = None if ends.strings is None else ends.strings.read(sample.token, sample.length)
    draw = _drawing(sample.length, length, config, ends)
    if enough is not None:
        draw = _stopping(draw, rows, rows // prompts.token.shape[0], enough)
    if pause:
        draw = _pausing(draw, pause)
    return continued(model, params, prompts, keys, sample, config, ends.pad, segment, state, draw)[0]


def _drawing(
    done: Array, length: int, config: SamplerConfig, ends: stopping.Ends
) -> Callable[[decode.DecodeState, Array], decode.DecodeState]:
    """Return the ``draw`` of rows that had ``done`` [B] positions, and end when they have ``length``."""
    processors = processors_lib.build(config)

    def draw(decoding: decode.DecodeState, logits: Array) -> decode.DecodeState:
        offset = done[decoding.row]
        decoding = decode.emit(decoding, logits, ends=ends, processors=processors, offset=offset)
        return dataclasses.replace(decoding, live=decoding.live & (offset + decoding.sample.steps < length))

    return draw


def _stopping(
    draw: Callable[[decode.DecodeState, Array], decode.DecodeState], rows: int, samples: int, enough: int
) -> Callable[[decode.DecodeState, Array], decode.DecodeState]:
    """Return a ``draw`` after which no row is live if all ``samples`` of ``enough`` prompts have ended."""

    def stopping(decoding: decode.DecodeState, logits: Array) -> decode.DecodeState:
        decoding = draw(decoding, logits)
        live = jnp.zeros((rows,), bool).at[decoding.row].max(decoding.live)  # rows that are left out have ended
        ended = jnp.sum(~jnp.any(live.reshape((-1, samples)), axis=1), dtype=jnp.int32)
        return dataclasses.replace(decoding, live=decoding.live & (ended < enough))

    return stopping


def _pausing(
    draw: Callable[[decode.DecodeState, Array], decode.DecodeState], pause: tuple[int, ...]
) -> Callable[[decode.DecodeState, Array], decode.DecodeState]:
    """Return a ``draw`` after which rows whose last token is in ``pause`` are not live."""

    def pausing(decoding: decode.DecodeState, logits: Array) -> decode.DecodeState:
        decoding = draw(decoding, logits)
        there = jnp.isin(decoding.token, jnp.asarray(pause, jnp.int32))
        return dataclasses.replace(decoding, live=decoding.live & ~there)

    return pausing


def blank(rows: int, length: int, vocabulary: int, config: SamplerConfig, pad: int) -> samples_lib.Sample:
    """Return conversations ``[rows, length]`` before their first turn; ``vocabulary`` is the width of the logits."""
    kept = vocabulary if processors_lib.keeps(config, processors_lib.build(config)) else None
    return samples_lib.empty(rows, length, kept, pad, turns=True)


def continued(
    model: samples_lib.Policy,
    params: types.Tree,
    prompts: types.Prompts,
    keys: types.Key,
    sample: samples_lib.Sample,
    config: SamplerConfig,
    pad: int,
    segment: int,
    state: Any,
    draw: Callable[[decode.DecodeState, Array], decode.DecodeState],
) -> tuple[samples_lib.Sample, Any]:
    """Prefill unfinished rows with their tokens, and add a segment to them.

    Args:
      model: as in ``resume``, like ``params``, ``prompts``, ``keys``, ``config`` and ``segment``.
      params: the model's parameters.
      prompts: P prompts ``[P, L]``.
      keys: ``[B]`` typed keys.
      sample: the completions so far, ``[B, T]``; rows with ``finish`` UNFINISHED are continued.
      config: the settings.
      pad: token id of padding.
      segment: the most tokens that a row gets.
      state: ``[B, ...]``, what ``draw`` carries.
      draw: as in ``decode.run``.

    Returns:
      The completions, and the state after them.
    """
    rows, length = sample.token.shape
    samples = rows // prompts.token.shape[0]

    def whole(prompt: Array, completion: Array) -> Array:
        return jnp.concatenate([ops.repeat(prompt, samples), completion], axis=1)

    weights, done = model.decode_params(params), sample.length
    used = (jnp.arange(length)[None, :] < done[:, None]).astype(prompts.mask.dtype)
    token, mask = whole(prompts.token, sample.token), whole(prompts.mask, used)
    read = weights, token, mask, 1, max(1, segment - 1), config.cache_block
    hidden, cache = model.prefill(*read, prompts.image)
    last = prompts.token.shape[1] - 1 + done
    logits = model.logits(weights, jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0])
    live, row = sample.finish == types.Finish.UNFINISHED, jnp.arange(rows, dtype=jnp.int32)
    empty = _empty(sample, segment, pad)
    start = decode.DecodeState(empty, cache, jnp.zeros_like(row), live, keys, row, state)
    part, state = decode.run(model, weights, start, logits, draw, segment, decode.stages(rows, 1, config.compact))
    return _joined(sample, part, live, done), state


def _empty(sample: samples_lib.Sample, length: int, pad: int) -> samples_lib.Sample:
    """Return a sample without any token, of ``length`` positions, with the fields of ``sample``."""
    vocabulary = None if sample.kept is None else 32 * sample.kept.shape[2]
    return samples_lib.empty(sample.token.shape[0], length, vocabulary, pad, turns=sample.turn is not None)


def renewed(sample: samples_lib.Sample, fresh: Array, pad: int) -> samples_lib.Sample:
    """Return the sample with the ``fresh`` [B] rows emptied; ``pad`` is the token id of padding."""
    empty = _empty(sample, sample.token.shape[1], pad)
    empty = dataclasses.replace(empty, finish=jnp.full_like(empty.finish, int(types.Finish.UNFINISHED)))
    return samples_lib.mapped(lambda old, new: groups.put(fresh, new, old), sample, empty)


def _joined(sample: samples_lib.Sample, part: samples_lib.Sample, live: Array, done: Array) -> samples_lib.Sample:
    """Append a segment to each row; the ``live`` [B] rows were continued, from position ``done`` [B]."""
    rows, length = sample.token.shape
    whole = samples_lib.placed(sample, part, jnp.arange(rows, dtype=jnp.int32), done)
    count = done + part.length
    cut = jnp.where(count >= length, int(types.Finish.LENGTH), int(types.Finish.UNFINISHED))
    finish = jnp.where(part.finish == types.Finish.STOP, part.finish, cut)
    return dataclasses.replace(
        whole, finish=jnp.where(live, finish, sample.finish), length=count, steps=part.steps, slots=part.slots
    )
