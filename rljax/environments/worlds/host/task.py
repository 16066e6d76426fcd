"""The task of a host world: its problems, and its texts as tokens."""

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rljax import types
from rljax.data import conversations, rows, tokenizers
from rljax.environments import Split, worlds
from rljax.environments.questions import splits
from rljax.environments.worlds.host import Message, instances, limited, options, records
from rljax.language import dotted, messages, parse, settings

_ROUNDED = 16  # tokens to a multiple of which the longest prompt is rounded up
_LOOKED_AT = 64  # problems of a split that are opened to make a corpus and to measure prompts


@dataclasses.dataclass(frozen=True, eq=False)
class HostWorld:
    """A task of several turns that a Python class on text answers; ``host_world`` makes it.

    ``Episodes(task.make, ...)`` plays it; attributes, prompts and demonstrations are read through ``calls``.
    """

    name: str
    make: instances.Make
    calls: limited.Calls = dataclasses.field(repr=False)  # shared by copies
    problems: Mapping[str, Sequence[Any]] = dataclasses.field(repr=False)  # examples by split
    lengths: options.Lengths
    template: bool | None  # write by the chat template: True, False, None (if the tokenizer has one)
    stored: str = ""  # the column with conversations to imitate
    writer: conversations.Writer | None = dataclasses.field(default=None, repr=False)
    host: bool = True
    rows: worlds.Rows = "conversation"
    anew: bool = False
    extra: tuple[str, ...] = ()

    @functools.cached_property
    def _described(self) -> Mapping[str, Any]:
        """Attributes of an instance; ValueError if it cannot be constructed."""
        return self._call("describe", "cannot be constructed")

    tools = property(lambda self: tuple(self._described["tools"]), doc="JSON schemas of the world's tools.")
    role = property(lambda self: self._described["role"], doc="Role of messages that are given as a text.")
    parts = property(lambda self: tuple(self._described["parts"]), doc="Names of numbers that answers have too.")
    seats = property(lambda self: self._described["seats"], doc="Number of seats, each a row of an episode.")
    turn_end = property(lambda self: tuple(self._described["turn_end"]), doc="Texts that end a turn too.")
    cut = property(lambda self: self._described["cut"], doc="Whether long answers are cut, and not invalid.")
    longest = property(lambda self: self._described["seconds"], doc="Seconds of a turn, below the time limit; 0: any.")
    stop = property(lambda self: tuple(self._bound.tokenizer.stop), doc="Token ids that end a turn.")
    max_turns = property(lambda self: self.lengths.turns, doc="The most turns of an episode.")
    turn_length = property(lambda self: self.lengths.turn_length, doc="The most tokens of a turn, its end included.")
    reply_length = property(lambda self: self.lengths.reply_length, doc="The most tokens between two turns.")
    prompt_length = property(lambda self: self.lengths.prompt_length, doc="L, tokens; 0: not yet bound.")

    @property
    def completion_length(self) -> int:
        """T, tokens of a row: turns and replies."""
        needed = self.max_turns * self.turn_length + (self.max_turns - 1) * self.reply_length
        return self.lengths.completion_length or needed

    def corpus(self) -> Iterator[str]:
        """Yield what the world and its demonstrations say about the first problems, and ``corpus`` of the class."""
        yield from self._call("corpus", "has no corpus") if self._described["corpus"] else ()
        for index in range(min(_LOOKED_AT, self.size("train"))):
            opening, turns = self._shown(index, "train")
            yield from (message["content"] for begun in opening.seats for message in begun.messages)
            for text, observation in turns:
                yield from (text, *(message["content"] for message in observation))

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "HostWorld":
        """Return a copy that writes in the tokens of a tokenizer.

        Raises:
          ValueError: a prompt of the first problems is too long, a reply has no room beside the tokens of the chat
            template, or the template does not write conversations turn by turn.
        """
        writer = conversations.writer(tokenizer, self.template, self.tools)
        size = min(_LOOKED_AT, self.size("train"))
        openings = [self._opening(index, "train") for index in range(size)]
        if self.lengths.exact:
            writer.check(openings[0].messages, (self.role,))
        frame = len(writer.between([{"role": self.role, "content": ""}], stopped=False))
        if frame >= self.reply_length:
            raise ValueError(
                f"reply_length={self.reply_length}: the chat template alone writes {frame} tokens between turns; set at"
                f" least {frame + 1}"
            )
        longest = max(len(writer.prompt(begun.messages)) for opening in openings for begun in opening.seats)
        if self.prompt_length and longest > self.prompt_length:
            raise ValueError(f"prompt_length={self.prompt_length}: a prompt of {self.name!r} has {longest} tokens")
        length = self.prompt_length or math.ceil(longest / _ROUNDED) * _ROUNDED
        return dataclasses.replace(self, writer=writer, lengths=dataclasses.replace(self.lengths, prompt_length=length))

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return len(self.problems[split])

    def example(self, index: int, split: Split) -> Any:
        """Return what ``reset`` gets for problem ``index``."""
        return self.problems[split][int(index) % self.size(split)]

    def opening(self, begun: records.Begun) -> list[int] | None:
        """Return the ids of a seat's prompt; None if the episode did not begin or has more than ``prompt_length``."""
        ids = self._bound.prompt(begun.messages) if begun.valid else []
        return ids if 0 < len(ids) <= self.prompt_length else None

    def reply(self, observation: records.Answer, stopped: bool = True) -> list[int] | None:
        """Return the ids between a turn and the next one.

        Args:
          observation: what follows the turn for a seat; the episode is not over.
          stopped: whether the turn ends with a stop token of the tokenizer.

        Returns:
          At most ``reply_length`` ids; None if there are more, which makes the episode invalid. With ``cut`` the text
          of the longest message is cut instead.
        """
        said = [dict(message) for message in observation.messages]
        ids = self._bound.between(said, stopped)
        while self.cut and (over := len(ids) - self.reply_length) > 0:
            longest = max(said, key=lambda message: len(message["content"]), default={"content": ""})
            if not longest["content"]:
                return None
            content = self._bound.tokenizer.encode(longest["content"])
            kept = self._bound.tokenizer.decode(content[: max(len(content) - over, 0)])
            shorter = len(kept) < len(longest["content"]) and longest["content"].startswith(kept)
            longest["content"] = kept if shorter else longest["content"][: len(longest["content"]) // 2]
            ids = self._bound.between(said, stopped)
        return ids if len(ids) <= self.reply_length else None

    def prompts(self, index: Any, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` of seat 0 as NumPy arrays; ``text`` says which."""
        index = np.asarray(index, np.int32)
        ids = [self._bound.prompt(self._opening(i, split).messages) for i in index.tolist()]
        for i, row in zip(index.tolist(), ids, strict=True):
            if len(row) > self.prompt_length:
                raise ValueError(
                    f"prompt_length={self.prompt_length}: {split} prompt {i} of {self.name!r} has {len(row)}"
                )
        record: Any = types.Prompts  # its fields are annotated as jax arrays
        token, mask = tokenizers.padded(ids, self.prompt_length, self._bound.tokenizer.pad, left=True)
        return record(token=token, mask=mask, index=index)

    def demonstrations(self, index: Any, split: Split, key: Any = None) -> tuple[np.ndarray, np.ndarray]:
        """Return conversations with the expert of the class, or those stored in the rows.

        Args:
          index: ``[P]`` int32.
          split: of the problems.
          key: not used: each problem has one demonstration.

        Returns:
          token ``[P, T]`` int32, right-padded, and mask ``[P, T]`` float32, 1 on the tokens of turns.

        Raises:
          ValueError: the class has no ``expert`` and the rows no conversation, one is longer than T, or the class has
            several seats.
        """
        if self.seats > 1:
            raise ValueError(f"task {self.name!r} has no demonstrations: its class has {self.seats} seats")
        ids, masks = [], []
        for i in np.asarray(index).tolist():
            row: list[int] = []
            mask: list[int] = []
            _, turns = self._shown(i, split)
            if not turns:
                raise ValueError(f"task {self.name!r} has no demonstrations: its class has no method expert()")
            for number, (text, observation) in enumerate(turns):
                turn = self._bound.turn(text)
                reply = self._bound.between(observation) if number + 1 < len(turns) else []
                row, mask = [*row, *turn, *reply], [*mask, *[1] * len(turn), *[0] * len(reply)]
            if len(row) > self.completion_length:
                raise ValueError(
                    f"completion_length={self.completion_length}: the demonstration of {split} problem {i} of"
                    f" {self.name!r} has {len(row)} tokens"
                )
            ids.append(row)
            masks.append(mask)
        token, _ = tokenizers.padded(ids, self.completion_length, self._bound.tokenizer.pad)
        return token, tokenizers.padded(masks, self.completion_length, 0)[0].astype(np.float32)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text: the contents of its messages."""
        return "\n".join(message["content"] for message in self._opening(index, split).messages)

    @property
    def _bound(self) -> conversations.Writer:
        if self.writer is None:
            raise ValueError(f"tokenizer: world {self.name!r} has none; call world.bind(tokenizer) first")
        return self.writer

    def _call(self, method: str, where: str, *arguments: Any) -> Any:
        """Return what a method of ``instances.Instances`` returns; ValueError if it fails."""
        try:
            return self.calls(method, *arguments)
        except ValueError as error:
            raise ValueError(f"world {self.name!r} {where}: {error}") from None

    def _opening(self, index: int, split: Split) -> records.Begun:
        opening = self._begin(index, split)
        self.calls("end", 0)
        return opening

    def _begin(self, index: int, split: Split) -> records.Begun:
        where = f"({split} problem {index}) does not begin"
        return self._call("begin", where, 0, self.example(index, split), (0, 0))

    def _shown(self, index: int, split: Split) -> tuple[records.Begun, list[tuple[str, Sequence[Message]]]]:
        """Return the opening of a problem, and the turns of its demonstration with what the seats read after each."""
        example = self.example(index, split)
        if self.stored and isinstance(example, Mapping) and example.get(self.stored):
            return _stored(example[self.stored], f"{split} problem {index}")
        opening, turns = self._begin(index, split), []
        where = f"({split} problem {index}) has no demonstration"
        while self._described["expert"] and len(turns) < self.max_turns:
            text = self._call("expert", where, 0)
            observation: records.Answer = self._call("step", where, 0, len(turns), text)
            turns.append((text, [message for answer in observation.seats for message in answer.messages]))
            if observation.over:
                break
        self.calls("end", 0)
        return opening, turns


@settings.flat
def host_world(make: Callable[..., Any], own: options.Own = options.OWN, name: str = "") -> HostWorld:
    """Return the task of a class on text.

    Args:
      make: the class.
      own: its examples and lengths.
      name: of the task; '': the name of the class.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or the class lacks a method.
      FileNotFoundError: a file does not exist.
    """
    return _of_class(make, own, name)


@settings.flat
def world(module: str, own: options.Own = options.OWN) -> HostWorld:
    """Return the task of your own class, ``world('my_module:MyWorld')``.

    Args:
      module: MODULE:CLASS; see ``environments.worlds.host`` for what the class has.
      own: its examples and lengths.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, there is no such class, or it lacks a method.
      FileNotFoundError: a file does not exist.
    """
    if ":" not in module:
        raise ValueError(f"world: {messages.shown(module)} is not MODULE:CLASS")
    with parse.resolving("world"):
        make = dotted.world(module)
    return _of_class(make, own)


def _of_class(make: Callable[..., Any], own: options.Own, name: str = "") -> HostWorld:
    name = name or getattr(make, "__name__", "world").lower()
    missing = [method for method in ("reset", "step") if not callable(getattr(make, method, None))]
    if missing:
        raise ValueError(f"world: {name} has no method {missing[0]}; a host world has reset(example) and step(text)")
    partial = functools.partial(make, **(own.arguments or {}))
    if own.path:
        problems = _rows(own.path, own.heldout)
    else:
        problems = _numbers(own.examples or getattr(make, "examples", 1000), own.heldout)
    return HostWorld(name, partial, limited.Calls(partial), problems, own.lengths, own.chat, stored=own.demonstration)


def _numbers(count: int, heldout: float | str) -> dict[str, Sequence[Any]]:
    if isinstance(heldout, str) or count < 2:
        raise ValueError(f"examples={count}, heldout={heldout!r}: numbered problems need 2 or more, and a fraction")
    held = min(max(round(count * heldout), 1), count - 1)
    return {"train": range(count - held), "heldout": range(count - held, count)}


def _rows(path: Any, heldout: float | str) -> dict[str, Sequence[Any]]:
    train = [dict(row) for row in rows.read(path)]
    if isinstance(heldout, str):
        held = [dict(row) for row in rows.read(heldout)]
        known = {json.dumps(row, sort_keys=True, default=str) for row in held}
        train = [row for row in train if json.dumps(row, sort_keys=True, default=str) not in known]
    else:
        marks = [splits.number(json.dumps(row, sort_keys=True, default=str)) for row in train]
        held = [row for row, mark in zip(train, marks, strict=True) if mark < heldout]
        train = [row for row, mark in zip(train, marks, strict=True) if mark >= heldout]
    if not (train and held):
        raise ValueError(f"heldout={heldout!r}: leaves {len(train)} rows for training and {len(held)} held out")
    return {"train": train, "heldout": held}


def _stored(listed: Any, where: str) -> tuple[records.Begun, list[tuple[str, Sequence[Message]]]]:
    """Split a stored conversation at its messages of the assistant."""
    said = records.conversation(listed, "user", where)
    first = next((n for n, message in enumerate(said) if message["role"] == "assistant"), len(said))
    turns: list[tuple[str, list[Message]]] = []
    for message in said[first:]:
        if message["role"] == "assistant":
            turns.append((message["content"], []))
        else:
            turns[-1][1].append(message)
    return records.Begun(said[:first]), list(turns)
