"""What a task is, in one record: who judges it, its turns, seats and rows, and what its rows hold.

``traits(task)`` is the one place that reads which members a task has. Ask it once, where its producer is chosen:

==========  =========  =======================================================================================
``host``    ``whole``  how the task is run
==========  =========  =======================================================================================
False       True       one completion a row, judged in the compiled program by ``World.verify``
False       False      turns, answered in the compiled program by ``World.step``
True        True       one completion a row, judged in worker processes by ``HostTask.reward``
True        False      turns, answered in worker processes (``worlds.host``)
==========  =========  =======================================================================================
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

if TYPE_CHECKING:  # worker processes import this package and must not load jax
    from rljax.environments import Split, Task
    from rljax.environments.control import Actions

Rows = Literal["conversation", "chapters"]


@dataclasses.dataclass(frozen=True)
class Pictures:
    """The pictures of a prompt: ``Prompts.image`` is [P, count, height, width, 3]."""

    count: int
    height: int
    width: int
    tokens: int  # placeholder tokens of each picture, adjacent, which the prompt holds


@runtime_checkable
class Marking(Protocol):
    """A task whose completions write places of the picture, which a report draws over it."""

    def marks(self, index: int, split: Split, text: str) -> tuple[list[list[float]], list[list[float]]] | None:
        """Return the places that a completion of a prompt writes, and those asked; None if the prompt asks for none.

        A place is left and top of a point, or left, top, right and bottom of a box, in [0, 1] of the picture's sides.
        """
        ...


@dataclasses.dataclass(frozen=True)
class Traits:
    """What a task is."""

    host: bool  # worker processes judge or answer it; else the compiled program does
    whole: bool  # of one turn, whose completions are judged by ``verify`` or ``reward``; else ``step`` answers turns
    max_turns: int  # the most turns of an episode, of all seats together
    seats: int  # that players write for
    rows: Rows  # what a row holds: a conversation of one seat, or one turn
    shared: bool  # the samples of a prompt face the same problem, so that they can be compared
    domains: int  # number of values of ``Rollout.domain``
    extra: tuple[str, ...]  # names of the numbers that the task writes on tokens, ``Rollout.extra``
    longest: float  # seconds that a turn or the reward function on the host may take by its own limits
    written: tuple[str, ...]  # what the verdicts of a task of one turn hold beyond the defaults
    pictures: Pictures | None  # of a prompt; None: prompts are text
    actions: Actions | None  # of a control world, which has no tokens; None: it has

    @property
    def rows_of_episode(self) -> int:
        """Rows of one episode: a conversation for each seat, or a chapter for each turn; 1 for a task of one turn."""
        if self.whole:
            return 1
        return self.max_turns if self.rows == "chapters" else self.seats

    @property
    def alike(self) -> bool:
        """Whether all rows of a prompt begin with the same tokens."""
        return self.rows_of_episode == 1 and self.shared

    @property
    def supplies(self) -> frozenset[str]:
        """What rows hold beyond the defaults, by the names of ``types.Source.supplies``.

        "token_reward" and "turns" for several turns; "agents" for several seats; "episodes" for several rows an
        episode; "domains" for several domains; ``extra``; and ``written``.
        """
        several = self.max_turns > 1 or self.actions is not None
        names = {
            "token_reward": several,
            "turns": several,
            "agents": self.seats > 1,
            "episodes": self.rows_of_episode > 1,
            "domains": self.domains > 1,
        }
        return frozenset({*(name for name, held in names.items() if held), *self.extra, *self.written})


def traits(task: Task) -> Traits:
    """Return what a task is; members that a task of one turn need not have get the values of one turn."""
    whole = not hasattr(task, "max_turns")
    return Traits(
        host=task.host,
        whole=whole,
        max_turns=getattr(task, "max_turns", 1),
        seats=getattr(task, "seats", 1),
        rows=getattr(task, "rows", "conversation"),
        shared=whole or not getattr(task, "anew", False),
        domains=getattr(task, "domains", 1),
        extra=tuple(getattr(task, "extra", ())),
        longest=getattr(getattr(task, "reward", None) if whole else task, "longest", 0.0),
        written=tuple(getattr(task, "supplies", ())),
        pictures=getattr(task, "pictures", None),
        actions=getattr(task, "actions", None),
    )
