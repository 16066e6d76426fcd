"""The record of what follows a turn of a world that runs inside the compiled program."""

from collections.abc import Mapping
from typing import Any

import flax.struct
import jax.numpy as jnp
import numpy as np

from rljax import types

_KINDS = {
    **dict.fromkeys(("done", "truncated"), (jnp.bool_, (jnp.bool_, jnp.integer), "a bool")),
    **dict.fromkeys(("outcome", "next_seat", "domain"), (jnp.int32, (jnp.bool_, jnp.integer), "a whole number")),
}
_NUMBER = jnp.float32, (jnp.bool_, jnp.integer, jnp.floating), "a number"


class Reply(flax.struct.PyTreeNode):
    """What follows a turn. A field ``[seats]`` may also be a scalar, which holds for every seat."""

    token: types.Array  # [seats, R] int32, what each seat is told, in the positions where mask is 1
    mask: types.Array  # [seats, R] float32
    reward: types.Array  # [seats] float32, paid to each seat
    outcome: types.Array  # [seats] int32, a types.Outcome; the last step's is the episode's
    valid: types.Array  # float32, 0: the world failed, and the episode does not count
    done: types.Array  # bool, the episode has ended
    truncated: types.Array  # bool, it has ended because of a budget
    next_seat: types.Array  # int32, the seat that writes the next turn
    parts: dict[str, types.Array]  # [seats] float32 each; the last step's are the episode's
    extra: dict[str, types.Array]  # float32 scalars, written on the tokens of the turn (Rollout.extra)
    domain: types.Array  # int32, Rollout.domain; the last step's is the episode's


def field(name: str, x: Any, seats: int, where: str = "Reply") -> types.Array:
    """Return a field of a reply in its dtype; bools and whole numbers are converted.

    Args:
      name: of the field; names of parts and others that it does not know are numbers.
      x: an array, or a number of Python, whose value is checked too.
      seats: of the world.
      where: what the field belongs to, for the error.

    Raises:
      ValueError: another dtype, such as ``done`` 0.5; a number of Python that no row can have.
    """
    dtype, kinds, expected = _KINDS.get(name, _NUMBER)
    given: Any = x.dtype if hasattr(x, "dtype") else np.asarray(x).dtype
    if not any(jnp.issubdtype(given, kind) for kind in kinds):
        shown = f"{given}{[*jnp.shape(x)]}" if hasattr(x, "dtype") else repr(x)
        raise ValueError(f"{where}.{name} is {shown}: expected {expected}")
    limits = {"outcome": (len(types.Outcome), "a types.Outcome"), "next_seat": (seats, f"a seat below {seats}")}
    if name in limits and isinstance(x, (int, np.integer)) and not 0 <= x < limits[name][0]:
        raise ValueError(f"{where}.{name} is {x}: expected {limits[name][1]}")
    return jnp.asarray(x, dtype)


def make(
    seats: int,
    token: types.Array,
    mask: types.Array,
    values: Mapping[str, Any],
    where: str = "Reply",
    fits: types.Array | bool = True,
) -> Reply:
    """Return a reply, every field in its shape and dtype.

    Args:
      seats: of the world.
      token: ``[seats, R]`` int32.
      mask: ``[seats, R]``.
      values: the other fields; those for each seat may be scalars.
      where: what the fields belong to, for errors.
      fits: bool scalar, whether the texts fit; else the episode is invalid.

    Raises:
      ValueError: a field has another dtype or shape.
    """

    def one(name: str, x: Any) -> types.Array:
        return field(name, x, seats, where)

    def each(name: str, x: Any) -> types.Array:
        if isinstance(x, str) or jnp.shape(x) not in ((), (1,), (seats,)):
            given = repr(x) if isinstance(x, str) else f"of shape {[*jnp.shape(x)]}"
            raise ValueError(f"{where}.{name} is {given}: expected a number, or [{seats}], one for each seat")
        return jnp.broadcast_to(one(name, x), (seats,))

    reward, outcome = (each(name, values[name]) for name in ("reward", "outcome"))
    valid = one("valid", values["valid"])
    return Reply(
        token=token,
        mask=mask.astype(jnp.float32),
        reward=reward,
        outcome=outcome,
        valid=valid if fits is True else jnp.where(fits, valid, 0.0),
        parts={name: each(f"parts[{name!r}]", x) for name, x in values["parts"].items()},
        extra={name: one(f"extra[{name!r}]", x) for name, x in values["extra"].items()},
        **{name: one(name, values[name]) for name in ("done", "truncated", "next_seat", "domain")},
    )
