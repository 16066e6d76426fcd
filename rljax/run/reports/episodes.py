"""Statistics of episodes of a world as tables, in the terminal and on the page; ``run.episodes`` computes them."""

from collections.abc import Mapping, Sequence
from typing import Any

import rich.console
import rich.text

from rljax.run import terminal
from rljax.run.reports import html, runs


def interval(values: Sequence[float] | None) -> str:
    """Return [mean, low, high] in percent as text."""
    return "" if values is None else "{:.1f} [{:.1f}, {:.1f}]".format(*(100 * x for x in values))


def lines(record: Mapping[str, Any], seats: bool = True) -> list[tuple[str, str]]:
    """Return names and values of a record of ``statistics`` as text, without the numbers by turns.

    Args:
      record: of ``statistics``.
      seats: whether the numbers by seat and by domain are among them.
    """
    number = _number
    pass_at_k = [(f"pass@{k}, %", interval(value)) for k, value in record["pass_at_k"].items() if k != "1"]
    out = [("success, %", interval(record["success"])), *pass_at_k, ("turns", number(record["turns"]))]
    out += [("reward", number(record["reward"])), *((f"part {name}", number(x)) for name, x in record["parts"].items())]
    out += _games("", record["by_seat"][str(record["seat"])])
    for name, part in _groups(record) if seats else ():
        out += [(f"{name}: success, %", interval(part["success"])), (f"{name}: reward", number(part["reward"]))]
        out += _games(f"{name}: ", part)
    if exact := record.get("nashconv"):
        out += [("NashConv, chips", number(exact["nashconv"])), ("legal turns, %", number(exact["legal"], ".1f", 100))]
    out += [(f"{name}, %", number(record[name], ".1f", 100)) for name in ("truncated", "invalid")]
    return [*out, ("episodes", str(record["episodes"]))]


def _groups(record: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return names and records of the seats and of the domains, of either if there are several."""
    seats = [(f"seat {seat}", part) for seat, part in record["by_seat"].items()]
    domains = [*record.get("by_domain", {}).items()]
    return [pair for group in (seats, domains) if len(group) > 1 for pair in group]


def _games(where: str, part: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the shares of games won, drawn and lost as text; none for worlds without the part "drawn"."""
    if part["success"] is None or "drawn" not in part["parts"]:
        return []
    won, drawn = part["success"][0], part["parts"]["drawn"]
    shares = (won, drawn, max(0.0, 1 - won - drawn))
    return [(f"{where}won / drawn / lost, %", " / ".join(f"{100 * x:.1f}" for x in shares))]


def table_by_group(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of the numbers by seat and domain of a record of ``statistics``."""
    rows, names, groups = [], list(record["parts"]), _groups(record)
    games = [text for _, part in groups[:1] for text, _ in _games("", part)]
    for name, part in groups:
        shares = [value for _, value in _games("", part)] or [""] * len(games)
        parts = (_number(part["parts"][name]) for name in names)
        rows.append([name, interval(part["success"]), *shares, _number(part["reward"]), *parts])
    return ["", "success, %", *games, "reward", *(f"part {name}" for name in names)], rows


def _number(value: float | None, form: str = ".3g", factor: float = 1) -> str:
    return "" if value is None else f"{factor * value:{form}}"


def table_by_turns(record: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of the numbers by turns of a record of ``statistics``."""
    columns = ["ended in turn", "episodes", "share, %", "success, %", "ended by then, %", "solved by then, %"]
    rows = []
    for k, part in record["by_turns"].items():
        share, ended, solved = (f"{100 * part[name]:.1f}" for name in ("share", "ended", "solved"))
        rows.append([k, str(part["episodes"]), share, interval(part["success"]), ended, solved])
    return columns, rows


def line(row: Mapping[str, Any]) -> rich.text.Text:
    """Return a row of an example as text: its prompt, then the turns, those of the world dim."""
    parts = [terminal.text(f"  {row['prompt']}")]
    for said in row["turns"]:
        parts.append(terminal.text(said["text"], "dim" if said["by"] == "world" else "bold"))
    return rich.text.Text.assemble(*parts)


def table(evaluations: Sequence[Mapping[str, Any]], console: rich.console.Console | None = None) -> None:
    """Print the episodes of evaluations side by side, then the numbers by turns of the last.

    Args:
      evaluations: records of ``evaluate.evaluate``; those without "world", a record of ``statistics``, are left out.
      console: where to print; standard output by default.
    """
    shown = [record for record in evaluations if record.get("world")]
    if not shown:
        return
    console = console or terminal.console()
    texts = [lines(record["world"]) for record in shown]
    values = [{k: v for k, v in text if not k.startswith("pass@")} for text in texts]  # those are in another table
    names = dict.fromkeys(name for value in values for name in value)
    columns = ["", *(f"{record['name']}\n(step {record['step']})" for record in shown)]
    rows = [[name, *(value.get(name, "") for value in values)] for name in names]
    terminal.show(console, columns, rows, title="episodes [95 % interval]")
    title = f"episodes of {shown[-1]['name']} by number of turns"
    terminal.show(console, *table_by_turns(shown[-1]["world"]), title=title)


def section(run: runs.Run) -> html.Html:
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
    parts = [html.tag("h3", "Episodes"), html.table(["evaluation", "step", *names], cells, caption=caption)]
    of = f"Episodes of {shown[-1]['name']} at step {shown[-1]['step']}"
    last = shown[-1]["world"]
    if _groups(last):
        parts.append(html.table(*table_by_group(last), caption=f"{of}, by seat and domain."))
    return html.join([*parts, html.table(*table_by_turns(last), caption=f"{of}, by number of turns.")])
