"""Reward functions by name, and several as weighted parts of one. Does not import jax: workers load this module.

fn(completion, reference, *, prompt, **row)     a number, or a mapping as ``outcomes.read`` reads it
fn(completions, reference, *, prompt, **row)    all completions of a prompt; as many numbers or mappings

``row`` lacks columns with the name of one of the first two parameters. A function may change its arguments: it gets
copies of the reference and of the columns.
"""

import copy
import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.verifiers import answers, mathematics, outcomes
from rljax.language import dotted, messages

Reward = str | Callable[..., Any] | Mapping[str, float]

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def exact(completion: str, reference: str) -> Mapping[str, float | str]:
    """Compare the whole completion with the reference, without surrounding space: reward 1 if equal, else 0."""
    equal = completion.strip() == reference.strip()
    return {"reward": float(equal), "outcome": "correct" if equal else "wrong"}


BUILT_IN: Mapping[str, Callable[..., Any]] = {
    "exact": exact,
    "number": mathematics.numeric_answer,
    "boxed": mathematics.boxed_answer,
}
CALLED: Mapping[str, str] = {"rendered": "rljax.environments.verifiers.rendered:Rendered"}  # with settings, as a call
FORMATS: Mapping[str, answers.Format] = {"number": "marked", "boxed": "boxed"}  # the first one that each reads


@dataclasses.dataclass(frozen=True)
class Part:
    """A reward function and what it takes."""

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    path: str = ""  # its name, with its module
    first: str = "completion"  # names of the first two parameters
    second: str = "reference"  # "": it does not take the reference
    columns: tuple[str, ...] = ()  # keyword arguments: "prompt" and columns of a row
    required: tuple[str, ...] = ()  # parts that have no default
    every: bool = False  # whether it takes all columns
    group: bool = False  # whether it judges all completions of a prompt together

    def score(self, texts: Sequence[str], reference: Any, columns: Mapping[str, Any]) -> list[Any]:
        """Return what the function returns for each text."""
        hidden = {self.first, self.second}
        taken = {k: v for k, v in columns.items() if k in self.columns or (self.every and k not in hidden)}

        def judge(judged: Any) -> Any:
            args, named = copy.deepcopy(((reference,) if self.second else (), taken))
            return self.function(judged, *args, **named)

        return outcomes.each(judge(list(texts)), len(texts)) if self.group else [judge(text) for text in texts]


@dataclasses.dataclass(frozen=True)
class Rewards:
    """A reward function made of parts. One of a single part of weight 1 returns what the part returns.

    Otherwise the reward is the weighted sum; the outcome comes from the first part that returns one, else
    "unjudged"; each part's reward is a part under its name, and its own parts are ``NAME/PART``,
    but for ``answer``, the number of the final answer.
    """

    parts: tuple[Part, ...]

    @property
    def group(self) -> bool:
        """Whether a call judges all completions of a prompt together."""
        return any(part.group for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the numbers that are always returned besides the reward."""
        read = any(part.path in FORMATS for part in self.parts)
        if self.plain:
            return ("format", "answer") if read else getattr(self.parts[0].function, "parts", ())
        return *(part.name for part in self.parts), *("answer",) * read

    @property
    def plain(self) -> bool:
        """Whether there is one part, whose values are returned as they are."""
        return len(self.parts) == 1 and self.parts[0].weight == 1

    @property
    def longest(self) -> float:
        """The most seconds that a call takes by the limits of the functions themselves; 0: they have none."""
        return sum(getattr(part.function, "longest", 0.0) for part in self.parts)

    @property
    def checks(self) -> list[Callable[[Any, int, str], None]]:
        """What raises ValueError for a reference, a number of pictures and the place of a row that a part refuses."""
        return [part.function.check for part in self.parts if hasattr(part.function, "check")]

    @property
    def every(self) -> bool:
        """Whether a part takes all columns of a row."""
        return any(part.every for part in self.parts)

    @property
    def columns(self) -> frozenset[str]:
        """The keyword arguments that parts take by name."""
        return frozenset(name for part in self.parts for name in part.columns)

    @property
    def required(self) -> frozenset[str]:
        """Those of them that have no default, without ``prompt``, which every row has."""
        return frozenset(name for part in self.parts for name in part.required) - {"prompt"}

    def __call__(self, completion: Any, reference: Any = None, /, **columns: Any) -> Any:
        """Judge a completion, or with ``group`` all completions of a prompt."""
        texts = completion if self.group else [completion]
        scored = [part.score(texts, reference, columns) for part in self.parts]
        totals = [self._total(values) for values in zip(*scored, strict=True)]
        return totals if self.group else totals[0]

    def _total(self, values: Sequence[Any]) -> Any:
        if self.plain:
            return values[0]
        read = [outcomes.read(value) for value in values]
        given = [answer.outcome for answer in read if answer.outcome not in ("", "unjudged")]
        failures = [outcome for outcome in given if outcome in outcomes.FAILURES]
        total: dict[str, Any] = {"outcome": [*failures, *given, "unjudged"][0]}
        total["reward"] = sum(part.weight * answer.reward for part, answer in zip(self.parts, read, strict=True))
        for part, answer in zip(self.parts, read, strict=True):
            numbers = {k if k == "answer" else f"{part.name}/{k}": v for k, v in answer.parts.items()}
            total |= {part.name: answer.reward, **numbers}
        return total


def combine(reward: Reward, formats: Sequence[answers.Format] = ()) -> Rewards:
    """Return the reward functions that a task's argument names, as one function.

    Args:
      reward: a name of ``BUILT_IN``, a call of one of ``CALLED``, ``"module:function"``, or a function; or a mapping
        from such names to weights.
      formats: how answers may be written, for the functions that read a final answer; (): in their own format.

    Returns:
      The function, which worker processes can import if they can import its parts.

    Raises:
      ValueError: there is no such function, it cannot take the arguments, or a weight is not a number.
    """
    weights = reward if isinstance(reward, Mapping) else {reward: 1.0}
    if not weights:
        raise ValueError("reward={}: names no function")
    parts = []
    for name, weight in weights.items():
        if not outcomes.finite(weight):
            raise ValueError(f"reward: the weight of {messages.shown(name)} is {messages.shown(weight)}, not a number")
        parts.append(_part(name, float(weight), formats))
    names = [part.name for part in parts]
    for i, name in enumerate(names):  # names of a result, and shared ones, are told apart by the module
        if name in ("reward", "outcome") or names.count(name) > 1:
            parts[i] = dataclasses.replace(parts[i], name=parts[i].path)
    if len({part.name for part in parts}) < len(parts):
        raise ValueError(f"reward: the functions {', '.join(names)} do not differ in their names")
    return Rewards(tuple(parts))


def _part(reward: Any, weight: float, formats: Sequence[answers.Format]) -> Part:
    from rljax.language import parse  # imports jax, which workers need not load

    if isinstance(reward, str) and reward in BUILT_IN:
        function = BUILT_IN[reward]
        if reward in FORMATS:
            function = functools.partial(function, formats=tuple(formats) or (FORMATS[reward],))
        return Part(reward, function, weight, path=reward)
    if isinstance(reward, str) and (name := reward.partition("(")[0].strip()) in CALLED:
        function, module = parse.one(reward, parse.Registry("task", CALLED), "reward"), reward
    elif isinstance(reward, str):
        if ":" not in reward:
            near = parse.nearest(reward, [*BUILT_IN, *(f"{name}()" for name in CALLED)])
            raise ValueError(f"reward={reward!r}: neither MODULE:FUNCTION nor a name of a reward function.{near}")
        with parse.resolving("reward"):
            function = dotted.reward(reward)
        module, _, name = reward.partition(":")
    elif callable(reward):
        function, module = reward, getattr(reward, "__module__", "")
        name = getattr(function, "__name__", None) or type(function).__name__
    else:
        raise ValueError(f"reward={messages.shown(reward)}: must be a name, MODULE:FUNCTION, or {{name: weight}}")
    parameters = list(inspect.signature(function).parameters.values())
    positional = [p for p in parameters if p.kind in _POSITIONAL]
    rest = [p for p in parameters if p.kind not in _POSITIONAL]
    named = [*positional[2:], *(p for p in rest if p.kind is inspect.Parameter.KEYWORD_ONLY)]
    first, second, *_ = [p.name for p in positional] + [""] * 2
    if second in ("prompt", "prompts"):
        raise ValueError(f"reward: {name}({first}, {second}): a second parameter is the reference; write *, before it")
    if not second and any(p.kind is inspect.Parameter.VAR_POSITIONAL for p in rest):
        second = "reference"
    return Part(
        name=name,
        path=f"{module}.{name}",
        function=function,
        weight=weight,
        first=first,
        second=second,
        columns=tuple(p.name for p in named),
        required=tuple(p.name for p in named if p.default is inspect.Parameter.empty),
        every=any(p.kind is inspect.Parameter.VAR_KEYWORD for p in rest),
        group=outcomes.grouped(function),
    )
