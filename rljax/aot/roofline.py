"""How long a program could take: its work over what a chip can do.

    seconds >= max(FLOPs / peak, memory bytes / bandwidth, bytes sent / ICI, bytes sent / DCN)

is a bound from below if everything overlaps; the sum of the four is what it would be if nothing did. Both leave out
latency, and take every unit at its peak, all links of a chip at once, and all chips alike busy.
"""

import dataclasses
import math
from typing import Any

from rljax.aot import topology
from rljax.models import MATRICES
from rljax.training import phases


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of each unit of a chip."""

    compute: float
    memory: float
    ici: float
    dcn: float

    @property
    def overlapped(self) -> float:
        """Seconds if everything overlaps."""
        return max(dataclasses.astuple(self))

    @property
    def apart(self) -> float:
        """Seconds if nothing overlaps."""
        return sum(dataclasses.astuple(self))

    @property
    def bound(self) -> str:
        """What the time is bound by."""
        return max(dataclasses.asdict(self).items(), key=lambda item: item[1])[0]


def times(kind: topology.Kind, flops: float, moved: float, ici: float, dcn: float) -> Times:
    """Return the times of a device's share: operations, bytes of its memory, bytes it sends."""
    one = kind.share()
    return Times(flops / one.flops, moved / one.bandwidth, ici / one.ici, dcn / one.dcn)


def model_flops(setup: phases.Setup, name: str, shapes: Any) -> float:
    """Return the operations a program cannot do without, of all devices together.

    2 N a token forward, N the parameters that multiply it (of experts, those it goes to), and twice that backward
    (Kaplan et al., arXiv 2001.08361), plus attention, 4 H K a layer for each pair of tokens of which one sees the
    other. The unembedding counts where there is a logit to make. Prompts are read once; nothing is made again.
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
    seen = prompts * length**2 / 2 + rows * (width * length + width**2 / 2)
    forward = 2 * body * (prompts * length + rows * width) + 2 * head * rows * width + pair * seen
    rollout = forward - 2 * body * rows  # the last token is drawn and not read
    return {"rollout": rollout, "score": forward, "update": 3 * forward, "fused": rollout + 3 * forward}[name]
