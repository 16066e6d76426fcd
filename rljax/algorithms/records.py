"""Records from plain arrays."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import core

from rljax import types
from rljax.language import parse
from rljax.transforms.frame import shapes


def rollout_from_arrays(
    *,
    mask: Any,
    group: Any,
    reward: Any = None,
    token: Any = None,
    parts: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **fields: Any,
) -> types.Rollout:
    """Build a rollout of B rows and T tokens from plain arrays.

    Args:
      mask: ``[B, T]``, 1 on tokens the policy emitted, 0 on padding and tool output.
      group: ``[B]`` ids; rows of one prompt share theirs. Whole numbers of 32 bits are kept; any other ids (strings,
        fractions, larger numbers) are numbered 0, 1, ... in sorted order. Traced ids must be int32. The same holds
        for ``episode``, ``agent`` and ``domain``.
      reward: ``[B]``. May be left out where ``advantage`` is given; pieces that read the reward then raise.
      token: ``[B, T]`` token ids, for the pieces that read text.
      parts: named numbers of the verifier, ``[B]`` each.
      extra: named arrays that a piece reads, ``[B, ...]`` each.
      **fields: any other field of ``types.Rollout``. Per token, ``[B, T]``: behaviour_logp, raw_logp (by default
        behaviour_logp), entropy, square_prob, version, turn, token_reward, advantage, value, returns, ref_logp,
        proximal_logp. Per row, ``[B]``: outcome, valid, episode, agent, domain, on_policy, finish, index.

    Returns:
      The rollout: float arrays in the default float type, ids and other whole numbers as int32.

    Raises:
      ValueError: an unknown field, a shape or a type other than these, or no reward and no advantage.
    """
    unknown = sorted(set(fields) - {*shapes.PER_TOKEN, *shapes.PER_ROW})
    if unknown:
        raise ValueError(
            f"unknown field {unknown[0]!r}.{parse.nearest(unknown[0], [*shapes.PER_TOKEN, *shapes.PER_ROW])}"
        )
    if reward is None and fields.get("advantage") is None:
        raise ValueError("reward is missing; it may be left out only where advantage is given")
    fields.setdefault("raw_logp", fields.get("behaviour_logp"))
    arrays: dict[str, Any] = {name: _array(name, x) for name, x in fields.items() if x is not None}
    arrays |= {"mask": _array("mask", mask), "group": _array("group", group)}
    arrays["reward"] = None if reward is None else _array("reward", reward)
    if reward is None and "valid" not in arrays and arrays["mask"].ndim == 2:
        arrays["valid"] = jnp.ones_like(arrays["mask"][:, 0])
    rollout = types.Rollout(
        **arrays,
        action=None if token is None else types.Action(token=_whole("token", token)),
        parts={name: _float(f"parts[{name!r}]", x) for name, x in (parts or {}).items()},
        extra={name: jnp.asarray(x) for name, x in (extra or {}).items()},
    )
    shapes.check_rollout(rollout)
    return rollout


def _array(name: str, x: Any) -> jax.Array:
    return _ids(name, x) if name in shapes.IDS else _whole(name, x) if name in shapes.WHOLE else _float(name, x)


def _float(name: str, x: Any) -> jax.Array:
    """Return a floating-point array."""
    if not isinstance(x, jax.Array) and np.asarray(x).dtype.kind not in "biufV":
        raise ValueError(f"{name} has type {np.asarray(x).dtype}: expected numbers")
    x = jnp.asarray(x)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def _traced(name: str, x: jax.Array) -> jax.Array:
    if not (jnp.issubdtype(x.dtype, jnp.integer) and np.can_cast(x.dtype, np.int32)):
        raise ValueError(f"{name} is traced with type {x.dtype}: expected int32; convert it outside of the tracing")
    return x.astype(jnp.int32)


def _is_whole(values: np.ndarray) -> bool:
    """Return whether all values are whole numbers that int32 holds."""
    if values.dtype.kind not in "biuf":
        return False
    limit = np.iinfo(np.int32)
    return bool(np.all((values >= limit.min) & (values <= limit.max) & (values == np.trunc(values))))


def _host(x: Any) -> np.ndarray:
    values = np.asarray(x)
    values = values.astype(np.float32) if values.dtype.kind == "V" else values  # bfloat16
    return values.astype(np.str_) if values.dtype.kind == "O" else values


def _whole(name: str, x: Any) -> jax.Array:
    """Return an int32 array of the same numbers."""
    if isinstance(x, core.Tracer):
        return _traced(name, x)
    values = _host(x)
    if not _is_whole(values):
        raise ValueError(f"{name} has type {values.dtype}: expected whole numbers of at most 32 bits")
    return jnp.asarray(values.astype(np.int32))


def _ids(name: str, x: Any) -> jax.Array:
    """Return int32 ids, equal where the ids ``x`` are equal."""
    if isinstance(x, core.Tracer):
        return _traced(name, x)
    values = _host(x)
    if _is_whole(values):
        return jnp.asarray(values.astype(np.int32))
    if values.dtype.kind == "f" and np.any(np.isnan(values)):
        raise ValueError(f"{name} has NaN among its ids")
    return jnp.asarray(np.unique(values, return_inverse=True)[1].reshape(values.shape).astype(np.int32))
