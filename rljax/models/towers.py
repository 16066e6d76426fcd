"""The fields of a vision tower: what reads the pictures of a prompt."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from rljax.language import settings
from rljax.language.settings import Count, Size, setting
from rljax.types import Range

Layers = Annotated[int, Range(0, 1000)]
Side = Annotated[int, Range(1, 10_000)]
Id = Annotated[int, Range(-1, 10**7)]
# what the layers of each form of tower are: fields of Architecture
_MATRICES = ("query", "key", "value", "attention_output", "up", "down")
FORMS: Mapping[str, Mapping[str, Any]] = {
    "plain": {},
    "siglip": {"norm": "layer", "gated": False, "activation": "gelu", "bias": _MATRICES},
    "qwen2.5": {"bias": (*_MATRICES, "gate")},
}


@dataclasses.dataclass(frozen=True)
class Vision:
    """A tower of bidirectional layers over the patches of a picture, and a projection to the policy's width.

    Squares of neighboring patches are averaged into ``tokens`` tokens. Pictures of one size are read, others refused.
    The layers of the forms are:

    - "plain": like the policy's, with rotary positions of rows and columns;
    - "siglip": those of SigLIP (arXiv 2303.15343), as Gemma 3 has them (arXiv 2503.19786): learned positions, norms
      with mean and bias, biases, no gate. The projection is preceded by a norm;
    - "qwen2.5": those of Qwen2.5-VL (arXiv 2502.13923): "plain" with biases; most layers attend within windows; 2 x 2
      patches are concatenated, and the projection has two matrices. A patch has two frames, here the same.
    """

    form: Literal["plain", "siglip", "qwen2.5"] = setting(
        "plain", "Form of the tower's layers and projection.", fixed=True
    )
    layers: Layers = setting(0, "Layers of the tower that reads pictures; 0: the policy reads text only.", fixed=True)
    width: Side = setting(64, "Width of the tower.", fixed=True)
    heads: Side = setting(4, "Heads of a layer of the tower; their size is a multiple of 4.", fixed=True)
    hidden: Side = setting(128, "Hidden units of a layer's gated unit in the tower.", fixed=True)
    patch: Side = setting(4, "Side of a patch, pixels.", fixed=True)
    pixels: Side = setting(32, "Side of a picture, pixels.", fixed=True)
    tokens: Count = setting(16, "Tokens of a picture in a prompt, a square number.", fixed=True)
    window: Size = setting(0, "Side of the squares that a layer attends within, pixels; 0: none.", fixed=True)
    full: tuple[int, ...] = setting((), "With a window: the layers that attend to the whole picture.", fixed=True)
    trained: bool = setting(
        True, "Whether the tower is trained, or with adapters has some; else its projection alone.", fixed=True
    )
    mutual: bool = setting(
        False, "Whether the tokens of a picture attend to each other in the policy, in both directions.", fixed=True
    )
    placeholder: Id = setting(-1, "Id in a prompt that a picture's token replaces; -1: the tokenizer's.", fixed=True)

    def __post_init__(self) -> None:
        """Raise ValueError, naming the field, on an invalid value."""
        settings.check(self)
        if self.width % (4 * self.heads):
            raise ValueError(f"vision.width={self.width}: must be divisible by 4 * vision.heads = {4 * self.heads}")
        if self.pixels % self.patch:
            raise ValueError(f"vision.pixels={self.pixels}: must be divisible by vision.patch={self.patch}")
        side = math.isqrt(self.tokens)
        if side * side != self.tokens or self.side % side:
            squares = ", ".join(str(n * n) for n in range(1, self.side + 1) if self.side % n == 0)
            raise ValueError(
                f"vision.tokens={self.tokens}: a picture of {self.side} x {self.side} patches makes {squares} tokens"
            )
        if self.form == "qwen2.5" and self.merged != 2:
            raise ValueError(f"vision.tokens={self.tokens}: a picture makes {self.side**2 // 4}, of 2 x 2 patches each")
        if self.window % (self.patch * self.merged) or (self.pixels > self.window > 0 and self.pixels % self.window):
            raise ValueError(
                f"vision.window={self.window}: must be divisible by {self.patch * self.merged}, the side of a token, "
                f"and divide vision.pixels={self.pixels}, or be larger"
            )

    @property
    def side(self) -> int:
        """Patches of a side of a picture."""
        return self.pixels // self.patch

    @property
    def merged(self) -> int:
        """Patches of a side of the square that makes a token."""
        return self.side // math.isqrt(self.tokens)

    @property
    def windows(self) -> int:
        """Windows of a side of a picture."""
        return self.pixels // self.window if 0 < self.window < self.pixels else 1

    @property
    def joined(self) -> int:
        """Numbers of a token before the projection."""
        return self.width * (self.merged**2 if self.form == "qwen2.5" else 1)

    @property
    def pattern(self) -> tuple[str, ...]:
        """Kinds of the layers, repeated: 'local' within a window, or 'global'."""
        return period(["local" if self.window and i not in self.full else "global" for i in range(self.layers)])


def read(fields: Mapping[str, Any]) -> Vision:
    """Return the tower of fields of a public checkpoint, where it leaves the size of pictures open: 256 tokens."""
    size = {"pixels": 32 * fields["patch"], "tokens": 256} if fields.get("form") == "qwen2.5" else {}
    return Vision(**{**size, **fields})


def period(names: Sequence[str]) -> tuple[str, ...]:
    """Return the shortest sequence that gives ``names`` when it is repeated and truncated."""
    return next(
        tuple(names[:length])
        for length in range(1, len(names) + 1)
        if all(name == names[i % length] for i, name in enumerate(names))
    )
