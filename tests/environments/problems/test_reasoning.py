"""Word problems over dependency graphs against plain Python, which reads only the texts."""

import functools
import itertools
import math
import pathlib
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.environments import characters
from rljax.environments.problems import rules
from rljax.environments.problems.shipped import graphs
from tests.environments.problems import stepped_cases as cases

CORRECT, WRONG = types.Outcome.CORRECT, types.Outcome.WRONG
NAME = r"([a-z]{3}(?: [a-z]{3})?|[A-Z])"
WORDINGS = ("formula", "plain", "phrases")
KINDS = ("unknown", "operands", "premature", "arithmetic", "needless")
OPERATORS = {"plus": "+", "minus": "-", "times": "*"}


# --- plain Python: a prompt is read, solved, and the steps of a completion are judged ----------------


def read(prompt):
    """Return the wording of a prompt, the definition of each quantity and the quantity that is asked."""
    if "how much" not in prompt:
        *sentences, question = prompt.split(", ")
        defined = dict(s.split("=") for s in sentences)
        pattern = rf"{NAME}([-+*])(?:{NAME}|(\d))"
        matches = {name: re.fullmatch(pattern, text) for name, text in defined.items()}
        quantities = {n: (m[2], m[1], m[3] or int(m[4])) if m else int(defined[n]) for n, m in matches.items()}
        return "formula", quantities, question.removesuffix("?")
    *sentences, question = prompt.split(". ")
    asked, quantities = re.fullmatch(rf"how much {NAME}\?", question)[1], {}
    for sentence in sentences:
        if given := re.fullmatch(rf"{NAME}(?: is|:) (\d+)", sentence):
            quantities[given[1]] = int(given[2])
        elif m := re.fullmatch(rf"{NAME} is {NAME} (plus|minus|times) (?:{NAME}|(\d))", sentence):
            quantities[m[1]] = (OPERATORS[m[3]], m[2], m[4] or int(m[5]))
        elif m := re.fullmatch(rf"{NAME}: (\d) (more|less) than {NAME}", sentence):
            quantities[m[1]] = ("+" if m[3] == "more" else "-", m[4], int(m[2]))
        elif m := re.fullmatch(rf"{NAME}: (twice|(\d) times) {NAME}", sentence):
            quantities[m[1]] = ("*", m[4], int(m[3] or 2))
        elif m := re.fullmatch(rf"{NAME}: sum of {NAME} and {NAME}", sentence):
            quantities[m[1]] = ("+", m[2], m[3])
        else:
            m = re.fullmatch(rf"{NAME}: {NAME} less {NAME}", sentence)
            quantities[m[1]] = ("-", m[2], m[3])
    return ("plain" if " is " in prompt else "phrases"), quantities, asked


def operands(definition):
    return [] if isinstance(definition, int) else [x for x in definition[1:] if isinstance(x, str)]


class Problem:
    """What a prompt says."""

    def __init__(self, prompt, modulus):
        self.prompt = prompt
        self.wording, self.quantities, self.asked = read(prompt)
        self.modulus, self.values, self.depths = modulus, {}, {}
        for name in self.quantities:
            self.solve(name)
        self.needed, left = set(), [self.asked]
        while left:
            name = left.pop()
            self.needed.add(name)
            left += operands(self.quantities[name])

    def solve(self, name):
        """Return the value of a quantity or a number."""
        if isinstance(name, int):
            return name
        if name not in self.values:
            definition = self.quantities[name]
            if isinstance(definition, int):
                self.values[name], self.depths[name] = definition, 0
            else:
                operator, a, b = definition
                self.values[name] = eval(f"{self.solve(a)}{operator}{self.solve(b)}") % self.modulus
                self.depths[name] = 1 + max(self.depths[x] for x in operands(definition))
        return self.values[name]

    def forms(self, name):
        """Return the right steps of a quantity."""
        definition, value = self.quantities[name], self.values[name]
        if isinstance(definition, int):
            return [f"{name}={definition}"]
        operator, a, b = definition
        pairs = [(a, b)] + ([(b, a)] if operator == "+" and isinstance(b, str) else [])
        return [f"{name}={x}{operator}{y}={self.solve(x)}{operator}{self.solve(y)}={value}" for x, y in pairs]

    def correct(self, answer):
        """Return whether an answer is right."""
        return answer == str(self.values[self.asked])

    def complete(self, steps):
        """Return whether steps compute the quantity that is asked."""
        return any(step in self.forms(self.asked) for step in steps)

    def judge(self, text):
        """Return the kind of each step."""
        kinds, known, right = [], set(), set()
        for step in text.split(";")[:-1]:
            name, equals, _ = step.partition("=")
            if not equals or name not in self.quantities:
                kinds.append("unknown")
                continue
            computed = {x for x in operands(self.quantities[name]) if not isinstance(self.quantities[x], int)}
            definition = {"=".join([*form.split("=")[:2], ""]) for form in self.forms(name)}
            given = isinstance(self.quantities[name], int)
            if not (step in self.forms(name) if given else any(step.startswith(start) for start in definition)):
                kinds.append("operands")
            elif not computed <= known:
                kinds.append("premature")
            elif step not in self.forms(name):
                kinds.append("arithmetic")
            elif name not in self.needed or name in right:
                kinds.append("needless")
            else:
                kinds.append("right")
            known.add(name)
            right |= {name} if step in self.forms(name) else set()
        return kinds

    def order(self, rng):
        """Return the needed quantities in a random order in which they can be computed."""
        order, left = [], sorted(self.needed)
        while left:
            ready = [name for name in left if set(operands(self.quantities[name])) <= {*order}]
            order.append(rng.choice(ready))
            left.remove(order[-1])
        return order

    def shape(self):
        """Return a text that two problems share if and only if the graphs of their needed quantities are isomorphic."""
        sums = [
            n for n in sorted(self.needed) if len(operands(self.quantities[n])) == 2 and self.quantities[n][0] == "+"
        ]

        def serial(exchanged):
            numbers = {}

            def visit(name):
                if name in numbers:
                    return f"#{numbers[name]}"
                numbers[name], definition = len(numbers), self.quantities[name]
                if isinstance(definition, int):
                    return "g"
                parts = operands(definition)[:: -1 if name in exchanged else 1]
                return f"({definition[0]}{''.join(map(visit, parts))})"

            return visit(self.asked)

        return min(serial({*chosen}) for n in range(len(sums) + 1) for chosen in itertools.combinations(sums, n))


# --- the task --------------------------------------------------------------------------------------


def make(**settings):
    return cases.make("reasoning", **settings)


def pose(task, count, split="train", start=0):
    """Return problems, demonstrations and domains."""
    prompts, texts, domains, _ = cases.everything(task, range(start, start + count), split)
    return [Problem(prompt, task.rules.modulus) for prompt in prompts], texts, domains


def agrees(task, problems, texts):
    return cases.agrees(task, problems, texts, unpaid="needless")


def solved(task, problems, texts, domains, operations, depth):
    """Assert that demonstrations are right and that graphs are as asked."""
    least, most = operations
    for problem, text, domain in zip(problems, texts, domains, strict=True):
        computed = [name for name in problem.needed if not isinstance(problem.quantities[name], int)]
        assert len(computed) == least + domain and (
            depth is None or depth[0] <= problem.depths[problem.asked] <= depth[1]
        )
        assert len(problem.quantities) - len(problem.needed) == task.rules.distractors
        steps = text.split(";")
        assert steps[-1] == str(problem.values[problem.asked]) and len(steps) == len(problem.needed) + 1
        assert all(step in problem.forms(step.partition("=")[0]) for step in steps[:-1])
        assert len(text) < task.completion_length
    assert {*domains.tolist()} == {*range(most - least + 1)}


def test_problems_solutions_and_steps():
    task = make(operations=(2, 3), distractors=1, step_reward=1.0, strict=True, votes=True, completion_length=200)
    problems, texts, domains = pose(task, 96)
    solved(task, problems, texts, domains, (2, 3), None)
    assert {problem.wording for problem in problems} == {*WORDINGS}
    assert {kind for kinds in agrees(task, problems, texts) for kind in kinds} == {"right"}
    wrong = [
        mutated(problem, text, random.Random(i))[0]
        for i, (problem, text) in enumerate(zip(problems, texts, strict=True))
    ]
    assert {kind for kinds in agrees(task, problems, wrong) for kind in kinds} == {"right", *KINDS}
    assert agrees(task, problems, [text.rpartition(";")[2] for text in texts]) == [[]] * len(texts)
    cases.refuses(
        "reasoning",
        (
            ({"operations": (3, 2)}, r"operations: \(3, 2\) is empty"),
            ({"operations": 1}, "operations=1: must be"),
            ({"depth": (4, 5), "operations": 3}, r"depth: \(4, 5\) asks for longer chains than operations=3"),
            ({"depth": (3, 2)}, r"depth: \(3, 2\) is empty"),
            ({"depth": (2, 2), "operations": 7}, r"depth: \(2, 2\) has only \d+ graphs of 7 operations"),
            ({"modulus": 21}, "modulus: 21 is not a prime"),
            ({"distractors": 60}, "distractors=60: must be"),
            ({"wording": "plane"}, "wording='plane': must be .*'plain'"),
            ({"prompt_length": 99}, "prompt_length: 99 tokens are too few"),
        ),
    )


def mutated(problem, text, rng):
    """Return a completion with one mistake, and its kind, "right" for another order; None if it is not possible."""
    *steps, answer = text.split(";")
    computed = [i for i, step in enumerate(steps) if step.count("=") == 3]
    place, kind = rng.choice(computed), rng.choice(["right", *KINDS])
    name, definition, numbers, value = steps[place].split("=")
    if kind == "right":
        steps = [rng.choice(problem.forms(name)) for name in problem.order(rng)]
    elif kind == "unknown":
        steps[place:place] = [
            rng.choice(["", "x", definition, name, f"{name}:{definition}", "red cup=3", " " + steps[place]])
        ]
    elif kind == "arithmetic":
        other = str((int(value) + rng.randrange(1, problem.modulus)) % problem.modulus)
        operator = re.search("[-+*]", numbers)[0]
        changed = rng.choice(
            [f"{numbers}={other}", f"9{numbers}={value}", f"{numbers}=", f"{value}", f"{numbers}{operator}={value}"]
        )
        steps[place] = f"{name}={definition}={changed}"
    elif kind == "operands":
        others = sorted({*problem.quantities} - {*operands(problem.quantities[name])})
        first, operator, rest = re.fullmatch("([A-Za-z ]+)([-+*])(.*)", definition).groups()
        sign = rng.choice(sorted({*"+-*"} - {operator}))
        changed = rng.choice(
            [f"{rng.choice(others)}{operator}{rest}", f"{first}{sign}{rest}", f"{first}{operator}{rest}9", first]
        )
        steps[place] = f"{name}={changed}={numbers}={value}"
    elif kind == "premature":
        needs = [
            i
            for i in computed
            if any(
                not isinstance(problem.quantities[x], int)
                for x in operands(problem.quantities[steps[i].partition("=")[0]])
            )
        ]
        place = rng.choice(needs)
        steps = [step for step in steps[:place] if isinstance(problem.quantities[step.partition("=")[0]], int)] + [
            steps[place]
        ]
    else:
        unknown = {
            name for name in problem.quantities if not isinstance(problem.quantities[name], int)
        } - problem.needed
        others = sorted({*problem.quantities} - problem.needed)
        others = [name for name in others if not unknown & {*operands(problem.quantities[name])}]
        repeated = [steps[place]] * rng.randrange(1, 3)
        steps += rng.choice([repeated, *([problem.forms(name)[0]] for name in others)])
    return ";".join([*steps, answer]), kind


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "operations", "depth"),
    [
        *(({"wording": wording, "operations": (2, 6), "distractors": 3}, (2, 6), None) for wording in WORDINGS),
        ({"operations": (7, 10), "modulus": 11, "strict": True, "names": "letters"}, (7, 10), None),
        ({"operations": (4, 5), "depth": (3, 4), "distractors": 0, "names": "words"}, (4, 5), (3, 4)),
        ({"operations": 6, "depth": (6, 6), "distractors": 8}, (6, 6), (6, 6)),
    ],
)
def test_every_wording_and_band(settings, operations, depth):
    task, rng = make(step_reward=1.0, completion_length=500, **settings), random.Random(0)
    for split in ("heldout", "train"):
        problems, texts, domains = pose(task, 500, split)
        solved(task, problems, texts, domains, operations, depth)
    if "wording" in settings:
        assert {problem.wording for problem in problems} == {settings["wording"]}
    assert {kind for kinds in agrees(task, problems, texts) for kind in kinds} == {"right"}
    changed = [mutated(problem, text, rng) for problem, text in zip(problems, texts, strict=True)]
    kinds = agrees(task, problems, [text for text, _ in changed])
    for (text, kind), steps in zip(changed, kinds, strict=True):
        assert {*steps} - {"right"} == {kind} - {"right"}, (text, kind, steps)
    agrees(task, problems, cases.broken(texts, task.alphabet, rng))


@pytest.mark.full
def test_slips_and_noise():
    for settings in ({"slip": 0.3}, {"noise": 0.2}):
        task = make(operations=(2, 6), step_reward=1.0, **settings)
        problems, texts, _ = pose(task, 500)
        agrees(task, problems, texts)
        mistakes = steps = 0
        for problem, text in zip(problems, texts, strict=True):
            *lines, answer = text.split(";")
            written, done = {}, {line[:7]: line for line in lines}
            computed = [name for name in problem.needed if not isinstance(problem.quantities[name], int)]
            steps, mistakes = steps + len(computed), mistakes + len([name for name in computed if name not in done])
            for line in lines:
                name, *parts = line.split("=")
                if len(parts) == 3:  # it continues from what was written
                    definition, numbers, value = parts
                    right = [form.split("=")[1] for form in problem.forms(name)]
                    pairs = zip(re.split("[-+*]", definition), re.split("[-+*]", numbers), strict=True)
                    assert all(written.get(x, y) == y for x, y in pairs if not x.isdigit())
                    off = (int(value) - eval(numbers)) % problem.modulus
                    assert "noise" in settings or off == 0
                    mistakes += off != 0 or definition not in right
                written[name] = parts[-1]
            if problem.asked in written:
                assert written[problem.asked] == answer
        share = next(iter(settings.values()))
        assert abs(mistakes / steps - share) < 4 * math.sqrt(share * (1 - share) / steps), settings


@pytest.mark.full
def test_no_two_shapes_are_isomorphic_and_splits_share_none():
    task, texts = make(operations=(2, 4)), []
    table, start = graphs.band(2, 4)
    value = np.asarray(jax.jit(lambda i: task.values(i, "train"))(np.arange(4096, dtype=np.int32)))
    prompt = jax.jit(lambda value: characters.pack(task.rules.prompt(value), task.prompt_length))
    for first in range(0, len(table), len(value)):  # every row of the table, with other integers at random
        row = np.minimum(np.arange(first, first + len(value)), len(table) - 1)
        domain = np.searchsorted(start, row, side="right") - 1
        place = row - start[domain]
        chosen = [place % graphs.CLASSES, domain, place // graphs.CLASSES]
        texts += characters.strings(prompt(np.concatenate([np.stack(chosen, axis=1), value[:, 3:]], axis=1)))
    shapes = [Problem(text, 23).shape() for text in texts[: len(table)]]
    assert len({*shapes}) == len(table)
    assert all(shape.count("(") == 2 + (start[1:] <= i).sum() for i, shape in enumerate(shapes))
    seen = {
        split: {p.shape() for first in (0, 3000) for p in pose(task, 3000, split, first)[0]}
        for split in ("train", "heldout")
    }
    assert not seen["train"] & seen["heldout"] and min(map(len, seen.values())) > 300
    held = {split: {*np.asarray(task.values(np.arange(9000), split))[:, 0].tolist()} for split in seen}
    assert len(held["heldout"]) == 4 and held["train"] | held["heldout"] == {*range(40)}
    # a number of operations holds out the same shapes in every band
    alone = {p.shape() for p in pose(make(operations=4), 3000, "heldout")[0]}
    assert not alone & seen["train"] and alone & seen["heldout"]


@pytest.mark.full
def test_prompts_are_different_and_answers_are_even():
    task = environments.lookup("reasoning")()
    index = np.arange(20_000, dtype=np.int32)
    value = {split: task.values(index, split) for split in ("train", "heldout")}
    texts = [text for each in value.values() for text in characters.strings(jax.jit(task.rules.prompt)(each))]
    assert len({*texts}) == 2 * len(index)
    answers = characters.strings(jax.jit(functools.partial(rules.answer, task.rules))(value["heldout"]))
    most = max(answers.count(str(n)) for n in range(23)) / len(answers)
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text()
    (stated,) = re.findall(r"`reasoning`\s([0-9.]+) %", page)
    assert abs(most - float(stated) / 100) < 4 * math.sqrt(0.05 / len(answers))
    ((prompt, text),) = re.findall(r"^\| `reasoning` \| `(.+)` \| `(.+)` \|", page, re.M)
    assert {*Problem(prompt, 23).judge(text)} == {"right"}
    assert text.rpartition(";")[2] == str(Problem(prompt, 23).solve(Problem(prompt, 23).asked))


def test_long_texts_are_packed_like_short_ones():
    code = np.random.default_rng(0).integers(1, 99, (50, 300)) * (np.random.default_rng(1).random((50, 300)) < 0.3)
    for pad, length in itertools.product(("left", "right"), (60, 120)):
        packed = np.asarray(characters.pack(jnp.asarray(code, jnp.int32), length, pad=pad))
        for row, given in zip(packed, code, strict=True):
            kept = [c for c in given.tolist() if c]
            kept = kept[:length] if pad == "right" else kept[-length:]
            blank = [0] * (length - len(kept))
            assert row.tolist() == (kept + blank if pad == "right" else blank + kept)
