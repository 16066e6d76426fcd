"""Searches with dead ends against plain Python, which reads only the texts."""

import collections
import itertools
import math
import pathlib
import random
import re

import jax
import numpy as np
import pytest

from rljax import environments
from tests.environments.problems import stepped_cases as cases

KINDS = ("unknown", "place", "edge", "repeat", "back")


class Problem:
    """What a prompt says."""

    def __init__(self, prompt):
        *edges, ends = prompt.removesuffix(":").split(" ")
        self.prompt, (self.start, self.goal) = prompt, ends.split(">")
        self.out = collections.defaultdict(list)
        for x, y in edges:
            self.out[x].append(y)
        self.names = {*"".join(edges)}

    def reached(self):
        """Return the junctions that can be reached."""
        left, seen = [self.start], {self.start}
        while left:
            for y in self.out[left.pop()]:
                left += [y] if y not in seen else []
                seen.add(y)
        return seen

    def paths(self, x=None):
        """Return all paths to the goal."""
        x = x or self.start
        return [x] if x == self.goal else [x + path for y in self.out[x] for path in self.paths(y)]

    def correct(self, answer):
        """Return whether an answer is a path to the goal."""
        linked = all(y in self.out[x] for x, y in itertools.pairwise(answer))
        return answer[:1] == self.start and answer[-1:] == self.goal and linked

    def complete(self, steps):
        """Return whether right steps end at the goal."""
        return bool(steps) and steps[-1].endswith(f">{self.goal}")

    def shape(self, x=None):
        """Return a text that isomorphic graphs of what can be reached share."""
        x = x or self.start
        return "*" if x == self.goal else f"({''.join(sorted(self.shape(y) for y in self.out[x]))})"

    def search(self, rng=None):
        """Return the steps of a depth-first search, in the order of the prompt or in a random one, and the path."""
        steps, refuted, stack = [], set(), [self.start]
        while (x := stack[-1]) != self.goal:
            free = [y for y in self.out[x] if y not in refuted]
            if free:
                stack.append(rng.choice(free) if rng else free[0])
                steps.append(f"{x}>{stack[-1]}")
            else:
                refuted.add(stack.pop())
                steps.append(f"{x}!{stack[-1]}")
        return ";".join([*steps, "".join(stack)])

    def judge(self, text):
        """Return the kind of each step."""
        kinds, stack, visited = [], [self.start], {self.start}

        def refuted(x):
            return x != self.goal and x in visited and x not in stack and all(map(refuted, self.out[x]))

        for step in text.split(";")[:-1]:
            match = re.fullmatch("([a-z])([>!])([a-z])", step)
            if not match or not {match[1], match[3]} <= self.names:
                kinds.append("unknown")
                continue
            x, sign, y = match.groups()
            if x not in stack:
                kinds.append("place")
                continue
            elsewhere = x != stack[-1]
            del stack[stack.index(x) + 1 :]
            if sign == ">":
                kind = "edge" if y not in self.out[x] else "repeat" if y in stack or refuted(y) else "right"
            else:
                exhausted = x != self.goal and all(map(refuted, self.out[x]))
                kind = "right" if exhausted and stack[-2:-1] == [y] else "back"
            kinds.append("place" if elsewhere else kind)
            if y in stack:
                del stack[stack.index(y) + 1 :]
            elif sign == ">":
                stack.append(y)
                visited.add(y)
        return kinds


def pose(task, count, split="train"):
    prompts, texts, domains, _ = cases.everything(task, range(count), split)
    return [Problem(prompt) for prompt in prompts], texts, domains


def solved(task, problems, texts, domains, least):
    """Assert that demonstrations are searches in the order of the prompt and that graphs are as asked."""
    for problem, text, domain in zip(problems, texts, domains, strict=True):
        assert text == problem.search() and len(text) < task.completion_length
        assert len(re.findall(r"(.)>(.);\2!", text)) == least + domain  # entered, and left at once
        path, (low, high) = text.rpartition(";")[2], task.rules.length
        assert low < len(path) <= high + 1 and problem.correct(path)
        reached = problem.reached()
        assert len(problem.names - reached) == task.rules.decoys
        assert max(len(problem.out[x]) for x in reached) <= task.rules.branching
        assert len(problem.prompt) <= task.prompt_length


def mutated(problem, text, rng):
    """Return a completion with one change, and the kind that it has to have."""
    *steps, answer = text.split(";")
    unreached = sorted(problem.names - problem.reached())
    kind = rng.choice([kind for kind in (*KINDS, "right") if unreached or kind != "place"])
    place = rng.randrange(len(steps))
    x, y = steps[place][::2]
    names = sorted(problem.names)
    if kind == "right":
        return problem.search(rng), kind
    if kind == "unknown":
        other = sorted({*"abcdefghijklmnopqrstuvwxyz"} - problem.names) or [":"]
        steps.insert(place, rng.choice(["", x, x + y, f"{x}>>{y}", f"{x}>{other[0]}", f"{other[-1]}!{y}", f" {x}>{y}"]))
    elif kind == "place":
        steps.insert(place, f"{rng.choice(unreached)}{rng.choice('>!')}{rng.choice(names)}")
    elif kind == "edge":
        absent = [name for name in names if name not in problem.out[x]]
        steps.insert(place, f"{x}>{rng.choice(absent)}")
    elif kind == "repeat":
        place = rng.choice([i for i, step in enumerate(steps) if step[1] == "!"])
        steps.insert(place + 1, f"{steps[place][2]}>{steps[place][0]}")
    else:
        steps.insert(place, f"{x}!{rng.choice(names)}" if steps[place][1] == ">" else f"{x}!{x}")
    return ";".join([*steps, answer]), kind


def test_steps_and_answers_by_hand():
    problem = Problem("bd ac ab ce be ye a>e:")  # y is a decoy; d is a dead end
    assert problem.search() == "a>c;c>e;ace" and sorted(problem.paths()) == ["abe", "ace"]
    for text, kinds in (
        ("a>b;b>d;d!b;b>e;", "right right right right"),
        ("a>b;b>d;b>e;", "right right place"),  # a retreat is missed
        ("a>b;b>d;d!a;a>c;", "right right back right"),  # to the wrong place
        ("a>b;b!a;a>b;b>d;", "right back right right"),  # too early, and corrected
        ("a>b;b>d;d!b;b>d;d!b;", "right right right repeat right"),
        ("a>d;d!a;a>b;b>d;b>e;", "edge right right repeat place"),
        ("a>q;a:b;ab;;a>b;", "unknown unknown unknown unknown right"),
        ("y>e;a!a;a>c;c>e;e!c;e>a;", "place back right right back place"),
    ):
        assert problem.judge(text) == kinds.split(), text
    assert [problem.correct(path) for path in ("abe", "ace", "ae", "ab", "be", "", "abeb", "abde")] == [True] * 2 + [
        False
    ] * 6


@pytest.mark.full
def test_problems_solutions_and_steps():
    task = cases.make("backtracking", dead_ends=(1, 2), step_reward=1.0, strict=True, completion_length=160)
    problems, texts, domains = pose(task, 128)
    solved(task, problems, texts, domains, 1)
    assert {*domains.tolist()} == {0, 1}
    assert {kind for kinds in cases.agrees(task, problems, texts) for kind in kinds} == {"right"}
    cases.agrees(task, problems, [text[text.index(";") + 1 :] for text in texts])  # starts elsewhere
    cases.agrees(task, problems, [";".join([*text.split(";")[:-2], text.split(";")[-1]]) for text in texts])
    rng = random.Random(0)
    changed = [mutated(problem, text, rng) for problem, text in zip(problems, texts, strict=True)]
    for (text, kind), steps in zip(changed, cases.agrees(task, problems, [text for text, _ in changed]), strict=True):
        assert kind == "right" == steps[0] or kind in steps, (text, kind, steps)
    assert {kind for _, kind in changed} == {"right", *KINDS}
    cases.refuses(
        "backtracking",
        (
            ({"dead_ends": (3, 2)}, r"dead_ends: \(3, 2\) is empty"),
            ({"dead_ends": 11}, "dead_ends=11: must be"),
            ({"length": (5, 4)}, r"length: \(5, 4\) is empty"),
            ({"dead_ends": 1, "length": (1, 1), "depth": 1}, r"dead_ends: searches with dead ends of 1 are too few"),
            ({"decoys": 60}, "decoys=60: must be"),
            ({"dead_ends": (1, 2), "completion_length": 9}, "completion_length: 9 tokens are too few"),
        ),
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("settings", "least"),
    [
        ({}, 2),
        ({"dead_ends": (6, 8), "decoys": 0}, 6),
        ({"dead_ends": 4, "depth": 4, "branching": 2, "length": (4, 8), "joins": 0, "decoys": 1}, 4),
        ({"dead_ends": (1, 3), "depth": 1, "branching": 4, "joins": 4, "decoys": 8}, 1),
    ],
)
def test_every_band(settings, least):
    task, rng = cases.make("backtracking", step_reward=1.0, completion_length=400, **settings), random.Random(1)
    for split in ("heldout", "train"):
        problems, texts, domains = pose(task, 500, split)
        solved(task, problems, texts, domains, least)
    cases.agrees(task, problems, texts)
    changed = [mutated(problem, text, rng) for problem, text in zip(problems, texts, strict=True)]
    for (text, kind), steps in zip(changed, cases.agrees(task, problems, [text for text, _ in changed]), strict=True):
        assert ({*steps} == {"right"}) if kind == "right" else kind in steps, (text, kind, steps)
    walks = []  # steps among the names of the prompt, many from where the search stands
    for problem in problems:
        steps, names = [], sorted(problem.names)
        for _ in range(20):
            x = steps[-1][2] if steps and rng.random() < 0.8 else rng.choice(names)
            y = rng.choice(problem.out[x]) if problem.out[x] and rng.random() < 0.6 else rng.choice(names)
            steps.append(f"{x}{rng.choice('>>!')}{y}")
        walks.append(";".join([*steps, rng.choice(problem.paths())]))  # every path counts
    kinds = cases.agrees(task, problems, walks)
    assert {kind for steps in kinds for kind in steps} == {"right", *KINDS} - {"unknown"}
    cases.agrees(task, problems, cases.broken(texts, task.alphabet, rng))
    several = [problem for problem in problems if len(problem.paths()) > 1]
    assert bool(several) == bool(task.rules.joins)


@pytest.mark.full
def test_slips_and_noise():
    for name, share in (("slip", 0.3), ("noise", 0.1)):
        task = cases.make("backtracking", step_reward=1.0, **{name: share})
        problems, texts, _ = pose(task, 500)
        kinds = cases.agrees(task, problems, texts)
        clean = [problem.search() for problem in problems]
        steps = [text.count("!" if name == "slip" else ";") for text in clean]
        assert abs(
            np.mean([a == b for a, b in zip(texts, clean, strict=True)]) - np.mean([(1 - share) ** n for n in steps])
        ) < 4 * math.sqrt(0.25 / 500)
        assert {"place"} <= {kind for each in kinds for kind in each}
        for problem, text, each in zip(problems, texts, kinds, strict=True):
            if name == "slip":  # what is entered and not left is the path
                missed = problem.search().count("!") - text.count("!")
                path = problem.search().rpartition(";")[2]
                assert len(text.rpartition(";")[2]) == len(path) + missed
                assert problem.correct(text.rpartition(";")[2]) == (not missed)
            elif {*each} == {"right"}:  # it may stop too early
                assert problem.correct(text.rpartition(";")[2]) == text.endswith(problem.goal)
        assert name == "slip" or {"edge", "back"} <= {kind for each in kinds for kind in each}


@pytest.mark.full
def test_splits_share_no_shape_in_any_band():
    bands = ({}, {"dead_ends": (4, 7), "decoys": 0}, {"dead_ends": (1, 3), "length": (2, 6), "decoys": 8})
    cases.shares_no_shape(pose, "backtracking", bands)


@pytest.mark.full
def test_prompts_are_different_and_no_constant_answer_is_often_right():
    task = cases.make("backtracking")
    problems = {split: pose(task, 6000, split)[0] for split in ("train", "heldout")}
    assert len({problem.prompt for each in problems.values() for problem in each}) == 12_000
    counts = collections.Counter(path for problem in problems["heldout"] for path in {*problem.paths()})
    assert max(counts.values()) / 6000 < 0.001  # of all texts, as others are never right
    page = (pathlib.Path(environments.__file__).parent / "README.md").read_text()
    ((prompt, text),) = re.findall(r"^\| `backtracking` \| `(.+)` \| `(.+)` \|", page, re.M)
    assert Problem(prompt).search() == text


@pytest.mark.full
def test_a_million_problems():
    task = cases.make("backtracking")
    assert task.size("train") > 9_000_000 and task.size("heldout") > 1_000_000
    index = np.random.default_rng(0).integers(task.size("train"), size=2000).astype(np.int32)
    value = np.asarray(jax.jit(lambda i: task.values(i, "train"))(index))
    assert len(np.unique(value, axis=0)) == len({*index.tolist()})
