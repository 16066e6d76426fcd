"""Problems of reasoning-gym's generators, with its scorers: ``gym('leg_counting', max_animals=5)``."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from rljax.environments.questions import recipe, splits
from rljax.environments.questions.task import Overlong, Question, Questions
from rljax.language import hints, messages, parse
from rljax.language.settings import Count, Size

try:
    from reasoning_gym.factory import DATASETS

    from rljax.environments.verifiers import gym as scoring
except ModuleNotFoundError as error:
    if error.name != "reasoning_gym":
        raise
    message = "gym needs reasoning-gym: pip install reasoning-gym, or in the checkout pip install '.[gym]'"
    raise ValueError(message) from None

_RESERVED = ("seed", "size")  # of the generators' configs; here they are arguments of the task


def gym(
    generator: str | dict[str, dict[str, Any]],
    size: Count = 1000,
    heldout: Count = 100,
    seed: Size = 0,
    tagged: bool = True,
    chat: recipe.Chat = None,
    prompt_length: Size = 0,
    completion_length: Count = 256,
    overlong: Overlong = "error",
    **knobs: Any,
) -> Questions:
    """Generate problems with reasoning-gym (Stojanovski et al., arXiv 2505.24760).

    The training problems are the first ``size`` of the generator, the held-out ones those that follow; a training
    problem whose text is held out is left out, with a warning. The reward is the score of the generator's own scorer, a
    fraction; only a full score is correct.

    Args:
      generator: the name of a generator, or several with their knobs, {'leg_counting': {'max_animals': 5},
        'chain_sum': {'weight': 2.0}}; problems are drawn in proportion to the weights, 1 by default.
      size: the number of training problems.
      heldout: the number of held-out problems.
      seed: of the generators.
      tagged: whether the answer is asked for and read between <answer> and </answer>; else it is the whole completion.
      chat: as in ``jsonl``.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens, end-of-sequence included.
      overlong: as in ``jsonl``.
      **knobs: settings of the one generator.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: there is no such generator or knob, or a value is out of range.
    """
    if knobs and not isinstance(generator, str):
        raise ValueError(f"gym: {next(iter(knobs))!r} is no argument; write knobs beside the name of their generator")
    table = {generator: knobs} if isinstance(generator, str) else generator
    if not table:
        raise ValueError("generator={}: names no generator")
    generators = tuple(_checked(name, settings) for name, settings in table.items())
    try:
        problems = scoring.dataset(generators, seed, size + heldout)
    except (AssertionError, ValueError) as error:  # what its configs raise for values out of range
        raise ValueError(f"gym: {error}") from None
    questions = [_question(problems[i], i, tagged) for i in range(size + heldout)]
    return Questions(
        name="gym",
        prompt_length=prompt_length,
        completion_length=completion_length,
        overlong=overlong,
        chat=recipe.messages_before(chat),
        plain=chat is None,
        sources=splits.by_file(questions[:size], questions[size:]),
        reward=scoring.Scorer(generators, tagged),
    )


def _checked(name: str, knobs: Mapping[str, Any]) -> tuple[str, float, tuple[tuple[str, Any], ...]]:
    """Return the name, weight and knobs of a generator."""
    names = [other for other in DATASETS if other != "composite"]
    if name not in names:
        raise ValueError(
            f"generator: reasoning-gym has no generator {messages.shown(name)}.{parse.nearest(name, names)}"
        )
    knobs = dict(knobs)
    weight = knobs.pop("weight", 1.0)
    if not isinstance(weight, int | float) or not weight > 0:
        raise ValueError(f"generator: the weight of {name!r} is {messages.shown(weight)}, not above 0")
    config = DATASETS[name][1]
    allowed = {field.name for field in dataclasses.fields(config)} - {*_RESERVED}
    annotations = typing.get_type_hints(config)
    for knob, value in list(knobs.items()):
        if knob not in allowed:
            raise ValueError(f"{name}: has no knob {messages.shown(knob)}.{parse.nearest(knob, sorted(allowed))}")
        hint = annotations[knob]
        if typing.get_origin(hint) is list and isinstance(value, tuple):  # a config has no lists
            knobs[knob] = list(value)
        if isinstance(hint, type) and (problem := hints.mismatch(value, hint)):
            raise ValueError(f"{name}: {knob}={messages.shown(value)}: must be {problem}")
    return name, float(weight), tuple(knobs.items())


def _question(entry: Mapping[str, Any], number: int, tagged: bool) -> Question:
    text, answer = entry["question"].strip(), entry["answer"]
    if tagged:
        text += f"\nWrite the final answer between <{scoring.TAG}> and </{scoring.TAG}>."
    solution = answer if isinstance(answer, str) and answer else None  # some generators only check answers
    if tagged and solution is not None:
        solution = f"<{scoring.TAG}>{solution}</{scoring.TAG}>"
    return Question(text, text, answer, solution, {"entry": dict(entry)}, f"problem {number}")
