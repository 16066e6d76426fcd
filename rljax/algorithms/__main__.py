"""Print the table, one recipe, or how two differ: ``python -m rljax algorithms [call [call]]``.

"Needs" tells what a recipe reads beyond mask, reward, group and log-probs: siblings (groups of at least two), proximal
(the policy at the start of the update, where there are several steps; fixed_proximal always), live (a pass over the
whole minibatch before it is split), reference, value, entropy, off_policy (rows that somebody else wrote), parts
(numbers the verifier gives) and extra (arrays a source gives).
"""

import inspect
import re
import sys
from collections.abc import Sequence

from rich import box, console, table

from rljax import algorithms, types
from rljax.algorithms import interpreter, seams

FLAGS = (
    *("entropy", "square_prob", "value", "reward", "token_reward", "reference", "proximal", "fixed_proximal"),
    *("live", "siblings", "off_policy"),
)


def _needs(algorithm: types.Algorithm) -> str:
    """Write what the machinery must give: ``types.Needs``, in words."""
    needs = interpreter.needs(algorithm)
    named = [flag for flag in FLAGS if getattr(needs, flag)]
    named += [f"exact {d}" for d in sorted(needs.divergence)]
    named += [f"part {p}" for p in sorted(needs.parts)] + [f"extra {e}" for e in sorted(needs.extra)]
    if needs.whole != "row":
        named.append(f"whole {needs.whole}s")
    return ", ".join(named)


def _documentation(name: str) -> str:
    return inspect.getdoc(algorithms.TABLE[name]) or ""


def _paper(name: str) -> str:
    found = dict.fromkeys(re.findall(r"\d{4}\.\d{5}", _documentation(name)))
    return ", ".join(found)


def _pieces(specs: tuple[str, ...]) -> str:
    return ", ".join(re.split(r"\(", s, maxsplit=1)[0] for s in specs)


def _columns(*names: str) -> table.Table:
    shown = table.Table(box=box.SIMPLE_HEAD)
    for name in names:
        shown.add_column(name, overflow="fold", no_wrap=name == "algorithm")
    return shown


def _print(shown: table.Table) -> None:
    """Print at the terminal's width; where there is none, wide enough for a line a row."""
    console.Console(width=None if sys.stdout.isatty() else 200, markup=False).print(shown)


def show_table() -> None:
    """Print every recipe: name, paper, what stands at its seams (those that are not a default), what it needs."""
    shown = _columns("algorithm", "paper", "seams", "needs")
    for name in algorithms.TABLE:
        built = algorithms.example(name)
        found = {seam: specs for seam, specs in algorithms.by_seam(built).items() if specs != ("task()",)}
        shown.add_row(name, _paper(name), " · ".join(_pieces(s) for s in found.values()), _needs(built))
    _print(shown)
    print(f"{len(algorithms.TABLE)} recipes. One in full: python -m rljax algorithms NAME; what is needed: --help")


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
    print(f"  needs      {_needs(built) or 'nothing beyond mask, reward and group'}")


def compare(one: str, other: str) -> None:
    """Print two recipes seam by seam; "=" where they agree."""
    left, right = (algorithms.by_seam(_build(call)) for call in (one, other))
    shown = _columns("seam", "", one, other)
    for seam in dict.fromkeys([*left, *right]):
        a, b = (" | ".join(s.get(seam, ("none",))) for s in (left, right))
        shown.add_row(seam, "=" if a == b else "≠", a, "" if a == b else b)
    _print(shown)


def main(argv: Sequence[str]) -> None:
    """Show what the arguments ask for; a mistake is one line on stderr and exit code 2."""
    arguments = argv[1:]
    if len(arguments) > 2 or any(a.startswith("-") for a in arguments):
        print(__doc__)
        sys.exit(0 if {"-h", "--help"} & {*arguments} else 2)
    try:
        {0: show_table, 1: show, 2: compare}[len(arguments)](*arguments)
    except ValueError as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv)
