"""Worlds: tasks of several turns, which answer what a player writes.

A task is a world of one turn. A world is pure and written for one episode; the drivers in ``rljax.sampling`` apply
``vmap`` and run it inside the compiled program:

    begin(index, split, key) -> state                       the problem
    prompt(state, seat) -> token, mask                      what a seat reads first
    step(state, seat, token, mask, key) -> state, Reply     what follows a turn

A turn ends at a stop token of the tokenizer, at a text of ``turn_end``, or after ``turn_length`` tokens. The tokens of
replies have mask 0, so no loss reads them.

**Rows.** "conversation": a row is one growing context of an episode, for each seat. "chapters": a row is one turn, and
its prompt is rebuilt from the state; the ``max_turns`` rows of an episode share ``Rollout.episode``, absent turns have
``valid`` 0 and mask 0.

**Rewards.** Every step pays every seat. A payment lands on the last token that the seat wrote, also when another seat
ended the episode (``Rollout.token_reward``).

**Keys.** ``begin``'s key folds in (seed, step, prompt) and not the sample, so the samples of a prompt face the same
problem, unless the world sets ``anew``; ``step``'s key folds in the key of the episode and the number of the turn.

**Seats.** A conversation has a row for each seat, which holds what this seat reads and writes; the seat waits while
another one writes. Opponents that are part of the world have no seat.

``README.md`` shows how to write a world of each kind, and lists those that ship.

=====================  ================================================================================
``reply.py``           ``Reply``: what follows a turn
``rules.py``           worlds of characters: the protocol ``Rules``, and ``Answer``
``text.py``            ``TextWorld``: a world of tokens from rules of characters
``tokens.py``          ``TokenWorld``: defaults of worlds of tokens, and their pieces of text
``demonstrations.py``  episodes in which the world's expert writes every turn
``supplies.py``        what the rows of a world hold, for the algorithms that read it
``guess.py``           ``guess``, ``twenty_questions``: find a secret number by comparisons, or by questions
``wordle.py``          ``wordle``: find a word by marks of its letters
``calculator.py``      ``calculator``: long arithmetic by calls of a tool
``maze.py``            ``maze``: walk to a goal in a grid with walls
``retry.py``           ``retry``: a search that often finds nothing, and may be repeated
``memory.py``          ``memory``: a document read in chunks, with a note as the only memory (chapters)
``tagged.py``          ``tagged``: ``guess``, with a tag for the purpose of each turn
``propose.py``         ``propose``: one seat writes problems, the other one solves them (chapters)
``extract.py``         ``extract``: one seat writes a skill, the other one solves with it (chapters)
``spy.py``             ``spy``: clues and votes against a player with another card (chapters)
``single.py``          ``from_task``: a device task as a world of one turn
``revise.py``          ``revise``: answer, with or without a judgement, then answer again
``wrappers.py``        ``think_longer``, ``hint``: around any world
``around.py``          ``Around``, the shortest wrapper; ``recorded``, ``format_parts``
``mixture.py``         ``mixture``: several worlds and tasks in one run
``games/``             board and card games of pgx
``host/``              worlds that are Python classes on text, run in worker processes
=====================  ================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard

from rljax.environments import Split, Task, is_world

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    from rljax import types
    from rljax.environments.worlds.host.task import HostWorld
    from rljax.environments.worlds.reply import Reply

Rows = Literal["conversation", "chapters"]
State = Any


class World(Task, Protocol):
    """A task of several turns. ``prompts`` are those of seat 0, for a look at them; drivers use ``begin``."""

    @property
    def seats(self) -> int:
        """Number of seats that players write for."""
        ...

    @property
    def max_turns(self) -> int:
        """The most turns of an episode, those of all seats together."""
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
    def rows(self) -> Rows:
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

    def begin(self, index: types.Array, split: Split, key: types.Key) -> State:
        """Return the state of problem ``index``, a scalar."""
        ...

    def prompt(self, state: State, seat: types.Array) -> tuple[types.Array, types.Array]:
        """Return token ``[L]`` int32, left-padded, and mask ``[L]`` float32: what a seat reads before it writes."""
        ...

    def step(
        self, state: State, seat: types.Array, token: types.Array, mask: types.Array, key: types.Key
    ) -> tuple[State, Reply]:
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


def in_turns(task: Task) -> TypeGuard[World]:
    """Return whether a task is a ``World``, which runs inside the compiled program."""
    return is_world(task) and not task.host


def on_host(task: Task) -> TypeGuard[HostWorld]:
    """Return whether a task is a ``HostWorld``, whose turns are answered by worker processes."""
    return is_world(task) and task.host


def __getattr__(name: str) -> Any:
    if name == "Reply":  # of a module that imports jax, which worker processes of host worlds must not load
        return importlib.import_module("rljax.environments.worlds.reply").Reply
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
