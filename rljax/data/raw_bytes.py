"""UTF-8 bytes as tokens: nothing to train, every text can be written."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from rljax.data import characters

SERIALIZED = b'{"rljax": "bytes"}'
_FIRST = 3  # pad, bos, eos stand before the bytes


@dataclasses.dataclass(frozen=True)
class Bytes:
    """Byte b is id b + 3; ``decode`` writes U+FFFD for what is no UTF-8."""

    serialized: bytes = dataclasses.field(default=SERIALIZED, init=False, repr=False)
    vocabulary: int = dataclasses.field(default=_FIRST + 256, init=False)
    pad: int = dataclasses.field(default=0, init=False)
    bos: int = dataclasses.field(default=1, init=False)
    eos: int = dataclasses.field(default=2, init=False)
    unk: None = dataclasses.field(default=None, init=False)
    stop: tuple[int, ...] = dataclasses.field(default=(2,), init=False)

    def encode(self, text: str) -> list[int]:
        """Write each byte as an id."""
        return [_FIRST + b for b in text.encode()]

    def prompt(self, text: str) -> list[int]:
        """Encode and add nothing."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Join bytes to text, leaving out special tokens."""
        return bytes(i - _FIRST for i in map(int, ids) if _FIRST <= i < self.vocabulary).decode(errors="replace")

    def pieces(self) -> list[bytes | None]:
        """List the byte of each id, None for special tokens."""
        return [None] * _FIRST + [bytes([b]) for b in range(256)]

    def characters(self) -> np.ndarray:
        """Map ids to ASCII characters, 0 for bytes that are part of a longer character."""
        return characters.of(self.pieces())

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Raise ValueError: bytes have no template."""
        raise ValueError("tokenizer: bytes have no chat template; take a folder with tokenizer.json, or chat=False")
