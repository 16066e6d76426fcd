"""Settings of the network."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from rljax.language import settings
from rljax.language.settings import Positive, group, setting
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
    trunk: str = setting(
        "", "Module on whose network it is a head, a number at each position; '': it has its own network.", fixed=True
    )
    stop_trunk: bool = setting(
        False,
        "Whether the gradient of a head stops before the trunk; it then has gradient steps of its own.",
        fixed=True,
    )
    trunk_weight: Positive = setting(
        1.0, "Factor of the loss of a head in the gradient steps that it shares with its trunk.", fixed=True
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

    def __post_init__(self) -> None:
        settings.check(self)
        self._check_trunk()

    def _check_trunk(self) -> None:
        """Raise ValueError on settings of a head without a trunk, and on settings of a network with one."""
        for field, value, default in (("stop_trunk", self.stop_trunk, False), ("trunk_weight", self.trunk_weight, 1)):
            if value != default and not self.trunk:
                raise ValueError(f"{field}={value}: the module is no head. Set trunk, or remove {field}.")
        if self.stop_trunk and self.trunk_weight != 1:
            raise ValueError(
                f"trunk_weight={self.trunk_weight}: with stop_trunk=True the head shares no gradient step. Remove it."
            )
        if self.trunk and self.like != "policy":
            raise ValueError(f"like={self.like!r}: a head has the network of its trunk={self.trunk!r}. Remove like.")
        if self.trunk and self.weights not in ("", "random"):
            raise ValueError(f"weights={self.weights!r}: a head starts at 0, or from 'random' numbers.")


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with its names resolved."""

    settings: ModuleConfig
    changes: Mapping[str, Any]  # fields of ``Architecture`` that differ from the policy's

    def architecture(self, policy: Architecture) -> Architecture:
        """Return its architecture, given the policy's; ValueError as for any architecture."""
        head = {"head_size": 0} if {"width", "heads"} & {*self.changes} else {}  # 0: width / heads
        return dataclasses.replace(policy, **{**head, **self.changes})
