"""Rows of files: the piece names the file; ``data.stored_groups`` reads it when the program is built."""

import dataclasses
from typing import Literal

from rljax import types
from rljax.transforms import define

Kind = Literal["pairs", "rows", "demonstrations"]
Overlong = Literal["error", "drop"]


@dataclasses.dataclass(frozen=True)
class Stored(types.Source):
    """A source whose rows are in files."""

    file: str = ""
    kind: Kind = "rows"
    overlong: Overlong = "error"
    parts: tuple[str, ...] = ()
    megabytes: int = 0
    heldout: float = 0.0


@define.source
def stored(
    file: str,
    kind: Kind = "rows",
    overlong: Overlong = "error",
    parts: tuple[str, ...] = (),
    megabytes: types.Count = 4096,
    heldout: types.Fraction | None = None,
):
    """Train on the rows of a file instead of samples of the policy; ``on_policy`` is 0.

    Each step takes the next groups of a seeded shuffle of the file, and each epoch is shuffled anew. The column
    "behaviour_logp" holds log-probs of the completion's tokens; without it, an algorithm that reads them gets those of
    the policy at the start of the phase.

    Args:
      file: a file, a pattern or a folder, as in ``data.rows.read``.
      kind: "pairs" of prompt, chosen and rejected are groups of two with rewards 1 and 0; "rows" of prompt, completion
        and reward are groups of ``batch.samples`` rows with one prompt; "demonstrations" are groups of one, reward 1.
      overlong: "error", or "drop" the rows that are longer than the task's prompts or completions.
      parts: columns with a number for each row, which become parts of the reward.
      megabytes: the most memory of the host that the rows may take, 10^6 bytes each.
      heldout: share of the prompts whose rows are not trained on; an evaluation ranks the rows of each by the reward
        models of the phase, and by the log-ratio of the policy to the reference. None: 0.05 of pairs, else 0.
    """
    if heldout is None:
        heldout = 0.05 if kind == "pairs" else 0.0
    return Stored(
        origin="stored",
        off_policy=True,
        file=file,
        kind=kind,
        overlong=overlong,
        parts=tuple(parts),
        megabytes=megabytes,
        heldout=heldout,
    )
