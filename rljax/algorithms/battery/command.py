"""Check a recipe, or one piece: ``python -m rljax check "my.pieces.recipe(power=0.5)"``.

The argument is what config.algorithm or a field of config.seam may be: a recipe or a piece, of rljax by its name or of
your own by its dotted path. A piece is placed at its seam in grpo(kl=0.0); a name that several seams have is written
with its seam: "penalty.kl('k3', 0.1)". No config, model or device is needed, and a check takes seconds.

One line is printed for each check: what was measured, the bound, and what to look at if it failed. What needs other
arguments or another recipe "cannot be checked here". Exit codes: 0 if no check fails, 1 if one fails, 2 for a mistake
in the argument.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence

import jax

from rljax import algorithms, transforms, types
from rljax.algorithms import seams
from rljax.algorithms.battery import checks, programs
from rljax.language import dotted, errors, messages

_ADDED = ("reward", "prepare", "weight", "penalty", "after")  # seams whose pieces come beside the pieces of the recipe


def _seams(name: str) -> list[str]:
    """Return the seams at which a piece of this name stands; none for a recipe and for an unknown name."""
    if "." not in name:
        return [] if name in algorithms.TABLE else [s for s in transforms.SEAMS if name in transforms.pieces(s)]
    with contextlib.suppress(dotted.NotMarked):
        return [dotted.load(name, "piece").seam]  # type: ignore[attr-defined]
    return []


def build(text: str) -> types.Algorithm:
    """Return the algorithm of a call: a recipe, or ``grpo(kl=0.0)`` with a piece at its seam.

    Raises:
      Absent: a required argument is missing, or the piece is a source.
      ValueError: an unknown name, a name of several seams, or an invalid argument.
    """
    text = text.strip()
    name = text.partition("(")[0].strip()
    seam, _, rest = name.partition(".")
    homes = _seams(name)
    if seam in transforms.SEAMS and rest in transforms.pieces(seam):
        homes, text = [seam], text.partition(".")[2]
    if not homes:
        return seams.algorithm(text, "check")
    if len(homes) > 1:
        choices = " or ".join(f"{home}.{text}" for home in homes)
        raise ValueError(f"check={messages.shown(text)}: several seams have this piece. Write {choices}.")
    if homes[0] == "source":
        raise errors.Absent(
            f"check={messages.shown(text)}: a source has no loss. Check it with the task of a run, on no device: "
            f'python -m rljax --config quickstart --config.seam.source="{text}" --check'
        )
    edit = f"+ {text}" if homes[0] in _ADDED else text
    fields = {**dict.fromkeys(transforms.SEAMS, ""), homes[0]: edit}
    return seams.edited(algorithms.TABLE["grpo"](kl=0.0), fields, prefix="check.")


def findings(algorithm: types.Algorithm) -> Iterator[checks.Finding]:
    """Yield the result of each check; after a piece that returns another shape or raises, nothing else is checked."""
    program, what = programs.Program(algorithm), "shapes and dtypes"
    try:
        first, *others = (program(program.arrays(), jax.random.key(seed)) for seed in range(5))
    except errors.CodeError as error:
        if isinstance(error.__context__, errors.Absent):
            yield checks.Finding("cannot be checked here", None, "", "", str(error))
        else:
            yield checks.Finding(what, False, "an error", "", "\n".join([str(error), *error.notes]))
        return
    yield checks.Finding(what, True, "as declared", "")
    leaves, *drawn = (jax.tree.leaves([o.gradient for o in outcomes]) for outcomes in (first, *others))
    random = any(bool((x != y).any()) for other in drawn for x, y in zip(leaves, other, strict=True))
    yield checks.masked(program)
    yield checks.row_order(program, random)
    yield checks.padding(program, random)
    yield checks.micro_batches(program)
    yield checks.extremes(program)
    yield checks.traces(program)
    yield checks.finite_differences(program)
    yield from checks.reinforce(program)


def check(text: str | types.Algorithm) -> list[checks.Finding]:
    """Check an algorithm on arrays, without a model: gradients, masks, splits, extremes.

    Args:
      text: a call of a recipe or of a piece, as in a config; or an algorithm.

    Returns:
      The findings; ``passed`` is None for what is reported and not judged.

    Raises:
      ValueError: an unknown name or an invalid argument.
    """
    algorithm = build(text) if isinstance(text, str) else text
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        return list(findings(algorithm))


def main(argv: Sequence[str]) -> None:
    """Check what the argument names, print the findings, and exit with code 1 if one failed."""
    if len(argv) != 2 or argv[1].startswith("-"):
        print(__doc__)
        sys.exit(2)
    try:
        algorithm, failed = build(argv[1]), False
    except errors.Absent as error:
        print(f"cannot be checked here: {error}")
        return
    print(algorithms.describe(algorithm) + "\n")
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        for finding in findings(algorithm):
            verdict = {True: "pass", False: "FAIL", None: "    "}[finding.passed]
            print(f"{verdict}  {finding.check:<40} {finding.measured:<13}  {finding.bound}".rstrip(), flush=True)
            if finding.advice:
                print("        " + finding.advice.replace("\n", "\n        "))
            failed |= finding.passed is False
    sys.exit(1 if failed else 0)
