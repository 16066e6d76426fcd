"""Traces of programs against plain Python, which reads only the texts."""

import collections
import math
import pathlib
import random
import re

import numpy as np
import pytest

from rljax import environments
from tests.environments.problems import stepped_cases as cases

KINDS = ("branch", "line", "arithmetic")


class Problem:
    """What a prompt says: the true trace, and the branches that are not taken before each of its steps."""

    def __init__(self, prompt, modulus=23):
        self.prompt, self.modulus, self.values = prompt, modulus, {}
        self.taken = None  # whether the last condition is true
        self.trace, self.others = [], collections.defaultdict(dict)
        *lines, question = re.split(r",(?![^(]*\))", prompt)
        self.text = [self._read(line) for line in lines]
        for kind, about, body in self.text:
            if kind == "for":
                for _ in range(int(about)):
                    for line in body:
                        self._run(line)
                for line in body:
                    self.others[len(self.trace)].setdefault(line, len(self.trace))
            elif kind == "if":
                name, sign, number = re.fullmatch(r"(\w)([<>])(\d+)", about).groups()
                self.taken = self.values[name] > int(number) if sign == ">" else self.values[name] < int(number)
                pending = [(body[0], self.taken)]
            if kind == "else":
                pending.append((body[0], not self.taken))
            if kind in ("if", "else"):
                paired = kind == "if" and self._followed(about, body)
                if not paired:
                    place = len(self.trace)
                    for line, chosen in pending:
                        if not chosen:
                            self.others[place].setdefault(line, place + (len(pending) > 1))
                    for line, chosen in pending:
                        if chosen:
                            self._run(line)
            elif kind == "plain":
                self._run(body[0])
        self.answer = str(self.values[question.removesuffix("?")])

    def _read(self, line):
        if match := re.fullmatch(r"(if) (\w[<>]\d+):(.+)|(else):()(.+)|(for) (\d):\((.+)\)", line):
            kind, about, body = [x for x in match.groups() if x is not None]
            return kind, about, body.split(",")
        return "plain", "", [line]

    def _followed(self, about, body):
        place = next(i for i, each in enumerate(self.text) if each[1] is about and each[2] is body)
        return self.text[place + 1 : place + 2] and self.text[place + 1][0] == "else"

    def _run(self, line):
        name, right = line.split("=")
        self.values[name] = eval(right, {}, dict(self.values)) % self.modulus
        self.trace.append((line, right if right.isdigit() else f"{right}={self.values[name]}", name))

    def steps(self):
        """Return the steps of the true trace."""
        return [f"{name}={right}" for _, right, name in self.trace]

    def solution(self):
        """Return the completion that is asked."""
        return ";".join([*self.steps(), self.answer])

    def correct(self, answer):
        """Return whether an answer is right."""
        return answer == self.answer

    def complete(self, steps):
        """Return whether right steps are all."""
        return len(steps) == len(self.solution().split(";")) - 1

    def judge(self, text):
        """Return the kind of each step."""
        kinds, now, steps = [], 0, self.steps()

        def names(step, line):
            name, right = line.split("=")
            return step.startswith(f"{name}=") and len(step) < 5 if right.isdigit() else step.startswith(f"{line}=")

        for step in text.split(";")[:-1]:
            if now < len(steps) and names(step, self.trace[now][0]):
                kinds.append("right" if step == steps[now] else "arithmetic")
                now += 1
                continue
            other = [after for line, after in self.others[now].items() if names(step, line)]
            later = [i + 1 for i in range(now + 1, len(steps)) if names(step, self.trace[i][0])]
            kinds.append("branch" if other else "line")
            now = [*(other or later), now][0]
        return kinds

    def shape(self):
        """Return a text that programs share whose lines have the same kinds and variables."""
        numbers, lines = {}, []
        for kind, about, body in self.text:
            guard = [numbers[about[0]]] if kind == "if" else []
            assigned = []
            for line in body:
                name, right = line.split("=")
                operands = sorted(numbers[x] for x in re.findall("[a-z]", right))
                assigned.append((numbers.setdefault(name, len(numbers)), len(right) > 2, operands))
            lines.append((kind, guard, assigned))
        return str(lines)


def pose(task, count, split="train"):
    prompts, texts, domains, _ = cases.everything(task, range(count), split)
    return [Problem(prompt, task.rules.modulus) for prompt in prompts], texts, domains


def solved(task, problems, texts, domains, least):
    """Assert that demonstrations are true traces and that programs are as asked."""
    for problem, text, domain in zip(problems, texts, domains, strict=True):
        assert text == problem.solution() and len(text) < task.completion_length
        assert len(problem.trace) == least + domain and len(problem.values) <= task.rules.variables
        assert len(problem.prompt) <= task.prompt_length
    kinds = {kind for problem in problems for kind, _, _ in problem.text}
    assert kinds == {"plain", "if", "else"} | ({"for"} if task.rules.loops else set())


def mutated(problem, rng):
    """Return a completion with one change, and the kind that it has to have."""
    steps, kind = problem.steps(), rng.choice([*KINDS, "right"])
    others = [(place, line) for place, each in problem.others.items() for line in each]
    others = [(i, line) for i, line in others if i == len(steps) or line != problem.trace[i][0]]
    if kind == "branch" and others:
        place, line = rng.choice(others)
        steps.insert(place, f"{line}={rng.randrange(problem.modulus)}")
    elif kind == "line":
        place = rng.randrange(len(steps))
        steps.insert(place, rng.choice(["", "a", "=3", " " + steps[place], "(="]))
    elif kind == "arithmetic":
        place = rng.randrange(len(steps))
        start, _, value = steps[place].rpartition("=")
        other = (int(value) + rng.randrange(1, problem.modulus)) % problem.modulus
        steps[place] = f"{start}={rng.choice([str(other), value + '0' if len(value) < 2 else value[:1], ''])}"
    else:
        kind = "right"
    return ";".join([*steps, problem.answer]), kind


def test_steps_and_answers_by_hand():
    problem = Problem("a=3,b=a+4,if b>5:a=a*2,else:b=b-a,if a<2:b=b+a,for 2:(b=b+a,a=a-b),u=4,b?")
    start, rest = "a=3;b=a+4=7;a=a*2=6;", "b=b+a=13;a=a-b=16;b=b+a=6;a=a-b=10;"
    assert problem.solution() == f"{start}{rest}u=4;6"
    for text, kinds in (
        ("a=3;b=a+4=7;b=b-a=4;b=b+a=13;", "right right branch right"),  # the other branch, in place of the one due
        ("a=4;b=a+4=8;", "arithmetic arithmetic"),
        (f"{start}b=b+a=10;", "right right right arithmetic"),  # a stale value
        ("a=3;a=a*2=6;b=b+a=13;", "right line right"),  # a line is omitted
        (f"{start}{rest}b=b+a=16;u=4;", "right " * 7 + "branch right"),  # an iteration too many
        (f"{start}b=b+a=13;a=a-b=16;u=4;", "right " * 5 + "line"),  # one too few
        ("a=3;x=1;a;;b=a+4=7;", "right line line line right"),
        (f"{start}{rest}u=4;a=3;", "right " * 8 + "line"),
    ):
        assert problem.judge(text) == kinds.split(), text
    lone = Problem("a=3,b=a+4,if b<5:a=a*2,b=b-a,a?")
    assert lone.judge("a=3;b=a+4=7;a=a*2=6;b=b-a=4;") == ["right", "right", "branch", "right"]


@pytest.mark.full
def test_problems_solutions_and_steps():
    task, rng = (
        cases.make("traces", operations=(4, 5), step_reward=1.0, strict=True, completion_length=160),
        random.Random(0),
    )
    problems, texts, domains = pose(task, 128)
    solved(task, problems, texts, domains, 4)
    assert {*domains.tolist()} == {0, 1}
    assert {kind for kinds in cases.agrees(task, problems, texts) for kind in kinds} == {"right"}
    cases.agrees(task, problems, [";".join([*text.split(";")[:-2], text.split(";")[-1]]) for text in texts])
    changed = [mutated(problem, rng) for problem in problems]
    for (text, kind), steps in zip(changed, cases.agrees(task, problems, [text for text, _ in changed]), strict=True):
        assert kind == "right" or kind in steps, (text, kind, steps)
    assert {kind for _, kind in changed} == {"right", *KINDS}
    cases.refuses(
        "traces",
        (
            ({"operations": (5, 4)}, r"operations: \(5, 4\) is empty"),
            ({"operations": 2}, "operations=2: must be"),
            ({"modulus": 21}, "modulus: 21 is not a prime"),
            ({"variables": 5}, "variables=5: must be"),
            ({"operations": (4, 5), "completion_length": 9}, "completion_length: 9 tokens are too few"),
        ),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 4),
        ({"operations": (9, 12), "variables": 4, "modulus": 97}, 9),
        ({"operations": 5, "loops": False, "variables": 2, "modulus": 11}, 5),
    ],
)
def test_every_band(settings, least):
    task, rng = cases.make("traces", step_reward=1.0, completion_length=300, **settings), random.Random(1)
    for split in ("heldout", "train"):
        problems, texts, domains = pose(task, 500, split)
        solved(task, problems, texts, domains, least)
    cases.agrees(task, problems, texts)
    changed = [mutated(problem, rng) for problem in problems]
    for (text, kind), steps in zip(changed, cases.agrees(task, problems, [text for text, _ in changed]), strict=True):
        assert kind == "right" or kind in steps, (text, kind, steps)
    walks = []  # lines of the program in a wrong order, with any branch
    for problem in problems:
        lines = [line for _, _, body in problem.text for line in body]
        steps = problem.steps()
        for _ in range(rng.randrange(1, 5)):
            line, value = rng.choice(lines), rng.choice(["", "0", "7", "10"])
            place = rng.randrange(len(steps) + 1)
            steps[place : place + rng.randrange(2)] = [f"{line}={value}"]
        walks.append(";".join([*steps, problem.answer]))
    kinds = cases.agrees(task, problems, walks)
    assert {kind for steps in kinds for kind in steps} == {"right", *KINDS}
    cases.agrees(task, problems, cases.broken(texts, task.alphabet, rng))


@pytest.mark.full
def test_slips_and_noise():
    for name, share in (("slip", 0.2), ("noise", 0.1)):
        task = cases.make("traces", step_reward=1.0, **{name: share})
        problems, texts, _ = pose(task, 500)
        kinds = cases.agrees(task, problems, texts)
        assert {kind for each in kinds for kind in each} == (
            {"right", *KINDS} if name == "slip" else {"right", "arithmetic"}
        )
        for problem, text, each in zip(problems, texts, kinds, strict=True):
            steps = text.split(";")[:-1]
            if {*each} == {"right"} and len(steps) == len(problem.trace):
                assert text == problem.solution()
            values = {}
            for step in steps:  # it continues from what was written, or from a stale value
                left, *right = step.split("=")
                values.setdefault(left, []).append(int(right[-1]))
            (asked,) = re.findall(r"(\w)\?", problem.prompt)
            assert text.rpartition(";")[2] == str(values[asked][-1])
        if name == "noise":
            clean = [a == b.solution() for a, b in zip(texts, problems, strict=True)]
            expected = np.mean([(1 - share) ** len(problem.trace) for problem in problems])
            assert abs(np.mean(clean) - expected) < 4 * math.sqrt(0.25 / 500)


@pytest.mark.full
def test_splits_share_no_shape_in_any_band():
    bands = ({}, {"operations": (7, 10), "variables": 4}, {"operations": (3, 5), "loops": False})
    cases.shares_no_shape(pose, "traces", bands)


@pytest.mark.full
def test_prompts_are_different_and_answers_are_even():
    task = cases.make("traces")
    problems = {split: pose(task, 6000, split)[0] for split in ("train", "heldout")}
    assert len({problem.prompt for each in problems.values() for problem in each}) > 11_990
    most = max(collections.Counter(problem.answer for problem in problems["heldout"]).values()) / 6000
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text()
    (stated,) = re.findall(r"`traces`\s([0-9.]+) %", page)
    assert abs(most - float(stated) / 100) < 4 * math.sqrt(0.05 / 6000)
    taken = [problem.taken for problem in problems["train"] if problem.taken is not None]
    assert abs(np.mean(taken) - 0.5) < 4 * math.sqrt(0.25 / len(taken))
    ((prompt, text),) = re.findall(r"^\| `traces` \| `([^`]+)` \| `([^`]+)` \|", page, re.M)
    assert Problem(prompt).solution() == text
