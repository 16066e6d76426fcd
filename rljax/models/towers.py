"""The fields of a vision tower: what reads the pictures of a prompt."""

import dataclasses
import math
from typing import Annotated

from rljax.language import settings
from rljax.language.settings import Count, setting
from rljax.types import Range

Layers = Annotated[int, Range(0, 1000)]
Side = Annotated[int, Range(1, 10_000)]


@dataclasses.dataclass(frozen=True)
class Vision:
    """A tower of bidirectional layers over the patches of a picture, and a projection to the policy's width.

    Its layers are built like the policy's, with rotary positions of rows and columns. Squares of neighboring patches
    are averaged into ``tokens`` tokens.
    """

    layers: Layers = setting(0, "Layers of the tower that reads pictures; 0: the policy reads text only.", fixed=True)
    width: Side = setting(64, "Width of the tower.", fixed=True)
    heads: Side = setting(4, "Heads of a layer of the tower; their size is a multiple of 4.", fixed=True)
    hidden: Side = setting(128, "Hidden units of a layer's gated unit in the tower.", fixed=True)
    patch: Side = setting(4, "Side of a patch, pixels.", fixed=True)
    pixels: Side = setting(32, "Side of a picture, pixels.", fixed=True)
    tokens: Count = setting(16, "Tokens of a picture in a prompt, a square number.", fixed=True)
    trained: bool = setting(
        True, "Whether the tower is trained, or with adapters has some; else its projection alone.", fixed=True
    )
    placeholder: int = -1  # the token of a prompt that a picture's token replaces; -1: the tokenizer has none

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

    @property
    def side(self) -> int:
        """Patches of a side of a picture."""
        return self.pixels // self.patch

    @property
    def merged(self) -> int:
        """Patches of a side of the square that makes a token."""
        return self.side // math.isqrt(self.tokens)
