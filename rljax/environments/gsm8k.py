"""Questions with worked answers: GSM8K (grade-school problems), MATH (competition problems), as published in jsonl."""

import functools
import os
import re

from rljax.environments.questions import recipe
from rljax.environments.questions.task import Overlong, Questions
from rljax.environments.verifiers import answers

_FRAME = "Question: {}\nAnswer:"  # without a conversation
_MARKED_CALCULATION = re.compile(r"<<[^<>]*>>")


def gsm8k(
    path: str | os.PathLike[str],
    prompt_length: int = 384,
    completion_length: int = 384,
    overlong: Overlong = "error",
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

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a line of a file is malformed.
      FileNotFoundError: the folder or a file does not exist.
    """
    how = recipe.Recipe(
        "gsm8k",
        demonstration="answer",
        reward="number",
        final="marked",
        formats=answer,
        instruction=instruction if chat else instruction or "",
        edit=str if calculator else functools.partial(_MARKED_CALCULATION.sub, ""),
        frame="{}" if chat else _FRAME,
        lead="" if chat else " ",
    )
    train, test = os.path.join(path, "train.jsonl"), os.path.join(path, heldout)
    return recipe.build(how, train, test, chat, prompt_length, completion_length, overlong)


def math(
    path: str | os.PathLike[str],
    prompt_length: int = 512,
    completion_length: int = 1024,
    overlong: Overlong = "drop",
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
      prompt_length: L.
      completion_length: T, end-of-sequence included; longer solutions are truncated.
      overlong: as in ``gsm8k``.
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
    how = recipe.Recipe(
        "math",
        prompt="{problem}",
        answer="solution",
        demonstration="solution",
        reward="boxed",
        final="boxed",
        formats=answer,
        instruction=instruction,
        frame="{}" if chat else _FRAME,
        lead="" if chat else " ",
    )
    train, test = os.path.join(path, "train.jsonl"), os.path.join(path, heldout)
    return recipe.build(how, train, test, chat, prompt_length, completion_length, overlong)
