"""The forward pass of a decoder-only transformer: RMSNorm, rotary positions, grouped-query attention, gated layers.

Pure functions over dictionaries of arrays. Only ``attention`` knows which position attends to which; ``cache`` decodes.
Dimension key, in addition to the key of ``types``: G key-value heads, P prompts, W positions of a row that shares one.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.models import parameters, precision
from rljax.models.architectures import Architecture
from rljax.models.layouts import UNCONSTRAINED, Layout
from rljax.models.network import attention, gated, layer
from rljax.types import Array, Tree

# form, query [B, S, H, K], key, value [B, S, G, K] -> [B, S, H, K]
Mix = Callable[[attention.Form, Array, Array, Array], Array]

_SAVED: dict[str, Any] = {"full": None, "dots": jax.checkpoint_policies.dots_with_no_batch_dims_saveable}


def apply(
    architecture: Architecture,
    params: Tree,
    token: Array,
    mask: Array,
    layout: Layout = UNCONSTRAINED,
    seen: Array | None = None,
) -> Array:
    """Run the network over whole rows; see ``models.Model.apply``.

    Args:
      architecture: of the parameters.
      params: from ``architecture.init``.
      token: ``[B, S]`` int32.
      mask: ``[B, S]``, nonzero on real tokens.
      layout: how arrays are sharded over a mesh.
      seen: of the pictures, ``[B, n, D]``; None: there are none.

    Returns:
      Hidden states after the final norm, ``[B, S, D]``.

    Raises:
      ValueError: token and mask differ in shape.
    """
    if token.ndim != 2 or token.shape != mask.shape:
        raise ValueError(f"token has shape {token.shape} and mask {mask.shape}: expected one shape [B, S]")
    return trunk(architecture, params, *whole(architecture, params, token, mask, layout, seen), layout)


def whole(
    architecture: Architecture, params: Tree, token: Array, mask: Array, layout: Layout, seen: Array | None
) -> tuple[Array, Any, Mix]:
    """Return embeddings, angles and attention of whole rows, as ``trunk`` reads them; arguments as of ``apply``."""
    rows = causal(mask, layer.last(architecture, token, seen))

    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        return attention.attend(architecture.attention, form, query, key, value, rows, layout=layout)

    angles = layer.rotation(architecture, layer.places(architecture, token, mask != 0, seen))
    return layer.embed(architecture, params, token, seen), angles, mix


def causal(mask: Array, last: Array | None = None) -> attention.Rows:
    """Return the visibility of whole rows [B, S]: a token attends to the real tokens up to and including itself.

    ``last`` is from ``layer.last``, for rows with pictures.
    """
    return attention.Rows((mask != 0).astype(jnp.int32), layer.positions(mask != 0), last)


def apply_shared(
    architecture: Architecture,
    params: Tree,
    prompt: Array,
    prompt_mask: Array,
    token: Array,
    segment: Array,
    layout: Layout = UNCONSTRAINED,
    seen: Array | None = None,
) -> tuple[Array, Array]:
    """Run the network over rows that share prompts; see ``models.Model.apply_shared``.

    Args:
      architecture: of the parameters.
      params: from ``architecture.init``.
      prompt: ``[P, L]`` int32.
      prompt_mask: ``[P, L]``, nonzero on real tokens.
      token: ``[B, W]`` int32.
      segment: ``[B, W]`` int32, 0 on padding.
      layout: how arrays are sharded over a mesh.
      seen: of the pictures, ``[P, n, D]``; None: there are none.

    Returns:
      Hidden states of the prompts ``[P, L, D]`` and of the rows ``[B, W, D]``.

    Raises:
      ValueError: the shapes do not match, or P does not divide B.
    """
    (prompts, length), (rows, width) = prompt.shape, token.shape
    if rows % prompts or token.shape != segment.shape or prompt.shape != prompt_mask.shape:
        raise ValueError(
            f"token has shape {token.shape} and segment {segment.shape}: expected one shape [B, W]; prompt has shape "
            f"{prompt.shape} and prompt_mask {prompt_mask.shape}: expected one shape [P, L], P dividing B"
        )
    real = prompt_mask != 0
    column = jnp.arange(width, dtype=jnp.int32)[None, :]
    starts = jnp.concatenate([jnp.ones_like(segment[:, :1], bool), segment[:, 1:] != segment[:, :-1]], axis=1)
    position = column - jax.lax.cummax(jnp.where(starts, column, 0), axis=1)  # since the segment began
    position = position.reshape(prompts, -1) + jnp.sum(real, axis=1, keepdims=True, dtype=jnp.int32)
    prompt_rows = causal(prompt_mask, layer.last(architecture, prompt, seen))
    token_rows = attention.Rows(segment, position.reshape(rows, width))
    attend = functools.partial(attention.attend, architecture.attention, layout=layout)

    # One stream per prompt, [prompt | its rows]: a mesh that splits prompts communicates nothing.
    def mix(form: attention.Form, query: Array, key: Array, value: Array) -> Array:
        q, k, v = (x[:, :length] for x in (query, key, value))
        first = attend(form, q, k, v, prompt_rows)
        shared = attention.Prompt(k, v, real, prompt_rows.position)
        q, k, v = (x[:, length:].reshape(rows, width, *x.shape[2:]) for x in (query, key, value))
        second = attend(form, q, k, v, token_rows, shared)
        return jnp.concatenate([first, second.reshape(prompts, -1, *second.shape[2:])], axis=1)

    x = layer.embed(architecture, params, jnp.concatenate([prompt, token.reshape(prompts, -1)], axis=1), seen)
    place = layer.places(architecture, prompt, real, seen)
    if architecture.rope_sections:
        position -= layer.shift(architecture, prompt, real, seen)[:, None]
        position = jnp.broadcast_to(position, (3, *position.shape))
    angles = layer.rotation(architecture, jnp.concatenate([place, position], axis=-1))
    x = trunk(architecture, params, x, angles, mix, layout)
    return x[:, :length], x[:, length:].reshape(rows, width, -1)


def trunk(architecture: Architecture, params: Tree, x: Array, angles: Any, mix: Mix, layout: Layout) -> Array:
    """Apply all layers and the final norm.

    Args:
      architecture: of the parameters.
      params: of the whole model, or of a vision tower.
      x: embeddings, ``[B, S, D]``.
      angles: of their positions, as ``layer.rotation`` returns them.
      mix: the attention.
      layout: how arrays are sharded over a mesh.

    Returns:
      Hidden states after the final norm, ``[B, S, D]``.
    """
    a = architecture

    def mixed(*operands: Any) -> tuple[Array, None]:
        return mix(*operands), None

    recomputed = a.remat in _SAVED
    names = parameters.axes(a)["layers"] if recomputed else {}

    def used(path: Any, w: Array) -> Array:
        """Return a matrix as it is read: gathered once forward, and once for recomputation and gradients."""
        return w if precision.is_vector(path) else layout.used(w.astype(a.dtype), names[path[-1].key][1:])

    def apply_layer(x: Array, number: int, weights: Tree) -> tuple[Array, None]:
        if recomputed:  # else the gathered matrices of all layers would be saved
            weights = jax.tree_util.tree_map_with_path(used, weights)
        return layer.layer(a, number, weights, x, angles, mixed, layout)

    if recomputed:
        apply_layer = jax.checkpoint(apply_layer, prevent_cse=not a.scan, policy=_SAVED[a.remat], static_argnums=1)
    x, _ = apply_layers(a, apply_layer, layout(x, layer.STREAM), params["layers"])
    return layer.final(a, params, x)


def apply_layers(a: Architecture, apply: Any, x: Array, layers: Tree) -> tuple[Array, Any]:
    """Apply the layers in order.

    With ``scan``, one iteration of the loop is a whole pattern of global and local layers, so that the kind of each
    layer is static; ``number`` is then the number of the first layer with the same place in the pattern.

    Args:
      a: the architecture.
      apply: ``(x, number, weights) -> (x, auxiliary)``.
      x: residual stream, ``[B, S, D]``.
      layers: the parameters of all layers.

    Returns:
      x after the last layer, and the auxiliary results of all layers: stacked with ``scan``, else a tuple.
    """
    auxiliary: list[Any] = []
    if not a.scan:
        for i, weights in enumerate(layers if isinstance(layers, list) else unstacked(a, layers)):
            x, result = apply(x, i, weights)
            auxiliary.append(result)
        return x, tuple(auxiliary)
    period = len(a.pattern)
    looped = a.layers // period * period

    def apply_pattern(x: Array, stack: Tree) -> tuple[Array, Any]:
        results = [None] * period
        for i in range(period):
            x, results[i] = apply(x, i, nth(stack, i))
        return x, jax.tree.map(lambda *y: jnp.stack(y), *results)

    if period == 1:  # an input of the loop is not saved again for the backward pass, as nth(stack, 0) would be
        return jax.lax.scan(lambda x, weights: apply(x, 0, weights), x, layers)
    if looped:
        cut = lambda w: w[:looped].reshape(looped // period, period, *w.shape[1:])  # noqa: E731
        x, results = jax.lax.scan(apply_pattern, x, jax.tree.map(cut, layers))
        auxiliary.append(jax.tree.map(lambda y: y.reshape(looped, *y.shape[2:]), results))
    for i in range(looped, a.layers):
        x, result = apply(x, i, nth(layers, i))
        auxiliary.append(jax.tree.map(lambda y: y[None], result))
    return x, jax.tree.map(lambda *y: jnp.concatenate(y), *auxiliary)


def balance(
    architecture: Architecture,
    params: Tree,
    token: Array,
    mask: Array,
    layout: Layout = UNCONSTRAINED,
    seen: Array | None = None,
) -> dict[str, Array]:
    """Measure how evenly tokens use the experts, averaged over layers; see ``models.Model.balance``.

    Args:
      architecture: with ``experts`` above 0.
      params: from ``architecture.init``.
      token: ``[B, S]`` int32.
      mask: ``[B, S]``, nonzero on real tokens.
      layout: how arrays are sharded over a mesh.
      seen: of the pictures, ``[B, n, D]``; None: there are none.

    Returns:
      The scalars that ``gated.balance`` returns.
    """
    a = architecture
    x, angles, mix = whole(a, params, token, mask, layout, seen)

    def mixed(*operands: Any) -> tuple[Array, None]:
        return mix(*operands), None

    def apply_layer(x: Array, number: int, weights: Tree) -> tuple[Array, Any]:
        metrics: list[Any] = []
        watch = lambda y: metrics.append(gated.balance(a, weights["router"], y, mask))  # noqa: E731
        return layer.layer(a, number, weights, x, angles, mixed, layout, watch)[0], metrics[0]

    _, metrics = apply_layers(a, apply_layer, layout(x, layer.STREAM), params["layers"])
    return jax.tree.map(jnp.mean, metrics if a.scan else jax.tree.map(lambda *x: jnp.stack(x), *metrics))


def attended(
    architecture: Architecture,
    params: Tree,
    token: Array,
    mask: Array,
    step: Array,
    steps: int,
    apart: int,
    layout: Layout = UNCONSTRAINED,
    seen: Array | None = None,
) -> Array:
    """Return how much later steps of a row attend to each of its steps; see ``models.Model.attended``.

    The weights of a query on a step are the attention to values that are 1 on the tokens of the step and 0 elsewhere.
    """
    a = architecture
    x, angles, mix = whole(a, params, token, mask, layout, seen)
    member = jax.nn.one_hot(step - 1, steps)  # [B, S, N], 0 outside of steps
    share = member / jnp.maximum(jnp.sum(member, axis=1, keepdims=True), 1.0)
    number = jnp.arange(steps)
    later = number[:, None] >= number[None] + apart

    def mixed(form: attention.Form, query: Array, key: Array, value: Array) -> tuple[Array, Array]:
        size, parts = value.shape[3], []
        for start in range(0, steps, size):
            part = member[:, :, None, start : start + size]
            part = jnp.pad(part, ((0, 0), (0, 0), (0, 0), (0, size - part.shape[3])))
            parts.append(mix(form, query, key, jnp.broadcast_to(part, value.shape).astype(value.dtype)))
        onto = jnp.concatenate(parts, axis=3)[..., :steps]  # [B, S, H, N]
        between = jnp.einsum("bsj,bshk->bhjk", share, onto)
        received = jnp.sum(jnp.where(later[None, None], between, 0.0), axis=2)
        return mix(form, query, key, value), jnp.max(received, axis=1)

    def apply_layer(x: Array, number: int, weights: Tree) -> tuple[Array, Array]:
        return layer.layer(a, number, weights, x, angles, mixed, layout)

    _, received = apply_layers(a, apply_layer, layout(x, layer.STREAM), params["layers"])
    largest = jnp.max(received if a.scan else jnp.stack(received), axis=0)
    return largest / jnp.maximum(jnp.sum(member, axis=1), 1.0)


def unstacked(architecture: Architecture, layers: Tree) -> list[Tree]:
    """Return a list of the parameters of each layer."""
    return [nth(layers, i) for i in range(architecture.layers)]


def nth(stack: Tree, i: int) -> Tree:
    """Return layer ``i`` of a tree of stacked arrays."""
    return jax.tree.map(lambda w: w[i], stack)


def logits(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the logits of hidden states.

    Args:
      architecture: of the parameters.
      params: of the whole model.
      hidden: ``[..., D]``.

    Returns:
      ``[..., V]`` float32, before the temperature is applied.

    Raises:
      ValueError: the model's output is "scalar".
    """
    z = layer.project(hidden, unembedding(architecture, params), architecture.dtype)
    return attention.capped(z, architecture.logit_cap)


def unembedding(architecture: Architecture, params: Tree) -> Array:
    """Return the matrix [D, V] from hidden states to logits; ValueError if the model's output is "scalar"."""
    if architecture.output == "scalar":
        raise ValueError(f"logits need output='logits' or 'both'; this model has output={architecture.output!r}")
    return params["embedding"].T if architecture.tied else params["unembedding"]


def scalar(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the scalar output of each hidden state: w . h, or with ``bins`` the expectation under softmax(W h).

    The head starts at 0, so that the first output is 0, or the middle of the bins.

    Args:
      architecture: of the parameters.
      params: of the whole model.
      hidden: ``[..., D]``.

    Returns:
      ``[...]`` float32.

    Raises:
      ValueError: the model's output is "logits".
    """
    if architecture.output == "logits":
        raise ValueError(f"a scalar needs output='scalar' or 'both'; this model has output={architecture.output!r}")
    if architecture.bins is not None:
        return jax.nn.softmax(bin_logits(architecture, params, hidden)) @ jnp.linspace(*architecture.bins)
    dtype = architecture.dtype
    operands = hidden.astype(dtype), params["scalar"].astype(dtype)
    return jnp.einsum("...d,d->...", *operands, preferred_element_type=jnp.float32)


def bin_logits(architecture: Architecture, params: Tree, hidden: Array) -> Array:
    """Return the float32 logits [..., bins] of the distribution whose expectation is the scalar output."""
    dtype = architecture.dtype
    operands = hidden.astype(dtype), params["scalar"].astype(dtype)
    return jnp.einsum("...d,nd->...n", *operands, preferred_element_type=jnp.float32)
