"""What is known of a field of ``types.Scores``, in one row."""

import dataclasses
from typing import Any, Literal


@dataclasses.dataclass(frozen=True)
class Score:
    """The row of a field: what checks, pages, the battery, configs and the functions that score know of it.

    A field that is computed on request has a need of its name in ``types.Needs``: a flag, or a set of tuples that end
    with the size of the last dimension.
    """

    words: str  # on pages
    shape: tuple[Any, ...] = ("B", "T")  # of B rows and T tokens; ... is a further size
    at: Literal["", "before", "after", "end"] = ""  # of a number head: before or after each token, or at the row's end
    module: Literal["", "policy", "value", "other"] = ""  # whose objective is left out where no such array is in hand


def score(words: str, shape: tuple[Any, ...] = Score.shape, **row: Any) -> Any:
    """Define a field of ``types.Scores``; the arguments are its row's."""
    return dataclasses.field(default=None, metadata={"score": Score(words, shape, **row)})


def scores(cls: type) -> dict[str, Score]:
    """Return the rows of a record's fields, by name."""
    return {f.name: f.metadata["score"] for f in dataclasses.fields(cls) if "score" in f.metadata}
