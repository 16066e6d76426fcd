"""``tokenizer.json`` through the ``tokenizers`` library, with the special tokens that the files next to it define."""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import tokenizers

from rljax.data import bundle, characters, chat, documents
from rljax.language import messages

_LARGEST = 1 << 24  # ids
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")  # of an added token
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")  # of the names of tokens, those that must be texts
# the classes of transformers that write bos by add_bos_token, whatever the post-processor of tokenizer.json
_OWN_BOS = ("Llama", "CodeLlama", "Gemma", "Cohere", "GPTNeoX")


@dataclasses.dataclass(frozen=True)
class HuggingFace:
    """The tokenizer of a public checkpoint; ``load`` returns one."""

    serialized: bytes = dataclasses.field(repr=False)  # a result of bundle.pack

    def __getstate__(self) -> dict[str, bytes]:
        """Pickle the files only; the rest is rebuilt when needed."""
        return {"serialized": self.serialized}

    @functools.cached_property
    def _files(self) -> dict[str, bytes]:
        return bundle.unpack(self.serialized, "this tokenizer")

    @functools.cached_property
    def _parsed(self) -> dict[str, dict[str, Any]]:
        names = [name for name in bundle.NAMES[1:] if name.endswith(".json")]
        return {name: documents.parse_object(self._files.get(name, b"{}"), name) for name in names}

    @functools.cached_property
    def _core(self) -> dict[str, Any]:
        """The content of tokenizer.json without vocabulary and merges, which are large."""
        content = documents.parse_object(self._files["tokenizer.json"], "tokenizer.json")
        model = content.get("model")
        if not isinstance(model, dict):
            raise ValueError(f"tokenizer.json: model is {documents.kind(model)}, expected an object")
        _check_merges(model.get("merges"), model.get("continuing_subword_prefix"))
        model = {k: v for k, v in model.items() if k not in ("vocab", "merges")}
        return {"model": model, "decoder": content.get("decoder")}

    @functools.cached_property
    def _config(self) -> dict[str, Any]:
        """The fields of tokenizer_config.json; without added_tokens_decoder, special_tokens_map.json overrides them."""
        config = self._parsed["tokenizer_config.json"]
        return config if "added_tokens_decoder" in config else config | self._parsed["special_tokens_map.json"]

    @functools.cached_property
    def _named(self) -> dict[str, str]:
        """Texts of the named special tokens, {"bos_token": "<s>", "image_token": "<image>", ...}."""
        extra = self._config.get("extra_special_tokens")  # by name, or a list
        given = {k: v for k, v in self._config.items() if k.endswith("_token") and v is not None}
        fields = {k: v for k, v in given.items() if k in _NAMED or isinstance(v, str | dict)}
        fields |= extra if isinstance(extra, dict) else {}
        return {name: _content(name, token) for name, token in fields.items()}

    @functools.cached_property
    def _additional(self) -> list[str]:
        """Texts of the special tokens without a name."""
        fields = ("additional_special_tokens", "extra_special_tokens")
        lists = [(name, self._config.get(name)) for name in fields]
        return [_content(name, token) for name, tokens in lists if isinstance(tokens, list) for token in tokens]

    @functools.cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        _ = self._core  # checks what the library does not
        try:
            backend = tokenizers.Tokenizer.from_buffer(self._files["tokenizer.json"])
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # the library raises nothing narrower, and its panics are no Exception
            raise ValueError(f"tokenizer.json: {error}") from error
        backend.no_truncation()
        backend.no_padding()
        listed = _added(self._config.get("added_tokens_decoder"))
        for number, fields in sorted(listed.items()):
            backend.add_tokens([tokenizers.AddedToken(**fields)])  # no effect if it exists
            if backend.token_to_id(fields["content"]) != number:
                raise ValueError(
                    f"tokenizer_config.json: added_tokens_decoder has {fields['content']!r} as {number}, tokenizer.json"
                    f" as {backend.token_to_id(fields['content'])}"
                )
        special = [*self._named.values(), *self._additional]
        backend.add_special_tokens([text for text in special if backend.token_to_id(text) is not None])
        return backend

    def _id(self, name: str) -> int | None:
        text = self._named.get(name)
        number = None if text is None else self._backend.token_to_id(text)
        if text is not None and number is None:
            raise ValueError(f"tokenizer_config.json: {name} is {text!r}, which has no id in tokenizer.json")
        return number

    def _numbers(self, name: str) -> tuple[int, ...]:
        """Return the ids of a field such as "eos_token_id": of generation_config.json, else of config.json."""
        for file in ("generation_config.json", "config.json"):
            value = self._parsed[file].get(name)
            if value is not None:
                ids = value if isinstance(value, list) else [value]
                if not all(type(i) is int for i in ids):
                    raise ValueError(f"{file}: {name} is {messages.shown(value)}, expected an id or several")
                return tuple(i for i in ids if i >= 0)
        return ()

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        named = [self._backend.token_to_id(text) for text in (*self._named.values(), *self._additional)]
        special = [i for i, token in self._backend.get_added_tokens_decoder().items() if token.special]
        return frozenset(i for i in (*special, *named, *self.stop, self.pad, self.bos) if i is not None)

    @functools.cached_property
    def vocabulary(self) -> int:
        """V, one more than the largest id."""
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def pad(self) -> int:
        """Id of padding; end-of-sequence if the files name none."""
        named = self._id("pad_token")
        return named if named is not None else (*self._numbers("pad_token_id"), self.eos)[0]

    @property
    def bos(self) -> int | None:
        """Id of begin-of-sequence."""
        named = self._id("bos_token")
        return named if named is not None else (*self._numbers("bos_token_id"), None)[0]

    @property
    def eos(self) -> int:
        """Id of end-of-sequence."""
        named = self._id("eos_token")
        candidates = (*(() if named is None else (named,)), *self._numbers("eos_token_id"))
        if not candidates:
            raise ValueError(
                "no end-of-sequence: set eos_token in tokenizer_config.json or eos_token_id in generation_config.json"
            )
        return candidates[0]

    @property
    def unk(self) -> int | None:
        """Id of what ``encode`` does not know; None if the model falls back to bytes."""
        model = self._core["model"]
        if model.get("byte_fallback"):
            return None
        if model.get("unk_id") is not None:  # a unigram model
            return model["unk_id"]
        return None if model.get("unk_token") is None else self._backend.token_to_id(model["unk_token"])

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion: eos and the ids of generation_config.json, else of config.json."""
        return tuple(dict.fromkeys((self.eos, *self._numbers("eos_token_id"))))

    @functools.cached_property
    def _start(self) -> list[int]:
        """Ids before a text, by the post-processor; in ``_OWN_BOS`` by add_bos_token, if the files have it."""
        explicit = self._config.get("add_bos_token")
        kind = str(self._config.get("tokenizer_class")).removesuffix("Fast").removesuffix("Tokenizer")
        if explicit is not None and kind in _OWN_BOS:
            return [self.bos] if explicit and self.bos is not None else []
        whole = self._backend.encode("a", add_special_tokens=True)
        first = itertools.takewhile(lambda pair: pair[1], zip(whole.ids, whole.special_tokens_mask, strict=True))
        return [i for i, _ in first]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, without adding any; the texts of special tokens become special tokens."""
        try:
            return self._backend.encode(text, add_special_tokens=False).ids
        except Exception as error:  # a character is not in the vocabulary, which has no unknown token
            raise ValueError(f"tokenizer: {messages.shown(text)} cannot be encoded: {error}") from error

    def prompt(self, text: str) -> list[int]:
        """Return ``encode(text)`` after the ids that start a text; an eos that would end it is left out."""
        return [*self._start, *self.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of ids, without special tokens and ids beyond the vocabulary."""
        kept = [i for i in map(int, ids) if i not in self._special]
        return self._backend.decode(kept, skip_special_tokens=False)

    def pieces(self) -> list[bytes | None]:
        """Return the bytes that each id adds to a text, None for special tokens and ids without a token.

        Raises:
          ValueError: the decoder of tokenizer.json does not decode token by token.
        """
        write = _writer(self._core["decoder"])
        texts = [None if i in self._special else self._backend.id_to_token(i) for i in range(self.vocabulary)]
        return [None if text is None else write(text) for text in texts]

    def special(self) -> dict[int, str]:
        """Return the texts of the special tokens."""
        return {i: self._backend.id_to_token(i) or "" for i in self._special}

    def characters(self) -> np.ndarray:
        """Return the code point of each one-character piece, 0 for others: int32 [V]."""
        return characters.of(self.pieces())

    def chat(self, messages: chat.Messages, add_generation_prompt: bool = True, tools: chat.Tools = None) -> str:
        """Return messages as text by the chat template, which adds bos itself if the model needs it."""
        names = {"additional_special_tokens": self._additional} if self._additional else {}
        date = self._files.get(bundle.DATE, chat.DATE.encode()).decode()
        return chat.render(self._template, messages, add_generation_prompt, names | self._named, date, tools)

    @functools.cached_property
    def _template(self) -> str:
        template: Any = self._config.get("chat_template")
        template = self._parsed["chat_template.json"].get("chat_template", template)
        if "chat_template.jinja" in self._files:
            try:
                template = self._files["chat_template.jinja"].decode()
            except UnicodeDecodeError as error:
                raise ValueError(f"chat template: chat_template.jinja is not a text in UTF-8: {error}") from error
        if isinstance(template, list):  # several, by name
            named = [t for t in template if isinstance(t, dict) and t.get("name") == "default"]
            template = named[-1].get("template") if named else None
        if template is None:
            raise chat.NoTemplate(
                "tokenizer: its files have no chat template; use an instruct model's, or set chat=False"
            )
        if not isinstance(template, str):
            raise ValueError(f"chat template: {messages.shown(template)}, expected a text")
        return template


def load(files: Mapping[str, bytes], shown: str, date: str | None = None) -> HuggingFace:
    """Return the tokenizer of files from ``bundle.gather``.

    Args:
      files: contents by name.
      shown: how messages name the tokenizer.
      date: the date that its chat template prints, YYYY-MM-DD; None: the one in ``files``, else ``chat.DATE``.

    Returns:
      The tokenizer.

    Raises:
      ValueError: a file is invalid; the message names it and the reason.
    """
    tokenizer = HuggingFace(bundle.pack(files if date is None else {**files, bundle.DATE: date.encode()}))
    try:
        if tokenizer.vocabulary > _LARGEST:
            raise ValueError(f"tokenizer.json: an id of {tokenizer.vocabulary - 1}, expected at most {_LARGEST - 1}")
        for number in (*tokenizer.stop, tokenizer.pad, tokenizer.bos or 0):
            if number >= tokenizer.vocabulary:
                size = tokenizer.vocabulary
                raise ValueError(f"its files name the special token {number}, but tokenizer.json has {size} ids")
    except ValueError as error:
        raise ValueError(f"tokenizer: {shown}: {error}") from error
    return tokenizer


def _check_merges(merges: Any, prefix: Any) -> None:
    """Check that the second part of each merge has the prefix: the library removes it unseen, and may abort."""
    if not (prefix and isinstance(prefix, str) and isinstance(merges, list)):
        return  # other types are refused by the library
    for merge in merges:
        parts = merge.split(" ") if isinstance(merge, str) else merge
        second = parts[-1] if isinstance(parts, list) and parts else None
        if not (isinstance(second, str) and second.startswith(prefix)):
            raise ValueError(f"tokenizer.json: merge {messages.shown(merge)} lacks the prefix {messages.shown(prefix)}")


def _content(name: str, token: Any) -> str:
    """Return the text of a special token, which the files have as text or as an object."""
    text = token.get("content") if isinstance(token, dict) else token
    if not isinstance(text, str):
        raise ValueError(f"tokenizer_config.json: {name} is {messages.shown(token)}, expected a text")
    return text


def _added(listed: Any) -> dict[int, dict[str, Any]]:
    """Return added_tokens_decoder by id: the content of each token and what else ``AddedToken`` takes."""
    where = "tokenizer_config.json: added_tokens_decoder"
    if not isinstance(listed or {}, dict):
        raise ValueError(f"{where} is {messages.shown(listed)}, expected an object")
    tokens = {}
    for number, given in (listed or {}).items():
        fields = {k: given[k] for k in ("content", *_FLAGS) if k in given} if isinstance(given, dict) else {}
        content, *flags = fields.pop("content", None), *fields.values()
        if not (number.isdecimal() and isinstance(content, str) and all(type(flag) is bool for flag in flags)):
            shown = f"{number[:20]!r}: {messages.shown(given)}"
            raise ValueError(f"{where} has {shown}, expected an id with content, a text, and flags, true or false")
        tokens[int(number)] = {"content": content, **fields}
    return tokens


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the steps of a decoder, with sequences flattened."""
    if decoder is not None and decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    elif decoder is not None:
        yield {"type": "unknown", **decoder}


def _writer(decoder: dict[str, Any] | None) -> Callable[[str], bytes]:
    """Return the function from a token's entry in the vocabulary to the bytes it adds to a text."""
    steps = list(_steps(decoder))
    kinds = {str(step["type"]) for step in steps}
    # Strip removes the space at the start of a text, which does not matter after a prompt
    unsupported = kinds - {"ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}
    if unsupported or not kinds & {"ByteLevel", "Metaspace", "Replace"}:
        raise ValueError(
            f"tokenizer: decoder {', '.join(sorted(unsupported)) or 'absent'} does not decode token by token; stop"
            " strings and device tasks need ByteLevel, Metaspace or Replace"
        )
    if "ByteLevel" in kinds:
        byte = _byte_of_character()
        return lambda text: bytes(byte[c] for c in text) if all(c in byte for c in text) else text.encode()
    swaps = [_swap(step) for step in steps if step["type"] in ("Metaspace", "Replace")]
    fallback = "ByteFallback" in kinds

    def write(text: str) -> bytes:
        if fallback and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
            return bytes([int(text[3:5], 16)])
        for old, new in swaps:
            text = text.replace(old, new)
        return text.encode()

    return write


def _swap(step: dict[str, Any]) -> tuple[str, str]:
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if "String" not in step["pattern"]:
        raise ValueError(f"tokenizer: decoder Replace has the pattern {step['pattern']}: expected a String")
    return step["pattern"]["String"], step["content"]


def _byte_of_character() -> dict[str, int]:
    """Return the byte of each character of byte-level vocabularies: itself if printable, else one from 256 on.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}
