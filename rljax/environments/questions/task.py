"""The task over questions: prompts and demonstrations as tokens, targets and columns for the reward function."""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import chat, tokenizers
from rljax.environments import Split, traits
from rljax.environments.questions import images

Overlong = Literal["error", "drop", "drop_all"]

_ROUNDED = 16  # tokens to a multiple of which the longest prompt is rounded up
_SHOWN = 3  # places in a message


class DataWarning(UserWarning):
    """Rows are left out."""


class LengthWarning(DataWarning):
    """Prompts are left out, or demonstrations are cut, because they are too long."""


class Question(NamedTuple):
    """One row of a file, checked."""

    prompt: str  # as in the file
    text: str  # what the user says, or the text to continue
    reference: Any  # the expected answer
    solution: str | None  # what a demonstration writes
    columns: Mapping[str, Any]  # keyword arguments of the reward function
    where: str  # file and line
    domain: str = ""
    seen: tuple[images.Source, ...] = ()  # its pictures


class _Rows(NamedTuple):
    """The questions of one split whose prompt fits, N of them, as tokens."""

    row: np.ndarray  # [N] int64, number of the question
    prompt: Sequence[np.ndarray]  # int32 ids of each
    solution: Sequence[np.ndarray]  # likewise, of at most T
    cut: int  # solutions that are longer than T
    lacking: Sequence[int]  # questions without a solution
    pad: int
    domain: np.ndarray  # [N] int32


_Encoded = Mapping[str, Sequence[tuple[np.ndarray, np.ndarray]]]  # by split, the ids of each prompt and solution


def places(questions: Sequence[Question]) -> str:
    """Return the places of the first questions, for a message."""
    more = f" and {len(questions) - _SHOWN:,} more" if len(questions) > _SHOWN else ""
    return ", ".join(question.where for question in questions[:_SHOWN]) + more


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """Questions judged by a Python function; ``recipe.build`` makes it. All methods run on the host."""

    name: str
    prompt_length: int  # 0: once bound, the longest prompt's, rounded up
    completion_length: int
    overlong: Overlong
    chat: tuple[Mapping[str, str], ...] | None  # messages before the question, in a conversation; None: plain text
    plain: bool  # use plain text if the tokenizer has no chat template
    sources: Mapping[str, Sequence[Question]] = dataclasses.field(repr=False)
    reward: Callable[..., Any]
    parts: tuple[str, ...] = ()  # names of the numbers that the reward function always returns besides the reward
    domain_names: tuple[str, ...] = ("",)
    looks: images.Looks = images.Looks()
    tokens: Mapping[str, _Rows] | None = dataclasses.field(default=None, repr=False)
    tokenizer: tokenizers.Tokenizer | None = dataclasses.field(default=None, repr=False)  # once bound
    host: bool = True

    def corpus(self) -> Iterator[str]:
        """Yield the prompts and solutions of the training split, never held-out text."""
        for question in self._source("train"):
            yield self._pictured(question, tokenizers.PICTURE)
            if question.solution is not None:
                yield question.solution

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Questions":
        """Return a copy with all splits tokenized, in memory.

        Prompts longer than ``prompt_length`` are an error or dropped with a warning, as ``overlong`` says; solutions
        longer than ``completion_length`` are truncated, without end-of-sequence (``demonstrations`` warns).

        Raises:
          ValueError: a prompt is too long and ``overlong`` does not drop it, no prompt is left, or the tokenizer lacks
            a character of the training split (in held-out text it becomes the unknown token).
        """
        task = dataclasses.replace(self, chat=self._messages(tokenizer))
        encoded = {split: [task._encode(tokenizer, q) for q in questions] for split, questions in self.sources.items()}
        longest = max(len(prompt) for pairs in encoded.values() for prompt, _ in pairs)
        length = self.prompt_length or math.ceil(longest / _ROUNDED) * _ROUNDED
        task = dataclasses.replace(task, prompt_length=length)
        task._check_known(tokenizer, encoded)
        task._check_lengths(encoded)
        tokens, number = {}, {name: number for number, name in enumerate(self.domain_names)}
        for split, pairs in encoded.items():
            keep = [row for row, (prompt, _) in enumerate(pairs) if len(prompt) <= length]
            tokens[split] = _Rows(
                np.array(keep, np.int64),
                [pairs[row][0] for row in keep],
                [pairs[row][1][: self.completion_length] for row in keep],
                sum(len(pairs[row][1]) > self.completion_length for row in keep),
                [row for row in keep if self.sources[split][row].solution is None],
                tokenizer.pad,
                np.array([number[self.sources[split][row].domain] for row in keep], np.int32),
            )
        return dataclasses.replace(task, tokens=tokens, tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of questions of a split; once bound, of those whose prompt fits."""
        return len(self._source(split)) if self.tokens is None else len(self._bound(split).row)

    @functools.cached_property
    def pictures(self) -> traits.Pictures | None:
        """The pictures of a prompt: as many as the question with the most has."""
        return self.looks.of(max(len(question.seen) for rows in self.sources.values() for question in rows))

    @property
    def domains(self) -> int:
        """Number of domains, the values of a column."""
        return len(self.domain_names)

    def domain(self, index: types.Array, split: Split) -> types.Array:
        """Return the domain of questions ``index`` ``[n]``, ``[n]`` int32; traceable."""
        rows = self._bound(split)
        return jnp.asarray(rows.domain)[index % len(rows.row)]

    def prompts(self, index: Any, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` as NumPy arrays: token ``[P, L]`` int32 and mask ``[P, L]`` float32."""
        rows = self._bound(split)
        index = np.asarray(index, np.int32) % len(rows.row)
        record: Any = types.Prompts  # its fields are annotated as jax arrays
        prompts = [rows.prompt[i] for i in index.tolist()]
        token, mask = tokenizers.padded(prompts, self.prompt_length, rows.pad, left=True)
        return record(token=token, mask=mask, index=index, image=self._images(index, split))

    def _images(self, index: np.ndarray, split: Split) -> np.ndarray | None:
        """Return the pictures of questions ``[P]``, [P, N, H, W, 3] uint8; ValueError if one cannot be decoded."""
        if self.pictures is None:
            return None
        asked = [self._question(i, split) for i in index.tolist()]
        return np.stack([self.looks.decoded(q.seen, self.pictures.count, q.where) for q in asked])

    def _pictured(self, question: Question, picture: str) -> str:
        """Return the text of a question with a text for each of its pictures."""
        return question.text.replace(images.MARK, picture) if question.seen else question.text

    def demonstrations(self, index: Any, split: Split, key: Any = None) -> tuple[Any, Any]:
        """Return demonstrations.

        Args:
          index: ``[P]`` int32.
          split: of the questions.
          key: not used: each question has one solution.

        Returns:
          NumPy token ``[P, T]`` int32, right-padded, ended by end-of-sequence unless truncated, and mask ``[P, T]``
          float32. Warns if some of the split are truncated.

        Raises:
          ValueError: the rows have no demonstrations.
        """
        rows = self._bound(split)
        if rows.lacking:
            shown = places([self.sources[split][row] for row in rows.lacking])
            raise ValueError(
                f"task {self.name!r} has no demonstration for {len(rows.lacking):,} rows ({shown}): set demonstration "
                "to a column"
            )
        if rows.cut:
            warnings.warn(
                f"completion_length={self.completion_length}: {rows.cut} of {len(rows.row)} {split} demonstrations of"
                f" {self.name!r} are longer; they are truncated, without end-of-sequence",
                LengthWarning,
                stacklevel=2,
            )
        index = np.asarray(index, np.int32) % len(rows.row)
        return tokenizers.padded([rows.solution[i] for i in index.tolist()], self.completion_length, rows.pad)

    def lengths(self, tokenizer: tokenizers.Tokenizer, split: str) -> tuple[list[int], list[int]]:
        """Return the tokens of each prompt of a split, and of each demonstration, before any is left out or cut."""
        task = dataclasses.replace(self, chat=self._messages(tokenizer))
        pairs = [(task._encode(tokenizer, question), question) for question in self._source(split)]
        prompts = [len(prompt) for (prompt, _), _ in pairs]
        return prompts, [len(ids) for (_, ids), question in pairs if question.solution is not None]

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text; in a conversation, the content of the user's message."""
        return self._question(index, split).text

    def target(self, index: int, split: Split) -> Any:
        """Return the expected answer of question ``index``, such as "72"."""
        return self._question(index, split).reference

    def columns(self, index: int, split: Split) -> Mapping[str, Any]:
        """Return the keyword arguments that the reward function takes for question ``index``."""
        question = self._question(index, split)
        if not (self.looks.image and images.OFFERED in getattr(self.reward, "columns", ())):
            return question.columns
        pictures = self.looks.decoded(question.seen, len(question.seen), question.where)
        return {**question.columns, images.OFFERED: pictures}

    def _source(self, split: str) -> Sequence[Question]:
        if split not in self.sources:
            raise ValueError(
                f"split: task {self.name!r} has no split {split!r}; choose one of {', '.join(self.sources)}"
            )
        return self.sources[split]

    def _bound(self, split: str) -> _Rows:
        self._source(split)
        if self.tokens is None:
            raise ValueError(
                f"task {self.name!r} is not bound to a tokenizer: use the copy that bind(tokenizer) returns"
            )
        return self.tokens[split]

    def _question(self, index: int, split: Split) -> Question:
        index = int(index) % self.size(split)
        return self._source(split)[index if self.tokens is None else int(self.tokens[split].row[index])]

    def _messages(self, tokenizer: tokenizers.Tokenizer) -> tuple[Mapping[str, str], ...] | None:
        """Return the messages before a question; None if the tokenizer has no chat template and need not have one."""
        if self.plain and self.chat is not None:
            try:
                tokenizer.chat([{"role": "user", "content": "?"}])
            except chat.NoTemplate:
                return None
        return self.chat

    def _encode(self, tokenizer: tokenizers.Tokenizer, question: Question) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids of a prompt and of its solution, which ends with a stop token."""
        picture = tokenizers.picture(tokenizer, self.looks.picture_tokens) if question.seen else ""
        text, solution = self._pictured(question, picture), question.solution or ""
        if self.chat is not None:
            prompt, ids = tokenizers.exchange(tokenizer, [*self.chat, {"role": "user", "content": text}], solution)
        else:
            prompt, ids = tokenizer.prompt(text), [*tokenizers.continuation(tokenizer, text, solution), tokenizer.eos]
        return np.array(prompt, np.int32), np.array(ids, np.int32)  # a fifth of the memory of lists

    def _check_known(self, tokenizer: tokenizers.Tokenizer, encoded: _Encoded) -> None:
        train = zip(self.sources.get("train", ()), encoded.get("train", ()), strict=True)
        unk = tokenizer.unk
        unknown = [] if unk is None else [question for question, pair in train if any(unk in ids for ids in pair)]
        if unknown:
            raise ValueError(
                f"tokenizer: lacks characters of {len(unknown)} rows of {self.name!r}'s training split"
                f" ({places(unknown)}); train it on the task's corpus()"
            )

    def _check_lengths(self, encoded: _Encoded) -> None:
        limit, lengths = self.prompt_length, {s: [len(prompt) for prompt, _ in pairs] for s, pairs in encoded.items()}
        long = {
            split: [q for q, count in zip(self.sources[split], counts, strict=True) if count > limit]
            for split, counts in lengths.items()
        }
        over = {split: questions for split, questions in long.items() if questions}
        if not over:
            return
        counts = " and ".join(f"{len(q)} of {len(lengths[s])} {s} prompts" for s, q in over.items())
        text = f"prompt_length={limit}: {counts} of {self.name!r} are longer"
        text += f" ({', '.join(map(places, over.values()))})"
        for split, questions in over.items():
            if len(questions) == len(lengths[split]):
                raise ValueError(f"{text}; the shortest {split} prompt has {min(lengths[split])} tokens")
        longest = max(map(max, lengths.values()))
        if self.overlong == "error" or (self.overlong == "drop" and "heldout" in over):
            drop = "overlong='drop_all' to leave them out of both splits" if "heldout" in over else "overlong='drop'"
            raise ValueError(f"{text}; set prompt_length={longest} (the longest), or {drop}")
        warnings.warn(f"{text} and are left out; the longest has {longest} tokens", LengthWarning, stacklevel=4)
