"""The two ceilings of a machine: its rate of matrix products, and its memory bandwidth."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import bench

MATRICES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 1024, 1024), (5120, 256, 768))


def matmul(dtype: str, repeats: int = 10) -> dict[str, float]:
    """Return the highest measured FLOP/s of a product of ``dtype`` matrices at each size, by name "MxKxN"."""
    rates = {}
    for m, k, n in MATRICES:
        a, b = (jax.random.normal(jax.random.key(i), s).astype(dtype) for i, s in enumerate(((m, k), (k, n))))
        product = jax.jit(lambda a, b: jnp.matmul(a, b, preferred_element_type=jnp.float32))
        rates[f"{m}x{k}x{n}"] = 2 * m * k * n / _best(product, (a, b), repeats)
    return rates


def bandwidth(repeats: int = 10, mib: int = 256) -> float:
    """Return the highest measured bytes/s at which a sum reads an array of ``mib`` MiB."""
    x = jnp.ones((mib << 18,), jnp.float32)
    return 4 * x.size / _best(jax.jit(jnp.sum), (x,), repeats)


def _best(function: Any, arguments: tuple, repeats: int) -> float:
    jax.block_until_ready(function(*arguments))
    return min(bench.seconds(lambda: jax.block_until_ready(function(*arguments)), repeats))
