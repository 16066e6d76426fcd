"""Countdown: disjoint splits, demonstrations, and the verifier against Python's parser and fractions."""

import ast
import collections
import fractions
import itertools
import random
import re

import numpy as np
import pytest

from rljax import types
from tests.support import on_device

CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE

# the one task that most tests below share
FOUR = {"numbers": 4, "highest": 10, "operators": "+-*/", "slip": 0.4, "completion_length": 24}


def read_prompt(prompt):
    given, target = prompt.removesuffix(":").split(" > ")
    return sorted(map(int, given.split(" "))), int(target)


@pytest.mark.full
@pytest.mark.parametrize("settings", [{}, {"numbers": 2, "highest": 5, "operators": "*"}])
def test_countdown_splits_share_no_numbers(settings):
    task = on_device.make("countdown", **settings)
    size = {split: min(2900, task.size(split)) for split in ("train", "heldout")}
    done = on_device.run(task, np.arange(size["train"]))
    assert np.all(done.outcome == CORRECT)
    for prompt, text in zip(done.prompts, done.texts, strict=True):
        given, target = read_prompt(prompt)
        assert eval(text) == target and sorted(map(int, re.findall(r"\d+", text))) == given
        assert 0 <= target <= task.largest
    held = on_device.prompts(task, [*range(size["heldout"]), task.size("heldout")], "heldout")
    assert held[-1] == held[0]  # wraps within the split
    seen = [{tuple(read_prompt(prompt)[0]) for prompt in texts} for texts in (done.prompts, held)]
    assert not seen[0] & seen[1]
    every = itertools.combinations_with_replacement(range(1, task.highest + 1), task.numbers)
    assert seen[0] | seen[1] == set(every)


@pytest.mark.full
def test_countdown_prompts_are_varied_and_left_padded():
    task = on_device.make("countdown")
    done = on_device.run(task, np.arange(on_device.ROWS))
    token, mask = done.batch.token, done.batch.mask
    assert token.shape == (on_device.ROWS, task.prompt_length) and token.dtype == np.int32
    assert np.all(np.diff(mask, axis=1) >= 0) and mask.min() == 0 and np.all(mask[:, -1] == 1)
    np.testing.assert_array_equal(mask == 0, token == task.tokenizer.pad)
    np.testing.assert_array_equal(done.batch.index, np.arange(on_device.ROWS))
    assert len(set(done.prompts)) > 2000
    assert len({read_prompt(prompt)[1] for prompt in done.prompts}) > 50
    assert task.text(5, "train") == done.prompts[5]


def judge(text, given, target, operators):
    """The oracle: Python's parser and exact fractions."""
    kinds = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div}
    allowed = tuple(kinds[o] for o in operators)
    if not text or set(text) - set("0123456789()" + operators) or re.search(r"(?<!\d)0\d", text):
        return UNPARSEABLE
    used = []

    def value(node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, allowed):
            left, right = value(node.left), value(node.right)
            if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
                return None
            steps = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
            return left / right if isinstance(node.op, ast.Div) else steps[type(node.op)]
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            used.append(node.value)
            return fractions.Fraction(node.value)
        raise SyntaxError

    try:
        result = value(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return UNPARSEABLE
    return CORRECT if sorted(used) == given and result == target else WRONG


def mutate(text, rng, letters):
    place, letter = rng.randrange(len(text) + 1), rng.choice(letters)
    return rng.choice(
        [
            text,
            text[:place] + letter + text[place:],
            text[:place] + text[place + 1 :],
            text[:place] + letter + text[place + 1 :],
            f"({text})",
            text.replace("(", "").replace(")", ""),
            "".join(rng.choices(letters, k=rng.randrange(9))),
        ]
    )


@pytest.mark.default_tier("settings1")
@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # Python's, of texts such as 3(2)
@pytest.mark.parametrize("settings", [FOUR, {}])
def test_countdown_verdicts_agree_with_python(settings):
    task, rng = on_device.make("countdown", **settings), random.Random(1)
    index = np.arange(2 * on_device.ROWS)
    done = on_device.run(task, index)
    problems = [read_prompt(prompt) for prompt in done.prompts]
    texts = [mutate(text, rng, "0123456789+-*/() ")[: task.completion_length - 1] for text in done.texts]
    expected = [judge(text, *problem, task.operators) for text, problem in zip(texts, problems, strict=True)]
    verdict = on_device.verify(task, index, *on_device.completions(task, texts))
    for text, problem, outcome, right in zip(texts, problems, verdict.outcome.tolist(), expected, strict=True):
        assert outcome == right, (text, problem)
    assert min(collections.Counter(expected).values()) > 500  # every verdict is well represented
    np.testing.assert_array_equal(verdict.reward, np.asarray(expected) == CORRECT)
    np.testing.assert_array_equal(verdict.parts["format"], np.asarray(expected) != UNPARSEABLE)
    cut = on_device.verify(task, index, *on_device.completions(task, [text + "~" for text in texts]))
    assert np.all(cut.outcome == UNPARSEABLE)


@pytest.mark.full
def test_countdown_by_hand():
    task = on_device.make("countdown", **FOUR)
    problems = [read_prompt(prompt) for prompt in on_device.run(task, np.arange(on_device.ROWS)).prompts]
    index, (given, target) = next((i, p) for i, p in enumerate(problems) if len(set(p[0])) == 4 and sum(p[0]) == p[1])
    a, b, c, d = given
    cases = {
        f"(({a}+{b})+{c})+{d}": CORRECT,
        f"{d}+({c}+({b}+({a})))": CORRECT,
        f"{d}-{c}+{b}+{a}": WRONG,
        f"{a}+{b}+{c}": WRONG,  # a number left out
        f"{a}+{b}+{c}+{d}+{d}-{d}": WRONG,  # one used three times
        f"{a}/({b}-{b})": WRONG,  # division by zero
        f"{target}": WRONG,  # right value, wrong numbers
        f"{target + 2**32}": WRONG,  # the same in 32 bits
        f"{a}+{b}+{c}+{d})": UNPARSEABLE,
        f"-{a}+{b}": UNPARSEABLE,
        f"0{a}+{b}": UNPARSEABLE,
        f"{a}//{b}": UNPARSEABLE,
        f"{a}**{b}": UNPARSEABLE,
        f"{a} +{b}": UNPARSEABLE,
        "()": UNPARSEABLE,
        "": UNPARSEABLE,
    }
    verdict = on_device.verify(task, [index] * len(cases), *on_device.completions(task, list(cases)))
    assert verdict.outcome.tolist() == list(cases.values())
    assert verdict.parts["numbers"].tolist() == [1, 1, 1] + [0] * 13


@pytest.mark.full
def test_division_by_zero_with_the_right_numbers():
    task = on_device.make("countdown", **FOUR)
    problems = [read_prompt(prompt) for prompt in on_device.run(task, np.arange(2 * on_device.ROWS)).prompts]
    # 1/(x/0) is no 0, which two inversions of a fraction with a zero below would make of it
    index, given = next((i, p[0]) for i, p in enumerate(problems) if p[1] == 0 and p[0][0] == p[0][1] and p[0][0] > 1)
    a, b, c, d = given
    verdict = on_device.verify(task, [index], *on_device.completions(task, [f"{c}/({d}/({a}-{b}))"]))
    assert (verdict.outcome[0], verdict.parts["numbers"][0]) == (WRONG, 1)


@pytest.mark.full
def test_countdown_slips():
    done = on_device.run(on_device.make("countdown", **FOUR), np.arange(2 * on_device.ROWS))
    assert np.all(done.verdict.parts["numbers"] == 1)  # the same numbers, by another way
    # with probability 0.4 another expression, which is seldom right
    assert 0.3 < np.mean(done.outcome == WRONG) < 0.4
    reverse = on_device.run(on_device.make("countdown", **FOUR), np.arange(2 * on_device.ROWS)[::-1])
    np.testing.assert_array_equal(reverse.token[::-1], done.token)
