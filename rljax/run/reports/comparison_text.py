"""A comparison as tables on a terminal, or as plain text where the output is none."""

from collections.abc import Sequence

import rich.console
import rich.markup
import rich.table

from rljax.run.reports import comparison, quantities, writing

_WIDTH = 250  # columns of output that is not a terminal, where nothing is wrapped


def show(result: comparison.Comparison, console: rich.console.Console | None = None) -> None:
    """Print the comparison."""
    console = console or rich.console.Console()
    if not console.is_terminal:
        console.width = _WIDTH
    main = _main(result, stacked=False)
    if console.measure(main, options=console.options.update(width=_WIDTH)).maximum > console.width:
        main = _main(result, stacked=True)
    for table in (
        main,
        _means(result, "pass@k, %", result.tries),
        _means(result, "Cost of a run, means", quantities.COST),
        _fields(result),
    ):
        if table.row_count:
            console.print(table.title, style="bold", highlight=False)
            table.title, below, table.caption = None, table.caption, None  # they would be as narrow as the table
            console.print(table)
            console.print(below or "", markup=False, highlight=False)
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False, style="yellow")


def _table(title: str, *columns: str, left: int = 1) -> rich.table.Table:
    table = rich.table.Table(title=title, box=None, padding=(0, 2, 0, 0), header_style="underline")
    for i, column in enumerate(columns):
        table.add_column(
            rich.markup.escape(column), justify="left" if i < left else "right", overflow="fold", min_width=7
        )
    return table


def _add(table: rich.table.Table, *cells: str, style: str | None = None) -> None:
    table.add_row(*map(rich.markup.escape, cells), style=style)


def _main(result: comparison.Comparison, stacked: bool) -> rich.table.Table:
    """Return a block of rows for each quantity, one for each arm; ``stacked`` writes intervals below their means."""

    def cells(row: comparison.Row, signed: bool = False) -> list[str]:
        mark = "" if not signed else " *" if writing.certain(row) else "  "
        parts = [writing.mean(row, signed) + mark, writing.interval(row, signed), writing.basis(row)]
        return ["\n".join(part for part in parts[:2] if part), parts[2].replace(", ", ",\n")] if stacked else parts

    several = len(result.arms) > 1
    headings = ["mean", "95 % interval", "over", *(["difference", "95 % interval", "over"] if several else [])]
    headings = [heading for heading in headings if not stacked or heading != "95 % interval"]
    table = _table("Means over runs with 95 % intervals", "arm", *headings)
    for name in result.main:
        _add(table, writing.heading(name), style="bold")
        for arm in result.arms:
            row, gap = result.estimate(arm.name, name), result.difference(arm.name, name)
            if row:
                _add(table, f"  {arm.name}", *cells(row), *(cells(gap, True) if gap else ()))
    if several:
        first = f"Differences are from {result.arms[0].name}"
        table.caption = f"{first}; * their interval does not contain 0. Each interval is for one comparison.\n"
    return table


def _means(result: comparison.Comparison, title: str, names: Sequence[str]) -> rich.table.Table:
    table = _table(title, "arm", "runs", *names)
    for arm in result.arms if names else ():
        rows = [result.estimate(arm.name, name) for name in names]
        cells = [writing.mean(row) if row else "" for row in rows]
        _add(table, arm.name, str(len(arm.runs)), *cells)
    return table


def _fields(result: comparison.Comparison) -> rich.table.Table:
    arms = [arm.name for arm in result.arms]
    title = f"Fields that differ ({len(result.common)} are equal)"
    table = _table(title, "field", *arms, left=len(arms) + 1)
    for field, values in result.fields.items():
        _add(table, field, *values)
    return table
