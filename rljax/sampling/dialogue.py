"""Episodes in progress: what the drivers remember of them, and a world's answer to a turn.

A world's key for turn k is ``fold_in(fold_in(key, 2**30), k)``, with the key of the episode's first seat.
"""

import dataclasses
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.language.limits import LARGEST
from rljax.sampling import samples as samples_lib
from rljax.sampling import stopping
from rljax.transforms import ops
from rljax.transforms.source import groups

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

    def picture(self, state: Any, seat: Array) -> Array: ...  # noqa: D102  read if it has ``pictures``

    def step(self, state: Any, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, Any]: ...  # noqa: D102


@flax.struct.dataclass
class Talk:
    """Episodes in progress: E of them, B = E * seats rows, adjacent for each episode; M = max_turns."""

    world: Any  # [E, ...], the world's state
    seat: Array  # [E] int32, whose turn it is
    turn: Array  # [E] int32, turns ended
    over: Array  # [E] bool
    done: Array  # [E] bool, the world has ended the episode; False after a budget has
    valid: Array  # [E] float32
    domain: Array  # [E] int32
    limit: Array  # [E] int32, the most tokens of a turn
    width: Array  # [E] int32, the most tokens of a row
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
    limit, width = limits(world, states, episodes)
    return Talk(
        world=states,
        seat=each,
        turn=each,
        over=each > 0,
        done=each > 0,
        valid=jnp.ones((episodes,)),
        domain=each,
        limit=limit,
        width=width,
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


def limits(world: World, states: Any, episodes: int) -> tuple[Array, Array]:
    """Return the most tokens of a turn and of a row of each episode, ``[E]`` int32 each.

    A world may have a method ``limits(state)`` that returns both; of others, rows are as long as the sampler's.
    """
    method = getattr(world, "limits", None)
    if method is not None:
        return jax.vmap(method)(states)
    return jnp.full((episodes,), world.turn_length, jnp.int32), jnp.full((episodes,), _WORLD, jnp.int32)


def seat_keys(keys: types.Key, seats: int) -> types.Key:
    """Return the keys of rows ``[E * seats]`` from the keys of episodes ``[E]``; seat 0 has the key of its episode."""
    if seats == 1:
        return keys

    def one(key: types.Key) -> types.Key:
        others = jax.vmap(lambda s: jax.random.fold_in(key, _SEATS + s))(jnp.arange(1, seats, dtype=jnp.uint32))
        return jnp.concatenate([key[None], others])

    return jax.vmap(one)(keys).reshape(-1)


def answer(world: World, ends: stopping.Ends, talk: Talk, keys: types.Key, ended: Array) -> Talk:
    """Let the world answer the turns that ``ended`` ``[E]``; ``keys`` ``[B]`` are the rows' keys."""
    seats, turns = world.seats, world.max_turns
    following, reply = _step(world, ends, talk, keys)
    mine = (jnp.arange(seats)[None, :] == talk.seat[:, None]).reshape(-1)
    rows = ops.repeat(ended, seats)

    def changed(new: Array, old: Array) -> Array:
        return groups.put(ended if new.shape[0] == ended.shape[0] else rows, new, old)

    def of_turn(number: Array) -> Array:  # [B] -> [B, M]
        return jnp.arange(turns)[None, :] == number[:, None]

    paid = reply.reward.reshape(-1)
    payee = jnp.where(mine, talk.ended, talk.ended - 1)  # -1: the seat has not written yet
    turn = talk.turn + 1
    over = reply.done | reply.truncated | (turn >= turns)
    forced, size = _packed(reply.token.reshape((rows.size, -1)), reply.mask.reshape((rows.size, -1)))
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
        told=forced,
        place=jnp.zeros_like(talk.place),
        size=jnp.where(ops.repeat(over, seats), 0, size),
        ended=talk.ended + mine,
        paid=talk.paid + jnp.where(of_turn(payee), paid[:, None], 0.0),
        unearned=talk.unearned + jnp.where(payee < 0, paid, 0.0),
        outcome=reply.outcome.reshape(-1),
        parts={name: reply.parts[name].reshape(-1) for name in talk.parts},
        extra={
            name: jnp.where(of_turn(talk.ended) & mine[:, None], ops.repeat(reply.extra[name], seats)[:, None], x)
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
    following, reply = jax.vmap(world.step)(talk.world, talk.seat, token, mask, step_keys)
    return following, jax.vmap(lambda one: _sound(one, world.seats))(reply)


def _sound(reply: Any, seats: int) -> Any:
    """Return the reply of an episode; one with a value that is not allowed ends it as crashed, and pays nothing."""
    numbers = (reply.valid, reply.reward, *reply.parts.values(), *reply.extra.values())
    sound = jnp.all((reply.outcome >= 0) & (reply.outcome < len(types.Outcome)))
    for x in numbers:
        sound &= jnp.all(jnp.abs(x) <= LARGEST)
    sound &= reply.done | reply.truncated | ((reply.next_seat >= 0) & (reply.next_seat < seats))
    kept = jax.tree.map(lambda x: jnp.where(sound, x, jnp.zeros_like(x)), reply)
    return kept.replace(
        outcome=jnp.where(sound, kept.outcome, int(types.Outcome.CRASHED)),
        truncated=kept.truncated | ~sound,
    )


def _packed(token: Array, mask: Array) -> tuple[Array, Array]:
    """Move the tokens [b, R] with mask 1 to the left; return them and their number [b]."""
    order = jnp.argsort(mask <= 0, axis=1, stable=True)
    return jnp.take_along_axis(token, order, axis=1), jnp.sum(mask > 0, axis=1, dtype=jnp.int32)


def on_last_tokens(sample: samples_lib.Sample, x: Array) -> Array:
    """Return numbers of turns ``[B, M]`` on the last token ``[B, T]`` that the seat wrote in each."""
    assert sample.turn is not None
    following = jnp.pad(sample.turn[:, 1:], ((0, 0), (0, 1)), constant_values=-1)
    mine = jnp.pad(sample.mask[:, 1:], ((0, 0), (0, 1))) > 0
    last = (sample.mask > 0) & ~(mine & (following == sample.turn))
    return jnp.where(last, of_turns(sample, x), 0.0)


def of_turns(sample: samples_lib.Sample, x: Array) -> Array:
    """Return numbers of turns ``[B, M]`` on their tokens ``[B, T]``, 0 on those that the seat did not write."""
    assert sample.turn is not None
    turn = jnp.minimum(sample.turn, x.shape[1] - 1)
    return jnp.where(sample.mask > 0, jnp.take_along_axis(x, turn, axis=1), 0.0)
