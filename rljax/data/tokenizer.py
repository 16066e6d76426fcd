"""Text to token ids and back: a SentencePiece model that keeps every space and newline."""

import dataclasses
import functools
import io
import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import sentencepiece

ModelType = Literal["char", "bpe", "unigram"]
MODEL_TYPES: tuple[ModelType, ...] = ("char", "bpe", "unigram")

_SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
_NEWLINE = "\n"
_SPECIAL = 4  # pad, bos, eos, unk


@dataclasses.dataclass(frozen=True)
class Tokenizer:
    """A trained tokenizer; equal, hashable and picklable by its serialized model.

    ``decode(encode(text)) == text`` for any text made of characters the model knows. The one exception
    is U+2581, which SentencePiece reads as a space.
    """

    serialized: bytes = dataclasses.field(repr=False)

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.serialized)

    def __getstate__(self) -> dict[str, bytes]:
        """Pickle the model alone; the processor is rebuilt where it lands."""
        return {"serialized": self.serialized}

    @property
    def vocabulary(self) -> int:
        """Count the token ids, V."""
        return self._processor.vocab_size()

    @property
    def pad(self) -> int:
        """Id of padding, 0."""
        return self._processor.pad_id()

    @property
    def bos(self) -> int:
        """Id of begin-of-sequence."""
        return self._processor.bos_id()

    @property
    def eos(self) -> int:
        """Id of end-of-sequence."""
        return self._processor.eos_id()

    @property
    def unk(self) -> int:
        """Id of the unknown character."""
        return self._processor.unk_id()

    def encode(self, text: str) -> list[int]:
        """Split text into token ids; adds no prefix, no bos and no eos."""
        return self._processor.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Join token ids to text, leaving out pad, bos and eos wherever they stand."""
        silent = (self.pad, self.bos, self.eos)
        return self._processor.decode([i for i in map(int, ids) if i not in silent])

    def characters(self) -> np.ndarray:
        """Map ids to characters: int32 [V], the code point of a one-character piece, 0 for any other."""
        table = np.zeros(self.vocabulary, np.int32)
        for i in range(_SPECIAL, self.vocabulary):
            piece = self._processor.id_to_piece(i).replace(_SPACE, " ")
            if len(piece) == 1:
                table[i] = ord(piece)
        return table


def load(source: str | os.PathLike[str] | bytes) -> Tokenizer:
    """Read a tokenizer from a file or from its serialized bytes.

    Raises:
        ValueError: the bytes are no SentencePiece model with pad 0 and an end-of-sequence.
        FileNotFoundError: there is no such file.
    """
    serialized = source if isinstance(source, bytes) else pathlib.Path(source).read_bytes()
    shown = f"{len(source)} bytes" if isinstance(source, bytes) else str(source)
    tokenizer = Tokenizer(serialized)
    try:
        usable = tokenizer.pad == 0 and tokenizer.eos > 0
    except RuntimeError as error:
        raise ValueError(f"tokenizer: {shown} is not a SentencePiece model") from error
    if not usable:
        raise ValueError(f"tokenizer: {shown} has pad {tokenizer.pad} and eos {tokenizer.eos}; pad must be 0, eos set")
    return tokenizer


def train(corpus: Iterable[str], *, vocabulary: int | None = None, model_type: ModelType = "char") -> Tokenizer:
    """Train a tokenizer on texts; the same texts give the same bytes.

    Args:
        corpus: texts of any length, which may hold newlines.
        vocabulary: ids to make, special ones included; None with "char" means every character seen.
        model_type: one token for each character ("char"), merges ("bpe") or a unigram model ("unigram").

    Raises:
        ValueError: unknown model type, a vocabulary the corpus cannot fill or fit in, or an empty corpus.
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type: {model_type!r} is not one of {', '.join(MODEL_TYPES)}")
    if vocabulary is None and model_type != "char":
        raise ValueError(f"vocabulary: None is for model_type 'char'; {model_type!r} needs a number")
    lines = list(_lines(corpus))
    alphabet = set().union(*lines)
    if not alphabet:
        raise ValueError("corpus: holds no text to train a tokenizer on")
    fewest = _SPECIAL + 1 + len(alphabet)  # 1 for the newline, which is always there
    if vocabulary is not None and vocabulary < fewest:
        raise ValueError(f"vocabulary: {vocabulary} is below the {fewest} that this corpus's characters need")
    size = vocabulary or fewest
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=min(size, fewest) if model_type == "char" else size,
            use_all_vocab=model_type == "char",
            hard_vocab_limit=model_type != "unigram",  # unigram may stop a few pieces short
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            user_defined_symbols=[_NEWLINE],
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            max_sentence_length=2**30,  # the default drops long lines without a word
            num_threads=1,  # sums in one order
            minloglevel=3,
        )
    except RuntimeError as error:
        raise ValueError(
            f"vocabulary: a {model_type!r} model of {size} ids does not suit this corpus: {error}"
        ) from error
    return load(model.getvalue())


def _lines(corpus: Iterable[str]) -> Iterator[str]:
    # The trainer works line by line. A newline is a symbol of its own, so cutting there loses nothing.
    for text in corpus:
        for line in text.split(_NEWLINE):
            if line:
                yield line
