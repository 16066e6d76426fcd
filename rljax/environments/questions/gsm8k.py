"""Questions with worked answers: GSM8K (grade-school problems), MATH (competition problems), as published in jsonl."""

import dataclasses
import functools
import os
import re

from rljax.environments.questions import recipe
from rljax.environments.questions.task import Questions
from rljax.environments.verifiers import answers
from rljax.language import settings

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
