"""Rows that read what comes from outside: conversations whose replies are not computed in the program.

Rows are in slots. Each call reads the tokens that a slot is given, and writes the next tokens of its row. Keys and
values stay on the devices between the calls, so that a call computes new tokens only.

Position t of a row is drawn with ``fold_in(key, t)``, as in ``generate``; t counts replies too. What a slot computes is
a function of its row alone: a call writes at most ``columns`` tokens of a turn, whatever the other slots do. So the
times at which replies arrive change no token and no number.
"""

import dataclasses
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models.scores import shapes
from rljax.sampling import decode, stopping
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig

Array = types.Array
_READ = 16  # tokens of each slot that are read at once
_WRITTEN = 16  # tokens of each slot that a call writes at most


class Policy(samples_lib.Policy, Protocol):
    """A policy that keeps keys and values between calls; see ``models.Model``."""

    def history(self, rows: int, width: int, columns: int, block: int) -> Any:
        """Return a cache of rows without a token."""
        ...

    def append(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> Any:
        """Read tokens ``[B, W]``, right-padded, into every row."""
        ...

    def settle(self, cache: Any) -> Any:
        """Make what ``extend`` has appended a part of the history."""
        ...

    def emptied(self, cache: Any, rows: Array) -> Any:
        """Return the cache with no token in some rows, ``[B]`` bool."""
        ...


@flax.struct.dataclass
class Slots:
    """The rows in progress, one in each of n slots."""

    cache: Any  # of all tokens of a row but the last one
    strings: Array | None  # [n], of the stop strings' automaton in the turn


@flax.struct.dataclass
class Asked:
    """What the n slots read and write in a call."""

    token: Array  # [n, F] int32, right-padded: the tokens of the row that the cache lacks
    size: Array  # [n] int32, their number; 0: the slot does nothing
    fresh: Array  # [n] bool, the slot begins another row, all of whose tokens are given
    turn: Array  # [n] int32, tokens of the turn that the row has; 0: a turn begins
    place: Array  # [n] int32, completion positions before the next draw
    room: Array  # [n] int32, the most tokens of the turn that remain, at least 1 where a slot reads
    key: Array  # [n, 2] uint32, data of the rows' keys


def columns(turn_length: int) -> int:
    """Return the most tokens that a slot writes in a call."""
    return min(turn_length, _WRITTEN)


def begin(model: Policy, slots: int, width: int, turn_length: int, config: SamplerConfig, ends: stopping.Ends) -> Slots:
    """Return slots without rows.

    Args:
      model: the policy.
      slots: n.
      width: the most tokens of a row, its prompt's included.
      turn_length: the most tokens of a turn.
      config: its ``cache_block`` is read.
      ends: what ends a turn.
    """
    count = columns(turn_length)
    cache = model.history(slots, width + max(count, _READ), count, config.cache_block)
    return Slots(cache, None if ends.strings is None else ends.strings.start(slots))


def turn(
    model: Policy,
    weights: types.Tree,
    slots: Slots,
    asked: Asked,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    turn_length: int,
    vocabulary: int,
) -> tuple[Slots, samples_lib.Sample]:
    """Read what is given, then write the next tokens of each slot's turn.

    Args:
      model: the policy.
      weights: from ``model.decode_params``, of the parameters that wrote what the slots hold.
      slots: the rows so far.
      asked: what each slot reads and writes.
      config: temperature and filters; ``compact`` does not apply.
      ends: what ends a turn.
      turn_length: the most tokens of a turn.
      vocabulary: width of the logits.

    Returns:
      The slots, and what they wrote, ``[n, columns(turn_length)]``: ``finish`` is STOP where the turn was ended by
      ``ends``, LENGTH where it has no room left, and UNFINISHED where the next call goes on with the last token.
    """
    count = asked.size.shape[0]
    shapes.check({"asked.token": asked.token}, (count, None), "[n, F] of asked.size")
    cache = model.emptied(slots.cache, asked.fresh)
    given = asked.size - 1  # without the last token, which the first ``extend`` reads
    token = jnp.pad(asked.token, ((0, 0), (0, -asked.token.shape[1] % _READ)))

    def read(state: tuple[Array, Any]) -> tuple[Array, Any]:
        first, cache = state
        part = jax.lax.dynamic_slice_in_dim(token, first, _READ, axis=1)
        mask = first + jnp.arange(_READ)[None, :] < given[:, None]
        return first + _READ, model.append(weights, part, mask, cache)

    _, cache = jax.lax.while_loop(lambda s: s[0] < jnp.max(given), read, (jnp.zeros((), jnp.int32), cache))
    strings = slots.strings
    if ends.strings is not None:
        strings = jnp.where(asked.turn > 0, strings, ends.strings.start(count))
        place = jnp.maximum((asked.size - asked.turn)[:, None] + jnp.arange(turn_length)[None, :], 0)
        written = jnp.take_along_axis(token, jnp.minimum(place, token.shape[1] - 1), axis=1)  # of a turn cut earlier
        strings = jnp.where(asked.fresh, ends.strings.read(written, asked.turn * asked.fresh), strings)
    processors = processors_lib.build(config)
    kept = vocabulary if processors_lib.keeps(config, processors) else None
    steps, ready = columns(turn_length), asked.size > 0
    sample = samples_lib.empty(count, steps, kept, ends.pad)
    sample = dataclasses.replace(sample, finish=jnp.full_like(sample.finish, int(types.Finish.UNFINISHED)))
    last = jnp.take_along_axis(asked.token, jnp.maximum(given, 0)[:, None], axis=1)[:, 0]
    keys, row = jax.random.wrap_key_data(asked.key), jnp.arange(count, dtype=jnp.int32)
    start = decode.DecodeState(sample, cache, last, ready, keys, row, strings)

    def draw(decoding: decode.DecodeState, logits: Array) -> decode.DecodeState:
        decoding = decode.emit(decoding, logits, ends=ends, processors=processors, offset=asked.place)
        full = decoding.live & (decoding.sample.steps >= asked.room)
        finish = jnp.where(full, int(types.Finish.LENGTH), decoding.sample.finish)
        live = decoding.live & ~full & (decoding.sample.steps < steps)
        return dataclasses.replace(decoding, sample=dataclasses.replace(decoding.sample, finish=finish), live=live)

    end = jax.lax.while_loop(lambda d: jnp.any(d.live), decode.stepping(model, weights, draw), start)
    return Slots(model.settle(end.cache), end.state), end.sample
