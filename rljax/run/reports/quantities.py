"""What is compared of a run: pass@k and greedy accuracy of its last evaluation, its last metrics, time and tokens."""

import collections
import dataclasses
import difflib
from collections.abc import Sequence
from typing import Any

from rljax.run import passk
from rljax.run.reports import arms, intervals, runs

COST = ("steps", "minutes", "tokens", "tokens/s")
_METRICS = ("reward", "accuracy", "entropy", "kl", "length")
_UNIT = ("greedy", "accuracy", "truncated", "clipped", "flat_groups")  # in [0, 1], and so is pass@k


def in_unit(name: str) -> bool:
    """Return whether a quantity is a fraction."""
    return name in _UNIT or name.startswith(("pass@", "outcome/"))


def measure(run: runs.Run, evaluated: bool = True) -> dict[str, float]:
    """Return the quantities of a run by name; those of its evaluation only if ``evaluated``."""
    values: dict[str, float] = {}
    final = run.final if evaluated else None
    if final:
        values |= {f"pass@{k}": row[0] for k, row in sorted(final["pass_at_k"].items(), key=lambda item: int(item[0]))}
        values |= {"greedy": final["greedy"][0]} if "greedy" in final else {}
    last = next(reversed(runs.by_phase(run.metrics).values()), [])
    for name in runs.numbers(last):
        values[name] = runs.tail(last, name)
    rate = {"tokens/s": run.tokens / run.seconds} if run.seconds else {}
    return {**values, "steps": run.steps, "minutes": run.seconds / 60, "tokens": run.tokens, **rate}


def prompts(run: runs.Run, name: str) -> intervals.Prompts | None:
    """Return a quantity of a run's evaluation with its interval over prompts."""
    final = run.final or {}
    k = name.removeprefix("pass@")
    row = final.get("greedy") if name == "greedy" else final.get("pass_at_k", {}).get(k)
    if row is None:
        return None
    correct = final.get("greedy_correct" if name == "greedy" else "correct")
    samples, tries = (1, 1) if name == "greedy" else (final["samples"], int(k))
    values = passk.pass_at_k(correct, samples, [tries])[:, 0] if correct else None
    return intervals.Prompts(row[0], (row[1], row[2]), values)


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
            close = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise ValueError(f"--metric {name}: no run has it.{hint} They have {', '.join(known)}.")
    if names:
        return list(names)
    tries = [name for name in known if name.startswith("pass@")]
    usual = [*tries[:1], "greedy", *tries[-1:], *_METRICS]
    return [name for name in dict.fromkeys(usual) if name in known]


def _values(arm: arms.Arm, name: str, measured: dict[str, dict[str, float]]) -> dict[Any, float]:
    return {key: measured[run.path][name] for key, run in arm.runs.items() if name in measured[run.path]}


def _over_prompts(arm: arms.Arm, name: str) -> intervals.Prompts | None:
    return prompts(next(iter(arm.runs.values())), name) if len(arm.runs) == 1 else None


def table(
    arm: arms.Arm, names: Sequence[str], measured: dict[str, dict[str, float]], over: str
) -> list[dict[str, Any]]:
    """Return a record for each quantity of an arm, with its mean and interval."""
    rows = []
    for name in names:
        if values := list(_values(arm, name, measured).values()):
            estimate = intervals.mean(values, over, _over_prompts(arm, name), in_unit(name))
            rows.append({"arm": arm.name, "quantity": name, **dataclasses.asdict(estimate)})
    return rows


def differences(
    first: arms.Arm, second: arms.Arm, names: Sequence[str], measured: dict[str, dict[str, float]], over: str
) -> list[dict[str, Any]]:
    """Return a record for each quantity that two arms have, with the difference and its interval."""
    rows = []
    for name in names:
        a, b = _values(first, name, measured), _values(second, name, measured)
        if a and b:
            estimate = intervals.difference(a, b, over)
            one, other = _over_prompts(first, name), _over_prompts(second, name)
            if one and other:
                estimate = intervals.difference_over_prompts(one, other, estimate.mean)
            pair = {"arm": second.name, "baseline": first.name, "quantity": name}
            rows.append({**pair, **dataclasses.asdict(estimate)})
    return rows
