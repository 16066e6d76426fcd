"""``tokenizer.json`` through the ``tokenizers`` library, with what the files beside it say of special tokens."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tokenizers

from rljax.data import bundle, characters, chat

_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclasses.dataclass(frozen=True)
class HuggingFace:
    """The tokenizer of a public checkpoint; make one with ``load``."""

    serialized: bytes = dataclasses.field(repr=False)  # of bundle.pack

    def __getstate__(self) -> dict[str, bytes]:
        """Pickle the files alone; the rest is rebuilt where it lands."""
        return {"serialized": self.serialized}

    @functools.cached_property
    def _files(self) -> dict[str, bytes]:
        return bundle.unpack(self.serialized, "this tokenizer")

    @functools.cached_property
    def _parsed(self) -> dict[str, dict[str, Any]]:
        return {n: bundle.json_of(self._files, n, "this tokenizer") for n in bundle.NAMES[1:] if n.endswith(".json")}

    @functools.cached_property
    def _core(self) -> dict[str, Any]:
        """What tokenizer.json says beside its vocabulary and merges, which are large."""
        found = bundle.json_of(self._files, "tokenizer.json", "this tokenizer")
        model = {k: v for k, v in found["model"].items() if k not in ("vocab", "merges")}
        return {"model": model, "decoder": found.get("decoder")}

    def _json(self, name: str) -> dict[str, Any]:
        return self._parsed[name]

    @functools.cached_property
    def _named(self) -> dict[str, str]:
        """Texts of the special tokens that have a name, {"bos_token": "<s>", ...}."""
        found = self._json("special_tokens_map.json") | self._json("tokenizer_config.json")
        texts = {name: _content(found.get(name)) for name in _NAMED}
        return {name: text for name, text in texts.items() if text is not None}

    @functools.cached_property
    def _backend(self) -> tokenizers.Tokenizer:
        try:
            made = tokenizers.Tokenizer.from_buffer(self._files["tokenizer.json"])
        except Exception as error:  # the library raises nothing narrower
            raise ValueError(f"tokenizer.json: {error}") from error
        made.no_truncation()
        made.no_padding()
        listed = self._json("tokenizer_config.json").get("added_tokens_decoder") or {}
        for number in sorted(listed, key=int):
            fields = {k: v for k, v in listed[number].items() if k != "__type"}
            made.add_tokens([tokenizers.AddedToken(**fields)])  # nothing happens if it is there
            if made.token_to_id(fields["content"]) != int(number):
                raise ValueError(
                    f"tokenizer_config.json: added_tokens_decoder has {fields['content']!r} as {number}, tokenizer.json"
                    f" as {made.token_to_id(fields['content'])}"
                )
        made.add_special_tokens([text for text in self._named.values() if made.token_to_id(text) is not None])
        return made

    def _id(self, name: str) -> int | None:
        text = self._named.get(name)
        found = None if text is None else self._backend.token_to_id(text)
        if text is not None and found is None:
            raise ValueError(f"tokenizer_config.json: {name} is {text!r}, which tokenizer.json has no id for")
        return found

    def _numbers(self, name: str) -> tuple[int, ...]:
        """Return the ids a model's config files give for "eos_token_id" and the like, generation_config.json first."""
        for file in ("generation_config.json", "config.json"):
            value = self._json(file).get(name)
            if value is not None:
                return tuple(i for i in (value if isinstance(value, list) else [value]) if i >= 0)
        return ()

    @functools.cached_property
    def _special(self) -> frozenset[int]:
        named = [self._backend.token_to_id(text) for text in self._named.values()]
        found = [i for i, token in self._backend.get_added_tokens_decoder().items() if token.special]
        return frozenset(i for i in (*found, *named, *self.stop, self.pad, self.bos) if i is not None)

    @property
    def vocabulary(self) -> int:
        """One more than the largest id, V."""
        return self._size

    @functools.cached_property
    def _size(self) -> int:
        return max(self._backend.get_vocab(with_added_tokens=True).values()) + 1

    @property
    def pad(self) -> int:
        """Id of padding; that of end-of-sequence where the files name none."""
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
        found = (*(() if named is None else (named,)), *self._numbers("eos_token_id"))
        if not found:
            raise ValueError(
                "no end-of-sequence: give eos_token in tokenizer_config.json or eos_token_id in generation_config.json"
            )
        return found[0]

    @property
    def unk(self) -> int | None:
        """Id of what ``encode`` cannot write; None where bytes stand in for it."""
        model = self._core["model"]
        if model.get("byte_fallback"):
            return None
        if model.get("unk_id") is not None:  # a unigram model
            return model["unk_id"]
        return None if model.get("unk_token") is None else self._backend.token_to_id(model["unk_token"])

    @property
    def stop(self) -> tuple[int, ...]:
        """Ids that end a completion: eos and those of generation_config.json, else of config.json."""
        return tuple(dict.fromkeys((self.eos, *self._numbers("eos_token_id"))))

    @functools.cached_property
    def _start(self) -> list[int]:
        """Ids before a text: of add_bos_token where tokenizer_config.json says, else of the post-processor."""
        explicit = self._json("tokenizer_config.json").get("add_bos_token")
        if explicit is not None:
            return [self.bos] if explicit and self.bos is not None else []
        whole = self._backend.encode("a", add_special_tokens=True)
        text = whole.special_tokens_mask.index(0)
        return whole.ids[:text]

    def encode(self, text: str) -> list[int]:
        """Split text into ids and add none; special tokens written in the text are read as such."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def prompt(self, text: str) -> list[int]:
        """Encode text behind what the files put first; what they put last (an eos) is left out."""
        return [*self._start, *self.encode(text)]

    def decode(self, ids: Iterable[int]) -> str:
        """Join ids to text, leaving out special tokens and ids beyond the vocabulary."""
        kept = [i for i in map(int, ids) if i not in self._special]
        return self._backend.decode(kept, skip_special_tokens=False)

    def pieces(self) -> list[bytes | None]:
        """List the bytes each id adds to a text, None for special tokens and ids without a token.

        Raises:
          ValueError: the decoder of tokenizer.json does not write token by token.
        """
        write = _writer(self._core["decoder"])
        texts = [None if i in self._special else self._backend.id_to_token(i) for i in range(self.vocabulary)]
        return [None if text is None else write(text) for text in texts]

    def characters(self) -> np.ndarray:
        """Map ids to characters: int32 [V], the code point of a one-character piece, 0 for any other."""
        return characters.of(self.pieces())

    def chat(self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool = True) -> str:
        """Write messages by the files' template, which starts with bos itself where the model wants it."""
        return chat.render(self._template, messages, add_generation_prompt, self._named)

    @functools.cached_property
    def _template(self) -> str:
        found: Any = self._json("tokenizer_config.json").get("chat_template")
        found = self._json("chat_template.json").get("chat_template", found)
        if "chat_template.jinja" in self._files:
            found = self._files["chat_template.jinja"].decode()
        if isinstance(found, list):  # several, by name
            found = {t["name"]: t["template"] for t in found}.get("default")
        if found is None:
            raise ValueError("tokenizer: its files hold no chat template; take an instruct model's, or chat=False")
        return found


def load(files: Mapping[str, bytes], shown: str) -> HuggingFace:
    """Make a tokenizer of the files of ``bundle.gather``; ValueError says which of them does not fit and why."""
    made = HuggingFace(bundle.pack(files))
    for name in files:
        if name.endswith(".json") and name != "tokenizer.json":  # the library reads that one
            bundle.json_of(files, name, shown)
    try:
        for number in (*made.stop, made.pad, made.bos or 0):
            if number >= made.vocabulary:
                raise ValueError(f"its files name the special token {number}, tokenizer.json ends at {made.vocabulary}")
    except ValueError as error:
        raise ValueError(f"tokenizer: {shown}: {error}") from error
    return made


def _content(token: Any) -> str | None:
    return token["content"] if isinstance(token, dict) else token


def _steps(decoder: dict[str, Any] | None) -> Iterator[dict[str, Any]]:
    """Yield the steps of a decoder, those of sequences one by one."""
    if decoder is not None and decoder["type"] == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    elif decoder is not None:
        yield decoder


def _writer(decoder: dict[str, Any] | None):
    """Return the function from a token's text in the vocabulary to the bytes it adds to a text."""
    steps = list(_steps(decoder))
    kinds = {step["type"] for step in steps}
    # Strip takes the space off the start of a text: no matter to what follows a prompt
    odd = kinds - {"ByteLevel", "ByteFallback", "Metaspace", "Replace", "Fuse", "Strip"}
    if odd or not kinds & {"ByteLevel", "Metaspace", "Replace"}:
        raise ValueError(
            f"tokenizer: decoder {', '.join(sorted(odd)) or 'absent'} does not write token by token; stop strings and"
            " in-graph tasks need ByteLevel, or Metaspace or Replace"
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
        raise ValueError(f"tokenizer: decoder Replace with the pattern {step['pattern']}: expected a String")
    return step["pattern"]["String"], step["content"]


def _byte_of_character() -> dict[str, int]:
    """Return the characters byte-level vocabularies write bytes with: itself if it shows, else one from 256 on.

    Radford et al., "Language Models are Unsupervised Multitask Learners" (2019), section 2.2.
    """
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    hidden = [b for b in range(256) if b not in set(shown)]
    return {chr(b): b for b in shown} | {chr(256 + n): b for n, b in enumerate(hidden)}
