"""Settings of the network."""

import dataclasses

from rljax.language import settings
from rljax.language.settings import group, setting
from rljax.models.architectures import Architecture


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The policy's network; critics and reward models are built like it."""

    weights: str = setting(
        "", "Folder of a public checkpoint to start from, gs:// too; it decides the shape.", fixed=True
    )
    architecture: Architecture = group(
        Architecture,
        flat=True,
        layers=2,
        width=128,
        heads=4,
        kv_heads=2,
        hidden=384,
        remat="full",
        scan=False,
        attention="blocked",
    )

    __post_init__ = settings.check
