"""A device task as a world of one turn."""

import dataclasses
from typing import Any

import flax.struct
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import Split, traits
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, tokens

Array = types.Array


class Problem(flax.struct.PyTreeNode):
    """Which problem an episode is about."""

    index: Array  # int32 scalar
    split: Split = flax.struct.field(pytree_node=False)


class Single(around.Around):
    """A device task as a world of one turn: same prompts, tokens, demonstrations and verdicts. No reply is read."""

    max_turns = 1
    seats = 1
    reply_length = 1
    rows = "conversation"
    turn_end = ()
    anew = False
    extra = ()
    domains = 1  # replies tell the domain that verdicts write, not the domain of the prompt
    domain = None
    domain_names = ()

    @property
    def turn_length(self) -> int:
        """T of the task."""
        return self.inner.completion_length

    def begin(self, index: Array, split: Split, key: types.Key) -> Problem:
        """Return which problem it is."""
        return Problem(jnp.asarray(index, jnp.int32), split)

    def prompt(self, state: Problem, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the task."""
        prompts = self.inner.prompts(state.index[None], state.split)
        return prompts.token[0], prompts.mask[0]

    def step(self, state: Problem, seat: Array, token: Array, mask: Array, key: types.Key) -> tuple[Any, Any]:
        """Judge the turn by the task's verifier.

        Raises:
          ValueError: the verifier pays at tokens, which a reply cannot.
        """
        verdict = self.inner.verify(state.index[None], state.split, token[None], mask[None])
        if verdict.token_reward is not None:
            raise ValueError(f"task: {self.name!r} pays at tokens; a world of it would lose these rewards")
        parts = {name: x[0] for name, x in verdict.parts.items()}
        return state, tokens.told(self, None, verdict, reward=verdict.reward[0], done=True, parts=parts)

    def expert(self, state: Problem, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Return a demonstration of the task."""
        token, mask = self.inner.demonstrations(state.index[None], state.split, key)
        return token[0], mask[0]


def one_turn(task: environments.Task, wrapper: str) -> Any:
    """Return a device task as a world of one turn; ValueError, with the name of the wrapper, if it is none."""
    if isinstance(task, Single):
        return task
    about = traits.traits(task)
    if about.host:
        raise ValueError(
            f"{wrapper}: task {task.name!r} is judged on the host; give one that is judged inside the compiled "
            "program, such as arithmetic()"
        )
    if not about.whole:
        raise ValueError(f"{wrapper}: task {task.name!r} has several turns; give a task of one turn, as arithmetic()")
    return Single(task, tokenizer=getattr(task, "tokenizer", None))


def from_task(task: environments.Task) -> Any:
    """Return a device task as a world of one turn; a world is returned unchanged.

    Args:
      task: a device task or a world.

    Returns:
      The world.

    Raises:
      ValueError: the task is judged on the host.
    """
    return task if contract.in_turns(task) else one_turn(task, "from_task")


def faultless(task: Any) -> Any:
    """Return a task, or the world of one, whose demonstrations have no mistakes; others are returned unchanged."""
    if isinstance(task, around.Around):
        return dataclasses.replace(task, inner=faultless(task.inner))
    common = getattr(task, "common", None)
    if common is not None:
        return dataclasses.replace(task, common=dataclasses.replace(common, slip=0.0, noise=0.0))
    return dataclasses.replace(task, slip=0.0) if hasattr(task, "slip") else task
