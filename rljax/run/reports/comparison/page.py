"""The page of a comparison."""

import collections
import pathlib
from collections.abc import Sequence
from typing import Any

from rljax.run.reports.comparison import arms, bands, quantities, results, writing
from rljax.run.reports.pages import figures, html, plots, tables


def page(result: results.Result, command: str = "") -> str:
    """Return the page; ``command`` is the command that makes it."""
    drawn = figures.gallery(bands.estimates(result, legend=False))
    sections = [
        ("Result", html.join([_legend(result), drawn, _main(result), _rules(result)])),
        ("pass@k", _means(result, result.tries) if result.tries else ""),
        ("Curves", _curves(result)),
        ("Cost", _means(result, quantities.COST, lambda row: row and writing.mean(row))),
        ("Settings", _settings(result)),
        ("Runs", _runs(result)),
    ]
    names = ", ".join(result.by) or "nothing"
    lead = f"{len(result.runs)} runs in {len(result.arms)} arms, which differ in {names}; averaged over {result.over}."
    made = html.tag("p", html.tag("code", command), class_="quiet") if command else ""
    below = [html.tag("p", lead), html.tag("p", _evaluated(result), class_="quiet"), made, _notes(result)]
    title = f"Comparison by {', '.join(result.by)}" if result.by else "Comparison of runs"
    return html.page(title, [(name, content) for name, content in sections if content], lead=html.join(below))


def summary(result: results.Result) -> str:
    """Return tables and figures for a notebook, in the colors of the notebook."""
    style = html.Html(pathlib.Path(__file__).with_name("notebook.html").read_text())
    drawn = figures.gallery([*bands.estimates(result), *bands.curves(result)[:3]])
    return html.tag("div", html.join([style, _notes(result), _main(result), drawn]), class_="rljax")


def _notes(result: results.Result) -> html.Html:
    notes = html.join(html.tag("li", note) for note in result.notes)
    return html.tag("ul", notes, class_="notes", aria_label="Notes") if result.notes else html.Html("")


def _evaluated(result: results.Result) -> str:
    final = next((run.final for run in quantities.comparable(result.loaded, collections.defaultdict(list))), None)
    task = ", ".join(dict.fromkeys(arms.written(run.value("task")) for run in result.loaded))
    counts = f", evaluated on {final['prompts']} prompts x {final['samples']} samples" if final else ""
    return f"Task: {task}{counts}."


def _rules(result: results.Result) -> html.Html:
    rules = pathlib.Path(__file__).with_name("rules.txt").read_text().strip()
    return html.folded("How these numbers are computed", html.tag("p", rules.format(over=result.over)))


def _main(result: results.Result) -> html.Html:
    """Return the table with a row for each arm: mean and interval of each quantity, and of its difference."""
    rows = []
    for arm in result.arms:
        rows.append([_arm(result, arm), len(arm.runs), *map(_cell, result.estimates(arm, result.main))])
        if arm is not result.arms[0]:
            gaps = [result.difference(arm.name, name) for name in result.main]
            label = html.tag("span", f"minus {result.arms[0].name}", class_="quiet minus")
            rows.append([label, "", *(_cell(row, signed=True) for row in gaps)])
    means, gaps = (_bases(records, result.main) for records in (result.table, result.differences))
    certain = any(row["quantity"] in result.main and writing.certain(row) for row in result.differences)
    bold = " Bold: the interval excludes 0." if certain else ""
    same = means == gaps or not result.differences
    what = "Means and differences" if result.differences else "Means"
    caption = f"{what} {means}." if same else f"Means {means}. Differences {gaps}."
    return _by_arm(result.main, rows, caption + bold)


def _bases(rows: Sequence[results.Row], names: Sequence[str]) -> str:
    """Return what the intervals of some quantities are over, or why there are none."""
    bases = dict.fromkeys(writing.basis(row) for row in rows if row["quantity"] in names and writing.interval(row))
    none = "without intervals, which need several runs in each arm"
    return f"with 95 % intervals over {' or '.join(bases)}" if bases else none


def _cell(row: results.Row | None, signed: bool = False) -> html.Html | None:
    if row is None:
        return None
    mean = writing.mean(row, signed)
    interval = writing.interval(row, signed) or writing.basis(row)
    mean = html.tag("strong", mean) if signed and writing.certain(row) else mean
    return html.join([mean, html.tag("div", interval, class_="quiet", title=writing.basis(row))])


def _arm(result: results.Result, arm: arms.Arm) -> html.Html:
    """Return the name of an arm with its color and dashes."""
    style = plots.style([other.name for other in result.arms].index(arm.name))
    name = html.join([figures.swatch(style["color"], style["linestyle"]), arm.name])
    return html.tag("span", name, class_="arm" if len(arm.name) < 40 else "")


def _legend(result: results.Result) -> html.Html:
    return html.tag("p", html.join(_arm(result, arm) for arm in result.arms), class_="legend")


def _means(result: results.Result, names: Sequence[str], cell: Any = _cell) -> html.Html:
    rows = [[_arm(result, arm), len(arm.runs), *map(cell, result.estimates(arm, names))] for arm in result.arms]
    return _by_arm(names, rows)


def _by_arm(names: Sequence[str], rows: Sequence[Sequence[Any]], title: str = "") -> html.Html:
    return tables.Table(["arm", "runs", *map(writing.heading, names)], rows, title).html()


def _curves(result: results.Result) -> html.Html:
    text = "Line: mean over the runs of an arm, smoothed within a phase. Band: from the smallest to the largest run."
    drawn = figures.gallery(bands.curves(result, legend=False))
    return html.join([html.tag("p", text, class_="quiet"), _legend(result), drawn])


def _settings(result: results.Result) -> html.Html:
    equal = tables.Table(["field", "value"], result.common.items(), left=2).html()
    texts: dict[str, list[str]] = {}
    for arm in result.arms:
        texts.setdefault(next(iter(arm.runs.values())).algorithm, []).append(arm.name)
    algorithms = [html.folded(f"Algorithm of {', '.join(a)}", html.tag("pre", t)) for t, a in texts.items() if t]
    return html.join(
        [
            result.differing().html(),
            html.folded(f"{len(result.common)} fields are equal in all runs", equal),
            *algorithms,
        ]
    )


def _runs(result: results.Result) -> html.Html:
    names = [*result.main, *quantities.COST]
    rows = [
        [
            arms.short(loaded, result.loaded),
            run["arm"],
            run[result.over],
            *(writing.number(n, run[n]) if n in run else None for n in names),
        ]
        for loaded, run in zip(result.loaded, result.runs, strict=True)
    ]
    return tables.Table(["run", "arm", result.over, *map(writing.heading, names)], rows, left=2).html()
