"""Text to token ids and back: one protocol, whatever the files a model comes with.

==================  ==========================================================================
``SentencePiece``   a ``.model`` file, trained here (``train``) or elsewhere
``HuggingFace``     ``tokenizer.json`` with the files beside it: special and stop tokens, chat template
``Bytes``           UTF-8 bytes and three special tokens; nothing to train
==================  ==========================================================================

Each is a value: frozen, equal, hashable and picklable by ``serialized``, which ``load`` reads back.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from etils import epath

from rljax.data import bundle, hugging_face, raw_bytes, sentence_piece, storage

train = sentence_piece.train
KINDS = (*sentence_piece.MODEL_TYPES, "bytes")  # what can be made without files


class Tokenizer(Protocol):
    """What every tokenizer answers. Special tokens (pad, bos, ...) stand for no text."""

    @property
    def serialized(self) -> bytes:
        """All there is to it, for ``load``."""
        ...

    @property
    def vocabulary(self) -> int:
        """One more than the largest id, V."""
        ...

    @property
    def pad(self) -> int:
        """Id of padding; that of end-of-sequence where the files name none."""
        ...

    @property
    def bos(self) -> int | None:
        """Id of begin-of-sequence."""
        ...

    @property
    def eos(self) -> int:
        """Id of end-of-sequence."""
        ...

    @property
    def unk(self) -> int | None:
        """Id that ``encode`` writes for a character it does not know; None where it can write every text."""
        ...

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion, ``eos`` first."""
        ...

    def encode(self, text: str) -> list[int]:
        """Split text into ids and add none; special tokens written in the text are read as such, if files name any."""
        ...

    def prompt(self, text: str) -> list[int]:
        """Write how a context starts: ``encode`` behind what the files put first, such as bos."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Join ids to text, leaving out special tokens and ids beyond the vocabulary wherever they stand."""
        ...

    def pieces(self) -> list[bytes | None]:
        """List the bytes each id adds to a text, None for special tokens; a character may be spread over several."""
        ...

    def characters(self) -> np.ndarray:
        """Map ids to characters: int32 [V], the code point of a one-character piece, 0 for any other."""
        ...

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Write messages, {"role", "content"} each, by the files' template; ``encode`` it, ``prompt`` adds bos again.

        Raises:
          ValueError: the files hold no template, or the template refuses the messages.
        """
        ...


def load(source: str | os.PathLike[str] | bytes) -> Tokenizer:
    """Read a tokenizer from a folder or file, local or gs://, or from what was ``serialized``.

    A folder's tokenizer.json comes first, with the files beside it (``bundle.NAMES``); a lone tokenizer.model is
    read as ``serialized`` bytes of any kind, as a run's work directory holds them.

    Raises:
      ValueError: there is no tokenizer there, or a file of it cannot be used; says which and why.
      FileNotFoundError: there is no such file or folder.
    """
    if isinstance(source, bytes):
        return _read(source, f"{len(source)} bytes")
    path = epath.Path(source)
    if not storage.exists(path):
        raise FileNotFoundError(f"tokenizer: no file or folder {str(source)!r}")
    if storage.is_dir(path):
        names = set(storage.names(path))
        if "tokenizer.model" not in names or names & {"tokenizer.json", "tokenizer_config.json"}:
            return hugging_face.load(bundle.gather(path), str(source))
        path = path / "tokenizer.model"
    elif path.name == "tokenizer.json":
        return hugging_face.load(bundle.gather(path.parent), str(source))
    return _read(storage.read(path), str(source))


def make(kind: str, corpus: Iterable[str], vocabulary: int | None = None) -> Tokenizer:
    """Make a tokenizer of one of ``KINDS`` without files: trained on ``corpus``, or bytes, which need none.

    Raises:
      ValueError: another kind, or what ``train`` refuses.
    """
    if kind not in KINDS:
        raise ValueError(f"tokenizer: kind {kind!r} is not one of {', '.join(KINDS)}")
    if kind != "bytes":
        return train(corpus, vocabulary=vocabulary, model_type=cast(sentence_piece.ModelType, kind))
    if vocabulary not in (None, raw_bytes.Bytes.vocabulary):
        raise ValueError(f"tokenizer: bytes have {raw_bytes.Bytes.vocabulary} ids, {vocabulary} were asked for; give 0")
    return raw_bytes.Bytes()


def _read(content: bytes, shown: str) -> Tokenizer:
    if content == raw_bytes.SERIALIZED:
        return raw_bytes.Bytes()
    if bundle.packed(content):
        return hugging_face.load(bundle.unpack(content, shown), shown)
    if content.lstrip()[:1] == b"{":
        return hugging_face.load({"tokenizer.json": content}, shown)
    return sentence_piece.load(content, shown)
