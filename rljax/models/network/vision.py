"""Pictures: patches, a tower of bidirectional layers, and the projection to the policy's width."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax.models import precision
from rljax.models.architectures import Architecture
from rljax.models.layouts import Layout
from rljax.models.network import attention, layer, transformer
from rljax.types import Array, Tree


def look(architecture: Architecture, params: Tree, image: Array, layout: Layout) -> Array:
    """Return what pictures are in place of their placeholders; see ``models.Model.look``.

    Args:
      architecture: of the parameters; ``vision.layers`` is above 0.
      params: of the whole model.
      image: ``[B, N, H, W, 3]`` uint8, or the ``features`` of the pictures.
      layout: how arrays are sharded over a mesh.

    Returns:
      ``[B, N * tokens, D]`` in the compute dtype.
    """
    x: Any = features(architecture, params, image, layout) if image.dtype == jnp.uint8 else image
    rows, pictures, tokens = x.shape[:3]
    projector = params["projector"]
    if architecture.vision.form == "siglip":
        x = layer.rms_norm(x, 1.0 + precision.wide(projector["norm"]), architecture.tower.norm_epsilon)
    x = layer.project(x, projector["matrix"], architecture.dtype).astype(architecture.dtype)
    return x.reshape(rows, pictures * tokens, -1)


def features(architecture: Architecture, params: Tree, image: Array, layout: Layout) -> Array:
    """Return the output of the tower, before its projection.

    Args:
      architecture: as in ``look``.
      params: of the whole model.
      image: ``[B, N, H, W, 3]`` uint8.
      layout: how arrays are sharded over a mesh.

    Returns:
      ``[B, N, tokens, width]`` in the compute dtype, normed.

    Raises:
      ValueError: the pictures have another size than the tower reads.
    """
    v, tower = architecture.vision, architecture.tower
    rows, pictures = image.shape[:2]
    if image.shape[2:] != (v.pixels, v.pixels, 3):
        raise ValueError(f"image has shape {image.shape}: expected [B, N, {v.pixels}, {v.pixels}, 3]")
    weights = params[architecture.tower_name]
    x = patches(image.reshape(rows * pictures, *image.shape[2:]), v.patch)
    x = layer.project(x, weights["patch"], tower.dtype)
    angles: Any = (None, None)
    if v.form == "siglip":
        x = layer.shifted(layer.shifted(x, weights["patch_bias"]), weights["position"])
    else:
        angles = rotation(tower, v.side)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        return jax.nn.dot_product_attention(query, key, value, scale=form.scale).astype(jnp.float32)

    x = transformer.trunk(tower, weights, x.astype(tower.dtype), angles, mix, layout)
    x = x.reshape(rows, pictures, v.side // v.merged, v.merged, v.side // v.merged, v.merged, -1)
    return jnp.mean(x.astype(jnp.float32), axis=(3, 5)).astype(tower.dtype).reshape(rows, pictures, v.tokens, -1)


def patches(image: Array, side: int) -> Array:
    """Cut pictures ``[n, H, W, 3]`` uint8 into patches, row by row: ``[n, patches, 3 * side * side]`` in [-1, 1]."""
    count, height, width = image.shape[:3]
    x = image.reshape(count, height // side, side, width // side, side, 3).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(count, -1, 3 * side * side).astype(jnp.float32) / 127.5 - 1.0


def rotation(tower: Architecture, side: int) -> tuple[layer.Angles, layer.Angles]:
    """Return the angles of patches: the first half of the frequencies turns with the row, the second with the column.

    As in Qwen2-VL (arXiv 2409.12191); f_i = theta^(-2 i / (K / 2)) for i < K / 4.
    """
    place = jnp.arange(side, dtype=jnp.float32)
    frequency = tower.rope_theta ** (
        -jnp.arange(0, tower.head_size // 2, 2, dtype=jnp.float32) / (tower.head_size // 2)
    )
    angle = place[:, None] * frequency[None, :]
    row, column = (jnp.repeat(angle, side, axis=0), jnp.tile(angle, (side, 1)))
    angle = jnp.concatenate([row, column], axis=1)[None, :, None, :]
    angles = jnp.cos(angle), jnp.sin(angle)
    return angles, angles
