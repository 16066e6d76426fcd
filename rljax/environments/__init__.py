"""Tasks: where prompts come from and how a completion is judged.

A task is a value. Before ``bind`` it knows its problems, after it also their tokens. Both kinds answer
``prompts`` and ``demonstrations``; they differ in who reads the completion:

    device task   ``verify`` scores tokens inside the compiled program
    host task     ``reward`` is a plain Python function of the decoded text, run in worker processes

``TASKS`` is the table a config's name is looked up in; a module is imported only when it is asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeGuard

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    import jax

    from rljax import types
    from rljax.data import tokenizers

Split = Literal["train", "heldout"]


class Task(Protocol):
    """What every task answers. ``index`` counts within a split and wraps around at ``size(split)``."""

    @property
    def name(self) -> str:
        """Name in the table."""
        ...

    @property
    def prompt_length(self) -> int:
        """L, the tokens that prompts are left-padded to."""
        ...

    @property
    def completion_length(self) -> int:
        """T, the tokens a completion may have, end-of-sequence included."""
        ...

    @property
    def host(self) -> bool:
        """True when rows are scored by a Python function on the host."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers that the verifier gives beside the reward."""
        ...

    def corpus(self) -> Iterator[str]:
        """Yield text to train a tokenizer on; usable before ``bind``."""
        ...

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Self:
        """Return a copy that knows its tokens.

        Raises:
          ValueError: a prompt or completion budget is too small, or the tokenizer lacks a character.
        """
        ...

    def size(self, split: Split) -> int:
        """Count the prompts of a split. The splits share no prompt."""
        ...

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Build prompts ``index`` [P] int32, left-padded; a pure function of index and split.

        A device task's is pure jnp and may be traced; a host task's is called on the host.
        """
        ...

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Complete prompts ``index`` [P] as a teacher would: token [P, T] int32 and mask [P, T] float32.

        Right-padded; the last token the mask admits is end-of-sequence. Traceable where ``prompts`` is.
        """
        ...

    def text(self, index: int, split: Split) -> str:
        """Write prompt ``index`` as text; usable before ``bind``."""
        ...


class DeviceTask(Task, Protocol):
    """A task whose verifier is part of the compiled program."""

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Judge completions: prompt ``index`` [B], ``token`` [B, T] int32, ``mask`` [B, T]; traceable."""
        ...


class HostTask(Task, Protocol):
    """A task whose verifier is ordinary Python."""

    @property
    def reward(self) -> Callable[[str, Any], float | Mapping[str, Any]]:
        """The reward function: completion text and reference in, a number or named parts out.

        A module-level function, so that worker processes can unpickle it.
        """
        ...

    def target(self, index: int, split: Split) -> Any:
        """Return what ``reward`` compares the completion of prompt ``index`` with; must pickle."""
        ...


TASKS: Mapping[str, str] = {
    "arithmetic": "rljax.environments.arithmetic:arithmetic",
    "countdown": "rljax.environments.countdown:countdown",
    "gsm8k": "rljax.environments.gsm8k:gsm8k",
    "math": "rljax.environments.gsm8k:math",
}


def lookup(name: str) -> Callable[..., Task]:
    """Import the constructor that the table holds under ``name``.

    Raises:
      ValueError: no such task; the message lists the names there are and the nearest.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)
        raise ValueError(f"task: no task is named {name!r}; there are {', '.join(TASKS)}; nearest: {near[0]!r}")
    module, function = TASKS[name].split(":")
    return getattr(importlib.import_module(module), function)


def scored_on_device(task: Task) -> TypeGuard[DeviceTask]:
    """Tell whether ``task.verify`` may be called."""
    return not task.host


def scored_on_host(task: Task) -> TypeGuard[HostTask]:
    """Tell whether ``task.reward`` and ``task.target`` may be called."""
    return task.host
