"""Groups of stored rows: pairs, rows with rewards and demonstrations of files, for training.

All are read, checked and written as tokens at once; ``Groups.size`` bytes of the host's memory hold them.
"""

import dataclasses
import functools
import hashlib
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from rljax.data import rows, tokenizers
from rljax.data.rows import exchanges
from rljax.language import messages

Kind = Literal["pairs", "rows", "demonstrations"]
Overlong = Literal["error", "drop"]
_NAMED = "parts", "said"  # fields of ``Groups`` that are arrays by name
_BLANK = 1 << 16  # groups; statistics of each prompt are kept of at most so many


class LengthWarning(UserWarning):
    """Rows are left out because they are too long."""


class RemainderWarning(UserWarning):
    """Rows are left out because their prompt has too few to fill a group."""


@dataclasses.dataclass(eq=False)
class Groups:
    """N groups of G rows; the rows of a group have one prompt."""

    file: str
    prompt: np.ndarray  # [N, L] int32, left-padded
    prompt_length: np.ndarray  # [N] int32
    token: np.ndarray  # [N, G, T] int32, right-padded
    length: np.ndarray  # [N, G] int32
    stopped: np.ndarray  # [N, G] bool, whether the last token is a stop token
    reward: np.ndarray  # [N, G] float32
    parts: dict[str, np.ndarray]  # [N, G] float32 each
    behaviour_logp: np.ndarray | None  # [N, G, T] float32, nats; None: not in the file
    version: np.ndarray | None = None  # [N, G] int32, updates of the policy that wrote a row; None: of files as a whole
    reader: "Reader | None" = None  # of rows that arrive during the run, and are not here
    late: int = 0  # groups that were left out before these, as their version was too old
    computed: bool = False  # whether a run has computed these log-probs, which are not in the file
    heldout: "Groups | None" = None  # groups of other prompts, which are not trained on
    said: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # [N, G, T], ``exchanges.LISTS`` of worlds

    def __len__(self) -> int:
        """Return N."""
        return len(self.prompt)

    @property
    def shape(self) -> tuple[int, ...]:
        """N, G and T."""
        return self.token.shape

    @property
    def size(self) -> int:
        """Bytes in memory."""
        arrays = (self.prompt, self.prompt_length, self.token, self.length, self.stopped, self.reward)
        logp = 0 if self.behaviour_logp is None else self.behaviour_logp.nbytes
        heldout = 0 if self.heldout is None else self.heldout.size
        return sum(x.nbytes for x in (*arrays, *self.parts.values(), *self.said.values())) + logp + heldout

    def describe(self) -> str:
        """Return one line for the user."""
        if self.version is not None:
            return f"{self.file}: read as they arrive"
        count, each = self.length.shape
        absent = self.computed or self.behaviour_logp is None
        rest = ", without behaviour log-probs" if absent else ""
        rows_of = f"{count * each:,} rows in {count:,} groups of {each}"
        held = "" if self.heldout is None else f", {len(self.heldout):,} further groups held out"
        return f"{self.file}: {rows_of}{held}{rest}; {messages.size(self.size)} on the host"

    def split(self, share: float) -> "Groups":
        """Return the groups without a share of the prompts, rounded down, whose groups become ``heldout``.

        The prompts are drawn with a fixed seed, so that every run on the file holds out the same.

        Raises:
          ValueError: no group is left.
        """
        prompts, of = np.unique(self.prompt, axis=0, return_inverse=True)
        chosen = np.random.default_rng(0).permutation(len(prompts))[: int(share * len(prompts))]
        if len(chosen) == len(prompts):
            raise ValueError(f"{self.file}: heldout={share} leaves none of its {len(prompts):,} prompts")
        held = np.isin(of.reshape(-1), chosen)
        return dataclasses.replace(self.at(~held), heldout=self.at(held)) if held.any() else self

    def at(self, chosen: np.ndarray) -> "Groups":
        """Return the groups with these numbers, or where a mask is True."""
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        taken = {name: x[chosen] for name, x in fields.items() if isinstance(x, np.ndarray)}
        named = {of: {name: x[chosen] for name, x in fields[of].items()} for of in _NAMED}
        return dataclasses.replace(self, **named, **taken)


@dataclasses.dataclass(frozen=True)
class _Row:
    prompt: tuple[int, ...]
    token: list[int]
    reward: float
    parts: tuple[float, ...]
    logp: list[float] | None
    version: int = 0
    said: Mapping[str, list[float]] = dataclasses.field(default_factory=dict)
    finish: str = ""


@dataclasses.dataclass(frozen=True)
class Reader:
    """How the rows of a file become groups."""

    kind: Kind
    tokenizer: tokenizers.Tokenizer
    prompt_length: int  # L
    completion_length: int  # T
    samples: int = 1  # G, of kind "rows"; pairs have 2, demonstrations 1
    overlong: Overlong = "error"
    parts: tuple[str, ...] = ()
    megabytes: int = 4096
    newest: int | None = None  # the largest version that a row may have; None: rows have no version
    turns: bool = False  # whether rows of kind "rows" are conversations with a world

    @property
    def each(self) -> int:
        """Rows of a group."""
        return {"pairs": 2, "demonstrations": 1, "rows": self.samples}[self.kind]

    def read(self, file: str) -> Groups:
        """Return the groups of a file, in its order.

        Raises:
          FileNotFoundError: there is no such file.
          ValueError: a row has another shape, or there are too many or too few; names the file and the line.
        """
        source = rows.read(file)
        self._check_memory(file, source)
        kept, long, seen = [], [], {}
        for index, row in enumerate(source):
            if self._lists and row.get("valid") is False:  # its world failed
                continue
            try:
                _check_id(row, index, seen, source)
                group = self._pair(row) if self.kind == "pairs" else [self._row(row)]
            except ValueError as error:
                raise ValueError(f"{source.where(index)}: {error}") from None
            few = all(len(r.prompt) <= self.prompt_length and len(r.token) <= self.completion_length for r in group)
            (kept if few else long).append((index, group))
        if long:
            self._warn_overlong(source, [index for index, _ in long], len(kept))
        _check_logp(source, kept)
        return self._stacked(file, self._grouped(file, [group for _, group in kept]))

    def blank(self, file: str) -> Groups:
        """Return empty rows with the shapes of a file's rows, without reading it.

        They are more groups than any step draws, and views of one number, which take no memory.
        """

        def zeros(*shape: int, dtype: Any = np.int32) -> np.ndarray:
            return np.broadcast_to(np.zeros((), dtype), (_BLANK, *shape))

        return Groups(
            file=file,
            prompt=zeros(self.prompt_length),
            prompt_length=zeros(),
            token=zeros(self.each, self.completion_length),
            length=zeros(self.each),
            stopped=zeros(self.each, dtype=bool),
            reward=zeros(self.each, dtype=np.float32),
            parts={name: zeros(self.each, dtype=np.float32) for name in self.parts},
            behaviour_logp=None if self.newest is None else zeros(self.each, self.completion_length, dtype=np.float32),
            version=None if self.newest is None else zeros(self.each),
            reader=None if self.newest is None else self,
            said={name: zeros(self.each, self.completion_length, dtype=kind) for name, kind in self._lists.items()},
        )

    @property
    def _lists(self) -> dict[str, type]:
        """Types of the lists that a row has beside its ids."""
        kinds = {name: np.int32 if name == "turn" else np.float32 for name in exchanges.LISTS}
        return kinds if self.turns and self.kind == "rows" else {}

    def _check_memory(self, file: str, source: rows.Rows) -> None:
        """Refuse a file whose rows would take too much memory, before they become tokens."""
        lists = 1 + bool(source.columns().get("behaviour_logp")) + len(self._lists)
        row = 4 * (self.completion_length * lists + 4 + len(self.parts))
        bytes_of = len(source) * (row * (2 if self.kind == "pairs" else 1) + 4 * self.prompt_length)
        most = self.megabytes * 10**6
        if bytes_of > most:
            raise ValueError(
                f"{file}: its {len(source):,} rows take {messages.size(bytes_of)} on the host, more than "
                f"megabytes={self.megabytes}, which is {messages.size(most)}"
            )

    def _warn_overlong(self, source: rows.Rows, long: Sequence[int], kept: int) -> None:
        limits = f"{self.prompt_length} tokens of a prompt or {self.completion_length} of a completion"
        text = f"{len(long):,} of {len(source):,} rows are longer than {limits}, the first {source.where(long[0])}"
        if self.overlong == "error" or not kept:
            raise ValueError(f"{text}; set a task with larger lengths" + ("" if not kept else ", or overlong='drop'"))
        warnings.warn(f"{text}; they are left out", LengthWarning, stacklevel=3)

    def _row(self, row: Mapping[str, Any]) -> _Row:
        reward = 1.0 if self.kind == "demonstrations" else number(row, "reward")
        ids = row.get("token")
        if ids is None and self._lists:
            raise ValueError("no value in column 'token', expected the ids of a conversation with the world")
        if ids is None:
            prompt, token = self._encoded(exchanges.demonstration(row))
        else:
            before, _ = exchanges.demonstration({"prompt": row.get("prompt"), "completion": "-"})
            prompt, token = self._known(row, encoded(self.tokenizer, (before, "-"))[0]), self._ids(ids)
            text, shown = row.get("completion"), self.tokenizer.decode(token)
            if isinstance(text, str) and text != shown:
                raise ValueError(
                    f"'token' is {messages.shown(shown)} here and 'completion' {messages.shown(text)}: the ids are of "
                    "another tokenizer"
                )
        logp = row.get("behaviour_logp")
        if logp is not None:
            logp = [_finite(x, "an element of 'behaviour_logp'") for x in _list(logp, "behaviour_logp")]
            if len(logp) != len(token):
                raise ValueError(f"'behaviour_logp' has {len(logp)} numbers for the {len(token)} tokens of the row")
            if max(logp) > 0:
                raise ValueError(f"'behaviour_logp' has {max(logp)}, expected log-probs of at most 0")
        parts = tuple(number(row, name) for name in self.parts)
        said = exchanges.conversation(row, len(token)) if self._lists else {}
        return _Row(tuple(prompt), token, reward, parts, logp, self._version(row, logp), said, row.get("finish", ""))

    @functools.cached_property
    def _fingerprint(self) -> str:
        return fingerprint(self.tokenizer)

    def _version(self, row: Mapping[str, Any], logp: Any) -> int:
        """Return the version of a row; ValueError if the policy of this run cannot have written it."""
        if self.newest is None:
            return 0
        version = row.get("version")
        if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= self.newest:
            raise ValueError(
                f"'version' is {messages.shown(version)}, expected the updates of the policy that wrote the row, at "
                f"most the {self.newest} of this run"
            )
        if logp is None:
            raise ValueError("no value in column 'behaviour_logp', expected a log-prob of each token")
        if "tokenizer" in row and row["tokenizer"] != self._fingerprint:
            given = messages.shown(row["tokenizer"])
            raise ValueError(f"'tokenizer' is {given}, and that of this run is {self._fingerprint!r}")
        return version

    def _pair(self, row: Mapping[str, Any]) -> list[_Row]:
        both = exchanges.pair(row)
        if both[0] == both[1]:
            raise ValueError("'chosen' and 'rejected' are equal")
        parts = tuple(number(row, name) for name in self.parts)
        encoded = [self._encoded(exchange) for exchange in both]
        return [_Row(tuple(p), t, reward, parts, None) for (p, t), reward in zip(encoded, (1.0, 0.0), strict=True)]

    def _encoded(self, exchange: exchanges.Exchange) -> tuple[list[int], list[int]]:
        prompt, token = encoded(self.tokenizer, exchange)
        return self._known(exchange, prompt), self._known(exchange, token)

    def _known(self, shown: Any, ids: list[int]) -> list[int]:
        """Return ids; ValueError if one stands for characters that the tokenizer does not know."""
        if self.tokenizer.unk is not None and self.tokenizer.unk in ids:
            raise ValueError(f"{messages.shown(shown)} has a character that the tokenizer does not know")
        return ids

    def _ids(self, ids: Any) -> list[int]:
        size = self.tokenizer.vocabulary
        for i in (listed := _list(ids, "token")):
            if isinstance(i, bool) or not isinstance(i, int) or not 0 <= i < size:
                raise ValueError(f"'token' has {messages.shown(i)}, expected ids from 0 to {size - 1}")
        return listed

    def _grouped(self, file: str, kept: list[list[_Row]]) -> list[list[_Row]]:
        """Gather the rows of each prompt into groups; what does not fill one is left out."""
        if self.kind != "rows" or not kept:
            return kept
        by_prompt: dict[tuple[int, ...], list[_Row]] = {}
        for (row,) in kept:
            by_prompt.setdefault(row.prompt, []).append(row)
        each, groups = self.each, []
        for same in by_prompt.values():
            groups += [same[i : i + each] for i in range(0, len(same) - each + 1, each)]
        left = len(kept) - len(groups) * each
        if not groups:
            raise ValueError(
                f"{file}: no prompt has batch.samples={each} rows; the most is {max(map(len, by_prompt.values()))}"
            )
        if left:
            text = f"{file}: {left:,} of {len(kept):,} rows do not fill a group of batch.samples={each} with one prompt"
            warnings.warn(f"{text}; they are left out", RemainderWarning, stacklevel=3)
        return groups

    def _stacked(self, file: str, groups: list[list[_Row]]) -> Groups:
        count, each, pad = len(groups), self.each, self.tokenizer.pad
        flat = [row for group in groups for row in group]
        prompt, seen = tokenizers.padded([g[0].prompt for g in groups], self.prompt_length, pad, left=True)
        token, mask = tokenizers.padded([row.token for row in flat], self.completion_length, pad)

        def lists(kind: type, of: Callable[[_Row], Any]) -> np.ndarray:
            out = np.zeros(token.shape, kind)
            for place, row in zip(out, flat, strict=True):
                place[: len(row.token)] = of(row)
            return out.reshape(count, each, -1)

        logp = None if flat[0].logp is None else lists(np.float32, lambda row: row.logp)
        ended = [row.finish == "stop" if self._lists else row.token[-1] in self.tokenizer.stop for row in flat]
        return Groups(
            file=file,
            prompt=prompt,
            prompt_length=seen.sum(axis=1).astype(np.int32),
            token=token.reshape(count, each, -1),
            length=mask.sum(axis=1).astype(np.int32).reshape(count, each),
            stopped=np.array(ended).reshape(count, each),
            reward=np.array([row.reward for row in flat], np.float32).reshape(count, each),
            parts={
                name: np.array([row.parts[i] for row in flat], np.float32).reshape(count, each)
                for i, name in enumerate(self.parts)
            },
            behaviour_logp=logp,
            version=None
            if self.newest is None
            else np.array([row.version for row in flat], np.int32).reshape(count, each),
            said={name: lists(kind, lambda row, name=name: row.said[name]) for name, kind in self._lists.items()},
        )


def encoded(tokenizer: tokenizers.Tokenizer, exchange: exchanges.Exchange) -> tuple[list[int], list[int]]:
    """Return the ids of a prompt and of its completion, which ends with a stop token."""
    prompt, completion = exchange
    if not isinstance(prompt, str):
        return tokenizers.exchange(tokenizer, prompt, completion)
    return tokenizer.prompt(prompt), [*tokenizers.continuation(tokenizer, prompt, completion), tokenizer.eos]


def joined(groups: Sequence[Groups], late: int = 0) -> Groups:
    """Return all groups of several files, in their order."""
    fields = {f.name: [getattr(g, f.name) for g in groups] for f in dataclasses.fields(Groups)}
    whole = {name: np.concatenate(x) for name, x in fields.items() if isinstance(x[0], np.ndarray)}
    named = {
        of: {n: np.concatenate([getattr(g, of)[n] for g in groups]) for n in getattr(groups[0], of)} for of in _NAMED
    }
    return dataclasses.replace(groups[0], **whole, **named, late=late)


def fingerprint(tokenizer: tokenizers.Tokenizer) -> str:
    """Return the SHA-256 of a tokenizer as a run writes it, the file tokenizer.model."""
    return hashlib.sha256(tokenizer.serialized).hexdigest()


def number(row: Mapping[str, Any], name: str) -> float:
    """Return a number of a row; ValueError if it is absent, something else or not finite."""
    if row.get(name) is None:
        raise ValueError(f"no value in column {name!r}, expected a number")
    return _finite(row[name], repr(name))


def _finite(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{what} is {messages.shown(value)}, expected a finite number")
    return float(value)


def _list(value: Any, name: str) -> list[Any]:
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__") or not len(value):
        raise ValueError(f"{name!r} is {messages.shown(value)}, expected a list with an element for each token")
    return list(value)


def _check_id(row: Mapping[str, Any], index: int, seen: dict[Any, int], source: rows.Rows) -> None:
    """Refuse an "id" that an earlier row has."""
    name = row.get("id")
    if name is None:
        return
    if not isinstance(name, str | int):
        raise ValueError(f"'id' is {messages.shown(name)}, expected a text or an integer")
    if name in seen:
        raise ValueError(f"'id' {name!r} is the id of {source.where(seen[name])} too")
    seen[name] = index


def _check_logp(source: rows.Rows, kept: Sequence[tuple[int, list[_Row]]]) -> None:
    """Refuse a file in which some rows have behaviour log-probs and others do not."""
    without = [index for index, group in kept if group[0].logp is None]
    if without and len(without) < len(kept):
        raise ValueError(f"{source.where(without[0])}: no value in column 'behaviour_logp', which other rows have")
