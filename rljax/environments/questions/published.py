"""Competition problems as published in files: AMC, AIME, DAPO-Math-17k, DeepScaleR. Nothing is downloaded."""

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
