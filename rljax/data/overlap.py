"""Texts that two sets have in common: exact duplicates and shared n-grams of words.

The n-gram test is the one of Brown et al. (GPT-3, arXiv 2005.14165, appendix C): n = 13 words, lower case, without
punctuation. It differs in two points: a shorter text is compared by all its words at once, and n-grams that are in many
training texts, such as an instruction that every prompt repeats, do not count.
"""

import collections
import re
from collections.abc import Sequence
from typing import NamedTuple

_WORD = re.compile(r"\w+")
_SHORTEST = 5  # words: shorter texts are compared with whole texts only
_COMMON = 0.01  # of the training texts: n-grams of more of them are common
_FEW = 20  # training texts: n-grams of at most so many are never common


class Match(NamedTuple):
    """An evaluation text and the training text that shares the most n-grams with it."""

    share: float  # of the n-grams of the evaluation text, in (0, 1]
    train: int  # index of the training text
    evaluation: int  # index of the evaluation text
    text: str  # one n-gram that both have


class Overlap(NamedTuple):
    """The overlap of an evaluation set with a training set."""

    equal: int  # evaluation texts that are equal to a training text, in words
    matches: tuple[Match, ...]  # by share, the largest first; equal texts have 1
    common: int  # n-grams that were left out, because more than 1 % of the training texts have them


def words(text: str) -> list[str]:
    """Return the words of a text in lower case."""
    return _WORD.findall(text.lower())


def duplicates(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Return (first, later) for each text that is equal to an earlier one, in words."""
    first: dict[str, int] = {}
    pairs = [(first.setdefault(_key(text), index), index) for index, text in enumerate(texts)]
    return [(a, b) for a, b in pairs if a != b]


def overlap(train: Sequence[str], evaluation: Sequence[str], n: int = 13) -> Overlap:
    """Compare an evaluation set with a training set.

    Args:
      train: N texts.
      evaluation: M texts.
      n: words of an n-gram; a shorter evaluation text is one n-gram of all its words.

    Returns:
      The evaluation texts that share an n-gram with a training text.
    """
    holders: dict[int, dict[str, list[int]]] = {}  # by length, the evaluation texts that have each n-gram
    counts: list[int] = []
    for index, text in enumerate(evaluation):
        listed = words(text)
        length = min(n, len(listed))
        grams = _grams(listed, length)
        counts.append(len(grams))
        if length >= min(n, _SHORTEST):
            for gram in grams:
                holders.setdefault(length, {}).setdefault(gram, []).append(index)
    shared: dict[tuple[int, str], list[int]] = {}
    for index, text in enumerate(train):
        listed = words(text)
        for length, known in holders.items():
            for gram in known.keys() & _grams(listed, length):
                shared.setdefault((length, gram), []).append(index)
    most = max(_FEW, _COMMON * len(train))
    common = {key for key, indices in shared.items() if len(indices) > most}
    partners: dict[int, collections.Counter[int]] = {}  # of each evaluation text, by training text
    sample: dict[tuple[int, int], str] = {}
    for (length, gram), indices in shared.items():
        if (length, gram) not in common:
            for index in holders[length][gram]:
                partners.setdefault(index, collections.Counter()).update(indices)
                for partner in indices:
                    sample.setdefault((index, partner), gram)
    whole = {_key(text): index for index, text in reversed(list(enumerate(train)))}
    matches = {
        index: Match(count / counts[index], partner, index, sample[index, partner])
        for index, counter in partners.items()
        for partner, count in counter.most_common(1)
    }
    equal = {i: Match(1.0, whole[key], i, text) for i, text in enumerate(evaluation) if (key := _key(text)) in whole}
    ranked = sorted({**matches, **equal}.values(), key=lambda match: (-match.share, match.evaluation))
    return Overlap(len(equal), tuple(ranked), len(common))


def _grams(listed: Sequence[str], n: int) -> set[str]:
    return {" ".join(listed[start : start + n]) for start in range(len(listed) - n + 1)} if n else set()


def _key(text: str) -> str:
    return " ".join(words(text))
