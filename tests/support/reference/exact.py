"""The log-probabilities of a transformer and their gradient in float64, written from the formulas."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np


def _norm(a, x, scale):
    return x / jnp.sqrt(jnp.mean(x * x, axis=-1, keepdims=True) + a.norm_epsilon) * scale


def _rotated(a, x):
    """Rotate the plane of coordinates (i, i + K/2) at position s by s theta^(-2i/K); x is [B, S, heads, K]."""
    half = a.head_size // 2
    angle = np.arange(x.shape[1])[:, None, None] * a.rope_theta ** (-2 * np.arange(half) / a.head_size)
    turned = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angle)[None]
    return jnp.concatenate([turned.real, turned.imag], axis=-1)


def _times(a, w, name, spec, x):
    """Return x W, plus the product with the matrix's adapter; ``spec`` is that of W."""
    z = jnp.einsum(spec, x, w[name])
    if name in a.adapted:
        inner = jnp.tensordot(x, w[f"{name}_adapter_in"], w[f"{name}_adapter_in"].ndim - 1)
        z += a.adapter_scale * jnp.tensordot(inner, w[f"{name}_adapter_out"], 1)
    return z


def _mixed(a, w, y):
    """Return the output of causal attention over the normed stream [B, S, D]."""
    q, k, v = (_times(a, w, name, "bsd,dhk->bshk", y) for name in ("query", "key", "value"))
    if a.bias:
        q, k, v = q + w["query_bias"], k + w["key_bias"], v + w["value_bias"]
    if a.head_norm:
        q, k = _norm(a, q, w["query_norm"]), _norm(a, k, w["key_norm"])
    k, v = (jnp.repeat(x, a.heads // a.kv_heads, axis=2) for x in (_rotated(a, k), v))
    score = jnp.einsum("bshk,bthk->bhst", _rotated(a, q), k) / np.sqrt(a.head_size)
    weight = jax.nn.softmax(jnp.where(np.tri(y.shape[1], dtype=bool)[None, None], score, -np.inf), axis=-1)
    out = jnp.einsum("bhst,bthk->bshk", weight, v)
    return _times(a, w, "attention_output", "bshk,hkd->bsd", out)


def _experts(a, w, y):
    """Return the sum over the most probable experts, each computed for every token."""
    prob = jax.nn.softmax(y @ w["router"], axis=-1)
    lowest = jnp.sort(prob, axis=-1)[..., -a.experts_per_token, None]
    weight = jnp.where(prob >= lowest, prob, 0.0)
    inner = jax.nn.silu(jnp.einsum("bsd,edf->bsef", y, w["gate"])) * jnp.einsum("bsd,edf->bsef", y, w["up"])
    return jnp.einsum("bse,bsef,efd->bsd", weight / jnp.sum(weight, axis=-1, keepdims=True), inner, w["down"])


def logp(a, params, token):
    """Return log p(token s + 1 | tokens up to s), [B, S - 1]; rows have no padding."""
    x = params["embedding"][token]
    for n in range(a.layers):
        w = {name: value[n] for name, value in params["layers"].items()}
        x = x + _mixed(a, w, _norm(a, x, w["attention_norm"]))
        y = _norm(a, x, w["swiglu_norm"])
        gated = [_times(a, w, name, "bsd,df->bsf", y) for name in ("gate", "up")] if not a.experts else []
        x = x + (
            _experts(a, w, y) if a.experts else _times(a, w, "down", "bsf,fd->bsd", jax.nn.silu(gated[0]) * gated[1])
        )
    head = params["embedding"].T if a.tied else params["unembedding"]
    z = jax.nn.log_softmax(_norm(a, x, params["final_norm"])[:, :-1] @ head, axis=-1)
    return jnp.take_along_axis(z, token[:, 1:, None], axis=2)[:, :, 0]


def gradient(architecture, params, token, weight):
    """Return the gradient of sum(weight * logp) in float64; ``weight`` is [B, S - 1]."""
    with jax.enable_x64(True), jax.numpy_rank_promotion("allow"):
        wide = jax.tree.map(lambda x: jnp.asarray(np.asarray(x), jnp.float64), params)
        plain = dataclasses.replace(architecture, dtype="float32", param_dtype="float32")
        loss = lambda params: jnp.sum(np.asarray(weight, np.float64) * logp(plain, params, np.asarray(token)))  # noqa: E731
        return jax.device_get(jax.jit(jax.grad(loss))(wide))
