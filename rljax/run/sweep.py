"""Sweeps: a file of fields and values becomes independent runs, each with a work directory of its own.

    python -m rljax sweep FILE --config CONFIG --workdir BASE [--config.FIELD=VALUE ...] [--set FIELD=VALUE ...]
        prints the command of each run, one a line
        --count      prints how many there are
        --index N    is run N, in this process: what an array job calls

The file has ``get_sweep()``, which returns a list with the fields of each run:

    from rljax.run import sweep

    def get_sweep():
        return sweep.product(
            sweep.grid({"algorithm": ["grpo()", "rloo()"], "batch.samples": [8, 16]}),
            sweep.grid({"seed": range(3)}),
        )

Fields are those of ``--set``, arguments of calls too (``algorithm.kl``). What starts the runs is somebody else's
work: a shell, GNU parallel, SLURM arrays, XPK; see tpu/README.md.
"""

import ast
import collections
import contextlib
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

Fields = dict[str, Any]
"""What one run sets."""

_LONGEST = 120  # characters of a name


# --- lists of runs -------------------------------------------------------------------------------


def grid(values: Mapping[str, Iterable[Any]]) -> list[Fields]:
    """Return a run for each combination of values; the last field changes fastest."""
    return product(*([{field: value} for value in several] for field, several in values.items()))


def zipped(values: Mapping[str, Iterable[Any]]) -> list[Fields]:
    """Return a run for the first values of all fields, one for the second, and so on.

    Raises:
      ValueError: the fields have not equally many values.
    """
    lists = {field: list(several) for field, several in values.items()}
    if len(set(map(len, lists.values()))) > 1:
        raise ValueError(f"sweep.zipped: not equally many values: { {f: len(v) for f, v in lists.items()} }.")
    return [dict(zip(lists, row, strict=True)) for row in zip(*lists.values(), strict=True)]


def product(*lists: Iterable[Fields]) -> list[Fields]:
    """Return a run for each combination of runs of the lists. Lists are chained with +.

    Raises:
      ValueError: two lists set the same field.
    """
    out: list[Fields] = [{}]
    for runs in lists:
        pairs = list(itertools.product(out, runs))
        if twice := {field for before, run in pairs for field in before.keys() & run.keys()}:
            raise ValueError(f"sweep.product: {min(twice)!r} is set twice.")
        out = [{**before, **run} for before, run in pairs]
    return out


# --- what they are -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of a sweep: its number, its name, made of what it sets, and the ``--set`` of each field."""

    index: int
    name: str
    settings: tuple[str, ...]


def load(path: str) -> list[Fields]:
    """Return ``get_sweep()`` of a file.

    Raises:
      ValueError: no such file, or what it returns is no list of runs.
    """
    if not os.path.isfile(path):
        raise ValueError(f"sweep {path!r}: no such file.")
    spec = importlib.util.spec_from_file_location("rljax_sweep", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"sweep {path!r}: not a Python file.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_sweep"):
        raise ValueError(f"sweep {path!r}: has no function get_sweep().")
    found = module.get_sweep()
    if not isinstance(found, list) or not found or not all(isinstance(run, dict) and run for run in found):
        raise ValueError(f"sweep {path!r}: get_sweep() must return a list of {{field: value}}, one for each run.")
    return found


def expand(runs: Sequence[Fields], config: schema.ConfigDict) -> list[Run]:
    """Name the runs and check that each config resolves and no two are the same.

    Raises:
      ValueError: a field that is not there, a value that does not fit, or a run that is there twice.
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
        except ValueError as error:
            raise ValueError(f"run {index} ({name}): {error}") from None
        first = seen.setdefault(files.dumps(changed), index)
        if first != index:
            raise ValueError(f"runs {first} ({names[first]}) and {index} ({name}) are the same run.")
        out.append(Run(index, name, tuple(f"{field}={_written(value)}" for field, value in ordered)))
    return out


def _written(value: Any) -> str:
    """Write a value so that ``--set`` reads it back: texts as they are, unless they look like something else."""
    if not isinstance(value, str):
        return repr(tuple(value) if isinstance(value, list) else value)
    try:
        ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return value
    return repr(value)


def _names(runs: Sequence[Fields]) -> list[str]:
    """Return a name for each run: its fields, by their last parts where these are clear, and values."""
    short = collections.Counter(field.rpartition(".")[2] for field in set().union(*runs))

    def name(run: Fields) -> str:
        parts = []
        for field, value in run.items():
            last = field.rpartition(".")[2]
            text = re.sub(r"[\w.]+\.(?=[A-Za-z_]\w*\()", "", str(value))  # a function without its module
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
    """A command line taken apart."""

    file: str
    config: str
    workdir: str
    index: int | None
    count: bool
    common: tuple[str, ...]  # words for every run


def _parse(words: Sequence[str]) -> _Line:
    """Take the command line apart; what is not the sweep's own is for every run.

    Raises:
      ValueError: something is missing or not understood.
    """
    own: dict[str, str] = {}
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
                own[flag] = value
        else:
            common.append(word)  # --config.FIELD=VALUE and other flags of python -m rljax, in one word
    if len(files) != 1:
        raise ValueError(f"one sweep file, please; got {files or 'none'}. Flags of rljax in one word: --flag=value.")
    if missing := [f"--{name}" for name in ("config", "workdir") if not own.get(name)]:
        raise ValueError(f"{' and '.join(missing)} missing: every run has its work directory below that of the sweep.")
    if "index" in own and not own["index"].isdigit():
        raise ValueError(f"--index {own['index']}: a number from 0.")
    index = int(own["index"]) if "index" in own else None
    return _Line(files[0], own["config"], own["workdir"].rstrip("/"), index, count, tuple(common))


def _base(line: _Line) -> schema.ConfigDict:
    """Return the config that all runs start from."""
    name, _, argument = line.config.partition(":")
    config = files.load(name, argument)
    for word, after in itertools.pairwise((*line.common, "")):
        setting = after if word == "--set" else word.lstrip("-") if word.startswith(("--config.", "-config.")) else ""
        field, equals, value = setting.removeprefix("config.").partition("=")
        if not field:
            continue
        literal: Any = value if equals else True
        if word == "--set" or not isinstance(files.flatten(config).get(f"config.{field}"), str):
            with contextlib.suppress(ValueError, SyntaxError):
                literal = ast.literal_eval(value)
        files.override(config, field, literal)
    return config


def commands(words: Sequence[str]) -> tuple[_Line, list[list[str]]]:
    """Return the command line taken apart, and the words of each run behind ``python``.

    Raises:
      ValueError: anything wrong with the command line, the sweep file or one of its runs.
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
    """Print the commands or their number, or become one of them."""
    words = argv[1:]
    if "--help" in words:
        print(__doc__)
        return
    try:
        line, runs = commands(words)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    if line.count:
        print(len(runs))
    elif line.index is not None:
        os.execv(sys.executable, [sys.executable, *runs[line.index]])  # signals and exit codes are then the run's
    else:
        print("\n".join(shlex.join(["python", *run]) for run in runs))
