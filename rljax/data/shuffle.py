"""Shuffles without a table: a keyed bijection of [0, size), computed where it is needed."""

import jax
import jax.numpy as jnp

LARGEST = 2**30
_ROUNDS = 6


def permute(index: jax.Array, size: int, seed: jax.Array | int) -> jax.Array:
    """Send each index to its place in a shuffle of [0, size).

    A balanced Feistel network permutes the smallest [0, 4^h) that holds size; an image outside [0, size)
    is sent through again until it falls inside (cycle-walking, under four turns on average), which leaves
    a bijection of [0, size). Each round is ``(left, right) -> (right, left ^ f(right, seed, round))``.

    Args:
      index: integers of any shape, taken modulo size.
      size: a Python int in [1, 2^30).
      seed: uint32 scalar, may be traced; another seed is another shuffle.

    Returns:
      An array of the index's shape and type.

    Raises:
      ValueError: size is out of range, or index holds no integers.
    """
    if not 1 <= size < LARGEST:
        raise ValueError(f"size: {size} is not in [1, 2**30)")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"index: {index.dtype} is not an integer type")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bound = jnp.uint32(size)
    seed = jnp.asarray(seed).astype(jnp.uint32)

    def walk(value: jax.Array) -> jax.Array:
        return jnp.where(value < bound, value, _feistel(value, half, seed))

    # The start lies inside [0, size), so its cycle returns there and every walk ends.
    inside = (index % jnp.asarray(size, index.dtype)).astype(jnp.uint32)
    image = jax.lax.while_loop(lambda value: jnp.any(value >= bound), walk, _feistel(inside, half, seed))
    return image.astype(index.dtype)


def _feistel(value: jax.Array, half: int, seed: jax.Array) -> jax.Array:
    low = jnp.uint32(2**half - 1)
    left, right = value >> half, value & low
    for turn in range(_ROUNDS):
        left, right = right, left ^ (_mix(right, seed, turn) & low)
    return (left << half) | right


def _mix(value: jax.Array, seed: jax.Array, turn: int) -> jax.Array:
    """Scramble 32 bits: multiply by odd constants, fold the high bits down."""
    bits = (value + jnp.uint32(0x9E3779B9 * (turn + 1) & 0xFFFFFFFF)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 16) ^ seed) * jnp.uint32(0xC2B2AE35)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0x27D4EB2F)
    return bits ^ (bits >> 16)
