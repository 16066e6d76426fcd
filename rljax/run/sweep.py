"""Sweeps: a file of fields and values becomes independent runs with separate work directories.

    python -m rljax sweep FILE --config CONFIG --workdir BASE [--config.FIELD=VALUE ...] [--set FIELD=VALUE ...]
        prints the command of each run, one per line
        --count      prints the number of runs
        --index N    runs number N in this process, for array jobs

The file has ``get_sweep()``, which returns a list with the fields of each run:

    from rljax.run import sweep

    def get_sweep():
        return sweep.product(
            sweep.grid({"algorithm": ["grpo()", "rloo()"], "batch.samples": [8, 16]}),
            sweep.grid({"seed": range(3)}),
        )

Fields are those of ``--set``, including arguments of calls (``algorithm.kl``). Start the runs with a shell, GNU
parallel, SLURM arrays or XPK; see tpu/README.md.
"""

import collections
import dataclasses
import hashlib
import importlib.util
import itertools
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rljax.config import files, resolve, schema
from rljax.language import errors, parse

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


# --- runs ----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a sweep: its number, its name, which lists its fields, the ``--set`` value of each field, its config."""

    index: int
    name: str
    fields: Fields
    settings: tuple[str, ...]
    config: schema.ConfigDict


def load(path: str) -> list[Fields]:
    """Return ``get_sweep()`` of a file.

    Raises:
      ValueError: there is no such file, or ``get_sweep()`` does not return a list of runs.
    """
    if not os.path.isfile(path):
        raise ValueError(f"sweep {path!r}: no such file.")
    spec = importlib.util.spec_from_file_location("rljax_sweep", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"sweep {path!r}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    with errors.called(f"sweep {path!r}"):
        spec.loader.exec_module(module)
    if not hasattr(module, "get_sweep"):
        raise ValueError(f"sweep {path!r}: has no function get_sweep().")
    with errors.called(f"sweep {path!r}: get_sweep()"):
        runs = module.get_sweep()
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) and run for run in runs):
        raise ValueError(f"sweep {path!r}: get_sweep() must return a list of {{field: value}}, one for each run.")
    return runs


def expand(runs: Sequence[Fields], config: schema.ConfigDict) -> list[Run]:
    """Name the runs; check that each config resolves and that all are different.

    Args:
      runs: the fields of each run.
      config: the config that the runs change.

    Returns:
      The runs, in the same order.

    Raises:
      ValueError: an unknown field, an invalid value, or two runs with the same config.
    """
    names, seen = _names(runs), {}
    out = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        ordered = sorted(run.items(), key=lambda item: item[0].count("."))  # a call before its arguments
        changed = config.copy_and_resolve_references()
        try:
            for field, value in ordered:
                files.override(changed, field, tuple(value) if isinstance(value, list) else value)
            resolve.phases(changed)
        except errors.CodeError as error:
            raise errors.CodeError(f"run {index} ({name}): {error}", error.notes) from None
        except ValueError as error:
            raise ValueError(f"run {index} ({name}): {error}") from None
        first = seen.setdefault(files.dumps(changed), index)
        if first != index:
            raise ValueError(f"runs {first} ({names[first]}) and {index} ({name}) are the same run.")
        out.append(Run(index, name, run, tuple(f"{field}={_written(value)}" for field, value in ordered), changed))
    return out


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


# --- the command ---------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Line:
    """A parsed command line."""

    file: str
    config: str
    workdir: str
    index: int | None
    count: bool
    common: tuple[str, ...]  # arguments of every run


def _parse(words: Sequence[str]) -> _Line:
    """Parse the command line; arguments that the sweep does not know are passed to every run.

    Raises:
      ValueError: an argument is missing or invalid.
    """
    options: dict[str, str] = {}
    common: list[str] = []
    files: list[str] = []
    count = False
    rest = list(words)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.removeprefix("-").removeprefix("-").partition("=")
        if not word.startswith("-"):
            files.append(word)
        elif flag == "count":
            count = True
        elif flag in ("config", "workdir", "index", "set"):
            if not equals and not rest:
                raise ValueError(f"--{flag}: a value is missing.")
            value = value if equals else rest.pop(0)
            if flag == "set":
                common += ["--set", value]
            else:
                options[flag] = value
        else:
            common.append(word)  # --config.FIELD=VALUE and other flags of python -m rljax
    if len(files) != 1:
        raise ValueError(f"expected one sweep file, got {files or 'none'}. Write flags of rljax as --flag=value.")
    if missing := [f"--{name}" for name in ("config", "workdir") if not options.get(name)]:
        raise ValueError(
            f"{' and '.join(missing)} missing: the work directories of the runs are subfolders of --workdir."
        )
    if "index" in options and not options["index"].isdigit():
        raise ValueError(f"--index {options['index']}: must be a whole number of at least 0.")
    index = int(options["index"]) if "index" in options else None
    return _Line(files[0], options["config"], options["workdir"].rstrip("/"), index, count, tuple(common))


def _base(line: _Line) -> schema.ConfigDict:
    """Return the config that the runs change."""
    name, _, argument = line.config.partition(":")
    config = files.load(name, argument)
    for word, following in itertools.pairwise((*line.common, "")):
        setting = (
            following if word == "--set" else word.lstrip("-") if word.startswith(("--config.", "-config.")) else ""
        )
        field, equals, value = setting.removeprefix("config.").partition("=")
        if not field:
            continue
        literal: Any = value if equals else True
        if word == "--set" or not isinstance(files.flatten(config).get(f"config.{field}"), str):
            literal = parse.literal(value)
        files.override(config, field, literal)
    return config


def commands(words: Sequence[str]) -> tuple[_Line, list[list[str]]]:
    """Return the parsed command line and the arguments of ``python`` for each run.

    Raises:
      ValueError: an error in the command line, the sweep file or one of its runs.
    """
    line = _parse(words)
    runs = expand(load(line.file), _base(line))
    if line.index is not None and line.index >= len(runs):
        raise ValueError(f"--index {line.index}: the sweep has {len(runs)} runs, 0 to {len(runs) - 1}.")
    out = []
    for run in runs:
        sets = [word for setting in run.settings for word in ("--set", setting)]
        where = ["--workdir", f"{line.workdir}/{run.name}"]
        out.append(["-m", "rljax", "--config", line.config, *line.common, *sets, *where])
    return line, out


def main(argv: Sequence[str]) -> None:
    """Print the commands or their number, or execute one of them."""
    words = argv[1:]
    if "--help" in words:
        print(__doc__)
        return
    line, runs = commands(words)
    if line.count:
        print(len(runs))
    elif line.index is not None:
        os.execv(
            sys.executable, [sys.executable, *runs[line.index]]
        )  # replaces this process, so that the run receives its signals
    else:
        print("\n".join(shlex.join(["python", *run]) for run in runs))
