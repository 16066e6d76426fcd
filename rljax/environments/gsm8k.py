"""Questions with worked answers, judged on the host: GSM8K (grade-school problems), MATH (competition problems).

``gsm8k`` and ``math`` read the jsonl files of the data sets as published. A task for another set of questions and
answers in jsonl files is one more call of ``_load``.
"""

import dataclasses
import functools
import os
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments.verifiers import answers, mathematics

Overlong = Literal["error", "drop", "drop_all"]
Role = Literal["system", "user", "assistant"]
Chat = bool | str | tuple[tuple[Role, str], ...]

_MARKED_CALCULATION = re.compile(r"<<[^<>]*>>")


class LengthWarning(UserWarning):
    """Prompts are left out, or demonstrations are cut, because they are too long."""


class _Rows(NamedTuple):
    """The rows of one split whose prompt fits, N of them, as tokens."""

    row: np.ndarray  # [N] int64, row of the source
    prompt: np.ndarray  # [N, L] int32, left-padded
    prompt_mask: np.ndarray  # [N, L] float32
    solution: np.ndarray  # [N, T] int32, right-padded
    solution_mask: np.ndarray  # [N, T] float32
    cut: int  # solutions that are longer than T


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """Questions with worked answers; ``gsm8k`` and ``math`` build it. All methods run on the host."""

    name: str
    prompt_length: int
    completion_length: int
    overlong: Overlong
    calculator: bool  # keep the marks <<48/2=24>>
    chat: tuple[Mapping[str, str], ...] | None  # messages before the question, in a conversation; None: plain text
    answer: tuple[answers.Format, ...]  # the formats that the reward function reads
    instruction: str  # text after the question
    sources: Mapping[str, Sequence[Mapping[str, bytes]]] = dataclasses.field(repr=False)
    reward: Callable[[str, Any], float | Mapping[str, Any]] = mathematics.numeric_answer
    tokens: Mapping[str, _Rows] | None = dataclasses.field(default=None, repr=False)
    final: Callable[[str], str] = answers.final_answer  # the final answer of a worked solution; "" if there is none
    parts: tuple[str, ...] = (
        "format",
    )  # names of the numbers that the reward function always returns besides the reward
    host: bool = True

    def corpus(self) -> Iterator[str]:
        """Yield the prompts and worked solutions of the training split, never held-out text."""
        for row in range(len(self._source("train"))):
            question, answer = self._read(row, "train")
            yield self._prompt(question)
            yield self._solution(answer)

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Questions":
        """Return a copy with all splits tokenized, in memory.

        Prompts longer than ``prompt_length`` are an error or dropped with a warning, as ``overlong`` says; solutions
        longer than ``completion_length`` are truncated, without end-of-sequence (``demonstrations`` warns).

        Raises:
          ValueError: a prompt is too long and ``overlong`` does not drop it, no prompt is left, or the tokenizer lacks
            a character of the training split (in held-out text it becomes the unknown token).
        """
        encoded = {split: self._encode(tokenizer, split) for split in self.sources}
        self._check_known(tokenizer, encoded)
        self._check_lengths(encoded)
        tokens = {}
        for split, pairs in encoded.items():
            keep = [row for row, (prompt, _) in enumerate(pairs) if len(prompt) <= self.prompt_length]
            prompts = [pairs[row][0] for row in keep]
            solutions = [pairs[row][1][: self.completion_length] for row in keep]
            tokens[split] = _Rows(
                np.array(keep, np.int64),
                *tokenizers.padded(prompts, self.prompt_length, tokenizer.pad, left=True),
                *tokenizers.padded(solutions, self.completion_length, tokenizer.pad),
                sum(len(pairs[row][1]) > self.completion_length for row in keep),
            )
        return dataclasses.replace(self, tokens=tokens)

    def size(self, split: Split) -> int:
        """Return the number of questions of a split; once bound, of those whose prompt fits."""
        return len(self._source(split)) if self.tokens is None else len(self._bound(split).row)

    def prompts(self, index: Any, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` as NumPy arrays: token ``[P, L]`` int32 and mask ``[P, L]`` float32."""
        rows = self._bound(split)
        index = np.asarray(index, np.int32) % len(rows.row)
        record: Any = types.Prompts  # its fields are annotated as jax arrays
        return record(token=rows.prompt[index], mask=rows.prompt_mask[index], index=index)

    def demonstrations(self, index: Any, split: Split, key: Any = None) -> tuple[Any, Any]:
        """Return worked solutions.

        Args:
          index: ``[P]`` int32.
          split: of the questions.
          key: not used: each question has one solution.

        Returns:
          NumPy token ``[P, T]`` int32, right-padded, ended by end-of-sequence unless truncated, and mask ``[P, T]``
          float32. Warns if some of the split are truncated.
        """
        del key
        rows = self._bound(split)
        if rows.cut:
            warnings.warn(
                f"completion_length={self.completion_length}: {rows.cut} of {len(rows.row)} {split} demonstrations of"
                f" {self.name!r} are longer; they are truncated, without end-of-sequence",
                LengthWarning,
                stacklevel=2,
            )
        index = np.asarray(index, np.int32) % len(rows.row)
        return rows.solution[index], rows.solution_mask[index]

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text; with ``chat``, the content of the user's message."""
        return self._prompt(self._read(self._row(index, split), split)[0])

    def target(self, index: int, split: Split) -> str:
        """Return the final answer of question ``index``, such as "72"."""
        answer = self._read(self._row(index, split), split)[1]
        return self.final(answer) or answer.strip()

    def _source(self, split: str) -> Sequence[Mapping[str, bytes]]:
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

    def _row(self, index: int, split: Split) -> int:
        index = int(index) % self.size(split)
        return index if self.tokens is None else int(self.tokens[split].row[index])

    def _read(self, row: int, split: str) -> tuple[str, str]:
        field = self._source(split)[row]
        return field["question"].decode(), field["answer"].decode()

    def _solution(self, answer: str) -> str:
        """Return the text after "Answer:", or the assistant's message, with the final answer as ``answer`` asks."""
        final = self.final(answer)
        working = (answer if self.calculator else _MARKED_CALCULATION.sub("", answer)).strip() if final else ""
        style = answers.STYLES[self.answer[0]]
        if not final or style.read(working) != final:
            written = style.form.format(final or answer.strip())
            working = f"{working.partition(answers.MARK)[0].rstrip()}\n{written}".strip()
        return " " + working if self.chat is None else working

    def _prompt(self, question: str) -> str:
        """Return the question with the instruction, as a user's message or as a text to continue."""
        request = "\n".join(filter(None, (question.strip(), self.instruction)))
        return f"Question: {request}\nAnswer:" if self.chat is None else request

    def _encode(self, tokenizer: tokenizers.Tokenizer, split: str) -> list[tuple[list[int], list[int]]]:
        """Return the ids of each prompt and of its solution, which ends with a stop token."""
        rows = []
        for row in range(len(self._source(split))):
            question, answer = self._read(row, split)
            text, solution = self._prompt(question), self._solution(answer)
            if self.chat is None:
                ids = tokenizers.continuation(tokenizer, text, solution)
                rows.append((tokenizer.prompt(text), [*ids, tokenizer.eos]))
            else:
                rows.append(tokenizers.exchange(tokenizer, [*self.chat, {"role": "user", "content": text}], solution))
        return rows

    def _check_known(
        self, tokenizer: tokenizers.Tokenizer, encoded: Mapping[str, Sequence[tuple[list[int], list[int]]]]
    ) -> None:
        unknown = [
            row for row, pair in enumerate(encoded.get("train", ())) if any(tokenizer.unk in ids for ids in pair)
        ]
        if unknown:
            raise ValueError(
                f"tokenizer: lacks characters of {len(unknown)} rows of {self.name!r}'s training split, the first row"
                f" {unknown[0]}; train it on the task's corpus()"
            )

    def _check_lengths(self, encoded: Mapping[str, Sequence[tuple[list[int], list[int]]]]) -> None:
        limit, lengths = self.prompt_length, {s: [len(prompt) for prompt, _ in pairs] for s, pairs in encoded.items()}
        over = {split: count for split, n in lengths.items() if (count := sum(length > limit for length in n))}
        if not over:
            return
        counts = " and ".join(f"{count} of {len(lengths[s])} {s} prompts" for s, count in over.items())
        text = f"prompt_length={limit}: {counts} of {self.name!r} are longer"
        for split, count in over.items():
            if count == len(lengths[split]):
                raise ValueError(f"{text}; the shortest {split} prompt has {min(lengths[split])} tokens")
        longest = max(map(max, lengths.values()))
        if self.overlong == "error" or (self.overlong == "drop" and "heldout" in over):
            drop = "overlong='drop_all' to leave them out of both splits" if "heldout" in over else "overlong='drop'"
            raise ValueError(f"{text}; set prompt_length={longest} (the longest), or {drop}")
        warnings.warn(f"{text} and are left out; the longest has {longest} tokens", LengthWarning, stacklevel=3)


def gsm8k(
    path: str | os.PathLike[str],
    prompt_length: int = 384,
    completion_length: int = 384,
    overlong: Overlong = "error",
    heldout: str = "test.jsonl",
    calculator: bool = False,
    chat: Chat = False,
    answer: answers.Formats = None,
    instruction: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Questions:
    """Read GSM8K (Cobbe et al., arXiv 2110.14168) from a folder with its train.jsonl and test.jsonl.

    The prompt is ``Question: ...``, a newline, ``Answer:``, or with ``chat`` the question as a user's message; the
    demonstration is the worked solution, which ends with ``#### 72`` or as the first format of ``answer`` asks; the
    reward function is ``verifiers.mathematics.numeric_answer``.

    Args:
      path: folder of the jsonl files, local or gs://.
      prompt_length: L; the longest question has about 1,000 characters.
      completion_length: T, end-of-sequence included; longer solutions are truncated.
      overlong: how longer prompts are treated: "error"; "drop" those of the training split, with a warning, while
        held-out ones are an error; "drop_all" those of both splits, so that fewer prompts are evaluated.
      heldout: file of the held-out split, in ``path``.
      calculator: keep the data set's calculator marks, ``<<48/2=24>>``, in the solutions.
      chat: write prompts by the tokenizer's chat template: True, or the system prompt, or all messages that come before
        the question, (("system", "..."), ("user", "..."), ("assistant", "...")).
      answer: how the final answer may be written, a format or several in order of preference, of "marked", "boxed",
        "stated", "bold" and "last" (``verifiers.answers.read``); None: "marked", and with ``chat`` also "boxed",
        "stated" and "bold".
      instruction: text on a separate line after the question; None: with ``chat`` a sentence that asks for the first
        format of ``answer``, else none.
      cache: folder of the array_record copy, local or gs:// (shared by hosts); None: ``$RLJAX_CACHE``, else the
        user's cache folder.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a line of a file is malformed.
      FileNotFoundError: the folder or a file does not exist.
    """
    return _load(
        "gsm8k",
        path,
        {"train": "train.jsonl", "heldout": heldout},
        cache,
        prompt_length=prompt_length,
        completion_length=completion_length,
        overlong=overlong,
        calculator=calculator,
        chat=chat,
        answer=answer,
        instruction=instruction if chat else instruction or "",
    )


def math(
    path: str | os.PathLike[str],
    prompt_length: int = 512,
    completion_length: int = 1024,
    overlong: Overlong = "drop",
    heldout: str = "test.jsonl",
    chat: Chat = False,
    answer: answers.Formats = None,
    instruction: str | None = None,
    cache: str | os.PathLike[str] | None = None,
) -> Questions:
    r"""Read MATH (Hendrycks et al., arXiv 2103.03874) from a folder with train.jsonl and test.jsonl.

    Rows have a ``problem`` and a ``solution``, which ends with the answer in ``\boxed{...}``; the reward function is
    ``verifiers.mathematics.boxed_answer``.

    Args:
      path: as in ``gsm8k``.
      prompt_length: L.
      completion_length: T, end-of-sequence included; longer solutions are truncated.
      overlong: as in ``gsm8k``.
      heldout: as in ``gsm8k``.
      chat: as in ``gsm8k``.
      answer: as in ``gsm8k``; None: "boxed", and with ``chat`` also "marked", "stated" and "bold".
      instruction: as in ``gsm8k``, but None asks for the first format without ``chat`` too.
      cache: as in ``gsm8k``.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a line of a file is malformed.
      FileNotFoundError: the folder or a file does not exist.
    """
    return _load(
        "math",
        path,
        {"train": "train.jsonl", "heldout": heldout},
        cache,
        prompt_length=prompt_length,
        completion_length=completion_length,
        overlong=overlong,
        calculator=True,  # solutions are not edited
        chat=chat,
        answer=answer,
        instruction=instruction,
        fields=("problem", "solution"),
        mark=answers.BOX,
        native="boxed",
        reward=mathematics.boxed_answer,
    )


def _load(
    name: str,
    path: str | os.PathLike[str],
    files: Mapping[str, str],
    cache: str | os.PathLike[str] | None,
    *,
    prompt_length: int,
    completion_length: int,
    overlong: Overlong,
    calculator: bool = False,
    chat: Chat = False,
    answer: answers.Formats = None,
    instruction: str | None = "",
    fields: tuple[str, str] = ("question", "answer"),
    mark: str = answers.MARK,
    native: Literal["marked", "boxed"] = "marked",
    reward: Callable[..., Mapping[str, Any]] = mathematics.numeric_answer,
) -> Questions:
    """Read a set of questions: ``files`` by split, their ``fields``, the ``mark`` in every answer ("": none).

    ``native`` is the format of the answers in the files.
    """
    if files.get("heldout") == files.get("train"):
        raise ValueError(f"heldout={files['heldout']!r} is the file of the training split; choose another one")
    from rljax.data import gsm8k_builder  # here: importing tfds takes half a second, and other tasks do not need it

    for field, value in (("prompt_length", prompt_length), ("completion_length", completion_length)):
        if value < 1:
            raise ValueError(f"{field}={value}: must be 1 or more")
    if overlong not in typing.get_args(Overlong):
        raise ValueError(f"overlong={overlong!r}: must be one of {', '.join(map(repr, typing.get_args(Overlong)))}")
    formats = answers.formats(answer, native, several=bool(chat))
    return Questions(
        name=name,
        prompt_length=prompt_length,
        completion_length=completion_length,
        overlong=overlong,
        calculator=calculator,
        chat=_before(chat),
        answer=formats,
        instruction=answers.STYLES[formats[0]].request if instruction is None else instruction,
        sources=gsm8k_builder.sources(path, files, cache, fields, mark),
        final=answers.final_answer if native == "marked" else answers.boxed,
        reward=functools.partial(reward, formats=formats),
    )


def _before(chat: Chat) -> tuple[Mapping[str, str], ...] | None:
    """Return the messages before a question; None if there is no conversation."""
    if isinstance(chat, bool):
        return () if chat else None
    pairs = (("system", chat),) if isinstance(chat, str) else chat
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in typing.get_args(Role) or not isinstance(pair[1], str):
            raise ValueError(
                f"chat: {pair!r} is not a message such as ('system', 'Be brief.'); the roles are"
                f" {', '.join(typing.get_args(Role))}"
            )
    return tuple({"role": role, "content": content} for role, content in pairs)
