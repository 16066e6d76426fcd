"""Pictures: patches, a tower of bidirectional layers, and the projection to the policy's width."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.models import precision, towers
from rljax.models.architectures import Architecture
from rljax.models.layouts import Layout
from rljax.models.network import attention, layer, transformer
from rljax.types import Array, Tree

_MEAN, _DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)  # of CLIP, by color

_QUERIES = 512  # patches whose scores are in memory at once, in pictures of a multiple of them


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
    a, projector = architecture, params["projector"]
    rows, pictures, tokens = x.shape[:3]
    if a.vision.form == "siglip":
        x = layer.rms_norm(x, 1.0 + precision.wide(projector["norm"]), a.tower.norm_epsilon)
    if a.vision.form == "qwen2.5":
        x = layer.shifted(layer.project(x, projector["inner"], a.dtype), projector["inner_bias"])
        x = jax.nn.gelu(x, approximate=False)
    x = layer.project(x, projector["matrix"], a.dtype)
    if a.vision.form == "qwen2.5":
        x = layer.shifted(x, projector["matrix_bias"])
    return x.astype(a.dtype).reshape(rows, pictures * tokens, -1)


def features(architecture: Architecture, params: Tree, image: Array, layout: Layout) -> Array:
    """Return the output of the tower, before its projection.

    Args:
      architecture: as in ``look``.
      params: of the whole model.
      image: ``[B, N, H, W, 3]`` uint8.
      layout: how arrays are sharded over a mesh.

    Returns:
      ``[B, N, tokens, vision.joined]`` in the compute dtype, normed.

    Raises:
      ValueError: the pictures have another size than the tower reads.
    """
    v, tower = architecture.vision, architecture.tower
    rows, pictures = image.shape[:2]
    if image.shape[2:] != (v.pixels, v.pixels, 3):
        raise ValueError(f"image has shape {image.shape}: expected [B, N, {v.pixels}, {v.pixels}, 3]")
    weights, order = params[architecture.tower_name], _order(v)
    x = patches(image.reshape(rows * pictures, *image.shape[2:]), v.patch)[:, order]
    if v.form == "qwen2.5":  # as the processor of CLIP scales colors; two equal frames
        x = (x + 1) / 2
        mean, deviation = (jnp.asarray(c, jnp.float32)[None, None, :, None] for c in (_MEAN, _DEVIATION))
        x = (x.reshape(*x.shape[:2], 3, -1) - mean) / deviation
        x = jnp.concatenate([x, x], axis=3).reshape(*x.shape[:2], -1)
    x = layer.project(x, weights["patch"], tower.dtype)
    angles: Any = (None, None)
    if v.form == "siglip":
        x = layer.shifted(layer.shifted(x, weights["patch_bias"]), weights["position"][order])
    else:
        angles = rotation(tower, v.side, order)

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        parts = v.windows**2 if form.window else 1
        q, k, z = (x.reshape(x.shape[0] * parts, -1, *x.shape[2:]) for x in (query, key, value))
        fused = architecture.attention == "cudnn"
        attend = functools.partial(
            jax.nn.dot_product_attention, key=k, value=z, scale=form.scale, implementation="cudnn" if fused else "xla"
        )
        if fused or q.shape[1] % _QUERIES:
            return attend(q).astype(jnp.float32).reshape(query.shape)
        blocks = q.reshape(len(q), -1, _QUERIES, *q.shape[2:]).swapaxes(0, 1)
        out = jax.lax.map(jax.checkpoint(attend), blocks).swapaxes(0, 1)  # the scores of one block are in memory
        return out.astype(jnp.float32).reshape(query.shape)

    x = transformer.trunk(tower, weights, x.astype(tower.dtype), angles, mix, layout)
    x = x.reshape(rows, pictures, v.tokens, v.merged**2, -1)
    if v.form == "qwen2.5":
        x = x.reshape(rows, pictures, v.tokens, -1)
    else:
        x = jnp.mean(x.astype(jnp.float32), axis=3).astype(tower.dtype)
    token = order[:: v.merged**2]  # the first patch of each token
    return x[:, :, np.argsort(token)] if v.windows > 1 else x


def _order(v: towers.Vision) -> np.ndarray:
    """Return the number of each patch, counted row by row, in the order of the tower: by window, then by token."""
    place = np.arange(v.side**2).reshape(2 * (v.windows, v.side // v.windows // v.merged, v.merged))
    return place.transpose(0, 3, 1, 4, 2, 5).ravel()


def patches(image: Array, side: int) -> Array:
    """Cut pictures ``[n, H, W, 3]`` uint8 into patches, row by row: ``[n, patches, 3 * side * side]`` in [-1, 1]."""
    count, height, width = image.shape[:3]
    x = image.reshape(count, height // side, side, width // side, side, 3).transpose(0, 1, 3, 5, 2, 4)
    return x.reshape(count, -1, 3 * side * side).astype(jnp.float32) / 127.5 - 1.0


def rotation(tower: Architecture, side: int, order: np.ndarray) -> tuple[layer.Angles, layer.Angles]:
    """Return the angles of patches: the first half of the frequencies turns with the row, the second with the column.

    As in Qwen2-VL (arXiv 2409.12191); f_i = theta^(-2 i / (K / 2)) for i < K / 4.
    """
    place = jnp.asarray(np.stack([order // side, order % side]), jnp.float32)
    frequency = tower.rope_theta ** (
        -jnp.arange(0, tower.head_size // 2, 2, dtype=jnp.float32) / (tower.head_size // 2)
    )
    angle = place[:, :, None] * frequency[None, None, :]
    angle = jnp.concatenate([*angle], axis=1)[None, :, None, :]
    angles = jnp.cos(angle), jnp.sin(angle)
    return angles, angles
