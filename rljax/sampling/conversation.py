"""Conversations inside the compiled program: a world answers each turn, and its reply is read as forced tokens.

All rows share the decode loop. In each of its steps a row draws a token, or reads one of its reply, or waits while
another seat of its episode reads or writes. No row waits for another episode. The world is computed in the steps in
which a turn ends.

Position t of a row is drawn with ``fold_in(key, t)``, as in ``generate``; t counts replies too. A world's key for turn
k is ``fold_in(fold_in(key, 2**30), k)``, with the key of the episode's first seat.
"""

import dataclasses
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models import shapes
from rljax.sampling import decode, segments, stopping
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig
from rljax.transforms import ops

Array = types.Array
_WORLD = 1 << 30  # stream of a row's key, beyond any position
_SEATS = _WORLD + 1


class World(Protocol):
    """The part of ``environments.worlds.World`` that the drivers call, for one episode."""

    @property
    def seats(self) -> int: ...  # noqa: D102

    @property
    def max_turns(self) -> int: ...  # noqa: D102

    @property
    def turn_length(self) -> int: ...  # noqa: D102

    @property
    def reply_length(self) -> int: ...  # noqa: D102

    @property
    def parts(self) -> tuple[str, ...]: ...  # noqa: D102

    @property
    def extra(self) -> tuple[str, ...]: ...  # noqa: D102

    def prompt(self, state: Any, seat: Array) -> tuple[Array, Array]: ...  # noqa: D102

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, Any]: ...  # noqa: D102


@flax.struct.dataclass
class Talk:
    """Episodes in progress: E of them, B = E * seats rows, those of an episode adjacent; M = max_turns."""

    world: Any  # [E, ...], the world's state
    seat: Array  # [E] int32, whose turn it is
    turn: Array  # [E] int32, turns ended
    over: Array  # [E] bool
    done: Array  # [E] bool, the world has ended the episode; False after a budget has
    valid: Array  # [E] float32
    domain: Array  # [E] int32
    written: Array  # [E, W] int32, the turn being written
    count: Array  # [E] int32, its tokens
    strings: Array | None  # [E], of the stop strings' automaton
    told: Array  # [B, R] int32, the reply
    place: Array  # [B] int32, its tokens read
    size: Array  # [B] int32, its tokens
    length: Array  # [B] int32, tokens of the row
    ended: Array  # [B] int32, turns that the row's seat has ended
    paid: Array  # [B, M] float32, by turn of the seat
    unearned: Array  # [B] float32, paid before the seat wrote
    outcome: Array  # [B] int32
    parts: dict[str, Array]  # [B] float32 each
    extra: dict[str, Array]  # [B, M] float32 each


def begin(world: World, states: Any, ends: stopping.Ends) -> Talk:
    """Return episodes before their first turn.

    Args:
      world: the world.
      states: ``[E, ...]``, the world's states.
      ends: what ends a turn.

    Returns:
      The episodes.
    """
    episodes = jax.tree.leaves(states)[0].shape[0]
    rows = episodes * world.seats
    each, row = jnp.zeros((episodes,), jnp.int32), jnp.zeros((rows,), jnp.int32)
    number, turns = jnp.zeros((rows,)), jnp.zeros((rows, world.max_turns))
    return Talk(
        world=states,
        seat=each,
        turn=each,
        over=each > 0,
        done=each > 0,
        valid=jnp.ones((episodes,)),
        domain=each,
        written=jnp.full((episodes, world.turn_length), ends.pad, jnp.int32),
        count=each,
        strings=None if ends.strings is None else ends.strings.start(episodes),
        told=jnp.full((rows, world.reply_length), ends.pad, jnp.int32),
        place=row,
        size=row,
        length=row,
        ended=row,
        paid=turns,
        unearned=number,
        outcome=jnp.full((rows,), int(types.Outcome.UNJUDGED), jnp.int32),
        parts=dict.fromkeys(world.parts, number),
        extra=dict.fromkeys(world.extra, turns),
    )


def seat_keys(keys: types.Key, seats: int) -> types.Key:
    """Return the keys of rows ``[E * seats]`` from those of episodes ``[E]``; seat 0 has the key of its episode."""
    if seats == 1:
        return keys

    def one(key: types.Key) -> types.Key:
        others = jax.vmap(lambda s: jax.random.fold_in(key, _SEATS + s))(jnp.arange(1, seats, dtype=jnp.uint32))
        return jnp.concatenate([key[None], others])

    return jax.vmap(one)(keys).reshape(-1)


@dataclasses.dataclass(frozen=True)
class Driver:
    """One step of conversations; ``draw`` and ``active`` are the arguments of ``decode.run``."""

    world: World
    ends: stopping.Ends
    processors: processors_lib.Processors
    length: int  # T

    def active(self, decoding: decode.DecodeState) -> Array:
        """Return the rows [b] that read or write in the next step."""
        reading, writing = self._roles(decoding.state, decoding.live)
        return reading | writing

    def _roles(self, talk: Talk, live: Array) -> tuple[Array, Array]:
        """Return which rows [b] read a token of their reply, and which draw one: when no seat of theirs reads."""
        reading = live & (talk.place < talk.size)
        if self.world.seats == 1:
            return reading, live & ~reading
        busy = self._by_seat(reading).any(axis=1)
        turn = jnp.arange(self.world.seats)[None, :] == talk.seat[:, None]
        return reading, live & (turn & ~busy[:, None]).reshape(-1)

    def _by_seat(self, x: Array) -> Array:
        return x.reshape((-1, self.world.seats, *x.shape[1:]))

    def _of_writer(self, x: Array, talk: Talk) -> Array:
        """Return ``x`` [b] in the row of the seat whose turn it is, [e]."""
        return x if self.world.seats == 1 else jnp.take_along_axis(self._by_seat(x), talk.seat[:, None], axis=1)[:, 0]

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

        written, writes = self._of_writer(token, talk), self._by_seat(writing).any(axis=1)
        stopped = jnp.any(written[:, None] == jnp.asarray(self.ends.stop, jnp.int32)[None, :], axis=1)
        if self.ends.strings is not None and talk.strings is not None:
            state = jnp.where(writes, self.ends.strings.advance(talk.strings, written), talk.strings)
            stopped |= self.ends.strings.matched(state)
            talk = dataclasses.replace(talk, strings=state)
        place = (jnp.arange(talk.written.shape[1])[None, :] == talk.count[:, None]) & writes[:, None]
        full = self._by_seat(talk.length >= self.length).any(axis=1)
        talk = dataclasses.replace(
            talk, written=jnp.where(place, written[:, None], talk.written), count=talk.count + writes
        )
        ended = writes & (stopped | full | (talk.count >= self.world.turn_length))
        talk = jax.lax.cond(
            jnp.any(ended),
            lambda talk: answer(self.world, self.ends, talk, decoding.keys, ended),
            lambda talk: talk,
            talk,
        )
        talk = dataclasses.replace(talk, over=talk.over | full)

        over = ops.repeat(talk.over, self.world.seats)
        finish = jnp.where(over & ops.repeat(talk.done, self.world.seats), int(types.Finish.STOP), sample.finish)
        sample = dataclasses.replace(sample, finish=finish, turn=turn)
        token = jnp.where(used, token, decoding.token)
        return dataclasses.replace(decoding, sample=sample, token=token, live=decoding.live & ~over, state=talk)


def answer(world: World, ends: stopping.Ends, talk: Talk, keys: types.Key, ended: Array) -> Talk:
    """Let the world answer the turns that ``ended`` ``[E]``; ``keys`` ``[B]`` are those of the rows."""
    seats, turns = world.seats, world.max_turns
    following, reply = _step(world, ends, talk, keys)
    own = (jnp.arange(seats)[None, :] == talk.seat[:, None]).reshape(-1)
    rows = ops.repeat(ended, seats)

    def changed(new: Array, old: Array) -> Array:
        chosen = ended if new.shape[0] == ended.shape[0] else rows
        return jnp.where(chosen.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    def of_turn(number: Array) -> Array:  # [B] -> [B, M]
        return jnp.arange(turns)[None, :] == number[:, None]

    paid = reply.reward.reshape(-1)
    payee = jnp.where(own, talk.ended, talk.ended - 1)  # -1: the seat has not written yet
    turn = talk.turn + 1
    over = reply.done | reply.truncated | (turn >= turns)
    told, size = _packed(reply.token.reshape((rows.size, -1)), reply.mask.reshape((rows.size, -1)))
    new = dataclasses.replace(
        talk,
        world=following,
        seat=jnp.where(over, talk.seat, reply.next_seat),
        turn=turn,
        over=over,
        done=reply.done & ~reply.truncated,
        valid=talk.valid * reply.valid,
        domain=reply.domain,
        count=jnp.zeros_like(talk.count),
        strings=None if ends.strings is None else ends.strings.start(ended.size),
        told=told,
        place=jnp.zeros_like(talk.place),
        size=jnp.where(ops.repeat(over, seats), 0, size),
        ended=talk.ended + own,
        paid=talk.paid + jnp.where(of_turn(payee), paid[:, None], 0.0),
        unearned=talk.unearned + jnp.where(payee < 0, paid, 0.0),
        outcome=reply.outcome.reshape(-1),
        parts={name: reply.parts[name].reshape(-1) for name in talk.parts},
        extra={
            name: jnp.where(of_turn(talk.ended) & own[:, None], ops.repeat(reply.extra[name], seats)[:, None], x)
            for name, x in talk.extra.items()
        },
    )
    return jax.tree.map(changed, new, talk)


def _step(world: World, ends: stopping.Ends, talk: Talk, keys: types.Key) -> tuple[Any, Any]:
    """Return the worlds' states and replies after the turns being written."""

    def key(key: types.Key, turn: Array) -> types.Key:
        return jax.random.fold_in(jax.random.fold_in(key, _WORLD), turn)

    mask = (jnp.arange(world.turn_length)[None, :] < talk.count[:, None]).astype(jnp.float32)
    token, mask = ends.closed(jnp.where(mask > 0, talk.written, ends.pad), mask)
    step_keys = jax.vmap(key)(keys[:: world.seats], talk.turn)
    return jax.vmap(world.step)(talk.world, talk.seat, token, mask, step_keys)


def _packed(token: Array, mask: Array) -> tuple[Array, Array]:
    """Move the tokens [b, R] with mask 1 to the left; return them and their number [b]."""
    order = jnp.argsort(mask <= 0, axis=1, stable=True)
    return jnp.take_along_axis(token, order, axis=1), jnp.sum(mask > 0, axis=1, dtype=jnp.int32)


def converse(
    model: samples_lib.Policy,
    params: types.Tree,
    world: World,
    states: Any,
    prompts: types.Prompts,
    keys: types.Key,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    length: int,
    axis_name: str | None = None,
) -> tuple[samples_lib.Sample, Talk]:
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
      axis_name: axis of an enclosing ``vmap``; see ``generate``.

    Returns:
      The rows, ``[B, T]``, with mask 0 on replies; and the episodes after their last turn.

    Raises:
      ValueError: a shape does not match, or compaction with several seats or inside ``vmap``.
    """
    rows, columns = keys.shape[0] * world.seats, _columns(world, length)
    count, width = prompts.token.shape
    if rows % count or (world.seats > 1 and count != rows):
        raise ValueError(f"converse: {count} prompts for {rows} rows of {world.seats} seats")
    shapes.check({"prompts.mask": prompts.mask}, (count, width), "[P, L] of prompts.token")
    if config.compact and (axis_name is not None or world.seats > 1):
        raise ValueError(f"sampler.compact = {config.compact}: expected 0 for a world of several seats and inside vmap")
    processors = processors_lib.build(config)
    weights, talk = model.decode_params(params), begin(world, states, ends)
    alone = world.seats == 1
    # A seat may wait before its first token, whose logits are those after its prompt: so the last token is read later.
    read = width if alone else width - 1
    token, mask = prompts.token[:, :read], prompts.mask[:, :read]
    hidden, cache = model.prefill(weights, token, mask, rows // count, max(1, columns - alone), config.cache_block)
    logits = ops.repeat(model.logits(weights, hidden[:, -1]), rows // count)
    vocabulary = logits.shape[1] if processors_lib.keeps(config, processors) else None
    sample = samples_lib.empty(rows, columns, vocabulary, ends.pad, turns=True)
    assert sample.turn is not None
    sample = dataclasses.replace(sample, turn=jnp.full_like(sample.turn, -1))
    row = jnp.arange(rows, dtype=jnp.int32)
    last = jnp.zeros_like(row) if alone else prompts.token[:, -1]
    start = decode.DecodeState(sample, cache, last, jnp.ones((rows,), bool), seat_keys(keys, world.seats), row, talk)
    driver = Driver(world, ends, processors, length)
    sample, talk = decode.run(
        model,
        weights,
        start,
        logits if alone else None,
        driver.draw,
        columns,
        decode.stages(count, rows // count, config.compact),
        axis_name,
        driver.active,
    )
    return _without_waiting(sample, length, not alone), talk


def _columns(world: World, length: int) -> int:
    """Return the most steps of the loop: of a lone seat, T; of several seats, who read and write in turns, the sum."""
    if world.seats == 1:
        return length
    return min(world.seats * length, world.max_turns * (world.turn_length + world.reply_length))


def _without_waiting(sample: samples_lib.Sample, length: int, waited: bool) -> samples_lib.Sample:
    """Move the positions in use to the left where seats waited, and cut the rows to T."""
    assert sample.turn is not None
    used = sample.turn >= 0
    if waited:
        order = jnp.argsort(~used, axis=1, stable=True)[:, :length]

        def moved(x: Array) -> Array:
            return jnp.take_along_axis(x, order.reshape(order.shape + (1,) * (x.ndim - 2)), axis=1) if x.ndim > 1 else x

        sample = samples_lib.mapped(moved, sample)
    assert sample.turn is not None
    return dataclasses.replace(sample, turn=jnp.maximum(sample.turn, 0))


def resume(
    model: samples_lib.Policy,
    params: types.Tree,
    world: World,
    talk: Talk,
    prompts: types.Prompts,
    keys: types.Key,
    sample: samples_lib.Sample,
    fresh: Array,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    segment: int,
) -> tuple[samples_lib.Sample, Talk]:
    """Continue unfinished conversations by at most ``segment`` tokens each, replies included.

    A conversation may be cut anywhere, inside a turn or a reply.

    Args:
      model: as in ``segments.resume``, like ``params``, ``prompts``, ``keys``, ``sample``, ``fresh`` and ``config``.
      params: the model's parameters.
      world: the world, of one seat.
      talk: the episodes so far; those of ``fresh`` rows are at their beginning (``begin``).
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
    driver = Driver(world, ends, processors_lib.build(config), length)
    sample, talk = segments.continued(
        model, params, prompts, keys, sample, config, ends.pad, min(segment, length), talk, driver.draw
    )
    over = jnp.where(talk.done, int(types.Finish.STOP), int(types.Finish.LENGTH))
    return dataclasses.replace(sample, finish=jnp.where(talk.over, over, sample.finish)), talk


def token_reward(sample: samples_lib.Sample, talk: Talk) -> Array:
    """Return ``[B, T]``, what each turn was paid, on the last token that the seat wrote in it."""
    return on_last_tokens(sample, talk.paid)


def on_last_tokens(sample: samples_lib.Sample, x: Array) -> Array:
    """Return numbers of turns ``[B, M]`` on the last token ``[B, T]`` that the seat wrote in each."""
    assert sample.turn is not None
    following = jnp.pad(sample.turn[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    own = jnp.pad(sample.mask[:, 1:], ((0, 0), (0, 1))) > 0
    last = (sample.mask > 0) & ~(own & (following == sample.turn))
    return jnp.where(last, of_turns(sample, x), 0.0)


def of_turns(sample: samples_lib.Sample, x: Array) -> Array:
    """Return numbers of turns ``[B, M]`` on their tokens ``[B, T]``, 0 on those that the seat did not write."""
    assert sample.turn is not None
    turn = jnp.minimum(sample.turn, x.shape[1] - 1)
    return jnp.where(sample.mask > 0, jnp.take_along_axis(x, turn, axis=1), 0.0)
