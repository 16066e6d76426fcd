"""Evaluations as tables, in the terminal and on the page: held-out accuracy, and episodes of worlds."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.text

from rljax.run.evaluation import passk
from rljax.run.reports import runs
from rljax.run.reports.pages import html, images, tables, terminal

Record = Mapping[str, Any]
Triple = Sequence[float] | None


def percent(values: Triple, ends: str = "[]") -> str:
    """Return [mean, low, high] in percent as text, the interval between ``ends``; "" for None."""
    if values is None:
        return ""
    mean, low, high = (f"{100 * x:.1f}" for x in values)
    return f"{mean} {ends[0]}{low}, {high}{ends[1]}"


# --- accuracy on held-out prompts ---------------------------------------------------------------------------------


TRIES = {"pass": "pass_at_k", "maj": "majority_at_k"}  # what is called NAME@K, by its field of a record


def tries(evaluations: Sequence[Record]) -> dict[str, list[Triple]]:
    """Return pass@k of each evaluation, by its name for each k, and maj@k of those whose answers vote."""
    out: dict[str, list[Triple]] = {}
    for name, field in TRIES.items():
        every = [record.get(field, {}) for record in evaluations]
        out |= {f"{name}@{k}": [x.get(str(k)) for x in every] for k in sorted({int(k) for x in every for k in x})}
    return out


def ranked(evaluations: Sequence[Record]) -> dict[str, list[Triple]]:
    """Return the accuracy of each reward model on pairs, and of its best of k samples, in each evaluation."""
    every, out = [record.get("ranking", {}) for record in evaluations], {}
    for name in sorted({module for ranking in every for module in ranking}):
        of = [ranking.get(name, {}) for ranking in every]
        out[f"pairs ranked right, {name}"] = [x.get("accuracy") for x in of]
        tried = sorted({int(k) for x in of for k in x.get("best_of_k", {})})
        out |= {f"best of {k}, {name}": [x.get("best_of_k", {}).get(str(k)) for x in of] for k in tried if k > 1}
    return out


def returned(evaluations: Sequence[Record]) -> dict[str, list[Triple]]:
    """Return the mean return of each evaluation in a control world, with its interval, and that of greedy actions."""
    every = [record.get("returns") for record in evaluations]
    if not any(every):
        return {}
    greedy = [None if values is None else values[3:] for values in every]
    return {"return": [None if values is None else values[:3] for values in every], "return, greedy": greedy}


def _interval(values: Triple) -> str:
    """Return [mean, low, high], or [mean], as text; "" for None."""
    if values is None:
        return ""
    mean, *ends = (f"{x:.1f}" for x in values)
    return f"{mean} [{', '.join(ends)}]" if ends else mean


def accuracy(evaluations: Sequence[Record]) -> tables.Table:
    """Return the table of a terminal: evaluations side by side."""

    def lines(values: Mapping[str, Sequence[Triple]]) -> list[list[str]]:
        return [[name, *map(percent, triples)] for name, triples in values.items()]

    rows = lines({**tries(evaluations), "greedy": [record["greedy"] for record in evaluations]})
    rows += [*_supported(evaluations), *lines(ranked(evaluations))]
    rows += [[name, *map(_interval, values)] for name, values in returned(evaluations).items()]
    rows.append(["prompts x samples", *map(_size, evaluations)])
    if any(record.get("unjudged") for record in evaluations):
        rows.append(["unjudged, %", *(f"{100 * record.get('unjudged', 0.0):.1f}" for record in evaluations)])
    tasks = [record.get("task", "") for record in evaluations]
    if len({*tasks}) > 1 and any(task != record["name"] for task, record in zip(tasks, evaluations, strict=True)):
        rows.append(["task", *tasks])
    return tables.Table(_side_by_side(evaluations), rows, "held-out accuracy, % [95 % interval]")


def accuracy_by_step(evaluations: Sequence[Record]) -> tables.Table:
    """Return the table of a page: an evaluation in each row."""
    values = {**tries(evaluations), **ranked(evaluations)}
    returns = returned(evaluations)
    rows = [
        [
            *(record["name"], record["step"], _size(record), percent(record.get("greedy"), "()") or None),
            *(percent(column[n], "()") or None for column in values.values()),
            *(_interval(column[n]) or None for column in returns.values()),
        ]
        for n, record in enumerate(evaluations)
    ]
    columns = ["evaluation", "step", "prompts x samples", "greedy", *values, *returns]
    return tables.Table(columns, rows, "Means in %, with 95 % intervals over prompts.")


def _side_by_side(evaluations: Sequence[Record]) -> list[str]:
    return ["", *(f"{record['name']}\n(step {record['step']})" for record in evaluations)]


def _size(record: Record) -> str:
    return f"{record.get('prompts')} x {record.get('samples')}"


def _supported(evaluations: Sequence[Record]) -> list[list[str]]:
    """Return rows of prompts that the first evaluation and each other one solve, where they are of the same prompts."""

    def kind(record: Record) -> tuple[Any, ...]:
        return record.get("task"), record["samples"], len(record.get("correct", ()))

    first, *others = evaluations
    alike = [kind(record) == kind(first) and bool(record.get("correct")) for record in others]
    if not any(alike):
        return []
    pairs = zip(others, alike, strict=True)
    solved = [passk.support(first["correct"], record["correct"]) if same else {} for record, same in pairs]
    names = {"both": "solved as in the first", "base": "solved in the first alone", "result": "solved here alone"}
    return [[text, "", *(f"{100 * s[name]:.1f}" if s else "" for s in solved)] for name, text in names.items()]


# --- episodes of worlds; ``run.evaluation.episodes`` computes the statistics -----------------------


def lines(record: Record, seats: bool = True) -> list[tuple[str, str]]:
    """Return names and values of a record of ``statistics`` as text, without the numbers by turns.

    Args:
      record: of ``statistics``.
      seats: whether the numbers by seat and by domain are among them.
    """
    number = _number
    pass_at_k = [(f"pass@{k}, %", percent(value)) for k, value in record["pass_at_k"].items() if k != "1"]
    out = [("success, %", percent(record["success"])), *pass_at_k, ("turns", number(record["turns"]))]
    out += [("reward", number(record["reward"])), *((f"part {name}", number(x)) for name, x in record["parts"].items())]
    out += _games("", record["by_seat"][str(record["seat"])])
    for name, part in _groups(record) if seats else ():
        out += [(f"{name}: success, %", percent(part["success"])), (f"{name}: reward", number(part["reward"]))]
        out += _games(f"{name}: ", part)
    if exact := record.get("nashconv"):
        out += [("NashConv, chips", number(exact["nashconv"])), ("legal turns, %", number(exact["legal"], ".1f", 100))]
    out += [(f"{name}, %", number(record[name], ".1f", 100)) for name in ("truncated", "invalid")]
    return [*out, ("episodes", str(record["episodes"]))]


def _groups(record: Record) -> list[tuple[str, Record]]:
    """Return names and records of the seats and of the domains, of either if there are several."""
    seats = [(f"seat {seat}", part) for seat, part in record["by_seat"].items()]
    domains = [*record.get("by_domain", {}).items()]
    return [pair for group in (seats, domains) if len(group) > 1 for pair in group]


def _games(where: str, part: Record) -> list[tuple[str, str]]:
    """Return the shares of games won, drawn and lost as text; none for worlds without the part "drawn"."""
    if part["success"] is None or "drawn" not in part["parts"]:
        return []
    won, drawn = part["success"][0], part["parts"]["drawn"]
    shares = (won, drawn, max(0.0, 1 - won - drawn))
    return [(f"{where}won / drawn / lost, %", " / ".join(f"{100 * x:.1f}" for x in shares))]


def by_group(record: Record, title: str) -> tables.Table:
    """Return the table of the numbers by seat and domain of a record of ``statistics``."""
    rows, names, groups = [], list(record["parts"]), _groups(record)
    games = list(dict.fromkeys(text for _, part in groups for text, _ in _games("", part)))
    for name, part in groups:
        shares = [value for _, value in _games("", part)] or [""] * len(games)
        parts = (_number(part["parts"][name]) for name in names)
        rows.append([name, percent(part["success"]), *shares, _number(part["reward"]), *parts])
    return tables.Table(["", "success, %", *games, "reward", *(f"part {name}" for name in names)], rows, title)


def _number(value: float | None, form: str = ".3g", factor: float = 1) -> str:
    return "" if value is None else f"{factor * value:{form}}"


def by_turns(record: Record, title: str) -> tables.Table:
    """Return the table of the numbers by turns of a record of ``statistics``."""
    columns = ["ended in turn", "episodes", "share, %", "success, %", "ended by then, %", "solved by then, %"]
    rows = []
    for k, part in record["by_turns"].items():
        share, ended, solved = (f"{100 * part[name]:.1f}" for name in ("share", "ended", "solved"))
        rows.append([k, str(part["episodes"]), share, percent(part["success"]), ended, solved])
    return tables.Table(columns, rows, title)


def line(row: Record) -> rich.text.Text:
    """Return a row of an example as text: its prompt, then the turns; the turns of the world are dim."""
    parts = [terminal.text(f"  {images.written(row['prompt'])}")]
    for said in row["turns"]:
        parts.append(terminal.text(said["text"], "dim" if said["by"] == "world" else "bold"))
    return rich.text.Text.assemble(*parts)


def show_episodes(evaluations: Sequence[Record], console: rich.console.Console | None = None) -> None:
    """Print the episodes of evaluations side by side, then the numbers by turns of the last.

    Args:
      evaluations: records of ``evaluate.evaluate``; those without "world", a record of ``statistics``, are left out.
      console: where to print; standard output by default.
    """
    shown = [record for record in evaluations if record.get("world")]
    if not shown:
        return
    texts = [lines(record["world"]) for record in shown]
    values = [{k: v for k, v in text if not k.startswith("pass@")} for text in texts]  # those are in another table
    names = dict.fromkeys(name for value in values for name in value)
    rows = [[name, *(value.get(name, "") for value in values)] for name in names]
    tables.Table(_side_by_side(shown), rows, "episodes [95 % interval]").show(console)
    by_turns(shown[-1]["world"], f"episodes of {shown[-1]['name']} by number of turns").show(console)


def episodes(run: runs.Run) -> html.Html:
    """Return the statistics of the episodes of evaluations, and the last one's by number of turns; or nothing."""
    shown = [record for record in run.evaluations if record.get("world")]
    if not shown:
        return html.Html("")
    texts = [dict(lines(record["world"], seats=False)) for record in shown]
    names = list(dict.fromkeys(name for text in texts for name in text))
    cells = [
        [record["name"], record["step"], *(text.get(name) for name in names)]
        for record, text in zip(shown, texts, strict=True)
    ]
    caption = "Means with 95 % intervals. An invalid episode is no success and counts in nothing else."
    parts = [html.tag("h3", "Episodes"), tables.Table(["evaluation", "step", *names], cells, caption).html()]
    of = f"Episodes of {shown[-1]['name']} at step {shown[-1]['step']}"
    last = shown[-1]["world"]
    if _groups(last):
        parts.append(by_group(last, f"{of}, by seat and domain.").html())
    return html.join([*parts, by_turns(last, f"{of}, by number of turns.").html()])
