"""A comparison as tables on a terminal, or as plain text where the output is none."""

import rich.box
import rich.console
import rich.markup
import rich.table

from rljax.run.reports import comparison, quantities, writing

_WIDTH = 250  # columns of output that is not a terminal, where nothing is wrapped


def show(result: comparison.Comparison, console: rich.console.Console | None = None) -> None:
    """Print the comparison."""
    console = console or rich.console.Console()
    plain = not console.is_terminal
    if plain:
        console.width = _WIDTH
    for table in (_main(result), _passk(result), _cost(result), _fields(result)):
        if table is not None and table.row_count:
            table.box = None if plain else rich.box.SIMPLE_HEAD
            table.title_justify, table.title_style = "left", "bold"
            console.print(table)
            console.print()
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False, style="yellow")


def _table(title: str, *columns: str, left: int = 1) -> rich.table.Table:
    table = rich.table.Table(title=title)
    for i, column in enumerate(columns):
        table.add_column(rich.markup.escape(column), justify="left" if i < left else "right", no_wrap=i >= left)
    return table


def _add(table: rich.table.Table, *cells: str, end_section: bool = False) -> None:
    table.add_row(*map(rich.markup.escape, cells), end_section=end_section)


def _main(result: comparison.Comparison) -> rich.table.Table:
    """Return a block of rows for each quantity, one for each arm."""
    several = len(result.arms) > 1
    gap = ("difference", "95 % interval", "over") if several else ()
    table = _table("Means over runs with 95 % intervals", "", "arm", "mean", "95 % interval", "over", *gap, left=2)
    for name in result.main:
        rows = [row for row in (result.estimate(arm.name, name) for arm in result.arms) if row]
        for i, row in enumerate(rows):
            cells = [writing.heading(name) if i == 0 else "", row["arm"]]
            cells += [writing.mean(row), writing.interval(row), writing.basis(row)]
            other = result.difference(row["arm"], name)
            if other:
                mark = " *" if writing.certain(other) else "  "
                cells += [writing.mean(other, True) + mark, writing.interval(other, True)]
                cells.append(writing.basis(other))
            _add(table, *cells, *[""] * (len(table.columns) - len(cells)), end_section=i == len(rows) - 1)
    if several:
        first = f"Differences are from {result.arms[0].name}"
        table.caption = f"{first}; * their interval does not contain 0. Each interval is for one comparison."
        table.caption_justify = "left"
    return table


def _passk(result: comparison.Comparison) -> rich.table.Table:
    names = list(dict.fromkeys(row["quantity"] for row in result.table if row["quantity"].startswith("pass@")))
    return _means(result, "pass@k, %", names)


def _cost(result: comparison.Comparison) -> rich.table.Table:
    return _means(result, "Cost of a run, means", [*quantities.COST])


def _means(result: comparison.Comparison, title: str, names: list[str]) -> rich.table.Table:
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
