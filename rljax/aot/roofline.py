"""Roofline times of a program: its work divided by the peak rates of a chip.

    seconds >= max(FLOPs / peak, memory bytes / bandwidth, bytes sent / ICI, bytes sent / DCN)

is a lower bound, reached if everything overlaps; the sum of the four is the time if nothing overlaps. Both ignore
latency and assume that every unit runs at its peak, that all links of a chip are used at once, and that all chips have
equal work.
"""

import dataclasses

from rljax.aot import topology
from rljax.bench import parts
from rljax.training import phases


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of each unit of a chip: compute, memory, links within a slice, network between slices."""

    compute: float
    memory: float
    ici: float
    dcn: float

    @property
    def overlapped(self) -> float:
        """Seconds if everything overlaps."""
        return max(dataclasses.astuple(self))

    @property
    def serial(self) -> float:
        """Seconds if nothing overlaps."""
        return sum(dataclasses.astuple(self))

    @property
    def bound(self) -> str:
        """The unit with the longest time."""
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


def times(kind: topology.Kind, flops: float, moved: float, ici: float, dcn: float) -> Times:
    """Return the times of one device.

    Args:
      kind: the kind of TPU.
      flops: floating-point operations of the device.
      moved: bytes moved in its memory.
      ici: bytes it sends within the slice.
      dcn: bytes it sends between slices.

    Returns:
      Seconds of each unit.
    """
    one = kind.share()
    return Times(flops / one.flops, moved / one.bandwidth, ici / one.ici, dcn / one.dcn)


def model_flops(setup: phases.Setup, name: str) -> float:
    """Return the operations that a program needs at least, on all devices together, see ``parts.flops``.

    The backward pass takes twice the operations of the forward pass. Nothing is recomputed.

    Args:
      setup: what the step is compiled for.
      name: the program, one of ``compiling.NAMES``.

    Returns:
      Floating-point operations.
    """
    rows, length, width = setup.rows, setup.task.prompt_length, setup.task.completion_length
    forward = parts.flops(setup, length, rows * width, setup.prompts, width / 2)
    rollout = forward - 2 * parts.weights(setup.networks["policy"]) * rows  # the last token is not fed back
    whole = {"rollout": rollout, "score": forward, "update": 3 * forward, "fused": rollout + 3 * forward, "finish": 0.0}
    parts_of = {"part": rollout, "accumulate": 3 * forward}
    return whole[name] if name in whole else parts_of[name] / setup.learner.microbatches
