"""Names and digests of the arrays of a checkpoint. Orbax does not detect flipped bits inside array files."""

import json
import math
import zlib
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types


def flatten(tree: types.Tree) -> dict[str, Any]:
    """Return the leaves of a tree by name, such as ``opt_state/0/mu/policy/embed``.

    Raises:
      ValueError: a leaf that is not an array or is a typed key, or two leaves with one name.
    """
    flat: dict[str, Any] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        if not hasattr(leaf, "dtype") or not hasattr(leaf, "shape"):
            raise ValueError(f"state: {name} is {leaf!r}; every leaf must be an array")
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise ValueError(f"state: {name} is a typed key; store jax.random.key_data of it instead")
        if name in flat:
            raise ValueError(f"state: two leaves are named {name}")
        flat[name] = leaf
    return flat


def nonempty(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Return the leaves with at least one element; array stores refuse empty arrays."""
    return {name: leaf for name, leaf in flat.items() if math.prod(leaf.shape) > 0}


def crc(record: Mapping[str, Any]) -> int:
    """Return the CRC-32 of a JSON-able record."""
    return zlib.crc32(json.dumps(record, sort_keys=True).encode())


def by_name(flat: Mapping[str, Any]) -> dict[str, int]:
    """Return the digest of every leaf.

    The digest is sum_i w_i x_i mod 2^32 over the words x of an array, where w_i is an odd hash of the index i. An odd
    factor is invertible mod 2^32, so a change of one element always changes the digest; several changes go undetected
    with probability 2^-32. Addition mod 2^32 is associative and commutative, so the sharding does not matter.
    """
    return {name: int(value) for name, value in jax.device_get(_digests(dict(flat))).items()}


def _words(leaf: types.Array) -> types.Array:
    """Return the bits of an array as uint32 words, one (or two, on a last axis) per element."""
    size = leaf.dtype.itemsize
    if size > 4:
        return jax.lax.bitcast_convert_type(leaf, jnp.uint32)
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(leaf, {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[size])
    return leaf.astype(jnp.uint32)


def _digest(leaf: types.Array) -> types.Array:
    words = _words(jax.device_put(leaf, jax.memory.Space.Device))  # an offloaded array is in host memory
    index = jnp.zeros(words.shape, jnp.uint32)
    for axis, size in enumerate(words.shape):
        index = index * np.uint32(size % 2**32) + jax.lax.broadcasted_iota(jnp.uint32, words.shape, axis)
    weight = index * np.uint32(0x9E3779B1)
    weight = (weight ^ (weight >> 15)) * np.uint32(0x85EBCA77)
    weight = (weight ^ (weight >> 13)) | np.uint32(1)
    return jnp.sum(words * weight, dtype=jnp.uint32)


_digests = jax.jit(lambda flat: jax.tree.map(_digest, flat))
