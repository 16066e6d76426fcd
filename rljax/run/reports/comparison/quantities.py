"""What is compared of a run: pass@k, maj@k and greedy accuracy at its end, its last metrics, time and tokens."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from rljax.language import messages
from rljax.run.evaluation import intervals, passk
from rljax.run.records import glossary
from rljax.run.reports import evaluations, runs
from rljax.run.reports.comparison import arms

COST = ("steps", "minutes", "tokens", "tokens/s")
RETURNS = {"return": "total", "greedy return": "greedy_total"}  # of a control world; of each prompt in a record
_METRICS = ("reward", "accuracy", "entropy", "kl", "length", "fired")
_POSITIVE = ("entropy", "entropy_early", "entropy_middle", "entropy_late", "kl_exact", "sampler_gap", "gradient_norm")
_UNIT = ("greedy", "accuracy", "truncated", "clipped", "flat_groups", "fired")  # in [0, 1], and so are pass@k and maj@k


def in_unit(name: str) -> bool:
    """Return whether a quantity is a fraction."""
    return name in _UNIT or name.startswith(("pass@", "maj@", "outcome/"))


def bounds(name: str) -> tuple[float, float]:
    """Return the range of a quantity, (-inf, inf) if it is not known."""
    if in_unit(name):
        return intervals.UNIT
    entry = glossary.lookup(name)
    if entry is not None and entry.unit in ("fraction", "probability"):
        return intervals.UNIT
    positive = name in (*COST, *_POSITIVE) or (entry is not None and entry.unit in ("s", "tokens", "tokens/s", "ratio"))
    return (0.0, math.inf) if positive else intervals.ANY


def measure(run: runs.Run, evaluated: bool = True) -> dict[str, float]:
    """Return the quantities of a run by name; the quantities of its evaluation only if ``evaluated``."""
    values: dict[str, float] = {}
    final = run.final if evaluated else None
    if final:
        for kind, field in evaluations.TRIES.items():
            by_k = sorted(final.get(field, {}).items(), key=lambda item: int(item[0]))
            values |= {f"{kind}@{k}": row[0] for k, row in by_k}
        values |= {"greedy": final["greedy"][0]} if "greedy" in final else {}
        values |= {name: float(np.mean(final[key])) for name, key in RETURNS.items() if key in final}
    last = next(reversed(runs.by_phase(run.metrics).values()), [])
    for name in runs.numbers(last):
        values[f"training {name}" if name in RETURNS else name] = runs.tail(last, name)
    rate = {"tokens/s": run.tokens / run.seconds} if run.seconds else {}
    return {**values, "steps": run.steps, "minutes": run.seconds / 60, "tokens": run.tokens, **rate}


def evaluated(final: runs.Record, name: str) -> intervals.Prompts | None:
    """Return "pass@K", "maj@K", "greedy" or one of ``RETURNS`` of an evaluation with its interval, or None.

    A record has no values of maj@K by prompt.
    """
    if name in RETURNS:
        totals = final.get(RETURNS[name])
        if not totals:
            return None
        average, low, high = passk.means(totals)[0]
        return intervals.Prompts(average, (low, high), np.asarray(totals, np.float64))
    kind, _, k = name.partition("@")
    row = final.get("greedy") if name == "greedy" else final.get(evaluations.TRIES.get(kind, ""), {}).get(k)
    if row is None:
        return None
    correct = final.get("greedy_correct" if name == "greedy" else "correct")
    samples, tries = (1, 1) if name == "greedy" else (final.get("samples"), int(k))
    values = passk.pass_at_k(correct, samples, [tries])[:, 0] if correct and samples and kind != "maj" else None
    return intervals.Prompts(row[0], (row[1], row[2]), values)


def mean(
    known: Sequence[intervals.Prompts], over: str, bounds: tuple[float, float] = intervals.ANY
) -> intervals.Estimate:
    """Return the mean of runs, over runs and prompts if the values of the prompts of all of them are known."""
    values = _values(known)
    single = known[0] if len(known) == 1 else None
    return intervals.mean(values, over, single, _within(known, bounds))


def _within(known: Iterable[intervals.Prompts], bounds: tuple[float, float]) -> tuple[float, float]:
    """Return the range of a quantity, no range if a run is outside: a density's entropy, an explained variance."""
    return bounds if all(bounds[0] <= x.mean <= bounds[1] for x in known) else intervals.ANY


def _values(known: Sequence[intervals.Prompts]) -> list[intervals.Values]:
    """Return what the estimator reads: the values of prompts if all runs have equally many, otherwise numbers."""
    tables = [x.values for x in known if x.values is not None]
    if len(tables) == len(known) and len({len(x) for x in tables}) == 1:
        return list(tables)
    return [x.mean for x in known]


def comparable(every: Sequence[runs.Run], notes: arms.Notes) -> list[runs.Run]:
    """Return the runs with the most common kind of last evaluation; name the others in notes."""
    evaluated = [run for run in every if run.final]
    for run in every:
        if evaluated and not run.final:
            notes["has no evaluation"].append(run)
    kinds = collections.Counter(map(_kind, evaluated))
    if not kinds:
        notes["no evaluation, so that there is no pass@k; set config.phase.NAME.evaluate"].append("all runs")
        return []
    usual = kinds.most_common(1)[0][0]
    for run in evaluated:
        if _kind(run) != usual:
            text = f"the evaluation is left out, {_kind(run)}; the others have {usual}"
            notes[text].append(run)
        elif run.final and run.final["step"] != run.steps:
            notes[f"evaluated at step {run.final['step']} of {run.steps}"].append(run)
    return [run for run in evaluated if _kind(run) == usual]


def _kind(run: runs.Run) -> str:
    final = run.final or {}
    # the task of the config was compared before; an evaluation of another task has another name of it
    other = "" if final.get("task") in (None, run.value("task")) else f" on {final['task']}"
    return f"{final.get('prompts')} prompts x {final.get('samples')} samples{other}"


def choose(measured: Sequence[dict[str, float]], names: Sequence[str]) -> list[str]:
    """Return the quantities of the main table: ``names``, or pass@k for the smallest and largest k and usual metrics.

    Raises:
      ValueError: a name that no run has.
    """
    known = list(dict.fromkeys(name for values in measured for name in values))
    for name in names:
        if name not in known:
            hint = messages.hint(name, known)
            raise ValueError(f"--metric {name}: no run has it.{hint} They have {', '.join(known)}.")
    if names:
        return list(names)
    tries = [name for name in known if name.startswith("pass@")]
    returns = list(RETURNS) if RETURNS.keys() & set(known) else ["training return"]
    usual = [*returns, *tries[:1], "greedy", *tries[-1:], *_METRICS]
    return [name for name in dict.fromkeys(usual) if name in known]


def _of(arm: arms.Arm, name: str, measured: dict[str, dict[str, float]]) -> dict[Any, intervals.Prompts]:
    """Return a quantity of the runs of an arm; a quantity of an evaluation has the values of its prompts."""
    values: dict[Any, intervals.Prompts] = {}
    for key, run in arm.runs.items():
        if name in measured[run.path]:
            alone = intervals.Prompts(measured[run.path][name], (math.nan, math.nan))
            values[key] = evaluated(run.final or {}, name) or alone
    return values


def table(
    arm: arms.Arm, names: Sequence[str], measured: dict[str, dict[str, float]], over: str
) -> list[dict[str, Any]]:
    """Return a record for each quantity of an arm, with its mean and interval."""
    rows = []
    for name in names:
        if of := list(_of(arm, name, measured).values()):
            alone = len(of) == 1 and math.isnan(of[0].interval[0])
            estimate = intervals.mean([of[0].mean], over) if alone else mean(of, over, bounds(name))
            rows.append({"arm": arm.name, "quantity": name, **dataclasses.asdict(estimate)})
    return rows


def differences(
    first: arms.Arm, second: arms.Arm, names: Sequence[str], measured: dict[str, dict[str, float]], over: str
) -> list[dict[str, Any]]:
    """Return a record for each quantity that two arms have, with the difference and its interval."""
    rows = []
    for name in names:
        a, b = _of(first, name, measured), _of(second, name, measured)
        if a and b:
            values = _values([*a.values(), *b.values()])
            one, other = dict(zip(a, values, strict=False)), dict(zip(b, values[len(a) :], strict=True))
            of_both = _within([*a.values(), *b.values()], bounds(name))
            estimate = intervals.difference(one, other, over, of_both)
            x, y = next(iter(a.values())), next(iter(b.values()))
            if len(a) == len(b) == 1 and not math.isnan(x.interval[0] + y.interval[0]):
                estimate = intervals.difference_over_prompts(x, y, estimate.mean)
            pair = {"arm": second.name, "baseline": first.name, "quantity": name}
            rows.append({**pair, **dataclasses.asdict(estimate)})
    return rows
