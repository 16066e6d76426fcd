"""Two splits without a common prompt: by a hash of the prompt, or from two files."""

import hashlib
import warnings
from collections.abc import Sequence

from rljax.environments.questions import images
from rljax.environments.questions.task import DataWarning, Question, places


def number(prompt: str) -> float:
    """Return a number in [0, 1) that depends on the words of a prompt alone."""
    digest = hashlib.sha256(" ".join(prompt.split()).encode()).digest()
    return int.from_bytes(digest[:6]) / 2**48


def _asked(question: Question) -> str:
    """Return what a question asks, as words: its prompt and the digests of its pictures."""
    return " ".join([*question.prompt.split(), *images.digests(question.seen)])


def by_hash(questions: Sequence[Question], fraction: float) -> dict[str, list[Question]]:
    """Hold out a fraction of the prompts: those whose ``number`` is below it.

    Equal prompts are in the same split, and a row never moves because rows are added or the fraction is raised.

    Raises:
      ValueError: a split would be empty; the message has the nearest fraction with which it is not.
    """
    numbers = [number(_asked(question)) for question in questions]
    splits: dict[str, list[Question]] = {"train": [], "heldout": []}
    for question, value in zip(questions, numbers, strict=True):
        splits["heldout" if value < fraction else "train"].append(question)
    if fraction == 1:
        return {"heldout": splits["heldout"]}
    if not all(splits.values()):
        side, bound = ("none", min(numbers) + 1e-3) if splits["train"] else ("all", max(numbers) - 1e-3)
        remedy = f"heldout={bound:.3f}, or a file" if 0 < bound < 1 and len(set(numbers)) > 1 else "a file"
        raise ValueError(f"heldout={fraction}: holds out {side} of the {len(questions)} rows; set {remedy}")
    return splits


def by_file(train: Sequence[Question], heldout: Sequence[Question]) -> dict[str, list[Question]]:
    """Return two splits; training rows whose prompt is held out are left out, with a warning.

    Raises:
      ValueError: every training prompt is held out.
    """
    prompts = set(map(_asked, heldout))
    common = [question for question in train if _asked(question) in prompts]
    if common:
        text = (
            f"heldout: the prompts of {len(common):,} of {len(train):,} training rows are held out ({places(common)})"
        )
        if len(common) == len(train):
            raise ValueError(f"{text}; choose another file")
        warnings.warn(f"{text}; these rows are left out of training", DataWarning, stacklevel=4)
    left = {id(question) for question in common}
    return {"train": [question for question in train if id(question) not in left], "heldout": list(heldout)}
