"""Print the table, one recipe, or how two differ: ``python -m rljax algorithms [call [call]]``.

``--page`` prints rljax/algorithms/README.md, ``--coverage`` COVERAGE.md beside it. The column "reads" names what a
recipe reads beyond mask, reward, group and the log-probs of policy and sampler:
"""

import importlib
import inspect
import pathlib
import re
import sys
from collections.abc import Sequence

from rich import box, console, table

from rljax import algorithms, types
from rljax.algorithms import arguments, coverage, inputs, interpreter, seams
from rljax.language import messages

_FLAGS, NAMED = map(arguments.entries, pathlib.Path(__file__).with_name("reads.txt").read_text().split("\n\n"))
# The fields of types.Needs that are flags, in the order in which they are shown.
READS = {n: row.words for n, row in types.SCORES.items() if getattr(types.Needs(), n, None) is False} | _FLAGS


def reads(algorithm: types.Algorithm) -> str:
    """Write what an algorithm reads, by the names of ``READS`` and ``NAMED``."""
    needs = interpreter.needs(algorithm)
    names = [flag for flag in READS if getattr(needs, flag)]
    names += [f"exact {d}" for d in sorted(needs.divergence)]
    names += [f"bins {low:g} to {high:g}" for low, high, _ in sorted(needs.value_logits)]
    names += [f"{module} {field}" for module, field in sorted(needs.scores)]
    names += [f"part {p}" for p in sorted(needs.parts)] + [f"extra {e}" for e in sorted(needs.extra)]
    if needs.whole != "row":
        names.append(f"whole {needs.whole}s")
    return ", ".join(names)


def trains(algorithm: types.Algorithm) -> str:
    """Write whether a run can train an algorithm, by the check that the config makes."""
    unsupplied, parts = algorithms.unsupplied(algorithm), algorithms.missing_parts(algorithm)
    name = algorithm.spec.partition("(")[0]
    if (task := algorithms.task_of(name)) and (unsupplied or parts):
        return f"with a task such as `{task}`: {', '.join((*unsupplied, *(f'`{p}`' for p in parts)))}"
    if unsupplied:
        return f"with a setting in COVERAGE.md: {', '.join(unsupplied)}"
    if named := inputs.untrained(algorithm):
        return f"with {', '.join(f'`config.module.{name}`' for name in named)}"
    return f"with a task that reports {', '.join(f'`{p}`' for p in parts)}" if parts else "yes"


def _documentation(name: str) -> str:
    return inspect.getdoc(algorithms.TABLE[name]) or ""


def _papers(name: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(re.findall(r"\d{4}\.\d{5}", _documentation(name))))


def _first_line(documentation: str) -> str:
    return documentation.partition("\n")[0]


def page() -> str:
    """Write the page of the table: the recipes by family, with paper, summary, what they read and whether they train.

    Returns:
      The text of rljax/algorithms/README.md.
    """
    legend = "\n".join(f"- `{name}`: {meaning}" for name, meaning in {**READS, **NAMED}.items())
    lines = [
        pathlib.Path(__file__)
        .with_name("page.txt")
        .read_text()
        .format(count=len(algorithms.TABLE), legend=legend)
        .rstrip("\n")
    ]
    for family in algorithms.FAMILIES:
        recipes = {n: f for n, f in algorithms.TABLE.items() if f.__module__.rpartition(".")[2] == family}
        module = importlib.import_module(next(iter(recipes.values())).__module__)
        lines += ["", f"## {family}", "", _first_line(module.__doc__ or ""), ""]
        lines += ["| recipe | in | paper | in one line | reads | trains in the loop |", "| --- " * 6 + "|"]
        for name, recipe in recipes.items():
            built, room = algorithms.example(name), recipe.__module__.split(".")[1]
            papers = ", ".join(f"[{number}](https://arxiv.org/abs/{number})" for number in _papers(name))
            summary = _first_line(_documentation(name)).replace("``", "`").replace("|", "\\|")
            lines.append(f"| `{name}` | {room} | {papers} | {summary} | {reads(built)} | {trains(built)} |")
    return "\n".join(lines) + "\n"


def _columns(*names: str) -> table.Table:
    columns = table.Table(box=box.SIMPLE_HEAD)
    for name in names:
        columns.add_column(name, overflow="fold", no_wrap=name == "algorithm")
    return columns


def _print(rows: table.Table) -> None:
    """Print at the terminal's width; without a terminal, wide enough for one line a row."""
    console.Console(width=None if sys.stdout.isatty() else 240, markup=False).print(rows)


def show_table() -> None:
    """Print every recipe: name, paper, the pieces at its seams but for defaults, what it reads, whether it trains."""
    rows = _columns("algorithm", "paper", "seams", "reads", "trains in the loop")
    for name in algorithms.TABLE:
        built = algorithms.example(name)
        calls = {seam: specs for seam, specs in algorithms.by_seam(built).items() if specs != ("task()",)}
        stations = " · ".join(", ".join(spec.partition("(")[0] for spec in specs) for specs in calls.values())
        rows.add_row(name, ", ".join(_papers(name)), stations, reads(built), trains(built))
    _print(rows)
    print(f"{len(algorithms.TABLE)} recipes. One in full: python -m rljax algorithms NAME; the columns: --help")


def _build(call: str) -> types.Algorithm:
    plain = call.strip()
    return algorithms.example(plain) if plain in algorithms.TABLE else seams.algorithm(call, "algorithm")


def show(call: str) -> None:
    """Print one recipe: its documentation, and the expression it stands for with every default."""
    name = call.partition("(")[0].strip()
    built = _build(call)
    if name in algorithms.TABLE:
        print(_documentation(name) + "\n")
    print(algorithms.describe(built))
    print(f"  reads      {reads(built) or 'nothing beyond mask, reward, group and log-probs'}")
    print(f"  trains     {trains(built)}")


def compare(one: str, two: str) -> None:
    """Print two recipes seam by seam; "=" where they agree."""
    left, right = (algorithms.by_seam(_build(call)) for call in (one, two))
    rows = _columns("seam", "", one, two)
    for seam in dict.fromkeys([*left, *right]):
        a, b = (" | ".join(s.get(seam, ("none",))) for s in (left, right))
        rows.add_row(seam, "=" if a == b else "≠", a, "" if a == b else b)
    _print(rows)


def after_help() -> None:
    """Print what follows the text of ``--help``: the meaning of the columns."""
    legend = [f"  {name:<15} {meaning}" for name, meaning in {**READS, **NAMED}.items()]
    trained = (
        'The column "trains in the loop": yes; with a task that reports these parts; with a world; or with a setting.'
    )
    print("\n".join([*legend, "", trained]))


def main(argv: Sequence[str]) -> None:
    """Show what the arguments ask for; a mistake is one line on stderr and exit code 2."""
    arguments = argv[1:]
    if arguments in (["--page"], ["--coverage"]):
        print(page() if arguments == ["--page"] else coverage.page(), end="")
        return
    if len(arguments) > 2 or any(a.startswith("-") for a in arguments):
        print(__doc__)
        after_help()
        sys.exit(2)
    try:
        {0: show_table, 1: show, 2: compare}[len(arguments)](*arguments)
    except ValueError as error:
        print(f"error: {messages.printable(error)}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv)
