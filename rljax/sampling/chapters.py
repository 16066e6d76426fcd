"""Chapters: every turn of an episode is a row of its own, whose prompt is rebuilt from the world's state."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.sampling import decode, dialogue, stopping
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig
from rljax.transforms.source import groups

Array = types.Array
_TURNS = 1 << 29  # stream of an episode's key, beyond any position


@dataclasses.dataclass(frozen=True)
class Book:
    """Episodes as rows, E * M of them, adjacent for each episode in the order of its turns; M = max_turns."""

    prompts: types.Prompts  # [E * M, L] each; ``index`` is 0
    sample: samples_lib.Sample  # mask 0 in absent turns
    seat: Array  # [E * M] int32, who wrote the turn
    present: Array  # [E * M] bool
    talk: dialogue.Talk  # the episodes; its fields of rows are for each seat


def write(
    models: tuple[samples_lib.Policy, ...],
    params: tuple[types.Tree, ...],
    player: np.ndarray,
    world: dialogue.World,
    states: Any,
    keys: types.Key,
    config: SamplerConfig,
    ends: stopping.Ends,
) -> Book:
    """Sample episodes, one row for each turn.

    Turn k of an episode is sampled with ``fold_in(key, 2**29 + k)`` as ``decode.generate`` would sample a completion
    of its prompt. Rows wait for the longest turn of the batch.

    Args:
      models: the network of each player.
      params: its parameters.
      player: ``[E, seats]`` int32, who plays each seat. With several players, each turn is sampled by each of them.
      world: the world.
      states: ``[E, ...]``, the world's states at the beginning.
      keys: ``[E]`` typed keys of the episodes.
      config: temperature, filters, and how the loop is laid out.
      ends: what ends a turn, and the token id of padding.

    Returns:
      The rows and the episodes after their last turn.
    """
    episodes, turns = keys.shape[0], world.max_turns
    rows = dialogue.seat_keys(keys, world.seats)

    def turn(talk: dialogue.Talk, number: Array) -> Any:
        prompts = jax.vmap(functools.partial(types.Prompts.of, world))(talk.world, talk.seat)
        row_keys = jax.vmap(lambda key: jax.random.fold_in(key, _TURNS + number))(keys)
        live = ~talk.over
        writer = jnp.take_along_axis(jnp.asarray(player), talk.seat[:, None], axis=1)[:, 0]
        fixed, length = (prompts, row_keys, config, ends), world.turn_length
        samples = [
            decode.generate(model, p, *fixed, samples=1, length=length, live=live & (writer == i))
            for i, (model, p) in enumerate(zip(models, params, strict=True))
        ]
        sample = samples[0]
        for i, other in enumerate(samples[1:], 1):
            sample = _merged(sample, other, writer == i)
        if hasattr(world, "limits"):
            sample = samples_lib.cut(sample, talk.limit, ends.pad)
        written = dataclasses.replace(talk, written=sample.token, count=sample.length)
        return dialogue.answer(world, ends, written, rows, live), (prompts, sample, talk.seat, live)

    start = dialogue.begin(world, states, ends)
    talk, (prompts, sample, seat, present) = jax.lax.scan(turn, start, jnp.arange(turns, dtype=jnp.uint32))

    def by_episode(x: Array) -> Array:  # [M, E, ...] -> [E * M, ...]
        return jnp.swapaxes(x, 0, 1).reshape((episodes * turns, *x.shape[2:])) if x.ndim > 1 else jnp.sum(x)

    prompts, sample, seat, present = jax.tree.map(by_episode, (prompts, sample, seat, present))
    return Book(prompts, sample, seat, present, talk)


def _merged(sample: samples_lib.Sample, other: samples_lib.Sample, rows: Array) -> samples_lib.Sample:
    """Return ``sample`` with the ``rows`` [E] bool of another one."""
    merged = samples_lib.mapped(functools.partial(groups.put, rows), other, sample)
    return dataclasses.replace(merged, steps=sample.steps + other.steps, slots=sample.slots + other.slots)
