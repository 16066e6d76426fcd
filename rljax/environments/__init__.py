"""Environments: tasks, which pose prompts, and verifiers, which judge completions.

A task is a value. Before ``bind`` it has its problems, afterwards also their tokens. There are two contracts, which
differ in where a task runs; a task of one turn is the one-turn case of each:

============  =================================================  ===================================================
contract      of one turn                                        of several turns
============  =================================================  ===================================================
``World``     ``verify`` judges tokens in the compiled program   ``step`` answers them there (``worlds``)
``HostTask``  ``reward``, a Python function, judges the decoded  a Python class answers them there (``worlds.host``)
              text in worker processes
============  =================================================  ===================================================

Public names: ``Task``, ``World``, ``HostTask``, ``Split``, ``TASKS``, ``task``, ``lookup``, ``columns``,
``opening``, ``scored_on_device``, ``scored_on_host``. ``config.task`` names an entry of ``TASKS``, or by its dotted
path a function or class under ``@task``; modules are imported when needed.

===================  ==========================================================================================
``problems/``        device tasks of numbered problems: ``sorting``, ``chain``, ``formulas``, ``paths``, ``rewriting``,
                     ``lists``, ``reasoning``, ``backtracking``, ``traces``; ``arithmetic`` is made of the same parts;
                     several tasks that take turns, ``mixed``; with a picture in the prompt, ``drawn``: ``counting``,
                     ``charts``, ``labyrinth``, ``screen``, ``scene``, ``geometry``, ``document``
``questions/``       host tasks over rows of files: ``jsonl``, ``parquet``, ``hugging_face``, ...; ``code``, programs;
                     ``gym``, the generators of reasoning-gym
``traits.py``        ``traits(task)``: who judges a task, its turns, seats and rows, and what its rows hold
``written.py``       the frame of tasks and worlds that are written in characters
``characters.py``    text inside a compiled program, as rows of code points
``worlds/``          tasks of several turns: conversations, tools, games
``control/``         worlds of numbers and actions: ``lqr``, ``pendulum``, ``cartpole``, ``point_maze``, ``quadrotor``
``verifiers/``       reward functions for mathematics and programs, a sandbox; completions judged by them
``workers/``         the pool of worker processes in which reward functions and host worlds run
===================  ==========================================================================================

``README.md`` shows how to write a task of each kind and a reward function.
"""

from __future__ import annotations

import importlib
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeGuard, TypeVar

from rljax.environments import traits
from rljax.language import dotted, messages

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    import jax

    from rljax import types
    from rljax.data import tokenizers
    from rljax.environments.worlds.reply import Reply

Split = Literal["train", "heldout"]
C = TypeVar("C", bound=Callable[..., Any])


class Task(Protocol):
    """What all tasks have. ``index`` counts within a split and wraps around at ``size(split)``.

    A task whose prompts are of several kinds may report them: an attribute ``domains``, how many there are; a method
    ``domain(index, split)``, from ``[n]`` int32 to the domain of each prompt, ``[n]`` int32 in [0, domains), traceable,
    of host tasks too; and ``domain_names``, a text for each. The domain becomes ``Rollout.domain``, unless a world or a
    verdict writes its own; metrics are split by it, and some sources draw by it (``transforms.source.domains``). One
    whose prompts differ by K numbers may report them: a method ``parameters(index, split)``, ``[n, K]`` float32 in
    [0, 1], traceable, which ``alp_gmm`` draws by.
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

        A device task's may be traced; a host task's is called on the host.
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


class World(Task, Protocol):
    """What runs in the compiled program.

    A task of one turn is the one-turn case: of the members below it needs ``verify`` alone, which judges a batch of
    completions. A world of several turns has all but ``verify``; ``step`` answers one turn of one episode. ``prompts``
    are those of seat 0, for a look at them; drivers use ``begin``. See ``environments.worlds``.
    """

    @property
    def seats(self) -> int:
        """Number of seats that players write for."""
        ...

    @property
    def max_turns(self) -> int:
        """The most turns of an episode, of all seats together."""
        ...

    @property
    def turn_length(self) -> int:
        """The most tokens of a turn, its end included."""
        ...

    @property
    def reply_length(self) -> int:
        """R, the most tokens that a seat is told after a turn."""
        ...

    @property
    def turn_end(self) -> tuple[str, ...]:
        """Texts that end a turn, besides the tokenizer's stop tokens."""
        ...

    @property
    def rows(self) -> traits.Rows:
        """What a row of the batch holds: a whole conversation, or one turn."""
        ...

    @property
    def anew(self) -> bool:
        """Whether every sample of a prompt begins another problem; baselines of groups then refuse the world."""
        ...

    @property
    def extra(self) -> tuple[str, ...]:
        """Names of ``Reply.extra``."""
        ...

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return the state of problem ``index``, a scalar."""
        ...

    def prompt(self, state: Any, seat: types.Array) -> tuple[types.Array, types.Array]:
        """Return token ``[L]`` int32, left-padded, and mask ``[L]`` float32: what a seat reads before it writes."""
        ...

    def step(
        self, state: Any, seat: types.Array, token: types.Array, mask: types.Array, key: types.Key
    ) -> tuple[Any, Reply]:
        """Answer a turn.

        Args:
          state: before the turn.
          seat: int32 scalar, who wrote the turn.
          token: ``[turn_length]`` int32, right-padded; end-of-sequence replaces whatever else ended the turn.
          mask: ``[turn_length]`` float32, 1 on the tokens of the turn.
          key: a typed key.

        Returns:
          The state after the turn, and the reply.
        """
        ...

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
    """What worker processes judge: a task of one turn whose verifier is a Python function.

    Turns are answered by worker processes in ``worlds.host.task.HostWorld``.
    """

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


def _tasks() -> Iterator[tuple[str, str]]:
    """Yield the names and paths of tasks.txt, whose lines are like ``questions.published: gsm8k math``."""
    for line in pathlib.Path(__file__).with_name("tasks.txt").read_text().splitlines():
        room, _, names = line.partition(": ")
        yield from ((name, f"rljax.environments.{room}:{name}") for name in names.split())


TASKS: Mapping[str, str] = dict(_tasks())


def task(constructor: C) -> C:
    """Mark a function or class that returns a task, so that ``config.task`` can name it by its dotted path."""
    return dotted.mark(constructor, "task")


def lookup(name: str) -> Callable[..., Task]:
    """Return the constructor of the task ``name`` of the table.

    Raises:
      ValueError: there is no such task; the message lists the valid names and the nearest one.
    """
    if name not in TASKS:
        near = messages.closest(name, TASKS, cutoff=0.0)
        raise ValueError(f"task: no task is named {name!r}; choose one of {', '.join(TASKS)}; nearest: {near!r}")
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
    return not traits.traits(task).whole


def scored_on_device(task: Task) -> TypeGuard[World]:
    """Return whether the task is a ``World`` of one turn, judged by ``verify``."""
    return not task.host and traits.traits(task).whole


def scored_on_host(task: Task) -> TypeGuard[HostTask]:
    """Return whether the task is a ``HostTask``, judged by ``reward``."""
    return task.host and traits.traits(task).whole
