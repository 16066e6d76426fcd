"""A comparison as tables on a terminal."""

from collections.abc import Sequence

import rich.console

from rljax.run import terminal
from rljax.run.reports import comparison, quantities, writing


def show(result: comparison.Comparison, console: rich.console.Console | None = None) -> None:
    """Print the comparison."""
    console = console or terminal.console()
    main = _main(result, stacked=False)
    table = terminal.table(*main)
    if console.measure(table, options=console.options.update(width=10_000)).maximum > console.width:
        main = _main(result, stacked=True)
    terminal.show(console, *main, title="Means over runs with 95 % intervals")
    if len(result.arms) > 1:
        first = f"Differences are from {result.arms[0].name}; * their interval does not contain 0."
        console.print(terminal.text(f"{first} Each interval is for one comparison.\n"))
    for title, names in (("pass@k, %", result.tries), ("Cost of a run, means", quantities.COST)):
        if names:
            terminal.show(console, ["arm", "runs", *names], _means(result, names), title=title)
    if result.fields:
        columns = ["field", *(arm.name for arm in result.arms)]
        rows = [[field, *values] for field, values in result.fields.items()]
        title = f"Fields that differ ({len(result.common)} are equal)"
        terminal.show(console, columns, rows, title=title, left=len(columns))
    for note in result.notes:
        console.print(terminal.text(f"note: {note}", "yellow"))


def _main(result: comparison.Comparison, stacked: bool) -> tuple[list[str], list[list[terminal.Cell]]]:
    """Return headings and a block of rows for each quantity, one for each arm; ``stacked`` writes intervals below."""

    def cells(row: comparison.Row, signed: bool = False) -> list[str]:
        mark = "" if not signed else " *" if writing.certain(row) else "  "
        parts = [writing.mean(row, signed) + mark, writing.interval(row, signed), writing.basis(row)]
        return ["\n".join(part for part in parts[:2] if part), parts[2].replace(", ", ",\n")] if stacked else parts

    headings = ["mean", "over"] if stacked else ["mean", "95 % interval", "over"]
    gaps = ["difference", *headings[1:]] if len(result.arms) > 1 else []
    rows: list[list[terminal.Cell]] = []
    for name in result.main:
        rows.append([terminal.text(writing.heading(name), "bold")])
        for arm in result.arms:
            row, gap = result.estimate(arm.name, name), result.difference(arm.name, name)
            if row:
                rows.append([f"  {arm.name}", *cells(row), *(cells(gap, True) if gap else ())])
    return ["arm", *headings, *gaps], rows


def _means(result: comparison.Comparison, names: Sequence[str]) -> list[list[str]]:
    rows = [[result.estimate(arm.name, name) for name in names] for arm in result.arms]
    return [
        [arm.name, str(len(arm.runs)), *(writing.mean(row) if row else "" for row in estimates)]
        for arm, estimates in zip(result.arms, rows, strict=True)
    ]
