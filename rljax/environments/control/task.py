"""Rules of a control world as a task."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.control.rules import Actions, Rules
from rljax.language import settings


@dataclasses.dataclass(frozen=True)
class ControlTask:
    """A control world: a task without tokens, whose rows are trajectories.

    The first state of an episode is a function of its problem alone, so that the samples of a prompt can be compared.
    """

    rules: Rules
    host: ClassVar[bool] = False
    prompt_length: ClassVar[int] = 0

    def __getattr__(self, name: str) -> Any:
        """Return ``domains``, ``domain``, ``domain_names``, ``parameters`` and ``expert`` of rules that have them."""
        if name.startswith("domain") or name in ("parameters", "expert"):
            return getattr(self.rules, name)
        raise AttributeError(name)

    @property
    def name(self) -> str:
        """Name in the table."""
        return self.rules.name

    @property
    def completion_length(self) -> int:
        """The most actions of an episode."""
        return self.rules.horizon

    @property
    def actions(self) -> Actions:
        """What an action is."""
        return self.rules.actions

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers that a step reports besides its reward."""
        return self.rules.parts

    def corpus(self) -> Iterator[str]:
        """Yield nothing: there are no texts."""
        yield from ()

    def bind(self, tokenizer: Any) -> Self:
        """Return the task, which has no tokens."""
        return self

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.rules.size(split)

    def text(self, index: int, split: Split) -> str:
        """Return problem ``index`` as a line of text."""
        return self.rules.text(index % self.size(split), split)

    @property
    def goals(self) -> bool:
        """Whether rows can be given other goals."""
        return hasattr(self.rules, "relabel")

    def relabelled(self, rollout: types.Rollout, drawn: types.Array) -> tuple[types.Rollout, types.Array]:
        """Return rows whose goals are where one of their states is; ``worlds.goals.relabelled`` for trajectories."""
        motion, mask, rows = rollout.motion, rollout.mask, jnp.arange(rollout.reward.size)
        assert motion is not None
        length = jnp.sum(mask, axis=1).astype(jnp.int32)
        place = 1 + jnp.floor(drawn * length).astype(jnp.int32)  # behind a step
        reached = motion.observation[rows, jnp.minimum(place, length)]
        after = jnp.concatenate([motion.observation[:, 1:], motion.observation[:, -1:]], axis=1)
        every = jax.vmap(jax.vmap(self.rules.relabel, (0, 0, None)))  # pyright: ignore[reportAttributeAccessIssue]
        seen, moved = every(motion.observation, after, reached)
        arrived = moved.done & (mask > 0)
        before = jnp.cumsum(arrived, axis=1) - arrived > 0
        solved = jnp.any(arrived, axis=1)
        finish = jnp.where(solved, int(types.Finish.STOP), int(types.Finish.LENGTH))
        outcome = jnp.where(solved, int(types.Outcome.CORRECT), int(types.Outcome.WRONG))
        new = rollout.replace(
            mask=jnp.where(before, 0.0, mask),
            token_reward=jnp.where(before, 0.0, moved.reward * mask),
            motion=motion.replace(observation=seen),
            finish=finish.astype(jnp.int32),
            outcome=None if rollout.outcome is None else outcome.astype(jnp.int32),
        )
        possible = length > 0
        if rollout.index is not None and hasattr(self.rules, "trainable"):
            possible &= jax.vmap(self.rules.trainable)(rollout.index % self.size("train"), reached)
        return new, possible

    def begin(self, index: types.Array, split: Split) -> Any:
        """Return the state at the start of problem ``index``, a scalar, which wraps around."""
        return self.rules.begin(index % self.size(split), split)


def of(rules: Callable[[], Any]) -> Callable[..., ControlTask]:
    """Return the constructor of a task, whose arguments are the settings of its rules."""
    return settings.constructor(ControlTask, rules())
