"""A comparison as tables on a terminal."""

import rich.console

from rljax.run.reports.comparison import quantities, results, writing
from rljax.run.reports.pages import tables, terminal


def show(result: results.Result, console: rich.console.Console | None = None) -> None:
    """Print the comparison."""
    console = console or terminal.console()
    main = _main(result, stacked=False)
    main = main if main.fits(console) else _main(result, stacked=True)
    main.show(console)
    if len(result.arms) > 1:
        first = f"Differences are from {result.arms[0].name}; * their interval does not contain 0."
        console.print(terminal.text(f"{first} Each interval is for one comparison.\n"))
    for title, names in (("pass@k, %", result.tries), ("Cost of a run, means", quantities.COST)):
        if names:
            rows = [
                [arm.name, len(arm.runs), *(writing.mean(row) if row else "" for row in result.estimates(arm, names))]
                for arm in result.arms
            ]
            tables.Table(["arm", "runs", *names], rows, title).show(console)
    if result.fields:
        title = f"Fields that differ ({len(result.common)} are equal)"
        result.differing(title).show(console)
    for note in result.notes:
        console.print(terminal.text(f"note: {note}", "yellow"))


def _main(result: results.Result, stacked: bool) -> tables.Table:
    """Return a table with a block of rows for each quantity, one for each arm; ``stacked`` writes intervals below."""

    def cells(row: results.Row, signed: bool = False) -> list[str]:
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
    return tables.Table(["arm", *headings, *gaps], rows, "Means over runs with 95 % intervals")
