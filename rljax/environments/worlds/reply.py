"""The record of what follows a turn of a world that runs inside the compiled program."""

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
    outcome: types.Array  # [seats] int32, a types.Outcome; that of the last step is the episode's
    valid: types.Array  # float32, 0: the world failed, and the episode does not count
    done: types.Array  # bool, the episode has ended
    truncated: types.Array  # bool, it has ended because of a budget
    next_seat: types.Array  # int32, the seat that writes the next turn
    parts: dict[str, types.Array]  # [seats] float32 each; those of the last step are the episode's
    extra: dict[str, types.Array]  # float32 scalars, written on the tokens of the turn (Rollout.extra)
    domain: types.Array  # int32, Rollout.domain; that of the last step is the episode's


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
