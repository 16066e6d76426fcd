"""The world of questions that a policy answers with the help of tools. Worker processes load this module."""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from rljax.environments.verifiers import outcomes, rewards
from rljax.environments.worlds import host
from rljax.environments.worlds.host import calls
from rljax.language import messages, parse

COUNTS = ("calls", "malformed", "failed", "retries")


@runtime_checkable
class Stateful(Protocol):
    """A tool with a state of its own for each episode."""

    def begin(self) -> Callable[..., Any]:
        """Return the function of a new episode."""
        ...


class ToolWorld:
    """A question, calls of tools, an answer.

    A turn with calls is answered by their results, one message each; a turn without calls is the answer, which a reward
    function judges. ``parts`` has the numbers of

        calls        calls, the malformed ones included
        malformed    calls that could not be made, and were answered by what is wrong with them
        failed       calls whose function raised
        retries      calls of a tool that had been called before in the episode

    and the parts of the reward function, which is given a ``calls.Transcript`` if it has a keyword argument
    ``transcript``. With weights w, an episode with counts n is paid

        judged + sum_i w_i n_i

    where a term with w_i < 0 is paid in the turn of the call, and one with w_i > 0 only with an answer, so that calling
    tools for ever does not pay (the reward of a retried search in ReZero, arXiv 2504.11001, is of the second kind).

    An example is a mapping with ``prompt``, a text or messages; ``reference`` and ``columns``, the arguments of the
    reward function; and for demonstrations ``plan``, pairs of a tool and its arguments, and ``solution``, a text.
    """

    cut = True

    def __init__(
        self,
        functions: Sequence[Callable[..., Any] | Stateful],
        reward: rewards.Rewards,
        form: calls.Form = "json",
        longest: int = 2000,
        most: int = 8,
        weights: Mapping[str, float] | None = None,
        plain: bool = False,
    ):
        """Take the tools and the reward function.

        Args:
          functions: as ``calls.Toolbox`` takes them, or objects whose ``begin`` returns such a function.
          reward: of an answer.
          form: how calls are written.
          longest: the most characters of an answer of a tool.
          most: the most calls of a turn.
          weights: of the counts in the reward.
          plain: name the tools after the question and write results as text, <result>...</result>, instead of by the
            chat template; so it is with the form "tags".

        Raises:
          ValueError: a tool cannot be described, the reward function judges groups, or a weight is no number.
        """
        if reward.group:
            raise ValueError("reward: judges all completions of a prompt together; the answers of a world come alone")
        self._box = calls.Toolbox([f.begin() if isinstance(f, Stateful) else f for f in functions], form, longest, most)
        self._reward, self._weights = reward, checked(weights or {})
        self.seconds = most * max(float(getattr(f, "seconds", 0.0)) for f in functions)
        self.parts = (*COUNTS, *reward.names)
        plain = plain or form == "tags"
        self.role = "user" if plain else "tool"
        self.tools = () if plain else tuple(self._box.schemas)
        self.turn_end = self._box.ends if plain else ()

    def reset(self, example: Mapping[str, Any]) -> host.Messages:
        """Begin an episode."""
        self._example, self._turn, self._names = example, 0, list[str]()
        self._turns, self._calls = list[str](), list[calls.Made]()
        self._parts = dict.fromkeys(self.parts, 0.0)
        if self.tools:
            return example["prompt"]
        prompt = example["prompt"]
        said = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        return [*said[:-1], {**said[-1], "content": f"{said[-1]['content']}\n{self._box.instruction}\n"}]

    def step(self, text: str) -> Any:
        """Make the calls of a turn, or judge the answer. After calls of ``async def`` tools, the result is awaited."""
        self._turn += 1
        self._turns.append(text)
        made = self._box.calls(text)
        asked = copy.deepcopy([call.arguments for call in made])  # a tool may change its arguments
        answers = [self._box.answer(call) for call in made]
        if not answers:
            return self._judged(text)
        later = any(inspect.isawaitable(answer) for answer in answers)
        return self._awaited(asked, answers) if later else self._answered(asked, answers)

    async def _awaited(self, asked: Sequence[Mapping[str, Any]], answers: Sequence[Any]) -> host.Observation:
        return self._answered(asked, [await each if inspect.isawaitable(each) else each for each in answers])

    def _answered(self, asked: Sequence[Mapping[str, Any]], answers: Sequence[Any]) -> host.Observation:
        """Count the calls of a turn, and return what they say."""
        before = dict(self._parts)
        for arguments, answer in zip(asked, answers, strict=True):
            said = ("", answer.text) if answer.malformed or answer.failed else (answer.text, "")
            self._calls.append(calls.Made(self._turn - 1, answer.name, arguments, *said))
            self._parts["calls"] += 1
            self._parts["malformed"] += answer.malformed
            self._parts["failed"] += answer.failed
            if not answer.malformed:
                self._parts["retries"] += answer.name in self._names
                self._names.append(answer.name)
        paid = sum(w * (self._parts[name] - before[name]) for name, w in self._weights.items() if w < 0)
        return host.Observation(self._messages(answers), paid, parts=dict(self._parts))

    def expert(self) -> str:
        """Return the next turn of a demonstration: a call of the plan, then the solution."""
        plan = self._example.get("plan", ())
        if self._turn < len(plan):
            name, arguments = plan[self._turn]
            return self._box.write(name, **arguments)
        if not self._example.get("solution"):
            raise ValueError("the question has no demonstration")
        return self._example["solution"]

    def _messages(self, answers: Sequence[calls.Answer]) -> host.Messages:
        if not self.tools:
            return "".join(f"\n<result>{answer.text}</result>\n" for answer in answers)
        return [{"role": "tool", "content": a.text} | ({"name": a.name} if a.name else {}) for a in answers]

    def _judged(self, text: str) -> host.Observation:
        columns = dict(self._example.get("columns", {}))
        if calls.TRANSCRIPT in self._reward.columns:
            columns[calls.TRANSCRIPT] = calls.Transcript(tuple(self._turns), tuple(self._calls))
        judged = outcomes.read(self._reward(text, self._example.get("reference"), **columns))
        if judged.error:
            raise RuntimeError(judged.error)
        self._parts |= judged.parts
        outcome = judged.outcome or ("correct" if judged.reward == 1 else "wrong" if judged.reward <= 0 else "unjudged")
        paid = judged.reward + sum(w * self._parts[name] for name, w in self._weights.items() if w > 0)
        return host.Observation("", paid, done=True, outcome=outcome, parts=dict(self._parts))


def checked(weights: Mapping[str, float]) -> Mapping[str, float]:
    """Return the weights of counts; ValueError if one has another name or is not a finite number."""
    for name, weight in weights.items():
        if name not in COUNTS:
            raise ValueError(f"weights: there is no count {messages.shown(name)}.{parse.nearest(str(name), COUNTS)}")
        if not outcomes.finite(weight):
            raise ValueError(f"weights: the weight of {name!r} is {messages.shown(weight)}, not a number")
    return weights
