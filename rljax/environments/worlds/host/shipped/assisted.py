"""Examples of ``tools.ToolWorld``: questions of files, or made here, with the calls that demonstrations make."""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from rljax.data import rows
from rljax.environments.questions import columns, recipe, splits
from rljax.environments.questions.task import Question
from rljax.environments.verifiers import answers, rewards
from rljax.environments.worlds.host import calls, options
from rljax.language import messages

Plan = Sequence[tuple[str, Mapping[str, Any]]]
Planned = Callable[[Mapping[str, Any], str, str], Plan]  # of a row, its question and its place

_SPLITS = {"train": 512, "heldout": 64}  # of questions that are made here


class Examples(NamedTuple):
    """The examples of each split, and what judges answers."""

    splits: Mapping[str, list[dict[str, Any]]]
    reward: rewards.Rewards


def read(name: str, asked: options.Asked, path: recipe.Paths, plan: Planned) -> Examples:
    """Return the questions of files as examples.

    Args:
      name: of the task.
      asked: how rows become questions.
      path: the files, as in ``rows.read``.
      plan: returns the calls of a row's demonstration.

    Raises:
      ValueError: as ``recipe.build``, or a row lacks what the demonstration needs.
      FileNotFoundError: a file does not exist.
    """
    fields = {
        field: getattr(asked, field) for field in ("prompt", "answer", "reward", "final", "formats", "instruction")
    }
    how = recipe.Recipe(name, **fields, offered=(calls.TRANSCRIPT,))
    task = recipe.build(how, path, asked.heldout, asked.chat, recipe.Lengths())
    every: dict[str, Mapping[str, Any]] = {}
    for each in (path, *(() if isinstance(asked.heldout, int | float) else (asked.heldout,))):
        taken = rows.read(each)
        every |= {taken.where(number): row for number, row in enumerate(taken)}

    def example(question: Question) -> dict[str, Any]:
        planned = plan(every[question.where], question.prompt, question.where)
        return _example(question, planned, task.chat)

    reward: Any = task.reward
    return Examples({split: [example(q) for q in questions] for split, questions in task.sources.items()}, reward)


def column(argument: str, text: str, tool: str, parameter: str) -> Planned:
    """Return plans of one call of a tool, whose argument is a column, a text with columns, or if "" the question."""
    template = columns.Template(argument, text)

    def plan(row: Mapping[str, Any], question: str, where: str) -> Plan:
        return [(tool, {parameter: template.read(row, where, number=False) if text else question})]

    return plan


def listed(argument: str, name: str) -> Planned:
    """Return plans that are a column: a list of {"name": ..., "arguments": {...}}, also as JSON; "": no calls."""

    def plan(row: Mapping[str, Any], question: str, where: str) -> Plan:
        value = columns.find(row, name, where, argument) if name else []
        try:
            value = json.loads(value) if isinstance(value, str) else value
            return [(str(call["name"]), dict(call["arguments"])) for call in value]
        except (TypeError, ValueError, KeyError):
            shown = messages.shown(value)
            form = '[{"name": ..., "arguments": {...}}, ...]'
            raise ValueError(f"{where}: {name!r} ({argument}) is {shown}, expected {form}") from None

    return plan


def calculations(digits: int, operands: int, seed: int, chat: recipe.Chat) -> Examples:
    """Return sums and products of random numbers, to be computed by a cell of Python.

    Args:
      digits: the most digits of a number.
      operands: numbers of a question.
      seed: of the numbers.
      chat: as in ``recipe.build``.

    Raises:
      ValueError: an argument is out of range.
    """
    for field, value, low, high in (("digits", digits, 2, 30), ("operands", operands, 2, 30)):
        if not low <= value <= high:
            raise ValueError(f"{field}={value}: must be in [{low}, {high}]")
    style = answers.STYLES["marked"]
    draw, questions = random.Random(seed), dict[str, Question]()
    while len(questions) < sum(_SPLITS.values()):
        numbers = [draw.randrange(2, 10**digits) for _ in range(operands)]
        signs = [draw.choice("+-*") for _ in numbers[1:]]
        asked = " ".join([str(numbers[0]), *(f"{s} {n}" for s, n in zip(signs, numbers[1:], strict=True))])
        value, text = _value(numbers, signs), f"What is {asked}?\n{style.request}"
        questions[asked] = Question(asked, text, str(value), style.form.format(value), {}, f"question {len(questions)}")
    every = list(questions.values())
    parts = splits.by_file(every[: _SPLITS["train"]], every[_SPLITS["train"] :])
    before = recipe.messages_before(chat)

    def example(question: Question) -> dict[str, Any]:
        return _example(question, [("python", {"code": question.prompt})], before)

    return Examples({split: list(map(example, each)) for split, each in parts.items()}, rewards.combine("number"))


def _value(numbers: Sequence[int], signs: Sequence[str]) -> int:
    """Return the value of numbers with +, - and * between them; products come first."""
    total, term = 0, numbers[0]
    for sign, number in zip(signs, numbers[1:], strict=True):
        if sign == "*":
            term *= number
        else:
            total, term = total + term, number if sign == "+" else -number
    return total + term


def _example(question: Question, plan: Plan, before: Sequence[Mapping[str, str]] | None) -> dict[str, Any]:
    """Return a question as ``tools.ToolWorld`` takes it."""
    said = {"role": "user", "content": question.text}
    return {
        "prompt": [*map(dict, before), said] if before else question.text,
        "reference": question.reference,
        "columns": dict(question.columns),
        "plan": [list(call) for call in plan],
        "solution": question.solution or "",
    }
