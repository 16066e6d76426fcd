"""A device task as a world of one turn."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import flax.struct
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import tokens

Array = types.Array


class Problem(flax.struct.PyTreeNode):
    """Which problem an episode is about."""

    index: Array  # int32 scalar
    split: Split = flax.struct.field(pytree_node=False)


@dataclasses.dataclass(frozen=True)
class Single(tokens.TokenWorld):
    """A device task as a world of one turn: same prompts, tokens, demonstrations and verdicts. No reply is read."""

    task: environments.DeviceTask

    max_turns = 1
    reply_length = 1
    rows = "conversation"

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.task.name

    @property
    def prompt_length(self) -> int:
        """L of the task."""
        return self.task.prompt_length

    @property
    def completion_length(self) -> int:
        """T of the task."""
        return self.task.completion_length

    @property
    def turn_length(self) -> int:
        """T of the task."""
        return self.task.completion_length

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of the task."""
        return self.task.parts

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the task."""
        return self.task.corpus()

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Single":
        """Return a copy with the tokenizer."""
        return Single(self.task.bind(tokenizer))

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.task.size(split)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        return self.task.text(index, split)

    def prompts(self, index: Array, split: Split) -> types.Prompts:
        """Return the prompts of the task."""
        return self.task.prompts(index, split)

    def demonstrations(self, index: Array, split: Split, key: types.Key) -> tuple[Array, Array]:
        """Return the demonstrations of the task."""
        return self.task.demonstrations(index, split, key)

    def begin(self, index: Array, split: Split, key: types.Key) -> Problem:
        """Return which problem it is."""
        return Problem(jnp.asarray(index, jnp.int32), split)

    def prompt(self, state: Problem, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the task."""
        prompts = self.task.prompts(state.index[None], state.split)
        return prompts.token[0], prompts.mask[0]

    def step(self, state: Problem, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, Any]:
        """Judge the turn by the task's verifier.

        Raises:
          ValueError: the verifier pays at tokens, which a reply cannot.
        """
        verdict = judge(self.task, state, token, mask)
        parts = {name: x[0] for name, x in verdict.parts.items()}
        return state, tokens.told(self, None, verdict, reward=verdict.reward[0], done=True, parts=parts)

    def expert(self, state: Problem, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return a demonstration of the task."""
        token, mask = self.task.demonstrations(state.index[None], state.split, key)
        return token[0], mask[0]


def judge(task: environments.DeviceTask, problem: Problem, token: Array, mask: Array) -> types.Verdict:
    """Return a task's verdict on one completion, token and mask ``[T]``: a verdict of one row."""
    verdict = task.verify(problem.index[None], problem.split, token[None], mask[None])
    if verdict.token_reward is not None:
        raise ValueError(f"task: {task.name!r} pays at tokens; a world of it would lose these rewards")
    return verdict


def device(task: environments.Task, wrapper: str) -> environments.DeviceTask:
    """Return the task under ``from_task``, or the task itself; ValueError if it is no device task of one turn."""
    task = task.task if isinstance(task, Single) else task
    if contract.in_turns(task):
        raise ValueError(f"{wrapper}: task {task.name!r} has several turns; give a task of one turn, as arithmetic()")
    if not environments.scored_on_device(task):
        raise ValueError(
            f"{wrapper}: task {task.name!r} is judged on the host; give one that is judged inside the compiled "
            "program, such as arithmetic()"
        )
    return task


def from_task(task: environments.Task) -> Any:
    """Return a device task as a world of one turn; a world is returned unchanged.

    Args:
      task: a device task or a world.

    Returns:
      The world.

    Raises:
      ValueError: the task is judged on the host.
    """
    return task if contract.in_turns(task) else Single(device(task, "from_task"))


def faultless(task: Any) -> Any:
    """Return a task, or the world of one, whose demonstrations have no mistakes; others are returned unchanged."""
    if isinstance(task, Single):
        return Single(faultless(task.task))
    if hasattr(task, "inner"):  # a wrapper
        return dataclasses.replace(task, inner=faultless(task.inner))
    common = getattr(task, "common", None)
    if common is not None:
        return dataclasses.replace(task, common=dataclasses.replace(common, slip=0.0, noise=0.0))
    return dataclasses.replace(task, slip=0.0) if hasattr(task, "slip") else task
