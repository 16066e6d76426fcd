"""Completions continued where they were cut: a rollout in segments, equal to one without a break."""

import dataclasses

import jax
import jax.numpy as jnp

from rljax import types
from rljax.sampling import decode, stopping
from rljax.sampling import processors as processors_lib
from rljax.transforms import ops

Array = types.Array


def resume(
    model: decode.Policy,
    params: types.Tree,
    prompts: types.Prompts,
    keys: types.Key,
    sample: decode.Sample,
    fresh: Array,
    *,
    segment: int,
    stop: tuple[int, ...],
    pad: int,
    processors: processors_lib.Processors,
    strings: stopping.Table | None = None,
    block: int = 0,
    compact: int = 0,
) -> decode.Sample:
    """Continue unfinished completions by at most ``segment`` tokens each.

    [prompt | what was emitted] is read again, so the cache is wholly that of ``params``, whoever wrote the tokens.
    Position t of row b is drawn with ``fold_in(keys[b], t)``, as ``generate`` draws it: with the same parameters
    segments of any length give the tokens of one ``generate`` (up to the rounding of another batch shape). Numbers
    reported of earlier tokens stay as they are. A row has its prompt's keys to itself here: G copies, while
    ``generate`` holds one.

    Args:
      model: as in ``generate``.
      params: the model's parameters.
      prompts: P prompts, left-padded to L.
      keys: [B] typed keys, those of each row's first segment.
      sample: what the rows hold, [B, T]; rows with ``finish`` UNFINISHED are continued.
      fresh: [B] bool, rows to start anew, whatever ``sample`` holds of them.
      segment: the most tokens a row gets.
      stop: token ids that end a completion; may be empty.
      pad: token id written after the end.
      processors: temperature and filter.
      strings: as in ``generate``; what a row holds counts, wherever it was cut.
      block: as in ``generate``, of the columns added.
      compact: as in ``generate``; rows that have ended are left out from the first token on.

    Returns:
      the sample, rows cut at T with ``finish`` LENGTH, those cut before UNFINISHED; ``segment`` and ``slots`` count
      this call alone.

    Raises:
      ValueError: no turn, or a number of keys other than that of the rows.
    """
    rows, length = sample.token.shape
    if segment < 1 or keys.shape != (rows,):
        raise ValueError(f"resume: segment = {segment}, keys of shape {keys.shape}: expected at least 1, and {(rows,)}")
    segment, samples = min(segment, length), rows // prompts.token.shape[0]
    vocabulary = None if sample.kept is None else 32 * sample.kept.shape[2]
    sample = _renewed(sample, fresh, decode.empty(rows, length, vocabulary, pad))
    done = jnp.sum(sample.mask != 0, axis=1, dtype=jnp.int32)

    def whole(prompt: Array, own: Array) -> Array:
        return jnp.concatenate([ops.repeat(prompt, samples), own], axis=1)

    weights = model.decode_params(params)
    token, mask = whole(prompts.token, sample.token), whole(prompts.mask, sample.mask)
    hidden, cache = model.prefill(weights, token, mask, 1, max(1, segment - 1), block)
    last = prompts.token.shape[1] - 1 + done
    logits = model.logits(weights, jnp.take_along_axis(hidden, last[:, None, None], axis=1)[:, 0])
    live, row = sample.finish == types.Finish.UNFINISHED, jnp.arange(rows, dtype=jnp.int32)
    state = None if strings is None else strings.read(sample.token, done)
    empty = decode.empty(rows, segment, vocabulary, pad)
    start = decode.Flight(empty, cache, jnp.zeros_like(row), live, keys, row, state)

    def draw(flight: decode.Flight, logits: Array) -> decode.Flight:
        before = done[flight.row]
        flight = decode.emit(flight, logits, stop=stop, pad=pad, processors=processors, strings=strings, before=before)
        return dataclasses.replace(flight, live=flight.live & (before + flight.sample.steps < length))

    part = decode.run(model, weights, start, logits, draw, segment, decode.stages(rows, 1, compact))
    return _joined(sample, part, live, done)


def _renewed(sample: decode.Sample, fresh: Array, empty: decode.Sample) -> decode.Sample:
    """Return the sample with nothing in the ``fresh`` rows yet."""
    empty = dataclasses.replace(empty, finish=jnp.full_like(empty.finish, int(types.Finish.UNFINISHED)))

    def pick(new: Array, old: Array) -> Array:
        return jnp.where(fresh.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    return dataclasses.replace(sample, **jax.tree.map(pick, decode.rowwise(empty), decode.rowwise(sample)))


def _joined(sample: decode.Sample, part: decode.Sample, live: Array, done: Array) -> decode.Sample:
    """Write a segment behind what each row had; ``live`` [B] rows were continued, from position ``done`` [B]."""
    rows, length = sample.token.shape
    column = done[:, None] + jnp.arange(part.token.shape[1], dtype=jnp.int32)[None, :]
    column = jnp.where(part.mask > 0, column, length)  # nowhere
    row = jnp.broadcast_to(jnp.arange(rows)[:, None], column.shape)
    new = decode.rowwise(part)
    put = {n: x.at[row, column].set(new[n], mode="drop") for n, x in decode.rowwise(sample).items() if x.ndim > 1}
    full = jnp.sum(put["mask"] != 0, axis=1) >= length
    cut = jnp.where(full, int(types.Finish.LENGTH), int(types.Finish.UNFINISHED))
    finish = jnp.where(part.finish == types.Finish.STOP, part.finish, cut)
    return dataclasses.replace(
        sample, finish=jnp.where(live, finish, sample.finish), steps=part.steps, slots=part.slots, **put
    )
