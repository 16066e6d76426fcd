"""SentencePiece models: published ones, and those trained here, which preserve every space and newline."""

import dataclasses
import functools
import io
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
import sentencepiece

from rljax.data import characters, chat

ModelType = Literal["char", "bpe", "unigram"]
MODEL_TYPES: tuple[ModelType, ...] = ("char", "bpe", "unigram")

_SPACE = "\u2581"  # a space inside a piece
_NEWLINE = "\n"
_SPECIAL = 4  # pad, bos, eos, unk


@dataclasses.dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model; ``train`` and ``load`` return one.

    For models of ``train``, ``decode(encode(text)) == text`` for any text of known characters, except that
    SentencePiece reads U+2581 as a space.
    """

    serialized: bytes = dataclasses.field(repr=False)

    @functools.cached_property
    def _processor(self) -> sentencepiece.SentencePieceProcessor:
        return sentencepiece.SentencePieceProcessor(model_proto=self.serialized)

    def __getstate__(self) -> dict[str, bytes]:
        """Pickle the model only; the processor is rebuilt when needed."""
        return {"serialized": self.serialized}

    @property
    def vocabulary(self) -> int:
        """The number of token ids, V."""
        return self._processor.vocab_size()

    @property
    def pad(self) -> int:
        """Id of padding: 0 in models of ``train``; end-of-sequence in models without a padding token."""
        pad = self._processor.pad_id()
        return self.eos if pad < 0 else pad

    @property
    def bos(self) -> int | None:
        """Id of begin-of-sequence."""
        bos = self._processor.bos_id()
        return None if bos < 0 else bos

    @property
    def eos(self) -> int:
        """Id of end-of-sequence."""
        return self._processor.eos_id()

    @property
    def unk(self) -> int | None:
        """Id of the unknown character; None in a model with pieces for bytes, which never encodes to it."""
        return None if any(map(self._processor.is_byte, range(self.vocabulary))) else self._processor.unk_id()

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion: end-of-sequence only."""
        return (self.eos,)

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(filter(self._processor.is_control, range(self.vocabulary))) | {self.pad, self.eos}

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        return self._processor.encode(text)

    def prompt(self, text: str) -> list[int]:
        """Return ``encode(text)``: the model does not say whether a prompt starts with bos."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens and ids beyond the vocabulary."""
        return self._processor.decode([i for i in map(int, ids) if i not in self._special and i < self.vocabulary])

    def pieces(self) -> list[bytes | None]:
        """Return the bytes that each id adds to a text, None for special tokens and the unknown token."""
        return [self._piece(i) for i in range(self.vocabulary)]

    def _piece(self, i: int) -> bytes | None:
        if i in self._special or self._processor.is_unknown(i):
            return None
        text = self._processor.id_to_piece(i)
        if self._processor.is_byte(i):  # written <0x0A>
            return bytes([int(text[3:5], 16)])
        return text.replace(_SPACE, " ").encode()

    def special(self) -> dict[int, str]:
        """Return the texts of the special tokens."""
        return {i: self._processor.id_to_piece(i) for i in self._special}

    def characters(self) -> np.ndarray:
        """Return the code point of each one-character piece, 0 for others: int32 [V]."""
        return characters.of(self.pieces())

    def chat(self, messages: chat.Messages, add_generation_prompt: bool = True, tools: chat.Tools = None) -> str:
        """Raise ValueError: a SentencePiece model has no template."""
        raise chat.NoTemplate("tokenizer: a SentencePiece model has no chat template; use a folder with tokenizer.json")


def load(serialized: bytes, shown: str) -> SentencePiece:
    """Return the tokenizer of a serialized model; ValueError if it is not SentencePiece, or has no eos."""
    tokenizer = SentencePiece(serialized)
    try:
        eos = tokenizer.eos
    except RuntimeError:
        eos = None
    if eos is None or tokenizer.vocabulary == 0:  # the library parses b"" as an empty model
        raise ValueError(
            f"tokenizer: {shown} is neither a SentencePiece model, nor tokenizer.json, nor a serialized tokenizer"
        )
    if eos < 0:
        raise ValueError(f"tokenizer: {shown} is a SentencePiece model without end-of-sequence, which ends completions")
    return tokenizer


def train(corpus: Iterable[str], *, vocabulary: int | None = None, model_type: ModelType = "char") -> SentencePiece:
    """Train a tokenizer on texts; equal texts give equal models.

    Args:
      corpus: texts of any length, which may contain newlines.
      vocabulary: the number of ids, special ones included; None, for "char" only: every character of the corpus.
      model_type: one token per character ("char"), merges ("bpe") or a unigram model ("unigram").

    Returns:
      The tokenizer.

    Raises:
      ValueError: the model type is unknown, the vocabulary is too small or too large for the corpus, or the corpus is
        empty.
    """
    if model_type not in MODEL_TYPES:
        raise ValueError(f"model_type: {model_type!r} is not one of {', '.join(MODEL_TYPES)}")
    if vocabulary is None and model_type != "char":
        raise ValueError(f"vocabulary: None requires model_type 'char'; {model_type!r} needs a number")
    lines = list(_lines(corpus))
    alphabet = set().union(*lines)
    if not alphabet:
        raise ValueError("corpus: has no text to train a tokenizer on")
    fewest = _SPECIAL + 1 + len(alphabet)  # 1 for the newline, which is always included
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
            hard_vocab_limit=model_type != "unigram",  # unigram may give a few pieces less
            character_coverage=1.0,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            user_defined_symbols=[_NEWLINE],
            pad_id=0,
            bos_id=1,
            eos_id=2,
            unk_id=3,
            max_sentence_length=2**30,  # the default silently drops long lines
            num_threads=1,  # a fixed order of summation
            minloglevel=3,
        )
    except RuntimeError as error:
        raise ValueError(
            f"vocabulary: a {model_type!r} model of {size} ids does not fit this corpus: {error}"
        ) from error
    return load(model.getvalue(), "the model just trained")


def _lines(corpus: Iterable[str]) -> Iterator[str]:
    # The trainer reads lines. A newline is a symbol by itself, so splitting there loses nothing.
    for text in corpus:
        for line in text.split(_NEWLINE):
            if line:
                yield line
