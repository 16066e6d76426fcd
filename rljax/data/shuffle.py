"""A keyed permutation of [0, size), computed for the indices that are needed, without a table."""

import functools

import jax
import jax.numpy as jnp

LARGEST = 2**30
_ROUNDS = 6


def multiple(count: int, size: int) -> int:
    """Return ``count`` times ``size``, or the largest multiple of ``count`` that ``permute`` takes."""
    return count * min(size, (LARGEST - 1) // count)


def permute(index: jax.Array, size: int, seed: jax.Array | int) -> jax.Array:
    """Return the image of each index under a keyed permutation of [0, size).

    A balanced Feistel network permutes the smallest [0, 4^h) that contains [0, size); it is applied again to images
    outside [0, size) until they are inside (cycle-walking, fewer than four applications on average), which gives a
    permutation of [0, size). Each round is ``(left, right) -> (right, left ^ f(right, seed, round))``.

    Args:
      index: integers of any shape, taken modulo size.
      size: a Python int in [1, 2^30).
      seed: uint32 scalar, may be traced; different seeds give different permutations.

    Returns:
      An array with the shape and dtype of ``index``.

    Raises:
      ValueError: size is out of range, or index is not an integer array.
    """
    if not 1 <= size < LARGEST:
        raise ValueError(f"size: {size} is not in [1, 2**30)")
    if not jnp.issubdtype(index.dtype, jnp.integer):
        raise ValueError(f"index: {index.dtype} is not an integer type")
    return _permute(index, jnp.asarray(seed).astype(jnp.uint32), size)


@functools.partial(jax.jit, static_argnames="size")  # a program holds several: each is traced once for its shape
def _permute(index: jax.Array, seed: jax.Array, size: int) -> jax.Array:
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    bound = jnp.uint32(size)

    def walk(value: jax.Array) -> jax.Array:
        return jnp.where(value < bound, value, _feistel(value, half, seed))

    # The start is inside [0, size), so its cycle returns there and the loop ends.
    inside = (index % jnp.asarray(size, index.dtype)).astype(jnp.uint32)
    image = jax.lax.while_loop(lambda value: jnp.any(value >= bound), walk, _feistel(inside, half, seed))
    return image.astype(index.dtype)


def _feistel(value: jax.Array, half: int, seed: jax.Array) -> jax.Array:
    low = jnp.uint32(2**half - 1)
    left, right = value >> half, value & low
    for number in range(_ROUNDS):
        left, right = right, left ^ (_mix(right, seed, number) & low)
    return (left << half) | right


def _mix(value: jax.Array, seed: jax.Array, number: int) -> jax.Array:
    """Hash 32 bits in round ``number``: multiply by odd constants, xor the high bits into the low ones."""
    bits = (value + jnp.uint32(0x9E3779B9 * (number + 1) & 0xFFFFFFFF)) * jnp.uint32(0x85EBCA6B)
    bits = (bits ^ (bits >> 16) ^ seed) * jnp.uint32(0xC2B2AE35)
    bits = (bits ^ (bits >> 13)) * jnp.uint32(0x27D4EB2F)
    return bits ^ (bits >> 16)
