"""Several completions of a prompt side by side in one row: where each stands.

Dimension key beside that of ``types``: P prompts, G samples of each, g packed rows of each, W positions of such a row.
"""

from collections.abc import Callable

import flax.struct
import jax
import jax.numpy as jnp

from rljax.types import Array


@flax.struct.dataclass
class Places:
    """Where the completions of B = P * G rows stand: among the ``lanes`` packed rows of their prompt."""

    lane: Array  # [B] int32, which packed row of its prompt; ``lanes`` or more: nowhere
    offset: Array  # [B] int32, its first position there
    lanes: int = flax.struct.field(pytree_node=False)
    samples: int = flax.struct.field(pytree_node=False)
    width: int = flax.struct.field(pytree_node=False)


def written(mask: Array) -> Array:
    """Return which of a completion is read, bool [B, T]: ``mask`` is 0 on tool output too, so all up to its last 1."""
    return jax.lax.cummax((mask != 0).astype(jnp.int32), axis=1, reverse=True) > 0


def first_fit(length: Array, width: int) -> tuple[Array, Array]:
    """Place completions of ``length`` [P, G] in rows of ``width``, longest first, each in the first row it fits.

    Returns lane and offset, [P, G] int32; no prompt takes more than G rows. An empty completion is at
    (0, 0). First-fit decreasing needs at most 11/9 of the fewest rows, plus one (Johnson 1973).
    """
    order = jnp.argsort(-length, axis=1)

    def place(filled: Array, index: Array) -> tuple[Array, tuple[Array, Array]]:
        new = jnp.take_along_axis(length, index[:, None], axis=1)[:, 0]
        lane = jnp.argmax(filled + new[:, None] <= width, axis=1).astype(jnp.int32)
        at = jnp.take_along_axis(filled, lane[:, None], axis=1)[:, 0]
        return filled + jnp.where(jnp.arange(filled.shape[1])[None] == lane[:, None], new[:, None], 0), (lane, at)

    _, found = jax.lax.scan(place, jnp.zeros_like(length), order.T)
    back = jnp.argsort(order, axis=1)
    lane, offset = (jnp.take_along_axis(x.T, back, axis=1) for x in found)
    return jnp.where(length > 0, lane, 0), jnp.where(length > 0, offset, 0)


def movers(places: Places, real: Array) -> tuple[Callable[[Array], Array], Callable[[Array], Array]]:
    """Return ``put`` [B, T, ...] -> [P * g, W, ...] and ``take`` [P * g, W] -> [B, T], both 0 where nothing is."""
    rows, length = real.shape
    packed = rows // places.samples * places.lanes
    prompt = jnp.arange(rows, dtype=jnp.int32) // places.samples
    base = (prompt * places.lanes + places.lane) * places.width + places.offset
    there = real & (places.lane < places.lanes)[:, None]
    target = base[:, None] + jnp.arange(length, dtype=jnp.int32)[None, :]
    nowhere = packed * places.width
    origin = jnp.full((nowhere,), rows * length, jnp.int32)
    index = jnp.arange(rows * length, dtype=jnp.int32)
    origin = origin.at[jnp.where(there, target, nowhere).reshape(-1)].set(index, mode="drop")

    def put(x: Array) -> Array:
        flat = x.reshape(rows * length, *x.shape[2:])
        moved = jnp.take(flat, origin, axis=0, mode="fill", fill_value=x.dtype.type(0))
        return moved.reshape(packed, places.width, *x.shape[2:])

    def take(x: Array) -> Array:
        return jnp.where(there, jnp.take(x.reshape(-1), target, mode="clip"), 0)

    return put, take
