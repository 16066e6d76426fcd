"""Tasks of numbered problems: prompts, demonstrations and verdicts against plain Python, which reads only texts."""

import dataclasses
import functools
import heapq
import inspect
import itertools
import math
import pathlib
import random
import re

import jax
import numpy as np
import pytest

from rljax import environments, types
from rljax.environments.problems import numbering, rules
from tests.support import on_device

ROWS = 800  # of every batch, so that a task compiles once
CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE

# settings with few problems, so that all are enumerated; what answers are made of
SMALL = {
    "sorting": ({"numbers": 3}, "0123456789 "),
    "chain": ({"steps": 1, "modulus": 3}, "0123456789"),
    "formulas": ({"depth": 2, "variables": 1}, "01"),
    "paths": ({"nodes": 4, "longest": 2}, "abcd"),
    "rewriting": ({"steps": 1, "length": 5, "letters": 2}, "ab"),
    "lists": ({"functions": 1, "length": 2}, "0123456789"),
}
LARGE = {
    "sorting": {"numbers": 5, "digits": 2},
    "chain": {"steps": 4, "modulus": 120},
    "formulas": {"depth": 3, "variables": 3},
    "paths": {"nodes": 5},
    "rewriting": {"steps": 3, "length": 9, "letters": 4},
    "lists": {"functions": 3, "length": 5},
}
COUNT = {
    "sorting": 10**3,
    "chain": 10 * 3 * 10 * 2,
    "formulas": 2**4 * 3**3,
    "paths": 2**3 * 3**3,
    "rewriting": 2**8,
    "lists": 8 * 10**2,
}


# --- plain Python: the demonstration of a prompt, with every step omitted or none ------------------


def sorting(prompt, omit):
    numbers, lists = [int(word) for word in prompt.split()], []
    for end in range(len(numbers) - 1, 0, -1):
        for i in range(0 if not omit else end, end):
            if numbers[i] > numbers[i + 1]:
                numbers[i : i + 2] = numbers[i + 1], numbers[i]
        lists.append(" ".join(map(str, numbers)))
    assert omit or numbers == sorted(numbers)
    return ";".join(lists)


def chain(prompt, omit):
    first, *operations, modulus = prompt.split(" ")
    number, steps = int(first), []
    for operation in operations:
        result = number if omit else eval(f"{number}{operation}") % int(modulus[1:])
        steps.append(f"{number}{operation}={result}")
        number = result
    return ";".join([*steps, str(number)])


def formulas(prompt, omit, variables=0):
    variables = variables or (1 if len(re.findall("[a-d]", prompt)) == 4 else 3)  # those of SMALL and LARGE
    names = "abcd"[:variables]

    @functools.cache
    def column(formula):
        formula = formula.replace("!", "" if omit else "1^")  # binds as tightly only if there are parentheses
        code, rows = compile(formula, "", "eval"), itertools.product((0, 1), repeat=variables)
        return "".join(str(eval(code, dict(zip(names, row, strict=True)))) for row in rows)

    levels, text = [], re.sub(r"(!?[a-d])", r"(\1)", prompt)
    inner = re.compile(r"\((?:\(!?[a-d]\)|C\d+)[&|^](?:\(!?[a-d]\)|C\d+)\)")
    known = {}
    text = f"({text})"
    while not re.fullmatch(r"C\d+", text):
        parts = inner.findall(text)
        for part in parts:
            key = f"C{len(known)}"
            known[key] = re.sub(r"C\d+", lambda m: known[m[0]], part)
            text = text.replace(part, key, 1)
        levels.append(" ".join(column(known[f"C{len(known) - len(parts) + i}"]) for i in range(len(parts))))
    return ";".join(levels)


def edges(prompt):
    return {(edge[0], edge[1]): int(edge[2:]) for edge in prompt.split(" ")}


def distances(lengths):
    """Dijkstra's algorithm from ``a``."""
    best, queue = {}, [(0, "a")]
    while queue:
        distance, node = heapq.heappop(queue)
        if node not in best:
            best[node] = distance
            for (start, end), length in lengths.items():
                if start == node:
                    heapq.heappush(queue, (distance + length, end))
    return best


def paths(prompt, omit):
    lengths = edges(prompt)
    nodes = sorted({node for pair in lengths for node in pair})
    best, before, steps = distances(lengths), {}, []
    total = {"a": 0}
    for previous, node in itertools.pairwise(nodes):
        reach = [i for i in nodes if (i, node) in lengths and best[i] + lengths[i, node] == best[node]]
        before[node] = previous if omit else reach[0]
        total[node] = total[before[node]] + lengths[before[node], node]
        steps.append(f"{node}{total[node]}{before[node]}")
    path = nodes[-1]
    while path[0] != "a":
        path = before[path[0]] + path
    return ";".join([*steps, path])


def rewriting(prompt, omit):
    *replacements, text = prompt.split(" ")
    texts = []
    for replacement in replacements:
        text = text if omit else text.replace(*replacement.split(">"))
        texts.append(text)
    return ";".join(texts)


def lists(prompt, omit):
    written, *names = prompt.split(" ")
    digits, texts = [int(c) for c in written], []
    functions = {
        "rev": lambda x: list(reversed(x)),
        "rot": lambda x: x[1:] + x[:1],
        "srt": sorted,
        "inc": lambda x: [(i + 1) % 10 for i in x],
        "dbl": lambda x: [2 * i % 10 for i in x],
        "neg": lambda x: [9 - i for i in x],
        "sum": lambda x: [i % 10 for i in itertools.accumulate(x)],
        "max": lambda x: list(itertools.accumulate(x, max)),
    }
    for name in names:
        digits = digits if omit else functions[name](digits)
        texts.append("".join(map(str, digits)))
    return ";".join(texts)


def demonstration(name, prompt, omit=False):
    assert prompt.endswith(":")
    return globals()[name](prompt[:-1], omit)


def judge(name, prompt, text, letters):
    """Return the outcome of a completion; a tilde at its end stands for a missing end-of-sequence."""
    final = text.rpartition(";")[2]
    if text.endswith("~") or not final or set(final) - set(letters):
        return UNPARSEABLE
    if name == "paths":  # every shortest path counts
        lengths = edges(prompt[:-1])
        steps, last = list(itertools.pairwise(final)), max(end for _, end in lengths)
        known = final[0] == "a" and final[-1] == last and all(step in lengths for step in steps)
        return CORRECT if known and sum(map(lengths.get, steps)) == distances(lengths)[last] else WRONG
    return CORRECT if final == demonstration(name, prompt).rpartition(";")[2] else WRONG


def mutate(text, rng, letters):
    working, _, final = text.rpartition(";")
    place, letter = rng.randrange(len(final) + 1), rng.choice(letters)
    return rng.choice(
        [
            text,
            final,
            f"{working};{final[:place]}{letter}{final[place + 1 :]}",
            f"{final[:place]}{letter}{final[place:]}",
            f"{final[:place]}{final[place + 1 :]}",
            f"{working};{''.join(rng.choices(letters, k=len(final)))}",
            rng.choice([f"{text};", f"{text}~", f"{final}:", f"x{final}", f"{final};{working}", ";"]),
        ]
    )


# --- the tasks -----------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _everything(task, index, token, mask):
    """Compute all that a test asks of a task, in one program."""
    demonstrations = task.demonstrations(index, "train", jax.random.key(0))
    prompts = [task.prompts(index, split).token for split in ("train", "heldout")]
    return prompts, demonstrations[0], task.verify(index, "train", token, mask)


def run(task, index, texts=None):
    """Return prompts, held-out prompts and demonstrations as texts, and the verdicts of completions."""
    index = np.asarray(index, np.int32)
    given = on_device.completions(task, texts or [""])
    padded = [np.concatenate([x, np.repeat(x[:1], ROWS - len(x), axis=0)]) for x in (index, *given)]
    (train, held), token, verdict = _everything(task, *padded)
    verdict = jax.tree.map(lambda x: np.asarray(x)[: len(index)], verdict)
    return *(on_device.decode(task, x)[: len(index)] for x in (train, held, token)), verdict


def agrees(task, letters, index, prompts, solved):
    """Assert that the verdicts of demonstrations, clean and changed, are those of plain Python."""
    rng = random.Random(1)
    texts = [mutate(text, rng, letters)[: task.completion_length - 1] for text in solved]
    expected = [judge(task.name, *pair, letters) for pair in zip(prompts, texts, strict=True)]
    assert set(expected) == {CORRECT, WRONG, UNPARSEABLE}
    verdict = run(task, index, texts)[-1]
    for prompt, text, given, right in zip(prompts, texts, verdict.outcome.tolist(), expected, strict=True):
        assert given == right, (prompt, text)
    np.testing.assert_array_equal(verdict.reward, np.asarray(expected) == CORRECT)
    np.testing.assert_array_equal(verdict.parts["format"], np.asarray(expected) != UNPARSEABLE)


@pytest.mark.default_tier("paths")
@pytest.mark.parametrize("name", SMALL)
def test_all_problems_of_a_small_task(name):
    settings, letters = SMALL[name]
    task = on_device.make(name, **settings, heldout=0.2)
    sizes = task.size("train"), task.size("heldout")
    assert sizes == (COUNT[name] - round(0.2 * COUNT[name]), round(0.2 * COUNT[name]))
    index = np.arange(sizes[0])
    prompts, held, texts, _ = run(task, index)
    assert held[sizes[1] : 2 * sizes[1]] == held[: sizes[1]]  # wraps within the split
    assert len(set(prompts) | set(held)) == COUNT[name]  # no prompt twice, none in both splits
    assert texts == [demonstration(name, prompt) for prompt in prompts]
    assert max(map(len, prompts)) == task.prompt_length
    assert np.all(run(task, index, texts)[-1].outcome == CORRECT)
    assert {judge(name, *pair, letters) for pair in zip(prompts, texts, strict=True)} == {CORRECT}
    agrees(task, letters, index, prompts, texts)


@pytest.mark.full
@pytest.mark.parametrize("name", LARGE)
def test_a_large_task_and_omitted_steps(name):
    letters = {"paths": "abcde", "rewriting": "abcd"}.get(name, SMALL[name][1])
    task = on_device.make(name, **LARGE[name], slip=1.0)
    index = np.arange(ROWS) * 37
    prompts, held, texts, _ = run(task, index)
    assert len(set(prompts) | set(held)) == 2 * ROWS
    assert texts == [demonstration(name, prompt, omit=True) for prompt in prompts]
    agrees(task, letters, index, prompts, [demonstration(name, prompt) for prompt in prompts])


@pytest.mark.full
def test_noise():
    settings, letters = SMALL["lists"]
    task = on_device.make("lists", **settings, noise=0.25)
    index = np.arange(task.size("train"))
    prompts, _, texts, _ = run(task, index)
    outcomes = np.asarray([judge("lists", *pair, letters) for pair in zip(prompts, texts, strict=True)])
    np.testing.assert_array_equal(run(task, index, texts)[-1].outcome, outcomes)
    # two digits, each right with probability 3/4; 4 standard errors of 720 rows
    assert abs(np.mean(outcomes == CORRECT) - 9 / 16) < 4 * math.sqrt(9 / 16 * 7 / 16 / len(index))


def test_the_page_has_the_demonstrations_and_settings_of_every_task():
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text().replace("\\|", "|")
    rows = re.findall(r"^\| `(\w+)` \| `(.+:)` \| `(.+)` \| (.+) \|$", page, re.M)
    rows = [row for row in rows if row[0] in SMALL]
    assert [row[0] for row in rows] == list(SMALL)
    for name, prompt, text, names in rows:
        assert text == (formulas(prompt[:-1], False, 2) if name == "formulas" else demonstration(name, prompt))
        common = [field.name for field in dataclasses.fields(rules.Common)]
        parameters = list(inspect.signature(environments.lookup(name)).parameters)
        assert parameters == [*re.findall(r"`(\w+)`", names), *common]


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in SMALL if name != "paths"])  # of which several answers are correct
def test_the_page_has_the_best_constant_answer(name):
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text()
    (stated,) = re.findall(rf"`{name}`\s([0-9.]+) %", page)
    task = environments.lookup(name)()
    count = min(task.size("heldout"), 65_536)  # in shuffled order
    value = numbering.values(task.rules.radices, 0.1, np.arange(count, dtype=np.int32), "heldout")
    _, repeated = np.unique(np.asarray(rules.answer(task.rules, value)), axis=0, return_counts=True)
    error = 3 * math.sqrt(0.1 / count) if count < task.size("heldout") else 0.0005
    assert abs(repeated.max() / count - float(stated) / 100) <= error + 0.0005 and float(stated) <= 10


def test_answers_without_working_and_common_settings():
    task = environments.lookup("sorting")(working=False)
    assert (task.prompt_length, task.completion_length) == (8, 8)
    prompt = jax.eval_shape(lambda index: task.write_prompts(index, "train"), jax.ShapeDtypeStruct((5,), np.int32))
    assert prompt.shape == (5, 8)
    for settings, words in (
        ({"numbers": 1}, r"numbers=1: must be a whole number in \[2, 12\]"),
        ({"slip": 1.5}, r"slip=1.5: must be a number in \[0, 1\]"),
        ({"heldout": 1.0}, "heldout: 1.0"),
        ({"completion_length": 23}, "completion_length: 23 tokens are too few; these settings need 24"),
    ):
        with pytest.raises(ValueError, match=words):
            environments.lookup("sorting")(**settings)
