"""Runs of a sweep: what several runs of one config are, given by a file, by flags or in Python.

A file has ``get_sweep()``, which returns a list with the fields of each run:

    from rljax.run.members import sweep

    def get_sweep():
        return sweep.product(
            sweep.grid({"algorithm": ["grpo()", "rloo()"], "batch.samples": [8, 16]}),
            sweep.grid({"seed": range(3)}),
        )

Fields are those of ``--set``, including arguments of calls (``algorithm.kl``). ``expand`` makes runs of
them, which ``commands`` prints and ``many`` trains.
"""

import collections
import dataclasses
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from etils import epath

from rljax.config import files, resolve, schema
from rljax.language import errors, messages, parse
from rljax.transforms.source import files as row_files

if TYPE_CHECKING:  # a list of runs is printed without the imports of a run
    from rljax.run import loop

Fields = dict[str, Any]
"""The fields that one run sets, with their values."""

_LONGEST = 120  # maximum length of a name


# --- lists of runs -------------------------------------------------------------------------------


def grid(values: Mapping[str, Iterable[Any]]) -> list[Fields]:
    """Return a run for each combination of values; the last field changes fastest."""
    return product(*([{field: value} for value in several] for field, several in values.items()))


def zipped(values: Mapping[str, Iterable[Any]]) -> list[Fields]:
    """Return a run for the first values of all fields, one for the second, and so on.

    Raises:
      ValueError: the fields have different numbers of values.
    """
    lists = {field: list(several) for field, several in values.items()}
    if len(set(map(len, lists.values()))) > 1:
        raise ValueError(f"sweep.zipped: different numbers of values: { {f: len(v) for f, v in lists.items()} }.")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def product(*lists: Iterable[Fields]) -> list[Fields]:
    """Return a run for each combination of runs of the lists. To concatenate lists, use +.

    Raises:
      ValueError: two lists set the same field.
    """
    out: list[Fields] = [{}]
    for runs in lists:
        pairs = list(itertools.product(out, runs))
        if twice := {field for first, second in pairs for field in first.keys() & second.keys()}:
            raise ValueError(f"sweep.product: {min(twice)!r} is set twice.")
        out = [{**first, **second} for first, second in pairs]
    return out


def load(path: str) -> list[Fields]:
    """Return ``get_sweep()`` of a file.

    Raises:
      ValueError: there is no such file, or ``get_sweep()`` does not return a list of runs.
    """
    if not os.path.isfile(path):
        raise ValueError(f"sweep {path!r}: no such file.")
    module = files.executed(path, f"sweep {path!r}")
    if not hasattr(module, "get_sweep"):
        raise ValueError(f"sweep {path!r}: has no function get_sweep().")
    with errors.called(f"sweep {path!r}: get_sweep()"):
        runs = module.get_sweep()
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) and run for run in runs):
        raise ValueError(f"sweep {path!r}: get_sweep() must return a list of {{field: value}}, one for each run.")
    return runs


def seeds_of(text: str) -> list[int]:
    """Return the seeds of a text such as "0:4", which is 0 to 3, or "0,3,5".

    Raises:
      ValueError: another form, no seed, or a seed twice.
    """
    seeds: list[int] = []
    for part in text.split(","):
        if not re.fullmatch(r"\d+(:\d+)?", part):
            raise ValueError(f"--seeds={messages.shown(text)}: must be like 0:4, which is 0 to 3, or like 0,3,5.")
        first, colon, end = part.partition(":")
        seeds += range(int(first), int(end)) if colon else [int(first)]
    if not seeds or len(set(seeds)) < len(seeds):
        raise ValueError(f"--seeds={messages.shown(text)}: {'a seed is given twice' if seeds else 'no seed'}.")
    return seeds


def of_flags(seeds: str, values: Sequence[str]) -> list[Fields]:
    """Return the fields of each run: every combination of seeds and values.

    Args:
      seeds: of ``--seeds``; "": the config's.
      values: of a field each, such as "algorithm.positive=[0.1, 0.3]".

    Returns:
      The runs; the last field changes fastest, and seeds change slowest.

    Raises:
      ValueError: a text of another form, no value, or a field or seed twice.
    """
    of: dict[str, Sequence[Any]] = {"seed": seeds_of(seeds)} if seeds else {}
    for text in values:
        field, several = parse.setting(text if "=" in text else f"{text}=")
        if not isinstance(several, list | tuple) or not several:
            raise ValueError(f"--sweep={messages.shown(text)}: must be FIELD=[VALUE, ...], with at least one value.")
        if field in of:
            raise ValueError(f"--sweep={messages.shown(text)}: {field} is given twice.")
        of[field] = several
    return grid(of)


# --- runs ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class Run:
    """A run among several: what it is, and what became of it.

    Attributes:
      name: its fields and values, and its folder.
      fields: the fields that it sets, with their values.
      resolved: its config.
      workdir: its work directory; None: it is kept in memory.
      tokenizer: serialized, in its work directory or of the run that it forks; None: it has none yet.
      result: what ``rljax.train`` returns; None: it has not run, or it failed.
      failure: why it failed, else "".
    """

    name: str
    fields: Fields
    resolved: resolve.Resolved
    workdir: epath.Path | None
    tokenizer: bytes | None = None
    result: "loop.Result | None" = None
    failure: str = ""

    @property
    def config(self) -> schema.ConfigDict:
        """The config of the run."""
        return self.resolved.config

    @property
    def settings(self) -> tuple[str, ...]:
        """The values of ``--set`` that make the config of the run."""
        return tuple(f"{field}={_written(value)}" for field, value in _ordered(self.fields))


def expand(
    runs: Sequence[Fields], config: schema.ConfigDict, workdir: str | os.PathLike[str] | None = None
) -> list[Run]:
    """Name the runs; check that each config resolves and that all are different.

    Args:
      runs: the fields of each run.
      config: the config that the runs change.
      workdir: folder of the runs' work directories; None keeps everything in memory.

    Returns:
      The runs, in the same order.

    Raises:
      ValueError: an unknown field, an invalid value, two equal configs, or two runs with one folder of arriving rows.
    """
    names, seen, folders = _names(runs), {}, {}
    out = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        changed = config.copy_and_resolve_references()
        try:
            for field, value in _ordered(run):
                files.override(changed, field, tuple(value) if isinstance(value, list) else value)
            resolved = resolve.run(changed)
        except errors.CodeError as error:
            raise errors.CodeError(f"run {index} ({name}): {error}", error.notes) from None
        except ValueError as error:
            raise ValueError(f"run {index} ({name}): {error}") from None
        first = seen.setdefault(files.dumps(changed), index)
        if first != index:
            raise ValueError(f"runs {first} ({names[first]}) and {index} ({name}) are the same run.")
        sources = [phase.algorithm.source for phase in resolved.phases]
        for source in (s for s in sources if isinstance(s, row_files.Arriving)):
            if (first := folders.setdefault(source.file, index)) != index:
                raise ValueError(
                    f"runs {first} ({names[first]}) and {index} ({name}) read rows of {source.file}, and rows from "
                    "outside are of the policy of one run. Set config.seam.source to a folder for each."
                )
        out.append(Run(name, run, resolved, None if workdir is None else epath.Path(workdir) / name))
    return out


def _ordered(run: Fields) -> list[tuple[str, Any]]:
    """Return the fields of a run in the order in which they are set: a call before its arguments."""
    return sorted(run.items(), key=lambda item: item[0].count("."))


def _written(value: Any) -> str:
    """Format a value for ``--set``; a text is quoted only if it would be parsed as another literal."""
    if not isinstance(value, str):
        return repr(tuple(value) if isinstance(value, list) else value)
    return value if parse.literal(value) == value else repr(value)


def _names(runs: Sequence[Fields]) -> list[str]:
    """Return a name for each run: its values and fields, by their last parts where these are unambiguous."""
    short = collections.Counter(field.rpartition(".")[2] for field in set().union(*runs))

    def name(run: Fields) -> str:
        parts = []
        for field, value in run.items():
            last = field.rpartition(".")[2]
            text = re.sub(r"[\w.]+\.(?=[A-Za-z_]\w*\()", "", str(value))  # removes the module of a function
            text = re.sub(r"[^\w.+-]+", "-", text, flags=re.ASCII).strip("-")
            parts.append(f"{last if short[last] == 1 else field}={text}")
        return ",".join(parts)

    names = [name(run) for run in runs]
    count = collections.Counter(names)
    digests = [hashlib.sha256(repr(sorted(run.items())).encode()).hexdigest()[:6] for run in runs]
    return [
        n if count[n] == 1 and len(n) <= _LONGEST else f"{n[:_LONGEST]}-{digest}"
        for n, digest in zip(names, digests, strict=True)
    ]
