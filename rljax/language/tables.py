"""Tables of the functions that a config names, filled by what lies in folders.

A table has a core and a collection. The modules of the collection are imported only when a name is not in the core, or
when all names are asked for, so a run that uses the core alone does not import them.
"""

import functools
import importlib
import importlib.util
import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from rljax.language import dotted

Functions = Mapping[str, Callable[..., Any]]


class Table(Mapping[str, Callable[..., Any]]):
    """The functions of some rooms that a decorator has marked, by name."""

    def __init__(self, kind: str, core: Sequence[str], collection: Sequence[str] = (), **others: Callable[..., Any]):
        """Describe a table; nothing is imported before the first look-up.

        Args:
          kind: the mark of the functions, of ``dotted.KINDS``.
          core: rooms whose functions are found first: names of modules, or of packages with all of their modules.
          collection: rooms whose functions are found next; a room that does not exist is empty.
          **others: functions of the core that no room holds.
        """
        self._kind, self._rooms, self._others = kind, (tuple(core), tuple(collection)), others

    @functools.cached_property
    def core(self) -> Functions:
        """The functions of the core."""
        return {**self._others, **_marked(self._kind, self._rooms[0])}

    @functools.cached_property
    def collection(self) -> Functions:
        """The functions of the collection."""
        return _marked(self._kind, self._rooms[1])

    def __getitem__(self, name: str) -> Callable[..., Any]:
        return self.core[name] if name in self.core else self.collection[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self.core, **self.collection})

    def __len__(self) -> int:
        return len({**self.core, **self.collection})


def _marked(kind: str, rooms: Sequence[str]) -> dict[str, Callable[..., Any]]:
    """Return the functions that the modules of rooms define under a decorator of a kind, in order."""
    functions: dict[str, Callable[..., Any]] = {}
    for room in rooms:
        if importlib.util.find_spec(room) is None:
            continue
        module = importlib.import_module(room)
        inner = [f"{room}.{m.name}" for m in pkgutil.iter_modules(getattr(module, "__path__", ()))]
        functions |= _marked(kind, inner)
        functions |= {n: f for n, f in vars(module).items() if dotted.marked(f, kind) and f.__module__ == room}
    return functions
