"""The record of what follows a turn of a world that runs inside the compiled program."""

import flax.struct

from rljax import types


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
