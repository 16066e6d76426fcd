"""Environments: tasks, which pose prompts, and verifiers, which judge completions.

A task is a value. Before ``bind`` it has its problems, afterwards also their tokens. A task of several turns is a
``worlds.World``. For tasks of one turn there are two protocols, which differ in where completions are judged:

===============  ==============================================================================================
``DeviceTask``   ``verify`` judges tokens inside the compiled program
``HostTask``     ``reward`` is a Python function of the decoded text and its target, run in worker processes
===============  ==============================================================================================

Public names: ``Task``, ``DeviceTask``, ``HostTask``, ``Split``, ``TASKS``, ``task``, ``lookup``, ``columns``,
``opening``, ``scored_on_device``, ``scored_on_host``. ``config.task`` names an entry of ``TASKS``, or by its dotted
path a function or class under ``@task``; modules are imported when needed.

===================  ==========================================================================================
``arithmetic.py``    device task: sums, differences and products, with written-out working
``countdown.py``     device task: reach a target from given numbers
``problems/``        device tasks of numbered problems: ``sorting``, ``chain``, ``formulas``, ``paths``, ``rewriting``,
                     ``lists``; ``arithmetic`` is made of the same parts; several tasks that take turns, ``mixed``
``questions/``       host tasks over rows of files: ``jsonl``, ``parquet``, ``hugging_face``, ...; ``code``, programs;
                     ``gym``, the generators of reasoning-gym
``gsm8k.py``         recipes of them: ``gsm8k``, ``math``, questions with worked answers
``characters.py``    text inside a compiled program, as rows of code points
``expression.py``    arithmetic expressions inside a compiled program: random, evaluated, written, parsed
``worlds/``          tasks of several turns: conversations, tools, games
``verifiers/``       reward functions for mathematics and programs, a sandbox; the workers that run reward functions
===================  ==========================================================================================

``README.md`` shows how to write a task of each kind and a reward function.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeGuard, TypeVar, runtime_checkable

from rljax.language import dotted

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    import jax

    from rljax import types
    from rljax.data import tokenizers

Split = Literal["train", "heldout"]
C = TypeVar("C", bound=Callable[..., Any])


@runtime_checkable
class Task(Protocol):
    """What all tasks have. ``index`` counts within a split and wraps around at ``size(split)``.

    A task whose prompts are of several kinds may report them: an attribute ``domains``, how many there are; a method
    ``domain(index, split)``, from ``[n]`` int32 to the domain of each prompt, ``[n]`` int32 in [0, domains), traceable,
    of host tasks too; and ``domain_names``, a text for each. The domain becomes ``Rollout.domain``, unless a world or a
    verdict writes its own; metrics are split by it, and some sources draw by it (``transforms.source.domains``).
    """

    @property
    def name(self) -> str:
        """Name in the table."""
        ...

    @property
    def prompt_length(self) -> int:
        """L, the width of the left-padded prompts, tokens."""
        ...

    @property
    def completion_length(self) -> int:
        """T, the most tokens of a completion, end-of-sequence included."""
        ...

    @property
    def host(self) -> bool:
        """Whether completions are judged by a Python function on the host."""
        ...

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers that the verifier returns besides the reward."""
        ...

    def corpus(self) -> Iterator[str]:
        """Yield texts to train a tokenizer on; available before ``bind``."""
        ...

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Self:
        """Return a copy whose prompts and completions are in the tokens of ``tokenizer``.

        Raises:
          ValueError: prompt_length or completion_length is too small, or the tokenizer lacks a character.
        """
        ...

    def size(self, split: Split) -> int:
        """Return the number of prompts of a split. The splits have no prompt in common."""
        ...

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]`` int32, left-padded; a pure function of index and split.

        That of a device task may be traced; that of a host task is called on the host.
        """
        ...

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations of prompts. Traceable if ``prompts`` is.

        Args:
          index: ``[P]`` int32.
          split: of the prompts.
          key: a typed key; a task with one demonstration per prompt ignores it.

        Returns:
          token ``[P, T]`` int32, right-padded, and mask ``[P, T]`` float32, whose last 1 is on end-of-sequence.
        """
        ...

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text; available before ``bind``."""
        ...


class DeviceTask(Task, Protocol):
    """A task whose verifier is part of the compiled program."""

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Judge completions; traceable.

        Args:
          index: ``[B]`` int32, the prompt of each completion.
          split: of the prompts.
          token: ``[B, T]`` int32. End-of-sequence replaces whatever else ended a completion: another stop token, or a
            string of ``sampler.stop``.
          mask: ``[B, T]``, above 0 on the tokens that the policy emitted.

        Returns:
          A verdict of B rows.
        """
        ...


class HostTask(Task, Protocol):
    """A task whose verifier is a Python function."""

    @property
    def reward(self) -> Callable[..., Any]:
        """The reward function, ``reward(completion, target)``: a number, or a mapping of named numbers.

        It is defined at the top level of a module, so that worker processes can import it; see ``verifiers``. Keyword
        arguments are what the task's method ``columns(index, split)`` returns, if it has one.
        """
        ...

    def target(self, index: int, split: Split) -> Any:
        """Return the expected answer of prompt ``index``, the second argument of ``reward``; it must be picklable."""
        ...


TASKS: Mapping[str, str] = {
    "arithmetic": "rljax.environments.arithmetic:arithmetic",
    "countdown": "rljax.environments.countdown:countdown",
    "sorting": "rljax.environments.problems.sorting:sorting",
    "chain": "rljax.environments.problems.chain:chain",
    "formulas": "rljax.environments.problems.formulas:formulas",
    "paths": "rljax.environments.problems.paths:paths",
    "rewriting": "rljax.environments.problems.rewriting:rewriting",
    "lists": "rljax.environments.problems.lists:lists",
    "gsm8k": "rljax.environments.gsm8k:gsm8k",
    "math": "rljax.environments.gsm8k:math",
    "amc": "rljax.environments.questions.published:amc",
    "aime": "rljax.environments.questions.published:aime",
    "dapo_math": "rljax.environments.questions.published:dapo_math",
    "deepscaler": "rljax.environments.questions.published:deepscaler",
    "code": "rljax.environments.questions.programs:code",
    "jsonl": "rljax.environments.questions.own:jsonl",
    "parquet": "rljax.environments.questions.own:parquet",
    "hugging_face": "rljax.environments.questions.own:hugging_face",
    "array_record": "rljax.environments.questions.own:array_record",
    "tfds": "rljax.environments.questions.own:tfds",
    "gym": "rljax.environments.questions.gym:gym",
    "world": "rljax.environments.worlds.host.task:world",
    "guess": "rljax.environments.worlds.guess:guess",
    "twenty_questions": "rljax.environments.worlds.guess:twenty_questions",
    "calculator": "rljax.environments.worlds.calculator:calculator",
    "maze": "rljax.environments.worlds.maze:maze",
    "memory": "rljax.environments.worlds.memory:memory",
    "wordle": "rljax.environments.worlds.wordle:wordle",
    "retry": "rljax.environments.worlds.retry:retry",
    "revise": "rljax.environments.worlds.revise:revise",
    "think_longer": "rljax.environments.worlds.wrappers:think_longer",
    "hint": "rljax.environments.worlds.wrappers:hint",
    "propose": "rljax.environments.worlds.propose:propose",
    "extract": "rljax.environments.worlds.extract:extract",
    "spy": "rljax.environments.worlds.spy:spy",
    "game": "rljax.environments.worlds.games.constructor:game",
    "tools": "rljax.environments.worlds.host.constructors:tools",
    "python_tool": "rljax.environments.worlds.host.constructors:python_tool",
    "search": "rljax.environments.worlds.host.constructors:search",
    "textarena": "rljax.environments.worlds.host.constructors:textarena",
    "gymnasium": "rljax.environments.worlds.host.adapters.constructors:gymnasium",
    "mcp": "rljax.environments.worlds.host.adapters.constructors:mcp",
    "openenv": "rljax.environments.worlds.host.adapters.constructors:openenv",
    "tagged": "rljax.environments.worlds.tagged:tagged",
    "recorded": "rljax.environments.worlds.around:recorded",
    "format_parts": "rljax.environments.worlds.around:format_parts",
    "mixture": "rljax.environments.worlds.mixture:mixture",
}


def task(constructor: C) -> C:
    """Mark a function or class that returns a task, so that ``config.task`` can name it by its dotted path."""
    return dotted.mark(constructor, "task")


def lookup(name: str) -> Callable[..., Task]:
    """Return the constructor of the task ``name`` of the table.

    Raises:
      ValueError: there is no such task; the message lists the valid names and the nearest one.
    """
    if name not in TASKS:
        near = difflib.get_close_matches(name, TASKS, n=1, cutoff=0.0)
        raise ValueError(f"task: no task is named {name!r}; choose one of {', '.join(TASKS)}; nearest: {near[0]!r}")
    module, function = TASKS[name].split(":")
    return getattr(importlib.import_module(module), function)


def columns(task: Task, index: int, split: Split) -> Mapping[str, Any]:
    """Return the keyword arguments of a host task's reward function for a prompt: its method ``columns``, else none."""
    method = getattr(task, "columns", None)
    return {} if method is None else method(index, split)


def opening(task: Task) -> tuple[Mapping[str, str], ...] | None:
    """Return the messages that come before a question of a task; None if the task does not use the chat template."""
    return getattr(task, "chat", None)


def is_world(task: Task) -> bool:
    """Return whether the task is a world, inside the program or on the host (``environments.worlds``)."""
    return hasattr(task, "max_turns")


def scored_on_device(task: Task) -> TypeGuard[DeviceTask]:
    """Return whether the task is a ``DeviceTask``; a world (``environments.worlds``) is not."""
    return not task.host and not is_world(task)


def scored_on_host(task: Task) -> TypeGuard[HostTask]:
    """Return whether the task is a ``HostTask``; a world (``environments.worlds``) is not."""
    return task.host and not is_world(task)
