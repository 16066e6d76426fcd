"""Questions with worked answers, judged on the host: GSM8K (grade-school problems), MATH (competition problems).

``gsm8k`` and ``math`` read the jsonl files of the data sets as published. A task for another set of questions and
answers in jsonl files is one more call of ``_load``.
"""

import dataclasses
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments.verifiers import mathematics

Overlong = Literal["error", "drop"]

_MARKED_CALCULATION = re.compile(r"<<[^<>]*>>")


class _Rows(NamedTuple):
    """The rows of one split whose prompt fits, N of them, as tokens."""

    row: np.ndarray  # [N] int64, row of the source
    prompt: np.ndarray  # [N, L] int32, left-padded
    prompt_mask: np.ndarray  # [N, L] float32
    solution: np.ndarray  # [N, T] int32, right-padded
    solution_mask: np.ndarray  # [N, T] float32


@dataclasses.dataclass(frozen=True, eq=False)
class Questions:
    """Questions with worked answers; ``gsm8k`` and ``math`` build it. All methods run on the host."""

    name: str
    prompt_length: int
    completion_length: int
    overlong: Overlong
    calculator: bool  # keep the marks <<48/2=24>>
    chat: bool  # write the question as a user's message, by the chat template
    instruction: str  # text after the question
    sources: Mapping[str, Sequence[Mapping[str, bytes]]] = dataclasses.field(repr=False)
    reward: Callable[[str, Any], float | Mapping[str, Any]] = mathematics.numeric_answer
    tokens: Mapping[str, _Rows] | None = dataclasses.field(default=None, repr=False)
    final: Callable[[str], str] = mathematics.final_answer  # the final answer of a worked solution; "" if there is none
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

        Prompts longer than ``prompt_length`` are dropped or an error, as ``overlong`` says; solutions longer than
        ``completion_length`` are truncated, without end-of-sequence.

        Raises:
          ValueError: a prompt is too long and ``overlong`` is "error", no prompt is left, or the tokenizer lacks
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
          float32.
        """
        del key
        rows = self._bound(split)
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
        """Return the text after "Answer:", or the assistant's message; an answer without working gets the mark."""
        if not self.final(answer):
            answer = f"{mathematics.MARK} {answer}"
        answer = (answer if self.calculator else _MARKED_CALCULATION.sub("", answer)).strip()
        return answer if self.chat else " " + answer

    def _prompt(self, question: str) -> str:
        """Return the question with the instruction, as a user's message or as a text to continue."""
        request = "\n".join(filter(None, (question.strip(), self.instruction)))
        return request if self.chat else f"Question: {request}\nAnswer:"

    def _context(self, tokenizer: tokenizers.Tokenizer, question: str) -> list[int]:
        text = self._prompt(question)
        if not self.chat:
            return tokenizer.prompt(text)
        return tokenizer.encode(tokenizer.chat([{"role": "user", "content": text}]))

    def _end(self, tokenizer: tokenizers.Tokenizer) -> int:
        """Return the id that ends a solution; with ``chat``, the one that ends an assistant's message."""
        if not self.chat:
            return tokenizer.eos
        messages = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "ANSWER"}]
        suffix = tokenizer.chat(messages, add_generation_prompt=False).rpartition("ANSWER")[2]
        return next((i for i in tokenizer.encode(suffix) if i in tokenizer.stop), tokenizer.eos)

    def _encode(self, tokenizer: tokenizers.Tokenizer, split: str) -> list[tuple[list[int], list[int]]]:
        pairs = (self._read(row, split) for row in range(len(self._source(split))))
        end = self._end(tokenizer)
        return [
            (self._context(tokenizer, question), [*tokenizer.encode(self._solution(answer)), end])
            for question, answer in pairs
        ]

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
        for split, pairs in encoded.items():
            lengths = [len(prompt) for prompt, _ in pairs]
            over = sum(length > self.prompt_length for length in lengths)
            if over == len(lengths):
                raise ValueError(
                    f"prompt_length={self.prompt_length}: all {over} {split} prompts of {self.name!r} are longer; the"
                    f" shortest has {min(lengths)} tokens"
                )
        longest = max(len(prompt) for pairs in encoded.values() for prompt, _ in pairs)
        if longest > self.prompt_length and self.overlong == "error":
            over = {s: sum(len(prompt) > self.prompt_length for prompt, _ in p) for s, p in encoded.items()}
            counts = " and ".join(f"{n} of {len(encoded[s])} {s} prompts" for s, n in over.items())
            raise ValueError(
                f"prompt_length={self.prompt_length}: {counts} of {self.name!r} are longer; set"
                f" prompt_length={longest} (the longest), or overlong='drop' to leave them out"
            )


def gsm8k(
    path: str | os.PathLike[str],
    prompt_length: int = 384,
    completion_length: int = 384,
    overlong: Overlong = "error",
    heldout: str = "test.jsonl",
    calculator: bool = False,
    chat: bool = False,
    instruction: str = "",
    cache: str | os.PathLike[str] | None = None,
) -> Questions:
    """Read GSM8K (Cobbe et al., arXiv 2110.14168) from a folder with its train.jsonl and test.jsonl.

    The prompt is ``Question: ...``, a newline, ``Answer:``, or with ``chat`` the question as a user's message; the
    demonstration is the worked solution, which ends with ``#### 72``; the reward function is
    ``verifiers.mathematics.numeric_answer``.

    Args:
      path: folder of the jsonl files, local or gs://.
      prompt_length: L; the longest question has about 1,000 characters.
      completion_length: T, end-of-sequence included; longer solutions are truncated.
      overlong: how longer prompts are treated: "error", or "drop" them from the split.
      heldout: file of the held-out split, in ``path``.
      calculator: keep the data set's calculator marks, ``<<48/2=24>>``, in the solutions.
      chat: write prompts by the tokenizer's chat template.
      instruction: text on a separate line after the question, such as how to mark the answer.
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
        instruction=instruction,
    )


def math(
    path: str | os.PathLike[str],
    prompt_length: int = 512,
    completion_length: int = 1024,
    overlong: Overlong = "drop",
    heldout: str = "test.jsonl",
    chat: bool = False,
    instruction: str = "Put the final answer in \\boxed{}.",
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
      instruction: as in ``gsm8k``.
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
        instruction=instruction,
        fields=("problem", "solution"),
        mark=mathematics.BOX,
        final=mathematics.boxed,
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
    chat: bool = False,
    instruction: str = "",
    fields: tuple[str, str] = ("question", "answer"),
    mark: str = mathematics.MARK,
    final: Callable[[str], str] = mathematics.final_answer,
    reward: Callable[[str, Any], float | Mapping[str, Any]] = mathematics.numeric_answer,
) -> Questions:
    """Read a set of questions: ``files`` by split, their ``fields``, the ``mark`` in every answer ("": none)."""
    if files.get("heldout") == files.get("train"):
        raise ValueError(f"heldout={files['heldout']!r} is the file of the training split; choose another one")
    from rljax.data import gsm8k_builder  # here: importing tfds takes half a second, and other tasks do not need it

    for field, value in (("prompt_length", prompt_length), ("completion_length", completion_length)):
        if value < 1:
            raise ValueError(f"{field}={value}: must be 1 or more")
    if overlong not in ("error", "drop"):
        raise ValueError(f"overlong={overlong!r}: must be 'error' or 'drop'")
    return Questions(
        name=name,
        prompt_length=prompt_length,
        completion_length=completion_length,
        overlong=overlong,
        calculator=calculator,
        chat=chat,
        instruction=instruction,
        sources=gsm8k_builder.sources(path, files, cache, fields, mark),
        final=final,
        reward=reward,
    )
