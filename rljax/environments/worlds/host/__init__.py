"""Host worlds: worlds that are Python classes on text, run in worker processes.

A class has two methods; an instance plays one episode at a time:

    reset(example) -> messages          the problem, as a text or as messages
    step(text) -> Observation           what follows a turn of the policy

``example`` is a row of a file (a dictionary), or the number of the problem. The answers must follow from the example
and the turns alone: draw random numbers from a generator that the example seeds. An episode whose worker was killed is
then built again in another one, by ``reset`` and the turns so far; if the answers differ, the episode does not count.

Methods may be coroutines (``async def``): each instance has an event loop. Everything that a class does, constructor,
``corpus`` and ``expert`` included, runs in worker processes within the time and memory of ``config.verifier``.

A class may also have:

=====================  ==============================================================================================
``tools``              functions with docstrings, or JSON schemas, which the chat template shows (``tools=``)
``role``               the role of messages that ``Observation.text`` gives as a text: "user" (default), "tool", ...
``parts``              names of the numbers of ``Observation.parts``
``turn_end``           texts that end a turn besides the tokenizer's stop tokens, such as ``("</tool_call>",)``
``cut``                True: an answer longer than ``reply_length`` tokens is cut; else its episode does not count
``seconds``            what a turn may take by limits of its own; ``config.verifier.timeout`` must be above it
``examples``           class attribute: number of problems, if there are no rows of a file
``expert(self)``       the text of the next turn of a demonstration, after ``reset`` and ``step``
``corpus(self)``       texts that a tokenizer is trained on, besides those of prompts and demonstrations
``close(self)``        called when the episode is over
=====================  ==============================================================================================

``config.task = "world('my_module:MyWorld', rows='problems.jsonl')"`` names a class; see ``task.world``.

===================  ===================================================================================================
``task.py``          ``world``, the constructor, and ``HostWorld``, the task: examples, prompts, demonstrations, tokens
``episodes.py``      ``Episodes``: the worker processes, with a time limit for each turn
``limited.py``       attributes, prompts, corpus and demonstrations of a class, read in a worker process
``instances.py``     the pool's side of a worker: which episodes it has instances of, and what it is asked
``worker.py``        the code inside a worker process
``records.py``       what a world says, checked: ``Begun``, ``Told``
``constructors.py``  the worlds that ship: ``tools``, ``python_tool``, ``search``, ``textarena``
``tools.py``         ``ToolWorld``: a question, calls of tools, an answer
``calls.py``         the decorator ``tool``; calls that a model writes, in three forms
``signatures.py``    functions as JSON schemas, and arguments checked against them
``assisted.py``      questions of files, or made here, with the calls that demonstrations make
``interpreter.py``   a Python interpreter as a tool, in the sandbox of ``verifiers``
``passages.py``      search over a folder of texts as a tool, by BM25
``arena.py``         games of textarena
``adapters/``        environments of gymnasium and OpenEnv, tools of MCP servers
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
    """What follows a turn."""

    text: Messages = ""  # what the policy reads next; of the last turn it is only recorded
    reward: float = 0.0  # paid for the turn; the rewards of an episode add up
    done: bool = False  # the episode has ended
    outcome: str = ""  # lower-case name of a types.Outcome; "": follows from the sum of the rewards
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)  # those of the last turn are the episode's
    truncated: bool = False  # the episode has ended because of a budget, such as a number of turns


class World(Protocol):
    """What a class must have; the text above lists what it may have."""

    def reset(self, example: Any) -> Messages:
        """Begin an episode and return what the policy reads first."""
        ...

    def step(self, text: str) -> Observation:
        """Answer a turn of the policy: its text, without special tokens."""
        ...
