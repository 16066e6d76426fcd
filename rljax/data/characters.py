"""Tokens that are one character, which tasks inside the compiled program read and write."""

from collections.abc import Sequence

import numpy as np


def of(pieces: Sequence[bytes | None]) -> np.ndarray:
    """Return the code point of each piece that is one character, 0 for others: int32 [V]."""
    return np.array([_point(piece) for piece in pieces], np.int32)


def _point(piece: bytes | None) -> int:
    text = "" if piece is None else piece.decode(errors="ignore")
    return ord(text) if len(text) == 1 and text.encode() == piece else 0
