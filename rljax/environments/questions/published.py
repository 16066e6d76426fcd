"""Problems as published in files: AMC, AIME, DAPO-Math-17k, DeepScaleR, GSM8K, MATH. Nothing is downloaded."""

import dataclasses
import functools
import os
import re

from rljax.data import rows
from rljax.environments.questions import recipe
from rljax.environments.questions.task import Questions
from rljax.environments.verifiers import answers
from rljax.language import settings

_PROBLEM = ("problem", "Problem", "question", "Question")  # columns of the sets that are published under one name
_ANSWER = ("answer", "Answer")
_BOXED = ("boxed", "marked", "stated", "bold")
_AMC = recipe.Lengths(completion_length=2048)
_AIME = recipe.Lengths(completion_length=8192)
_TRAINED = recipe.Lengths(prompt_length=1024, completion_length=8192, overlong="drop_all")


@settings.flat
def amc(
    path: recipe.Paths,
    heldout: float | recipe.Paths = 1.0,
    chat: recipe.Chat = None,
    lengths: recipe.Lengths = _AMC,
    formats: answers.Formats = _BOXED,
) -> Questions:
    """Read problems of the AMC, rows with ``problem`` (or ``question``) and ``answer``; they are for evaluation.

    Args:
      path: the files, as in ``jsonl``: jsonl, parquet, a folder of ``save_to_disk``, ...
      heldout: the fraction that is held out, by default all; or files.
      chat: as in ``jsonl``.
      lengths: of prompts and completions.
      formats: how the final answer may be written, in order of preference; the prompt asks for the first.

    Returns:
      The task, not yet bound to a tokenizer; its reward function is ``verifiers.mathematics.boxed_answer``.

    Raises:
      ValueError: an argument is out of range, or a row lacks a column.
      FileNotFoundError: a file does not exist.
    """
    how = _contest("amc", path, formats)
    return recipe.build(how, path, heldout, chat, lengths)


@settings.flat
def aime(
    path: recipe.Paths,
    heldout: float | recipe.Paths = 1.0,
    chat: recipe.Chat = None,
    lengths: recipe.Lengths = _AIME,
    formats: answers.Formats = _BOXED,
) -> Questions:
    """Read problems of the AIME: as ``amc``, rows with ``problem``, ``Problem`` or ``Question``, and ``answer``."""
    how = _contest("aime", path, formats)
    return recipe.build(how, path, heldout, chat, lengths)


@settings.flat
def dapo_math(
    path: recipe.Paths,
    heldout: float | recipe.Paths = 0.02,
    chat: recipe.Chat = None,
    lengths: recipe.Lengths = _TRAINED,
    formats: answers.Formats = ("stated", "boxed"),
) -> Questions:
    """Read DAPO-Math-17k (Yu et al., arXiv 2503.14476), training problems whose answers are integers.

    Rows have ``prompt``, a list with one message, which asks for "Answer: ..." in the last line, and
    ``reward_model.ground_truth``. The published file repeats its 17,398 problems about a hundred times; ``python -m
    rljax data prepare FILE --to FOLDER --unique prompt`` keeps one of each. Arguments as in ``amc``.
    """
    how = recipe.Recipe(
        "dapo_math",
        prompt="prompt.0.content",
        answer="reward_model.ground_truth",
        reward="boxed",
        formats=formats,
        instruction="",
    )
    return recipe.build(how, path, heldout, chat, lengths)


@settings.flat
def deepscaler(
    path: recipe.Paths,
    heldout: float | recipe.Paths = 0.02,
    chat: recipe.Chat = None,
    lengths: recipe.Lengths = _TRAINED,
    formats: answers.Formats = _BOXED,
) -> Questions:
    """Read DeepScaleR-Preview (Luo et al., 2025), 40,000 training problems: ``problem`` and ``answer``, as in ``amc``.

    Its column ``solution`` is empty in many rows, so that demonstrations are the answers alone.
    """
    how = recipe.Recipe("deepscaler", prompt="problem", reward="boxed", formats=formats)
    return recipe.build(how, path, heldout, chat, lengths)


def _contest(name: str, path: recipe.Paths, formats: answers.Formats) -> recipe.Recipe:
    """Return the recipe for the columns that the files have."""
    has = rows.read(path).columns()
    prompt, answer = (next((n for n in names if n in has), names[0]) for names in (_PROBLEM, _ANSWER))
    return recipe.Recipe(name, prompt=prompt, answer=answer, reward="boxed", formats=formats)


_FRAME = "Question: {}\nAnswer:"  # without a conversation
_MARKED_CALCULATION = re.compile(r"<<[^<>]*>>")
_GSM8K = recipe.Lengths(prompt_length=384, completion_length=384)
_MATH = recipe.Lengths(prompt_length=512, completion_length=1024, overlong="drop")
_GSM8K_ROWS = recipe.Recipe("gsm8k", demonstration="answer", reward="number", final="marked")
_MATH_ROWS = recipe.Recipe(
    "math", prompt="{problem}", answer="solution", demonstration="solution", reward="boxed", final="boxed"
)


def _read(
    how: recipe.Recipe, folder: str | os.PathLike[str], heldout: str, chat: recipe.Chat, lengths: recipe.Lengths
) -> Questions:
    """Read train.jsonl and the file ``heldout`` of a folder; without a conversation, frame the questions."""
    how = how if chat else dataclasses.replace(how, frame=_FRAME, lead=" ")
    return recipe.build(how, os.path.join(folder, "train.jsonl"), os.path.join(folder, heldout), chat, lengths)


@settings.flat
def gsm8k(
    path: str | os.PathLike[str],
    lengths: recipe.Lengths = _GSM8K,
    heldout: str = "test.jsonl",
    calculator: bool = False,
    chat: recipe.Chat = False,
    answer: answers.Formats = None,
    instruction: str | None = None,
) -> Questions:
    """Read GSM8K (Cobbe et al., arXiv 2110.14168) from a folder with its train.jsonl and test.jsonl.

    The prompt is ``Question: ...``, a newline, ``Answer:``, or with ``chat`` the question as a user's message; the
    demonstration is the worked solution, which ends with ``#### 72`` or as the first format of ``answer`` asks; the
    reward function is ``verifiers.mathematics.numeric_answer``.

    Args:
      path: folder of the jsonl files, local or gs://.
      lengths: of prompts and completions.
      heldout: file of the held-out split, in ``path``.
      calculator: keep the data set's calculator marks, ``<<48/2=24>>``, in the solutions.
      chat: write prompts by the tokenizer's chat template: True, or the system prompt, or all messages that come before
        the question, (("system", "..."), ("user", "..."), ("assistant", "...")).
      answer: how the final answer may be written, a format or several in order of preference, of "marked", "boxed",
        "stated", "bold" and "last" (``verifiers.answers.read``); None: "marked", and with ``chat`` also "boxed",
        "stated" and "bold".
      instruction: text on a separate line after the question; None: with ``chat`` a sentence that asks for the first
        format of ``answer``, else none.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a line of a file is malformed.
      FileNotFoundError: the folder or a file does not exist.
    """
    request = instruction if chat else instruction or ""
    edit = str if calculator else functools.partial(_MARKED_CALCULATION.sub, "")
    how = dataclasses.replace(_GSM8K_ROWS, formats=answer, instruction=request, edit=edit)
    return _read(how, path, heldout, chat, lengths)


@settings.flat
def math(
    path: str | os.PathLike[str],
    lengths: recipe.Lengths = _MATH,
    heldout: str = "test.jsonl",
    chat: recipe.Chat = False,
    answer: answers.Formats = None,
    instruction: str | None = None,
) -> Questions:
    r"""Read MATH (Hendrycks et al., arXiv 2103.03874) from a folder with train.jsonl and test.jsonl.

    Rows have a ``problem`` and a ``solution``, which ends with the answer in ``\boxed{...}``; the reward function is
    ``verifiers.mathematics.boxed_answer``.

    Args:
      path: as in ``gsm8k``.
      lengths: of prompts and completions.
      heldout: as in ``gsm8k``.
      chat: as in ``gsm8k``.
      answer: as in ``gsm8k``; None: "boxed", and with ``chat`` also "marked", "stated" and "bold".
      instruction: as in ``gsm8k``, but None asks for the first format without ``chat`` too.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a line of a file is malformed.
      FileNotFoundError: the folder or a file does not exist.
    """
    how = dataclasses.replace(_MATH_ROWS, formats=answer, instruction=instruction)
    return _read(how, path, heldout, chat, lengths)
