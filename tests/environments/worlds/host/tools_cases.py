"""What the tests of tools share."""

import importlib.util
import json
import math
import sys
from typing import Any, Literal

import pytest

from rljax.environments.verifiers import rewards
from rljax.environments.worlds.host import calls

needs_bm25s = pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="bm25s is not installed")


def add(x: int, y: int = 1) -> int:
    """Add two numbers.

    Args:
        x: The first.
        y: The second,
            which may be left out.

    Returns:
        Their sum.
    """
    return x + y


def shout(text: str) -> str:
    """Write a text in capitals.

    Args:
        text: The text.
    """
    return text.upper()


def fail(code: int) -> str:
    """Fail in one of several ways.

    Args:
        code: Which.
    """
    if code == 0:
        sys.exit("out")
    if code == 1:
        raise calls.ToolError("as told")
    return {2: "\ud800\0", 3: {1, 2}, 4: math.nan, 5: "long " * 100, 6: None}[code]


def everything(
    a: list[int], b: dict[str, float], c: Literal["x", "y"], d: int | None, e: int | str, f: tuple[int, str], g: Any
) -> str:
    """Take everything.

    Args:
        a: A.
        b: B.
        c: C.
        d: D.
        e: E.
        f: F.
        g: G.
    """
    return repr((a, b, c, d, e, f, g))


BOX = calls.Toolbox([add, shout, fail, everything], longest=400)

NUMBER = rewards.combine("number")

QUESTION = {"prompt": "2 + 3?", "reference": "5", "plan": [("add", {"x": 2, "y": 3})], "solution": "#### 5"}


def play(world, turns, example=QUESTION):
    said = [world.reset(example)]
    return said[0], [world.step(turn) for turn in turns]


def demonstrate(world, example):
    said, observation, turns = world.reset(example), None, []
    while observation is None or not observation.done:
        turns.append(world.expert())
        observation = world.step(turns[-1])
        assert len(turns) < 20
    return said, turns, observation


def written(path, *questions):
    path.write_text("".join(json.dumps(row) + "\n" for row in questions))
    return str(path)


def oracle(texts, query, k1=1.5, b=0.75):
    """Return the scores of BM25 in Lucene's form, written from the formula."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        total = 0.0
        for term in query:
            having = sum(term in other for other in texts)
            weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            count = text.count(term)
            total += weight * count / (count + k1 * (1 - b + b * len(text) / mean))
        scores.append(total)
    return scores
