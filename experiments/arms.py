"""Arms of a study, each with several seeds and learning rates, as members of one program; the page on them.

A study has a config whose phases are "warm" and "main". The end of "warm" is the base of a seed, from which all arms of
this seed start. An arm is the fields that it sets. Every arm runs with every seed and every learning rate, so that no
arm is tuned more than another. The work directory keeps the runs, so that the same command resumes; the tables of the
study's README and its figure are made of ``results.json``, which has what they need of every run.
"""

import argparse
import dataclasses
import hashlib
import json
import math
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib import figure

import rljax
from rljax.config import files
from rljax.data import storage
from rljax.run import loop
from rljax.run.evaluation import intervals, passk
from rljax.run.members import sweep
from rljax.run.reports.comparison import quantities
from rljax.run.reports.pages import plots

ADAM = "adamw(learning_rate={}, weight_decay=0.0)"
RATE = "phase.main.optimizer.learning_rate"
BINS = 20  # parts of a run whose metrics are averaged
LAST = 4  # of them, those that "at the end" means
BEGIN, END = "<!-- written by the command -->", "<!-- until here -->"
ALPHA = 0.05  # of the primary claim, and of all others of a study together
VERDICTS = ("holds", "refuted", "inconclusive", "not testable here")

Record = Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Claim:
    """A difference of two arms that is claimed before the runs.

    Attributes:
      text: the claim.
      first: an arm.
      second: the arm that it is compared with; "base": the base of the seed, for pass@k.
      quantity: see ``value``.
      margin: the claim is that first minus second is above this number.
      below: whether it is below instead.
      untestable: why the study cannot test the claim, if so.
    """

    text: str
    first: str
    second: str
    quantity: str
    margin: float = 0.0
    below: bool = False
    untestable: str = ""


def verdict(x: intervals.Estimate, p: float, bound: float = 0.0, below: bool = False) -> str:
    """Return whether an estimate is above a bound, or below it: one of ``VERDICTS``.

    Args:
      x: the estimate.
      p: the p value of the bound, corrected if it is one of several.
      bound: what the estimate is compared with.
      below: whether the claim is that it is below.
    """
    positive, negative, neither, _ = VERDICTS
    if not p < ALPHA:  # nor where it is not a number
        return neither
    return positive if (x.mean > bound) != below else negative


def verdicts(cases: Sequence[tuple[intervals.Estimate | None, float, bool, bool]]) -> list[str]:
    """Return the verdicts on the claims of a study, of which the first is the primary one.

    The primary claim is decided at the level ``ALPHA``, the others with p values that Holm's procedure corrects for
    their number. A claim that cannot be tested is not counted.

    Args:
      cases: of each claim, its estimate if there is one, its bound, whether it claims to be below, and whether the
        study can test it.
    """
    tested = [n for n, (x, *_, testable) in enumerate(cases) if x is not None and testable]
    p = {n: cases[n][0].p(cases[n][1]) for n in tested}  # type: ignore[union-attr]
    others = [n for n in tested if n > 0]
    p |= dict(zip(others, intervals.holm([p[n] for n in others]), strict=True))
    said = []
    for n, (x, bound, below, testable) in enumerate(cases):
        ended = VERDICTS[2] if testable else VERDICTS[3]
        said.append(verdict(x, p[n], bound, below) if x is not None and n in p else ended)
    return said


@dataclasses.dataclass(frozen=True)
class Study:
    """What a study runs and what its page says.

    Attributes:
      config: returns the config.
      arms: the fields of each arm; the first arm is the one that the others are compared with.
      claims: decided by the mean of their differences over the learning rates; the first is the primary one.
      quantities: columns of the table of arms, see ``value``.
      curves: metrics that the figure draws.
      seeds: of the runs.
      rates: learning rates of the phase "main".
      measure: returns what else is stored of a finished run, by name.
      draw: draws the figure, see ``draw``, which is used without it.
    """

    config: Callable[[], Any]
    arms: Mapping[str, Mapping[str, Any]]
    claims: Sequence[Claim]
    quantities: Sequence[str]
    curves: Sequence[str]
    seeds: tuple[int, ...] = tuple(range(6))
    rates: tuple[float, ...] = (1e-4, 3e-4)
    measure: Callable[[loop.Result], dict[str, float]] | None = None
    draw: Callable[["Study", Sequence[Record], pathlib.Path], None] | None = None

    @property
    def metrics(self) -> tuple[str, ...]:
        """The metrics whose curves are stored."""
        named = [*self.curves, *self.quantities, *(claim.quantity for claim in self.claims)]
        return tuple(dict.fromkeys(name for name in named if "pass@" not in name))


def sums(steps: int = 80, minibatches: int = 4, task: str = "arithmetic(operands=2, digits=2, slip=0.5, noise=0.2)"):
    """Return a config: 450 steps of cloning faulty sums, then ``steps`` of 16 prompts x 8 samples.

    The policy has one layer of width 64.
    """
    c = rljax.default_config()
    c.task, c.algorithm = task, "grpo(kl=0.0)"
    c.model.update({"layers": 1, "width": 64, "heads": 2, "kv_heads": 2, "hidden": 192, "remat": "none"})
    c.mesh.data = 1
    c.log.update({"rollout_rows": 0, "report": False, "sinks": "none"})
    c.evaluation.update({"final_prompts": 128, "final_samples": 32})
    c.checkpoint.update({"max_to_keep": 1, "every": 10_000})
    c.batch.update({"prompts": 16, "samples": 8})
    c.phases = ("warm", "main")
    warm = {"algorithm": "sft()", "steps": 450, "batch": {"prompts": 128}, "warmup": 20, "evaluate": "base"}
    c.phase.warm = rljax.phase(**warm, optimizer=ADAM.format(5e-3))
    main = {"steps": steps, "warmup": min(5, steps), "learner": {"minibatches": minibatches}, "evaluate": "result"}
    c.phase.main = rljax.phase(**main, optimizer=ADAM.format(3e-4))
    return c


# --- runs ------------------------------------------------------------------------------------------


def shortened(study: Study) -> Study:
    """Return a study that runs every arm, too short to learn."""

    def config() -> Any:
        c = study.config()
        c.model.update({"width": 16, "hidden": 48})
        c.phase.warm.update({"steps": 2, "warmup": 1, "batch": {"prompts": 4}})
        c.phase.main.update({"steps": 2, "warmup": 1})
        c.evaluation.final_prompts = 4
        return c

    return dataclasses.replace(study, config=config, seeds=(0, 1), rates=study.rates[:1])


def run(study: Study, workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Run what is missing of a study in a work directory; return a record of each run."""
    config = study.config()
    alone, default = config.copy_and_resolve_references(), rljax.default_config()
    alone.phases, alone.phase = ("warm",), {"warm": alone.phase.warm}
    alone.algorithm, alone.batch, alone.log.diagnostics = "sft()", default.batch, ()  # what the base does not read
    folder = workdir.parent / f"bases-{hashlib.sha256(files.dumps(alone).encode()).hexdigest()[:8]}"
    bases = rljax.train_many(alone, {"seed": study.seeds}, folder)  # studies with the same bases share them
    of_seed = {base.fields["seed"]: base for base in bases}
    grid = sweep.grid({"seed": study.seeds, RATE: study.rates})
    fields = [
        {**run, "checkpoint.init": f"{of_seed[run['seed']].workdir}@warm"}
        for run in sweep.product(study.arms.values(), grid)
    ]
    members = rljax.train_many(config, fields, workdir)
    records = []
    for arm, member in zip([arm for arm in study.arms for _ in grid], members, strict=True):
        seed, base = member.fields["seed"], of_seed[member.fields["seed"]].result
        record = {"arm": arm, "seed": seed, "rate": member.fields[RATE]}
        record |= {"base": _passk(base, "base"), "base_correct": _correct(base, "base")}
        if member.result is None:
            record["failure"] = member.failure
        else:
            first = config.phase.warm.steps
            history = [row for row in member.result.history if row["step"] > first]
            curves = {name: _binned([row[name] for row in history]) for name in study.metrics if name in history[0]}
            record |= {"result": _passk(member.result, "result"), "curves": curves}
            record["correct"] = _correct(member.result, "result")
            record |= study.measure(member.result) if study.measure else {}
        records.append(record)
    return records


def _passk(result: Any, name: str) -> dict[str, float]:
    """Return pass@k by k of an evaluation."""
    (evaluation,) = (e for e in result.evaluations if e["name"] == name)
    return {k: round(mean, 5) for k, (mean, *_) in evaluation["pass_at_k"].items()}


def _correct(result: Any, name: str) -> str:
    """Return the packed counts of correct samples of each prompt of an evaluation."""
    (evaluation,) = (e for e in result.evaluations if e["name"] == name)
    return pack(evaluation["correct"])


def pack(correct: Sequence[int]) -> str:
    """Return counts below 4096 as text, three hexadecimal digits each."""
    return "".join(f"{count:03x}" for count in correct)


def unpack(text: str) -> npt.NDArray[np.int64]:
    """Return the counts of ``pack``."""
    return np.array([int(text[i : i + 3], 16) for i in range(0, len(text), 3)])


def binned(values: Sequence[float], count: int) -> list[float]:
    """Return the means of ``count`` equal parts of a curve, or the curve if it is shorter."""
    parts = np.array_split(np.asarray(values, np.float64), min(count, len(values)))
    return [float(np.mean(part)) for part in parts]


def _binned(values: Sequence[float]) -> list[float]:
    """Return the parts of a curve that are stored, in four digits."""
    return [float(f"{x:.4g}") for x in binned(values, BINS)]


# --- the page --------------------------------------------------------------------------------------


def value(record: Record, quantity: str) -> intervals.Values:
    """Return a quantity of a run: "pass@K", a name that ``measure`` gave, or a metric's mean at the end of the run.

    That of pass@K is ``[P]``, a value for each prompt, if the record has their counts.
    """
    if quantity.startswith("pass@"):
        return _each(record["result"], record.get("correct"), quantity)
    return record[quantity] if quantity in record else float(np.mean(record["curves"][quantity][-LAST:]))


def _each(means: Mapping[str, float], correct: str | None, quantity: str) -> intervals.Values:
    k = quantity.removeprefix("pass@")
    samples = max(map(int, means))  # the k are the powers of two up to it, which is one
    return passk.pass_at_k(unpack(correct), samples, [int(k)])[:, 0] if correct else means[k]


def of(records: Sequence[Record], arm: str, rate: float, quantity: str) -> dict[int, intervals.Values]:
    """Return a quantity of the runs of an arm at a learning rate, by seed, those that failed left out."""
    if arm == "base":
        return {r["seed"]: _each(r["base"], r.get("base_correct"), quantity) for r in records}
    runs = [r for r in records if (r["arm"], r["rate"]) == (arm, rate) and "failure" not in r]
    return {r["seed"]: value(r, quantity) for r in runs}


def difference(records: Sequence[Record], claim: Claim, rates: Sequence[float]) -> intervals.Estimate | None:
    """Return the first arm minus the second, the mean over learning rates; None without two seeds of both.

    It is paired by seed, and by prompt where the records have their counts. A seed counts if no run of it failed.
    """
    arms = []
    for arm in (claim.second, claim.first):
        runs = [of(records, arm, rate, claim.quantity) for rate in rates]
        shared = set.intersection(*(set(values) for values in runs))
        arms.append({seed: np.mean(np.array([values[seed] for values in runs]), axis=0) for seed in sorted(shared)})
    seeds = sorted(arms[0].keys() & arms[1].keys())
    if len(seeds) < 2:
        return None
    second, first = ({seed: values[seed] for seed in seeds} for values in arms)
    return intervals.difference(second, first, bounds=quantities.bounds(claim.quantity))


def decide(study: Study, records: Sequence[Record]) -> list[str]:
    """Return the verdicts on the claims of a study, see ``verdicts``."""
    rates = sorted({r["rate"] for r in records})
    gaps = [difference(records, claim, rates) for claim in study.claims]
    return verdicts([(x, c.margin, c.below, not c.untestable) for x, c in zip(gaps, study.claims, strict=True)])


def tables(study: Study, records: Sequence[Record]) -> str:
    """Return the tables of the claims and of the arms."""
    rates = sorted({r["rate"] for r in records})
    shown = [*((f"rate {x:g}", [x]) for x in rates), *([("both rates", rates)] if len(rates) > 1 else [])]
    lines = [f"| claim | {' | '.join(name for name, _ in shown)} | verdict |", "| --- " * (len(shown) + 2) + "|"]
    for number, (claim, said) in enumerate(zip(study.claims, decide(study, records), strict=True)):
        gaps = [difference(records, claim, some) for _, some in shown]
        cells = ["no pair" if x is None else _text(x, claim.quantity) for x in gaps]
        said = f"**{said}**" + (f": {claim.untestable}" if claim.untestable else "")
        lines.append(f"| {claim.text}{'' if number else ' (primary)'} | {' | '.join(cells)} | {said} |")
    lines += ["", f"| arm | rate | runs | {' | '.join(study.quantities)} |"]
    lines.append("| --- " * (len(study.quantities) + 3) + "|")
    if any(q.startswith("pass@") for q in study.quantities):
        base = [_mean(of(records, "base", 0, q), q) if "pass@" in q else "" for q in study.quantities]
        lines.append(f"| base | | {len({r['seed'] for r in records})} | {' | '.join(base)} |")
    for arm in study.arms:
        for rate in rates:
            cells = [_mean(of(records, arm, rate, q), q) for q in study.quantities]
            count = len(of(records, arm, rate, study.quantities[0]))
            lines.append(f"| {arm} | {rate:g} | {count} | {' | '.join(cells)} |")
    failed = [f"- {r['arm']}, rate {r['rate']:g}, seed {r['seed']}: {r['failure']}" for r in records if "failure" in r]
    return "\n".join([*lines, "", _covered(records), *([""] if failed else []), *failed])


def _covered(records: Sequence[Record]) -> str:
    """Return what the intervals of a page cover."""
    if all("correct" in r for r in records if "failure" not in r):
        return "Intervals of pass@k cover seeds and prompts; those of other quantities are Student's t over seeds."
    return (
        "All intervals are Student's t over seeds. `results.json` has no counts of correct samples of each prompt, so "
        "that those of pass@k cover other seeds on the same 128 prompts, and are too narrow for other prompts."
    )


def _mean(values: Mapping[int, intervals.Values], quantity: str) -> str:
    if not values:
        return "failed"
    return _text(intervals.mean(list(values.values()), bounds=quantities.bounds(quantity)), quantity)


def _text(x: intervals.Estimate, quantity: str) -> str:
    """Return an estimate, pass@k in percent."""
    return text(x) if quantity.startswith("pass@") else text(x, 1.0, ".3g")


def decided(cases: Sequence[tuple[str, intervals.Estimate, float, bool]]) -> list[str]:
    """Return the lines of a table of claims, the first one primary.

    Args:
      cases: of each claim its text, the estimate of its difference, its bound, and whether it claims to be below.
    """
    lines = ["| claim | difference | verdict |", "| --- | --- | --- |"]
    said = verdicts([(gap, bound, below, True) for _, gap, bound, below in cases])
    for number, ((claim, gap, *_), verdict) in enumerate(zip(cases, said, strict=True)):
        lines.append(f"| {claim}{' (primary)' * (number == 0)} | {text(gap)} | {verdict} |")
    return lines


def text(x: intervals.Estimate, scale: float = 100.0, form: str = ".1f") -> str:
    """Return an estimate with its interval if it has one, in percent or in another unit."""
    mean, low, high = (format(scale * v, form) for v in (x.mean, x.low, x.high))
    return mean if math.isnan(x.low) else f"{mean} [{low}, {high}]"


def draw(study: Study, records: Sequence[Record], path: pathlib.Path) -> None:
    """Draw the curves of all arms, a row of axes for each learning rate: means over seeds, and 95 % bands."""
    rates, names = sorted({r["rate"] for r in records}), study.curves
    canvas = figure.Figure(figsize=(3.6 * len(names), 2.4 * len(rates) + 0.4), layout="constrained")
    axes = canvas.subplots(len(rates), len(names), squeeze=False)
    steps = study.config().phase.main.steps
    for row, rate in zip(axes, rates, strict=True):
        for ax, name in zip(row, names, strict=True):
            for color, arm in zip(plots.COLORS, study.arms, strict=False):
                runs = [r for r in records if (r["arm"], r["rate"]) == (arm, rate) and "failure" not in r]
                each = np.array([r["curves"][name] for r in runs if name in r["curves"]])
                if len(each):
                    x = (np.arange(each.shape[1]) + 0.5) * steps / each.shape[1]
                    at = [intervals.mean(list(column), bounds=quantities.bounds(name)) for column in each.T]
                    ax.plot(x, [e.mean for e in at], color=color, linewidth=1.8, label=arm)
                    ax.fill_between(x, [e.low for e in at], [e.high for e in at], color=color, alpha=0.15, linewidth=0)
            plots.decorate(ax, f"{name}, rate {rate:g}", "step", name)
    legend(canvas, columns=4)
    canvas.savefig(path, dpi=100)


def legend(canvas: figure.Figure, columns: int) -> None:
    """Draw the labels of all axes below the figure, each once."""
    handles = {label: h for ax in canvas.axes for h, label in zip(*ax.get_legend_handles_labels(), strict=True)}
    if handles:
        where = {"loc": "outside lower center", "ncols": columns}
        canvas.legend([*handles.values()], [*handles], frameon=False, fontsize=9, **where)


def write(study: Study, records: Sequence[Record], out: pathlib.Path) -> str:
    """Write ``results.json`` and ``curves.png`` to a folder, and the tables to its README; return the tables."""
    storage.write(out / "results.json", "[\n" + ",\n".join(json.dumps(r) for r in records) + "\n]\n")
    (study.draw or draw)(study, records, out / "curves.png")
    written = tables(study, records)
    fill(out / "README.md", written)
    return written


def fill(page: pathlib.Path, written: str) -> None:
    """Write tables to the place of a page that is theirs, between ``BEGIN`` and ``END``."""
    if page.exists():
        before, _, rest = page.read_text().partition(BEGIN)
        storage.write(page, f"{before}{BEGIN}\n{written}\n{END}{rest.partition(END)[2]}")


def main(study: Study, doc: str | None) -> None:
    """Run the study of a folder, or with ``--page`` write its page from ``results.json``."""
    here = pathlib.Path(sys.argv[0]).parent.absolute()
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every arm, too short to learn")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs") / here.name, help="of the runs")
    parser.add_argument("--out", type=pathlib.Path, default=here, help="folder of the page")
    parser.add_argument("--page", action="store_true", help="run nothing")
    given = parser.parse_args()
    study = shortened(study) if given.quick else study
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        if given.page:
            records = json.loads((given.out / "results.json").read_text())
        else:
            records = run(study, given.workdir.absolute())
    except loop.Interrupted as error:
        print(f"{error} The same command resumes.")
        sys.exit(75)
    print(write(study, records, given.out))
