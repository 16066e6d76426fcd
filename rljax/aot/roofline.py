"""Roofline times of a program: its work divided by the peak rates of a chip.

    seconds >= max(FLOPs / peak, memory bytes / bandwidth, bytes sent / ICI, bytes sent / DCN)

is a lower bound, reached if everything overlaps; the sum of the four is the time if nothing overlaps. Both ignore
latency and assume that every unit runs at its peak, that all links of a chip are used at once, and that all chips have
equal work.
"""

import dataclasses
import math
from typing import Any

from rljax.aot import topology
from rljax.models import MATRICES
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


def model_flops(setup: phases.Setup, name: str, shapes: Any) -> float:
    """Return the operations that a program needs at least, on all devices together.

    2 N per token forward, where N is the number of parameters that multiply it (of experts, the selected ones), and
    twice that backward (Kaplan et al., arXiv 2001.08361), plus attention, 4 H K per layer for each pair of tokens of
    which one attends to the other. The unembedding counts where a logit is needed. Each prompt is read once; nothing
    is recomputed.

    Args:
      setup: what the step is compiled for.
      name: the program, one of ``programs.NAMES``.
      shapes: the policy's parameters, abstract.

    Returns:
      Floating-point operations.
    """
    a = setup.networks["policy"].architecture
    layers = shapes["layers"]
    share = a.experts_per_token / a.experts if a.experts else 1.0
    body = sum(
        math.prod(layers[m].shape) * (share if m in ("gate", "up", "down") else 1.0) for m in MATRICES if m in layers
    )
    if "router" in layers:
        body += math.prod(layers["router"].shape)
    head = a.vocabulary * a.width
    prompts, rows = setup.prompts, setup.rows
    length, width = setup.task.prompt_length, setup.task.completion_length
    pair = 4 * a.heads * a.head_size * a.layers
    pairs = prompts * length**2 / 2 + rows * (width * length + width**2 / 2)
    forward = 2 * body * (prompts * length + rows * width) + 2 * head * rows * width + pair * pairs
    rollout = forward - 2 * body * rows  # the last token is sampled but not fed back
    return {"rollout": rollout, "score": forward, "update": 3 * forward, "fused": rollout + 3 * forward}[name]
