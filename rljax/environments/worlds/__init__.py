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
``text.py``            ``TextWorld``: a world of tokens from rules of characters; its constructor, ``of``
``tokens.py``          ``TokenWorld``: defaults of worlds of tokens, and their pieces of text
``goals.py``           rows of a world with goals, as if they had been others
``demonstrations.py``  episodes in which the world's expert writes every turn
``shipped/``           worlds that ship: each a file, which nothing in the frame imports
``single.py``          ``from_task``: a device task as a world of one turn
``around.py``          ``Around``, ``Recalling``: bases of what stands around a world; ``recorded``, ``format_parts``
``wrappers.py``        ``think_longer``, ``hint``: around any world
``compress.py``        ``compress``: a conversation in chapters, whose prompts leave out old replies
``mixture.py``         ``mixture``: several worlds and tasks in one run
``host/``              worlds that are Python classes on text, run in worker processes
=====================  ================================================================================
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, TypeGuard

from rljax.environments import Task, World, traits
from rljax.environments.traits import Rows

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    from rljax.environments.worlds.host.task import HostWorld
    from rljax.environments.worlds.reply import Reply

State = Any

__all__ = ("Reply", "Rows", "State", "World", "in_turns", "on_host")


def in_turns(task: Task) -> TypeGuard[World]:
    """Return whether a task is a ``World``, which runs inside the compiled program."""
    return not (task.host or traits.traits(task).whole)


def on_host(task: Task) -> TypeGuard[HostWorld]:
    """Return whether a task is a ``HostWorld``, whose turns are answered by worker processes."""
    return task.host and not traits.traits(task).whole


def __getattr__(name: str) -> Any:
    if name == "Reply":  # of a module that imports jax, which worker processes of host worlds must not load
        return importlib.import_module("rljax.environments.worlds.reply").Reply
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
