"""SentencePiece models: those of others, and ours, which keep every space and newline."""

import dataclasses
import functools
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
import sentencepiece

from rljax.data import characters

ModelType = Literal["char", "bpe", "unigram"]
MODEL_TYPES: tuple[ModelType, ...] = ("char", "bpe", "unigram")

_SPACE = "\u2581"  # how SentencePiece writes a space inside a piece
_NEWLINE = "\n"
_SPECIAL = 4  # pad, bos, eos, unk


@dataclasses.dataclass(frozen=True)
class SentencePiece:
    """A SentencePiece model; make one with ``train`` or ``load``.

    Of the models that ``train`` makes, ``decode(encode(text)) == text`` for any text of characters they know. The one
    exception is U+2581, which SentencePiece reads as a space.
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
        """Id of padding: 0 in models of ``train``, that of end-of-sequence in models without one."""
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
        """Id of the unknown character; a model with pieces for all bytes never writes it."""
        return None if any(map(self._processor.is_byte, range(self.vocabulary))) else self._processor.unk_id()

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion: end-of-sequence, the model names no other."""
        return (self.eos,)

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(filter(self._processor.is_control, range(self.vocabulary))) | {self.pad, self.eos}

    def encode(self, text: str) -> list[int]:
        """Split text into token ids and add none."""
        return self._processor.encode(text)

    def prompt(self, text: str) -> list[int]:
        """Encode and add nothing: the model does not say whether a context starts with bos."""
        return self.encode(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Join token ids to text, leaving out special tokens and ids beyond the vocabulary wherever they stand."""
        return self._processor.decode([i for i in map(int, ids) if i not in self._special and i < self.vocabulary])

    def pieces(self) -> list[bytes | None]:
        """List the bytes each id adds to a text, None for special tokens and the unknown."""
        return [self._piece(i) for i in range(self.vocabulary)]

    def _piece(self, i: int) -> bytes | None:
        if i in self._special or self._processor.is_unknown(i):
            return None
        text = self._processor.id_to_piece(i)
        if self._processor.is_byte(i):  # written <0x0A>
            return bytes([int(text[3:5], 16)])
        return text.replace(_SPACE, " ").encode()

    def characters(self) -> np.ndarray:
        """Map ids to characters: int32 [V], the code point of a one-character piece, 0 for any other."""
        return characters.of(self.pieces())

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Raise ValueError: a model by itself has no template."""
        raise ValueError("tokenizer: a SentencePiece model has no chat template; take a folder with tokenizer.json")


def load(serialized: bytes, shown: str) -> SentencePiece:
    """Make a tokenizer of a model's bytes; ValueError if they are no SentencePiece model or it has no eos."""
    made = SentencePiece(serialized)
    try:
        eos = made.eos
    except RuntimeError:
        eos = None
    if eos is None or made.vocabulary == 0:  # to the library no bytes are a model, an empty one
        raise ValueError(
            f"tokenizer: {shown} is not a SentencePiece model, nor tokenizer.json or what a tokenizer serialized"
        )
    if eos < 0:
        raise ValueError(f"tokenizer: {shown} is a SentencePiece model without end-of-sequence, which ends completions")
    return made


def train(corpus: Iterable[str], *, vocabulary: int | None = None, model_type: ModelType = "char") -> SentencePiece:
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
    return load(model.getvalue(), "the model just trained")


def _lines(corpus: Iterable[str]) -> Iterator[str]:
    # The trainer works line by line. A newline is a symbol of its own, so cutting there loses nothing.
    for text in corpus:
        for line in text.split(_NEWLINE):
            if line:
                yield line
