"""Conversations inside the compiled program: a world answers each turn, and its reply is read as forced tokens.

All rows share the decode loop. In each of its steps a row draws a token, or reads one of its reply, or waits while
another seat of its episode reads or writes. No row waits for another episode. The world is computed in the steps in
which a turn ends.

Position t of a row is drawn with ``fold_in(key, t)``, as in ``generate``; t counts replies too.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.models.scores import shapes
from rljax.sampling import decode, dialogue, segments, stopping
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig
from rljax.transforms import ops

Array = types.Array


@dataclasses.dataclass(frozen=True)
class Alone:
    """The one seat of an episode, which never waits: a row is an episode."""

    later = 0  # tokens of a prompt that the loop reads

    def check(self, prompts: int, rows: int, compact: int) -> None:
        """Raise ValueError if prompts do not divide over the rows."""
        if rows % prompts:
            raise ValueError(f"converse: {prompts} prompts for {rows} rows of 1 seats")

    def columns(self, world: dialogue.World, length: int) -> int:
        """Return the most steps of the loop: T."""
        return length

    def writing(self, talk: dialogue.Talk, live: Array, reading: Array) -> Array:
        """Return which live rows [b] draw a token: those that do not read."""
        return live & ~reading

    def of_writer(self, x: Array, talk: dialogue.Talk) -> Array:
        """Return ``x`` [b] in the row that writes, [e]: itself."""
        return x

    def without_waiting(self, sample: samples_lib.Sample, length: int) -> samples_lib.Sample:
        """Return the rows: no position is unused."""
        return sample


@dataclasses.dataclass(frozen=True)
class Several:
    """Seats that share an episode and wait while another one reads or writes."""

    seats: int

    later = 1  # a seat may wait before its first token, whose logits follow the prompt, so its last token is read later

    def check(self, prompts: int, rows: int, compact: int) -> None:
        """Raise ValueError if rows have no prompts of their own, or are compacted."""
        if prompts != rows:
            raise ValueError(f"converse: {prompts} prompts for {rows} rows of {self.seats} seats")
        if compact:
            raise ValueError(f"sampler.compact = {compact}: expected 0 for a world of several seats")

    def columns(self, world: dialogue.World, length: int) -> int:
        """Return the most steps of the loop: the seats read and write in turns, so the sum of their rows."""
        return min(self.seats * length, world.max_turns * (world.turn_length + world.reply_length))

    def writing(self, talk: dialogue.Talk, live: Array, reading: Array) -> Array:
        """Return which live rows [b] draw a token: the seats whose turn it is, when no seat of theirs reads."""
        busy = reading.reshape((-1, self.seats)).any(axis=1)
        turn = jnp.arange(self.seats)[None, :] == talk.seat[:, None]
        return live & (turn & ~busy[:, None]).reshape(-1)

    def of_writer(self, x: Array, talk: dialogue.Talk) -> Array:
        """Return ``x`` [b] in the row of the seat whose turn it is, [e]."""
        return jnp.take_along_axis(x.reshape((-1, self.seats, *x.shape[1:])), talk.seat[:, None], axis=1)[:, 0]

    def without_waiting(self, sample: samples_lib.Sample, length: int) -> samples_lib.Sample:
        """Move the positions in use to the left, and cut the rows to T."""
        assert sample.turn is not None
        used = sample.turn >= 0
        order = jnp.argsort(~used, axis=1, stable=True)[:, :length]

        def moved(x: Array) -> Array:
            return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1) if x.ndim > 1 else x

        return samples_lib.mapped(moved, sample)


@dataclasses.dataclass(frozen=True)
class Driver:
    """One step of conversations; ``draw`` and ``active`` are the arguments of ``decode.run``."""

    world: dialogue.World
    seats: Alone | Several
    ends: stopping.Ends
    processors: processors_lib.Processors
    length: int  # T

    def active(self, decoding: decode.DecodeState) -> Array:
        """Return the rows [b] that read or write in the next step."""
        reading, writing = self._roles(decoding.state, decoding.live)
        return reading | writing

    def _roles(self, talk: dialogue.Talk, live: Array) -> tuple[Array, Array]:
        """Return which rows [b] read a token of their reply, and which draw one: when no seat of theirs reads."""
        reading = live & (talk.place < talk.size)
        return reading, self.seats.writing(talk, live, reading)

    def _by_seat(self, x: Array) -> Array:
        return x.reshape((-1, self.world.seats, *x.shape[1:]))

    def draw(self, decoding: decode.DecodeState, logits: Array) -> decode.DecodeState:
        """Draw or read one position of every active row; answer the turns that end."""
        talk, sample = decoding.state, decoding.sample
        reading, writing = self._roles(talk, decoding.live)
        used = reading | writing
        drawn = decode.draw_tokens(logits, decoding.keys, talk.length, self.processors, sample.kept is not None)
        place = jnp.minimum(talk.place, talk.told.shape[1] - 1)
        reply = jnp.take_along_axis(talk.told, place[:, None], axis=1)[:, 0]
        token = jnp.where(writing, drawn.token, jnp.where(reading, reply, self.ends.pad))
        sample = decode.write(sample, dataclasses.replace(drawn, token=token), writing, used)
        assert sample.turn is not None
        turn = jnp.where(used, talk.ended, -1)  # -1: the row waited
        turn = jax.lax.dynamic_update_index_in_dim(sample.turn, turn, sample.steps - 1, axis=1)
        talk = dataclasses.replace(talk, place=talk.place + reading, length=talk.length + used)

        written, writes = self.seats.of_writer(token, talk), self._by_seat(writing).any(axis=1)
        stopped = jnp.isin(written, jnp.asarray(self.ends.stop, jnp.int32))
        if self.ends.strings is not None and talk.strings is not None:
            state = jnp.where(writes, self.ends.strings.advance(talk.strings, written), talk.strings)
            stopped |= self.ends.strings.matched(state)
            talk = dataclasses.replace(talk, strings=state)
        place = (jnp.arange(talk.written.shape[1])[None, :] == talk.count[:, None]) & writes[:, None]
        full = (self._by_seat(talk.length) >= jnp.minimum(talk.width, self.length)[:, None]).any(axis=1)
        talk = dataclasses.replace(
            talk, written=jnp.where(place, written[:, None], talk.written), count=talk.count + writes
        )
        ended = writes & (stopped | full | (talk.count >= talk.limit))
        talk = jax.lax.cond(
            jnp.any(ended),
            lambda talk: dialogue.answer(self.world, self.ends, talk, decoding.keys, ended),
            lambda talk: talk,
            talk,
        )
        talk = dataclasses.replace(talk, over=talk.over | full)

        over = ops.repeat(talk.over, self.world.seats)
        finish = jnp.where(over & ops.repeat(talk.done, self.world.seats), int(types.Finish.STOP), sample.finish)
        sample = dataclasses.replace(sample, finish=finish, turn=turn)
        token = jnp.where(used, token, decoding.token)
        return dataclasses.replace(decoding, sample=sample, token=token, live=decoding.live & ~over, state=talk)


def converse(
    model: samples_lib.Policy,
    params: types.Tree,
    world: dialogue.World,
    states: Any,
    prompts: types.Prompts,
    keys: types.Key,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    length: int,
) -> tuple[samples_lib.Sample, dialogue.Talk]:
    """Sample episodes, one conversation for each seat.

    Args:
      model: the policy.
      params: the model's parameters.
      world: the world; ``turn_length`` and ``reply_length`` hold for each turn.
      states: ``[E, ...]``, the world's states at the beginning.
      prompts: P prompts ``[P, L]``, left-padded. Each is shared by B / P adjacent rows, B = E * seats; with several
        seats, P is B, and every prompt has at least two tokens.
      keys: ``[E]`` typed keys of the episodes; see ``samples.row_keys``.
      config: temperature, filters, and how the loop is laid out.
      ends: what ends a turn, and the token id of padding.
      length: T, the most tokens of a row; an episode is cut when one of its rows has that many.

    Returns:
      The rows, ``[B, T]``, with mask 0 on replies; and the episodes after their last turn.

    Raises:
      ValueError: a shape does not match, or compaction with several seats.
    """
    seats = Alone() if world.seats == 1 else Several(world.seats)
    rows = keys.shape[0] * world.seats
    columns, (count, width) = seats.columns(world, length), prompts.token.shape
    seats.check(count, rows, config.compact)
    shapes.check({"prompts.mask": prompts.mask}, (count, width), "[P, L] of prompts.token")
    if world.seats == world.max_turns == 1 and length == world.turn_length:
        each = rows // count
        sample = decode.generate(model, params, prompts, keys, config, ends, samples=each, length=length)
        return _answered(world, dialogue.begin(world, states, ends), sample, keys, ends)
    processors = processors_lib.build(config)
    weights, talk = model.decode_params(params), dialogue.begin(world, states, ends)
    read = width - seats.later
    token, mask, steps = prompts.token[:, :read], prompts.mask[:, :read], max(1, columns - 1 + seats.later)
    hidden, cache = model.prefill(weights, token, mask, rows // count, steps, config.cache_block, prompts.image)
    logits = ops.repeat(model.logits(weights, hidden[:, -1]), rows // count)
    vocabulary = logits.shape[1] if processors_lib.keeps(config, processors) else None
    sample = samples_lib.empty(rows, columns, vocabulary, ends.pad, turns=True)
    assert sample.turn is not None
    sample = dataclasses.replace(sample, turn=jnp.full_like(sample.turn, -1))
    row = jnp.arange(rows, dtype=jnp.int32)
    last = prompts.token[:, -1] if seats.later else jnp.zeros_like(row)
    start = decode.DecodeState(
        sample, cache, last, jnp.ones((rows,), bool), dialogue.seat_keys(keys, world.seats), row, talk
    )
    driver = Driver(world, seats, ends, processors, length)
    sample, talk = decode.run(
        model,
        weights,
        start,
        None if seats.later else logits,
        driver.draw,
        columns,
        decode.stages(count, rows // count, config.compact),
        driver.active,
    )
    sample = seats.without_waiting(sample, length)
    assert sample.turn is not None
    return dataclasses.replace(sample, turn=jnp.maximum(sample.turn, 0)), talk


def _answered(
    world: dialogue.World, talk: dialogue.Talk, sample: samples_lib.Sample, keys: types.Key, ends: stopping.Ends
) -> tuple[samples_lib.Sample, dialogue.Talk]:
    """Let a world of one turn answer completions, after the loop."""
    if hasattr(world, "limits"):
        sample = samples_lib.cut(sample, jnp.minimum(talk.limit, talk.width), ends.pad)
    talk = dataclasses.replace(talk, written=sample.token, count=sample.length, length=sample.length)
    talk = dialogue.answer(world, ends, talk, keys, jnp.ones(talk.over.shape, bool))
    return dataclasses.replace(sample, turn=jnp.zeros(sample.token.shape, jnp.int32)), talk


def resume(
    model: samples_lib.Policy,
    params: types.Tree,
    world: dialogue.World,
    talk: dialogue.Talk,
    prompts: types.Prompts,
    keys: types.Key,
    sample: samples_lib.Sample,
    fresh: Array,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    segment: int,
) -> tuple[samples_lib.Sample, dialogue.Talk]:
    """Continue unfinished conversations by at most ``segment`` tokens each, replies included.

    A conversation may be cut anywhere, inside a turn or a reply.

    Args:
      model: as in ``segments.resume``, like ``params``, ``prompts``, ``keys``, ``sample``, ``fresh`` and ``config``.
      params: the model's parameters.
      world: the world, of one seat.
      talk: the episodes so far; episodes of ``fresh`` rows are at their beginning (``dialogue.begin``).
      prompts: P prompts ``[P, L]``.
      keys: ``[B]`` typed keys.
      sample: the rows so far, ``[B, T]``.
      fresh: ``[B]`` bool, rows that start over.
      config: the settings.
      ends: what ends a turn.
      segment: the most tokens that a row gets.

    Returns:
      The rows, and the episodes after them.

    Raises:
      ValueError: the world has several seats.
    """
    if world.seats > 1:
        raise ValueError(f"source.partial: a world of {world.seats} seats cannot be sampled in segments: expected 1")
    length = sample.token.shape[1]
    sample = segments.renewed(sample, fresh, ends.pad)
    driver = Driver(world, Alone(), ends, processors_lib.build(config), length)
    sample, talk = segments.continued(
        model, params, prompts, keys, sample, config, ends.pad, min(segment, length), talk, driver.draw
    )
    over = jnp.where(talk.done, int(types.Finish.STOP), int(types.Finish.LENGTH))
    return dataclasses.replace(sample, finish=jnp.where(talk.over, over, sample.finish)), talk
