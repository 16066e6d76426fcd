"""Settings of the network."""

import dataclasses
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from rljax.language import settings
from rljax.language.settings import Positive, group, setting
from rljax.models import actors
from rljax.models.architectures import Architecture
from rljax.types import Range

_DIGEST = "SHA-256 that the safetensors of ``weights`` must have; '': any."


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The policy's network; critics and reward models are built like it."""

    kind: Literal["transformer", "mlp"] = setting(
        "transformer", "Network: 'transformer' reads tokens, 'mlp' the observations of a control world.", fixed=True
    )
    weights: str = setting(
        "", "Folder of a public checkpoint to start from, gs:// too; it decides the shape.", fixed=True
    )
    digest: str = setting("", _DIGEST, fixed=True)
    mlp: actors.Mlp = group(actors.Mlp, fixed=True)
    denoising: actors.Denoising = group(actors.Denoising, fixed=True)
    architecture: Architecture = group(
        Architecture,
        flat=True,
        layers=2,
        width=128,
        heads=4,
        kv_heads=2,
        hidden=384,
        remat="auto",
        scan=False,
        attention="blocked",
    )

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)
        if self.digest and not self.weights:
            raise ValueError(f"digest={self.digest!r}: is the digest of a folder; set weights")

    def network(
        self, vocabulary: int, placeholder: int = -1, output: Literal["logits", "scalar", "both"] = "logits"
    ) -> Architecture:
        """Return the architecture for a tokenizer.

        Args:
          vocabulary: number of ids of the tokenizer.
          placeholder: id of the tokens of a picture if the settings name none; -1: there is none.
          output: outputs of the network.

        Returns:
          The architecture; its vocabulary is the setting, or the tokenizer's if the setting is 0.

        Raises:
          ValueError: the model's vocabulary is smaller than the tokenizer's, or their tokens of a picture differ.
        """
        size = self.architecture.vocabulary
        if 0 < size < vocabulary:
            raise ValueError(
                f"config.model.vocabulary={size} (weights {self.weights!r}): must be at least "
                f"{vocabulary}, the number of ids of the tokenizer."
            )
        vision = self.architecture.vision
        if placeholder not in (-1, vision.placeholder) and vision.placeholder >= 0:
            raise ValueError(
                f"config.model.vision.placeholder={vision.placeholder} (weights {self.weights!r}): must be "
                f"{placeholder}, the token of a picture of the tokenizer."
            )
        if vision.placeholder < 0:
            vision = dataclasses.replace(vision, placeholder=placeholder)
        return dataclasses.replace(self.architecture, vocabulary=size or vocabulary, output=output, vision=vision)


READING = ("prompt", "cut", "after", "words")  # fields of a module: what it reads in place of the rows


@dataclasses.dataclass(frozen=True)
class ModuleConfig:
    """The fields of a module beside the policy. It may also set the other fields of ``ModelConfig``."""

    like: str = setting("policy", "Module whose network it has, but for the fields that it sets itself.", fixed=True)
    weights: str = setting(
        "",
        "Folder of a public checkpoint, 'random', or '': the parameters of ``like``, if shapes are equal.",
        fixed=True,
    )
    digest: str = setting("", _DIGEST, fixed=True)
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
    follows: str = setting(
        "", "Module that it starts as a copy of and follows after each update, in float32; '': none.", fixed=True
    )
    rate: Annotated[float, Range(0, 1, open_low=True)] = setting(
        0.005,
        "Share of the difference to the module that it follows that each update adds to its parameters.",
        fixed=True,
    )
    prompt: str = setting(
        "", "Text behind its prompt; '{solution}' is filled in, and '{prompt}' in front is the task's own.", fixed=True
    )
    cut: str = setting(
        "", "Text whose last place in a completion, or in a demonstration, ends its thought.", fixed=True
    )
    after: str = setting(
        "", "Text behind the completion and its end token, or behind its thought; '{solution}' as above.", fixed=True
    )
    words: tuple[str, ...] = setting(
        (), "Two words, (yes, no): its reward of a row is log p(yes) - log p(no) as the next token.", fixed=True
    )

    @property
    def base(self) -> tuple[str, str]:
        """The field that says which module's network it has, and that module."""
        return next(
            ((field, name) for field in ("follows", "trunk") if (name := getattr(self, field))), ("like", self.like)
        )

    def __post_init__(self) -> None:
        """Raise ValueError on an invalid value, and on fields that have no effect beside each other."""
        settings.check(self)
        field, base = self.base
        trains = self.trunk and not self.follows
        needs = {"stop_trunk": trains, "trunk_weight": trains and not self.stop_trunk, "rate": self.follows}
        needs["digest"] = self.weights not in ("", "random")
        for name, read in needs.items():
            if getattr(self, name) != getattr(ModuleConfig, name) and not read:
                raise ValueError(f"{name}={getattr(self, name)}: it has no effect {_WITHOUT[name]}. Remove it.")
        if field != "like" and self.like not in ("policy", base):
            raise ValueError(f"like={self.like!r}: its network is the network of {field}={base!r}. Remove like.")
        if self.follows and self.weights:
            raise ValueError(f"weights={self.weights!r}: it starts as a copy of follows={base!r}. Remove weights.")
        if self.trunk and self.weights not in ("", "random"):
            raise ValueError(f"weights={self.weights!r}: a head starts at 0, or from 'random' numbers.")


_WITHOUT = {
    "digest": "without a folder in weights",
    "stop_trunk": "on a module that is no head, or that no gradient trains",
    "trunk_weight": "on a module that shares no gradient step with a trunk",
    "rate": "without follows",
}


@dataclasses.dataclass(frozen=True)
class Module:
    """A module with its names resolved."""

    settings: ModuleConfig
    changes: Mapping[str, Any]  # fields of ``Architecture`` that differ from the policy's

    def architecture(self, policy: Architecture) -> Architecture:
        """Return its architecture, given the policy's; ValueError as for any architecture."""
        head = {"head_size": 0} if {"width", "heads"} & {*self.changes} else {}  # 0: width / heads
        wide = {"param_dtype": "float32"} if self.settings.follows else {}  # small steps vanish in bfloat16
        return dataclasses.replace(policy, **{**head, **self.changes, **wide})
