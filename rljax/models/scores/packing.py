"""Packing: several completions of one prompt side by side in one row.

Dimension key, in addition to the key of ``types``: P prompts, G samples of each, g packed rows of each, W positions of
a packed row.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from rljax.types import Array


@flax.struct.dataclass
class Places:
    """The places of the completions of B = P * G rows among the ``lanes`` packed rows of each prompt."""

    lane: Array  # [B] int32, the packed row of its prompt; ``lanes`` or more: not placed
    offset: Array  # [B] int32, its first position in that row
    lanes: int = flax.struct.field(pytree_node=False)
    samples: int = flax.struct.field(pytree_node=False)
    width: int = flax.struct.field(pytree_node=False)


def written(mask: Array) -> Array:
    """Return the positions up to a row's last token, bool [B, T]; ``mask`` may be 0 before it, on tool output."""
    return jax.lax.cummax((mask != 0).astype(jnp.int32), axis=1, reverse=True) > 0


def first_fit(length: Array, width: int) -> tuple[Array, Array]:
    """Place completions in packed rows, longest first, each in the first row with enough room.

    First-fit decreasing uses at most 11/9 of the optimal number of rows, plus one (Johnson 1973).

    Args:
      length: ``[P, G]`` int32, tokens of each completion.
      width: W, positions of a packed row.

    Returns:
      Lane and offset, ``[P, G]`` int32 each: the packed row of the prompt, below G, and the first position in it. An
      empty completion is at (0, 0).
    """
    order = jnp.argsort(-length, axis=1)

    def place(filled: Array, index: Array) -> tuple[Array, tuple[Array, Array]]:
        new = jnp.take_along_axis(length, index[:, None], axis=1)[:, 0]
        lane = jnp.argmax(filled + new[:, None] <= width, axis=1).astype(jnp.int32)
        offset = jnp.take_along_axis(filled, lane[:, None], axis=1)[:, 0]
        return filled + jnp.where(jnp.arange(filled.shape[1])[None] == lane[:, None], new[:, None], 0), (lane, offset)

    _, placed = jax.lax.scan(place, jnp.zeros_like(length), order.T)
    inverse = jnp.argsort(order, axis=1)
    lane, offset = (jnp.take_along_axis(x.T, inverse, axis=1) for x in placed)
    return jnp.where(length > 0, lane, 0), jnp.where(length > 0, offset, 0)


def movers(places: Places, real: Array) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return the functions that move arrays of completions into packed rows and back.

    Args:
      places: where each completion stands.
      real: ``[B, T]`` bool, the positions to move; see ``written``.

    Returns:
      ``put``: ``[B, T, ...]`` to ``[P * g, W, ...]``, and ``take``, its inverse. Both fill with 0.
    """
    rows, length = real.shape
    packed = rows // places.samples * places.lanes
    prompt = jnp.arange(rows, dtype=jnp.int32) // places.samples
    base = (prompt * places.lanes + places.lane) * places.width + places.offset
    placed = real & (places.lane < places.lanes)[:, None]
    target = base[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]
    end = packed * places.width
    origin = jnp.full((end,), rows * length, jnp.int32)
    index = jnp.arange(rows * length, dtype=jnp.int32)
    origin = origin.at[jnp.where(placed, target, end).reshape(-1)].set(index, mode="drop")

    def put(x: Array) -> Array:
        flat = x.reshape(rows * length, *x.shape[2:])
        moved = jnp.take(flat, origin, axis=0, mode="fill", fill_value=x.dtype.type(0))
        return moved.reshape(packed, places.width, *x.shape[2:])

    def take(x: Array) -> Array:
        inner = x.shape[2:]
        moved = jnp.take(x.reshape(-1, *inner), target, axis=0, mode="clip")
        return jnp.where(placed.reshape(*placed.shape, *(1 for _ in inner)), moved, 0)

    return put, take
