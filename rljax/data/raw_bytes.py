"""UTF-8 bytes as tokens: no training, and every text can be encoded."""

import dataclasses
from collections.abc import Iterable

import numpy as np

from rljax.data import characters, chat

SERIALIZED = b'{"rljax": "bytes"}'
_FIRST = 3  # ids of the bytes follow pad, bos, eos


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Byte b is id b + 3; ``decode`` writes U+FFFD for invalid UTF-8."""

    serialized: bytes = dataclasses.field(default=SERIALIZED, init=False, repr=False)
    vocabulary: int = dataclasses.field(default=_FIRST + 256, init=False)
    pad: int = dataclasses.field(default=0, init=False)
    bos: int = dataclasses.field(default=1, init=False)
    eos: int = dataclasses.field(default=2, init=False)
    unk: None = dataclasses.field(default=None, init=False)
    stop: tuple[int, ...] = dataclasses.field(default=(2,), init=False)

    def encode(self, text: str) -> list[int]:
        """Return the id of each byte."""
        return [_FIRST + b for b in text.encode()]

    def prompt(self, text: str) -> list[int]:
        """Return ``encode(text)``."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens."""
        return bytes(i - _FIRST for i in map(int, ids) if _FIRST <= i < self.vocabulary).decode(errors="replace")

    def pieces(self) -> list[bytes | None]:
        """Return the byte of each id, None for special tokens."""
        return [None] * _FIRST + [bytes([b]) for b in range(256)]

    def special(self) -> dict[int, str]:
        """Return the names of the special tokens."""
        return {self.pad: "<pad>", self.bos: "<bos>", self.eos: "<eos>"}

    def characters(self) -> np.ndarray:
        """Return the ASCII code of each id, 0 for bytes of multi-byte characters: int32 [V]."""
        return characters.of(self.pieces())

    def chat(self, messages: chat.Messages, add_generation_prompt: bool = True, tools: chat.Tools = None) -> str:
        """Raise ValueError: bytes have no template."""
        raise chat.NoTemplate(
            "tokenizer: bytes have no chat template; set chat=False, or use a folder with tokenizer.json"
        )
