"""Text to token ids and back: one protocol for every kind of tokenizer files.

==================  ==========================================================================
``SentencePiece``   a ``.model`` file, trained here (``train``) or elsewhere
``HuggingFace``     ``tokenizer.json`` and the files next to it: special and stop tokens, chat template
``Bytes``           UTF-8 bytes and three special tokens; no training
==================  ==========================================================================

Each is a value: frozen, picklable, and compared and hashed by ``serialized``, which ``load`` accepts.
"""

import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, cast

import numpy as np
from etils import epath

from rljax.data import bundle, chat, documents, hugging_face, raw_bytes, sentence_piece, storage

train = sentence_piece.train
MARK = "Xq7"  # content of a message of the assistant, found again in the text of a template
PICTURE = "\ufffc"  # each token of a picture in a prompt; U+FFFC, "object replacement character"
# placeholders of public families, and the texts around those of a picture
_AROUND = {
    "<image_soft_token>": ("\n\n<start_of_image>", "<end_of_image>\n\n"),
    "<|image_pad|>": ("<|vision_start|>", "<|vision_end|>"),
}
KINDS = (*sentence_piece.MODEL_TYPES, "bytes")  # the kinds that need no files


class Tokenizer(Protocol):
    """What all tokenizers have. Special tokens (pad, bos, ...) have no text."""

    @property
    def serialized(self) -> bytes:
        """The whole tokenizer as bytes, which ``load`` accepts."""
        ...

    @property
    def vocabulary(self) -> int:
        """V, one more than the largest id."""
        ...

    @property
    def pad(self) -> int:
        """Id of padding; end-of-sequence if the files name none."""
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
        """Id of characters that ``encode`` does not know; None if it can encode every text."""
        ...

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion, ``eos`` first."""
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without adding any; the texts of special tokens become special tokens."""
        ...

    def prompt(self, text: str) -> list[int]:
        """Return ``encode(text)`` after the tokens that start a prompt according to the files, such as bos."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens and ids beyond the vocabulary."""
        ...

    def pieces(self) -> list[bytes | None]:
        """Return the bytes that each id adds to a text, None for special tokens; a character may span several ids."""
        ...

    def special(self) -> dict[int, str]:
        """Return the text that the files write for each special token, such as {2: "</s>"}."""
        ...

    def characters(self) -> np.ndarray:
        """Return the code point of each one-character piece, 0 for others: int32 [V]."""
        ...

    def chat(self, messages: chat.Messages, add_generation_prompt: bool = True, tools: chat.Tools = None) -> str:
        """Return messages, mappings with "role" and "content", as text by the chat template of the files.

        ``tools`` are JSON schemas of functions that the template shows, if it can.

        Pass the text to ``encode``: the template adds bos if the model needs it, and ``prompt`` would add another.

        Raises:
          ValueError: the files have no template, or the template rejects the messages.
        """
        ...


def load(source: str | os.PathLike[str] | bytes, date: str | None = None) -> Tokenizer:
    """Read a tokenizer from a folder or file, local or gs://, or from ``serialized`` bytes.

    In a folder, tokenizer.json is preferred, with the files next to it (``bundle.NAMES``). A tokenizer.model without it
    may have the ``serialized`` bytes of any kind of tokenizer; a run's work directory has one.

    Args:
      source: the folder, the file or the bytes.
      date: the date that its chat template prints, YYYY-MM-DD; None: the one that ``serialized`` bytes have, else
        ``chat.DATE``. It is part of ``serialized``.

    Returns:
      The tokenizer.

    Raises:
      ValueError: there is no tokenizer, or one of its files is invalid; the message names the file and the reason.
      FileNotFoundError: the file or folder does not exist.
    """
    if isinstance(source, bytes):
        return _read(source, f"{len(source)} bytes", date)
    path = epath.Path(source)
    if not storage.exists(path):
        raise FileNotFoundError(f"tokenizer: no file or folder {str(source)!r}")
    if storage.is_dir(path):
        names = set(storage.names(path))
        if "tokenizer.model" not in names or names & {"tokenizer.json", "tokenizer_config.json"}:
            return hugging_face.load(bundle.gather(path), str(source), date)
        path = path / "tokenizer.model"
    elif path.name == "tokenizer.json":
        return hugging_face.load(bundle.gather(path.parent), str(source), date)
    return _read(documents.content(path), str(source), date)


def placeholder(tokenizer: Tokenizer) -> int:
    """Return the id of the tokens of a picture in a prompt, that of ``PICTURE``; -1 if the tokenizer has none."""
    special = [number for number, text in tokenizer.special().items() if text in _AROUND]
    ids = special or np.flatnonzero(tokenizer.characters() == ord(PICTURE)).tolist()
    return ids[0] if ids else -1


def picture(tokenizer: Tokenizer, tokens: int) -> str:
    """Return the text of a picture in a prompt, which has ``tokens`` placeholders.

    Raises:
      ValueError: the tokenizer has no placeholder.
    """
    mark = next((text for text in tokenizer.special().values() if text in _AROUND), PICTURE)
    if mark == PICTURE and placeholder(tokenizer) < 0:
        raise ValueError(f"tokenizer: has no token for pictures, such as {' or '.join(_AROUND)}, nor {PICTURE!r}")
    before, after = _AROUND.get(mark, ("", ""))
    return f"{before}{mark * tokens}{after}"


def check_same(tokenizer: Tokenizer, folder: str, where: str) -> None:
    """Check that the tokenizer in a folder, if there is one, gives every id the same meaning.

    Args:
      tokenizer: the run's.
      folder: of a public checkpoint, local or gs://.
      where: the field that names the folder, for the error.

    Raises:
      ValueError: an id that differs, the first one.
    """
    if not {"tokenizer.model", bundle.NAMES[0]} & {*storage.names(epath.Path(folder))}:
        return
    ours, theirs = tokenizer.pieces(), load(folder).pieces()
    for number, (one, two) in enumerate(itertools.zip_longest(ours, theirs, fillvalue=b"")):
        if one != two:
            raise ValueError(
                f"{where}.weights={folder!r}: its tokenizer differs from the run's: id {number} is {two!r}, and "
                f"{one!r} in the run."
            )


def files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """Return the files of a tokenizer by name, which ``load`` accepts in a folder: those it was read from, if any."""
    if not bundle.packed(tokenizer.serialized):
        return {"tokenizer.model": tokenizer.serialized}
    unpacked = bundle.unpack(tokenizer.serialized, "this tokenizer")
    return {name: content for name, content in unpacked.items() if name not in ("config.json", bundle.DATE)}


def make(kind: str, corpus: Iterable[str], vocabulary: int | None = None) -> Tokenizer:
    """Return a tokenizer that needs no files: trained on a corpus, or bytes.

    Args:
      kind: one of ``KINDS``.
      corpus: texts to train on; not read for "bytes".
      vocabulary: the number of ids, as in ``train``.

    Returns:
      The tokenizer.

    Raises:
      ValueError: the kind is unknown, or ``train`` raises it.
    """
    if kind not in KINDS:
        raise ValueError(f"tokenizer: kind {kind!r} is not one of {', '.join(KINDS)}")
    if kind != "bytes":
        return train(corpus, vocabulary=vocabulary, model_type=cast(sentence_piece.ModelType, kind))
    if vocabulary not in (None, raw_bytes.Bytes.vocabulary):
        raise ValueError(
            f"tokenizer: bytes have {raw_bytes.Bytes.vocabulary} ids, not {vocabulary}; set vocabulary to 0"
        )
    return raw_bytes.Bytes()


def continuation(tokenizer: Tokenizer, prompt: str, text: str) -> list[int]:
    """Return the ids of a text that follows a prompt: the ids of both together, without the prompt's.

    ``encode`` writes a space before its text if the tokenizer starts texts with one (Metaspace, SentencePiece's dummy
    prefix), so that after a prompt it gives one space too many. If a token of the whole spans prompt and text, the
    text is encoded after a newline or a full stop instead.

    Args:
      tokenizer: any.
      prompt: text whose ids, from ``encode``, come before.
      text: what follows it.

    Returns:
      Token ids.
    """
    for before in (prompt, "\n", "."):
        start, whole = tokenizer.encode(before), tokenizer.encode(before + text)
        if whole[: len(start)] == start:
            return whole[len(start) :]
    return tokenizer.encode(text)


def exchange(tokenizer: Tokenizer, messages: Sequence[Mapping[str, str]], reply: str) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation and of the assistant's reply to it, by the chat template.

    Args:
      tokenizer: one with a chat template.
      messages: the conversation, which ends with a message of the user.
      reply: content of the assistant's message.

    Returns:
      (prompt, reply): the reply is written as the template writes it, up to its stop token.

    Raises:
      ValueError: there is no template, or it rejects the messages.
    """
    prompt = tokenizer.chat(messages)
    whole = tokenizer.chat([*messages, {"role": "assistant", "content": reply}], add_generation_prompt=False)
    if whole.startswith(prompt):
        written = whole.removeprefix(prompt)
    else:  # the prompt opens a part that the template leaves out of finished messages, such as a thought
        marked = tokenizer.chat([*messages, {"role": "assistant", "content": MARK}], add_generation_prompt=False)
        written = reply + (marked.rpartition(MARK)[2] if MARK in marked else "")
    ids = continuation(tokenizer, prompt, written)
    end = next((n for n, i in enumerate(ids) if i in tokenizer.stop), len(ids))
    return tokenizer.encode(prompt), [*ids[:end], *(ids[end : end + 1] or [tokenizer.eos])]


def visible(tokenizer: Tokenizer, ids: Sequence[int]) -> list[tuple[str, bool]]:
    """Return the text of ids in parts, (text, whether it is a special token); ``decode`` leaves special tokens out."""
    special = tokenizer.special()
    parts: list[tuple[str, bool]] = []
    for marked, group in itertools.groupby(ids, key=lambda i: i in special):
        run = list(group)
        parts += [(special[i], True) for i in run] if marked else [(tokenizer.decode(run), False)]
    return parts


def padded(rows: Sequence[Sequence[int]], length: int, pad: int, left: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Pad rows of token ids to one length.

    Args:
      rows: N rows of at most ``length`` ids.
      length: columns of the result.
      pad: id of padding.
      left: pad on the left, as prompts are; else on the right, as completions are.

    Returns:
      token ``[N, length]`` int32, and mask ``[N, length]`` float32, 1 on the ids of ``rows``.
    """
    token = np.full((len(rows), length), pad, np.int32)
    mask = np.zeros((len(rows), length), np.float32)
    for i, row in enumerate(rows):
        place = slice(length - len(row), length) if left else slice(0, len(row))
        token[i, place] = row
        mask[i, place] = 1
    return token, mask


def _read(content: bytes, shown: str, date: str | None) -> Tokenizer:
    if content == raw_bytes.SERIALIZED:
        return raw_bytes.Bytes()
    if bundle.packed(content):
        return hugging_face.load(bundle.unpack(content, shown), shown, date)
    if content.lstrip()[:1] == b"{":
        return hugging_face.load({"tokenizer.json": content}, shown, date)
    return sentence_piece.load(content, shown)
