"""Compare runs: a table with intervals over seeds, differences between arms, pass@k, curves, and differing settings.

    python -m rljax compare runs/powers                          what differs is inferred from the configs
    python -m rljax compare 'runs/*-seed=?' --by algorithm --over seed --metric pass@8,reward

DIR is a work directory, a folder of them, or a pattern, on this machine or gs://. ``--out`` names the page, one
self-contained file.
"""

import collections
import os
import shlex
from collections.abc import Sequence

import rich.console
from absl import flags
from matplotlib import figure

from rljax.data import storage
from rljax.run.reports import runs
from rljax.run.reports.comparison import arms, bands, page, quantities, results, text

_LOGS = tuple(name for name in runs.LOGS if name != "rollouts")


class Comparison(results.Result):
    """What ``compare`` returns; a notebook shows it as tables and figures."""

    def figures(self) -> list[figure.Figure]:
        """Return the figures: the first quantity of each arm, pass@k, and the curves with bands."""
        return [*bands.estimates(self), *bands.curves(self)]

    def html(self, command: str = "") -> str:
        """Return a self-contained page; ``command`` is the command that makes it."""
        return page.page(self, command)

    def show(self, console: rich.console.Console | None = None) -> None:
        """Print the tables; without colors and borders if the output is not a terminal."""
        text.show(self, console)

    def _repr_html_(self) -> str:
        return page.summary(self)

    def __repr__(self) -> str:
        counted = ", ".join(f"{arm.name!r} ({len(arm.runs)})" for arm in self.arms)
        return f"Comparison of {len(self.runs)} runs: {counted}. show() prints it."


def compare(
    places: Sequence[storage.Path] | storage.Path,
    *,
    by: Sequence[str] = (),
    over: str = "seed",
    metrics: Sequence[str] = (),
    baseline: str = "",
    step: int | None = None,
) -> Comparison:
    """Compare runs: means with 95 % intervals over seeds, and differences from a baseline.

    Args:
      places: work directories, folders of them, and patterns, on this machine or gs://.
      by: the fields of the config whose values are compared, such as "algorithm" or "algorithm.kl"; by default the
        fewest fields that separate the configs apart from ``over``.
      over: the field over which runs are averaged.
      metrics: the quantities of the main table: metrics, "pass@K", "maj@K", "greedy", "return"; by default the usual
        ones.
      baseline: name or value of the arm that the others are compared with; by default the first.
      step: compare the runs as they were after this step; by default at their end.

    Returns:
      The comparison.

    Raises:
      ValueError: no run, none that is finished, several tasks, an unknown field or metric, or two runs of one arm with
        the same value of ``over``.
    """
    places = [places] if isinstance(places, str | os.PathLike) else places
    by, metrics = ([names] if isinstance(names, str) else names for names in (by, metrics))
    every, notes = [runs.read(path, names=_LOGS) for path in runs.find(places)], collections.defaultdict(list)
    if step is not None:
        every = [run.until(step) for run in every]
    finished = arms.usable(every, notes)
    by = list(by) or arms.inferred(finished, over)
    grouped = _baseline_first(arms.group(finished, by, over, notes), baseline)
    evaluated = quantities.comparable(finished, notes)
    measured = {run.path: quantities.measure(run, run in evaluated) for run in finished}
    main = quantities.choose(list(measured.values()), metrics)
    names = list(dict.fromkeys(name for values in measured.values() for name in values))
    differ = arms.differing(finished)
    if others := _between(grouped, [field for field in differ if field not in (over, *by)], by):
        notes[f"they differ in {others} as well as in {', '.join(by)}"].append("all arms")
    return Comparison(
        arms=grouped,
        by=by,
        over=over,
        runs=[
            {"arm": arm.name, "path": run.path, over: key, **measured[run.path]}
            for arm in grouped
            for key, run in arm.runs.items()
        ],
        table=[row for arm in grouped for row in quantities.table(arm, names, measured, over)],
        differences=[
            row for arm in grouped[1:] for row in quantities.differences(grouped[0], arm, names, measured, over)
        ],
        main=main,
        notes=[f"{_names(some, grouped, over)}: {note}." for note, some in notes.items()],
        fields={field: [_several(arm, field) for arm in grouped] for field in differ},
        common={field: arms.written(value) for field, value in finished[0].fields.items() if field not in differ},
    )


def _baseline_first(grouped: list[arms.Arm], baseline: str) -> list[arms.Arm]:
    if not baseline:
        return grouped
    first = [arm for arm in grouped if baseline in (arm.name, *arm.values.values())]
    if len(first) != 1:
        raise ValueError(f"--baseline {baseline}: must be one of {', '.join(repr(arm.name) for arm in grouped)}.")
    return [*first, *(arm for arm in grouped if arm is not first[0])]


def _names(some: Sequence[str | runs.Run], grouped: Sequence[arms.Arm], over: str) -> str:
    """Return names with runs by their arm, and by their value of ``over`` where these are not all runs of the arm."""
    names = [one for one in some if isinstance(one, str)]
    paths = {one.path for one in some if isinstance(one, runs.Run)}
    for arm in grouped:
        values = [arms.written(value) for value, run in arm.runs.items() if run.path in paths]
        if values:
            part = f" ({over.rpartition('.')[2]} {', '.join(values)})" if len(values) < len(arm.runs) else ""
            names.append(f"{arm.name}{part}")
    return ", ".join(names)


def _between(grouped: Sequence[arms.Arm], fields: Sequence[str], by: Sequence[str]) -> str:
    """Return the fields that differ between arms and change what is trained, without those that hold one of ``by``."""
    names = []
    for field in fields:
        trains = field == "checkpoint.init" or not field.startswith(arms.NEUTRAL)
        values = {frozenset(arms.written(run.value(field)) for run in arm.runs.values()) for arm in grouped}
        alike = all(len(inner) == 1 for inner in values)  # within each arm; otherwise another note names the field
        if trains and alike and len(values) > 1 and not any(name.startswith(f"{field}.") for name in by):
            names.append(field)
    more = f" and {len(names) - 5} more fields" if len(names) > 6 else ""
    return ", ".join(names[:5] if more else names) + more


def _several(arm: arms.Arm, field: str) -> str:
    return ", ".join(dict.fromkeys(arms.written(run.value(field)) for run in arm.runs.values()))


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_list("by", [], "Fields whose values are compared; default: those in which the configs differ.")
    flags.DEFINE_string("over", "seed", "Field over which runs are averaged.")
    flags.DEFINE_list("metric", [], "Quantities of the main table: metrics, pass@K, maj@K, greedy, return.")
    flags.DEFINE_string("baseline", "", "Arm that the others are compared with; default: the first.")
    flags.DEFINE_integer("step", None, "Compare the runs as they were after this step; default: at their end.")
    flags.DEFINE_string("out", "compare.html", "The page; '' writes none.")


def main(argv: Sequence[str]) -> None:
    """Print the comparison and write its page."""
    if len(argv) < 2:
        raise ValueError("expected work directories, folders of them or patterns. Type --help for examples.")
    f = flags.FLAGS
    result = compare(argv[1:], by=f.by, over=f.over, metrics=f.metric, baseline=f.baseline, step=f.step)
    result.show()
    given = [f[name].serialize() for name in ("by", "over", "metric", "baseline", "step") if f[name].present]
    if f.out:
        storage.write(f.out, result.html(" ".join(["python -m rljax compare", shlex.join([*argv[1:], *given])])))
        print(f"written to {f.out}")
