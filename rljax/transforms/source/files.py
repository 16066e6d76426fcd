"""Rows of files: the piece names the file; ``data.stored_groups``, or ``stored_steps``, reads it with the program."""

import dataclasses
from typing import ClassVar, Literal

from rljax import types
from rljax.transforms import define

Kind = Literal["pairs", "rows", "demonstrations"]
Overlong = Literal["error", "drop"]


@dataclasses.dataclass(frozen=True)
class Stored(types.Source):
    """A source whose rows are in files."""

    file: str = ""
    kind: Kind | Literal["steps"] = "rows"
    overlong: Overlong = "error"
    parts: tuple[str, ...] = ()
    megabytes: int = 0
    window: int = 0  # of kind "steps"
    heldout: float = 0.0
    fixed: ClassVar[bool] = True  # whether the files are read whole before the run, and belong to it


@dataclasses.dataclass(frozen=True)
class Arriving(Stored):
    """A source whose rows are written into a folder during the run."""

    lag: int = -1
    timeout: float = 0.0
    fixed: ClassVar[bool] = False


@define.source
def stored(
    file: str,
    kind: Kind = "rows",
    overlong: Overlong = "error",
    parts: tuple[str, ...] = (),
    megabytes: types.Count = 4096,
    heldout: types.Fraction | None = None,
) -> types.Source:
    """Train on the rows of a file instead of samples of the policy; ``on_policy`` is 0.

    Each step takes the next groups of a seeded shuffle of the file, and each epoch is shuffled anew. The column
    "behaviour_logp" holds log-probs of the completion's tokens; without it, an algorithm that reads them gets log-probs
    of the policy at the start of the phase. Of a world, "rows" are conversations (``data.rows.exchanges``).

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


@define.source
def arriving(folder: str, lag: int = -1, timeout: types.Positive = 3600.0, parts: tuple[str, ...] = ()) -> types.Source:
    """Train on rows that others sample from the policy and write into a folder during the run; ``on_policy`` is 1.

    Each step takes the next groups of the files NAME.jsonl, in the order of their names among those that are there; a
    name that begins with "." does not count, so a writer renames a finished file into place. The rows are those of
    ``stored`` of kind "rows", with the columns "behaviour_logp" and "version". The work directory records which groups
    a step has taken (arrived.jsonl), and a resumed step takes them again, so the files must stay.

    A group whose oldest row is more than ``lag`` versions behind is left out and counted in the metric "late": whoever
    samples cannot know how far the run is when its rows are read, so it is no error. A row of a version that the run
    does not have yet is one, as are damaged rows and those of another tokenizer: the run is saved, stops, and goes on
    when the file is corrected or removed.

    Args:
      folder: the folder, which has to be there.
      lag: the most versions that a group is behind the update; -1: any number.
      timeout: seconds without another group after which the run is saved and stops.
      parts: columns with a number for each row, which become parts of the reward.
    """
    if lag < -1:
        raise ValueError(f"lag={lag} must be at least 0, or -1 for any")
    return Arriving(origin="stored", file=folder, parts=tuple(parts), megabytes=4096, lag=lag, timeout=timeout)


@define.source
def recorded(file: str, window: types.Count = 1, megabytes: types.Count = 4096) -> types.Source:
    """Train on the steps of a control world in files, offline; ``on_policy`` is 0.

    Files are .npz with the arrays of D4RL, as ``python -m rljax data record`` writes them (``data.stored_steps``). Each
    episode is cut into windows of at most ``window`` steps, which are rows; a step draws ``batch.prompts`` of them from
    a seeded shuffle, anew in each epoch. A window that does not end with its episode has ``finish`` LENGTH, and so has
    one that a time limit cut: the value of the state that follows stands for the rest. Differs from ``stored``, whose
    rows are tokens.

    Args:
      file: a file, or a pattern or a folder of several.
      window: steps of a row; targets over several steps see no further.
      megabytes: the most memory of a file, 10^6 bytes each.
    """
    return Stored(origin="stored", off_policy=True, file=file, kind="steps", window=window, megabytes=megabytes)
