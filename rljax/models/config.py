"""Settings of the network."""

import dataclasses
from collections.abc import Mapping
from typing import Any

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


@dataclasses.dataclass(frozen=True)
class ModuleConfig:
    """The fields of a module beside the policy. It may also set every field of ``ModelConfig`` but ``weights``."""

    like: str = setting("policy", "Module whose network it has, but for the fields that it sets itself.", fixed=True)
    weights: str = setting(
        "",
        "Folder of a public checkpoint, 'random', or '': the parameters of ``like``, if shapes are equal.",
        fixed=True,
    )
    prompt: str = setting(
        "",
        "Text that it reads behind the prompt; '{solution}' is the demonstration, '{prompt}' in front the task's own "
        "prompt in place of the row's.",
        fixed=True,
    )
    cut: str = setting(
        "", "Text whose last place in a completion, or in a demonstration, ends its thought.", fixed=True
    )
    after: str = setting(
        "",
        "Text that it reads behind the completion, or its thought; '{solution}' as above, without thought.",
        fixed=True,
    )
    words: tuple[str, ...] = setting(
        (), "Two words, (yes, no): its reward of a row is log p(yes) - log p(no) as the next token.", fixed=True
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with its names resolved."""

    settings: ModuleConfig
    changes: Mapping[str, Any]  # fields of ``Architecture`` that differ from the policy's

    def architecture(self, policy: Architecture) -> Architecture:
        """Return its architecture, given the policy's; ValueError as for any architecture."""
        head = {"head_size": 0} if {"width", "heads"} & {*self.changes} else {}  # 0: width / heads
        return dataclasses.replace(policy, **{**head, **self.changes})
