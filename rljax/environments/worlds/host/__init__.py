"""Host worlds: worlds that are Python classes on text, run in worker processes.

A class has two methods; an instance plays one episode at a time:

    reset(example) -> messages          the problem, as a text or as messages
    step(text) -> Observation           what follows a turn of the policy

``example`` is a row of a file (a dictionary), or the number of the problem. The answers must follow from the example
and the turns alone: draw random numbers from a generator that the example seeds. An episode whose worker was killed is
then built again in another one, by ``reset`` and the turns so far; if the answers differ, the episode does not count.

Methods may be coroutines (``async def``): each instance has an event loop. Everything that a class does, constructor,
``corpus`` and ``expert`` included, runs in worker processes within the time and memory of ``config.verifier``.

A worker answers one turn at a time, and seeds the modules random and numpy.random for it. With
``config.verifier.concurrency=64`` it answers 64 turns of different episodes at once, for tools that wait: methods run
in threads, the coroutines of all episodes in one event loop, so that they may share a session, and nothing is seeded.

A class may also have:

=====================  ==============================================================================================
``tools``              functions with docstrings, or JSON schemas, which the chat template shows (``tools=``)
``role``               the role of messages that ``Observation.text`` gives as a text: "user" (default), "tool", ...
``parts``              names of the numbers of ``Observation.parts``
``seats``              number of players whose turns an episode has, seat 0 first; see below
``turn_end``           texts that end a turn besides the tokenizer's stop tokens, such as ``("</tool_call>",)``
``cut``                True: an answer longer than ``reply_length`` tokens is cut; else its episode does not count
``seconds``            what a turn may take by limits of its own; ``config.verifier.timeout`` must be above it
``examples``           class attribute: number of problems, if there are no rows of a file
``expert(self)``       the text of the next turn of a demonstration, after ``reset`` and ``step``
``corpus(self)``       texts that a tokenizer is trained on, besides the texts of prompts and demonstrations
``close(self)``        called when the episode is over
=====================  ==============================================================================================

With ``seats = n`` an episode has n rows, as in a world inside the program. ``reset`` returns a list of what each seat
reads first, and ``step`` an ``Observation`` whose ``text``, ``reward``, ``outcome`` and parts may be lists of n values,
one for each seat; another value holds for every seat. ``next_seat`` writes the next turn; the others keep what they are
told until their own. With a chat template, a seat that is told something before its turn passes: it has written an
empty message.

``config.task = "world('my_module:MyWorld', path='problems.jsonl')"`` names a class; see ``task.world``.

===================  ===================================================================================================
``task.py``          ``world``, the constructor, and ``HostWorld``, the task: examples, prompts, demonstrations, tokens
``episodes.py``      ``Episodes``: episodes in worker processes, with a time limit for each turn
``limited.py``       attributes, prompts, corpus and demonstrations of a class, read in a worker process
``instances.py``     the episodes that a worker process plays
``records.py``       what a world says, checked: ``Begun``, ``Answer``
``options.py``       settings of host worlds: lengths, questions, games
``shipped/``         host worlds that ship: tools, an interpreter, search, games, and environments of other libraries
``calls.py``         the decorator ``tool``; calls that a model writes, in three forms
``signatures.py``    functions as JSON schemas, and arguments checked against them
===================  ===================================================================================================

Worker processes import this package, so it does not import jax.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

Message = Mapping[str, Any]
"""One message: "role" and "content", texts; a message of a tool may also have its "name"."""

Messages = str | Message | Sequence[Message]
"""What a world says: a text, a message, or several."""


@dataclasses.dataclass(frozen=True)
class Observation:
    """What follows a turn. With several seats, a list has a value for each seat, and another value holds for all."""

    text: Messages | Sequence[Messages] = ""  # what the policy reads next; of the last turn it is only recorded
    reward: float | Sequence[float] = 0.0  # paid for the turn; the rewards of an episode add up
    done: bool = False  # the episode has ended
    outcome: str | Sequence[str] = ""  # lower-case name of a types.Outcome; "": follows from the sum of the rewards
    parts: Mapping[str, float | Sequence[float]] = dataclasses.field(default_factory=dict)  # the last turn's count
    truncated: bool = False  # the episode has ended because of a budget, such as a number of turns
    next_seat: int | None = None  # who writes the next turn; None: the seat that follows, after the last one seat 0


class World(Protocol):
    """What a class must have; the text above lists what it may have."""

    def reset(self, example: Any) -> Messages | Sequence[Messages]:
        """Begin an episode and return what the policy reads first; with several seats, a list of what each reads."""
        ...

    def step(self, text: str) -> Observation:
        """Answer a turn of the policy: its text, without special tokens."""
        ...
