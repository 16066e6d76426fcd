"""The page of a comparison."""

import pathlib
from collections.abc import Sequence
from typing import Any

from rljax.run.reports import arms, bands, comparison, html, pictures, quantities, writing

_RULES = """Means are over the runs of an arm, that is, over {over}. Intervals are 95 % intervals. Those of pass@k and
greedy accuracy cover {over} and prompts, as all runs are evaluated on the same prompts: a bootstrap over both, as wide
as the variances of both ask for. Those of other quantities, which are one number for each run, are Student's t over
runs. A difference is paired by prompt, and by {over} if both arms have the same values of it; otherwise its variance is
Welch's. With one run in an arm, the interval is over the prompts of its evaluation and does not contain the variation
between runs. Each interval is for one comparison; they are not adjusted for their number. Metrics of the training are
averaged over the last tenth of the last phase."""


def page(result: comparison.Comparison, command: str = "") -> str:
    """Return the page; ``command`` is the command that makes it."""
    sections = [
        (
            "Result",
            html.join(
                [_legend(result), pictures.gallery(bands.results(result, legend=False)), _main(result), _rules(result)]
            ),
        ),
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


def summary(result: comparison.Comparison) -> str:
    """Return tables and figures for a notebook, in the colors of the notebook."""
    style = html.Html(pathlib.Path(__file__).with_name("notebook.html").read_text())
    figures = pictures.gallery([*bands.results(result), *bands.curves(result)[:3]])
    return html.tag("div", html.join([style, _notes(result), _main(result), figures]), class_="rljax")


def _notes(result: comparison.Comparison) -> html.Html:
    notes = html.join(html.tag("li", note) for note in result.notes)
    return html.tag("ul", notes, class_="notes", aria_label="Notes") if result.notes else html.Html("")


def _evaluated(result: comparison.Comparison) -> str:
    final = next((run.final for run in result.loaded if run.final), None)
    task = arms.written(result.loaded[0].value("task"))
    counts = f", evaluated on {final['prompts']} prompts x {final['samples']} samples" if final else ""
    return f"Task: {task}{counts}."


def _rules(result: comparison.Comparison) -> html.Html:
    return html.folded("How these numbers are computed", html.tag("p", _RULES.format(over=result.over)))


def _main(result: comparison.Comparison) -> html.Html:
    """Return the table with a row for each arm: mean and interval of each quantity, and of its difference."""
    rows = []
    for arm in result.arms:
        estimates = [result.estimate(arm.name, name) for name in result.main]
        rows.append([_arm(result, arm), len(arm.runs), *(_cell(row) for row in estimates)])
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
    return html.table(["arm", "runs", *map(writing.heading, result.main)], rows, caption=caption + bold)


def _bases(rows: Sequence[comparison.Row], names: Sequence[str]) -> str:
    """Return what the intervals of some quantities are over, or why there are none."""
    bases = dict.fromkeys(writing.basis(row) for row in rows if row["quantity"] in names and writing.interval(row))
    none = "without intervals, which need several runs in each arm"
    return f"with 95 % intervals over {' or '.join(bases)}" if bases else none


def _cell(row: comparison.Row | None, signed: bool = False) -> html.Html | None:
    if row is None:
        return None
    mean = writing.mean(row, signed)
    interval = writing.interval(row, signed) or writing.basis(row)
    mean = html.tag("strong", mean) if signed and writing.certain(row) else mean
    return html.join([mean, html.tag("div", interval, class_="quiet", title=writing.basis(row))])


def _arm(result: comparison.Comparison, arm: arms.Arm) -> html.Html:
    """Return the name of an arm with its color and dashes."""
    style = bands.style([other.name for other in result.arms].index(arm.name))
    name = html.join([pictures.swatch(style["color"], style["linestyle"]), arm.name])
    return html.tag("span", name, class_="arm" if len(arm.name) < 40 else "")


def _legend(result: comparison.Comparison) -> html.Html:
    return html.tag("p", html.join(_arm(result, arm) for arm in result.arms), class_="legend")


def _means(result: comparison.Comparison, names: Sequence[str], cell: Any = _cell) -> html.Html:
    rows = [
        [_arm(result, arm), len(arm.runs), *(cell(result.estimate(arm.name, name)) for name in names)]
        for arm in result.arms
    ]
    return html.table(["arm", "runs", *map(writing.heading, names)], rows)


def _curves(result: comparison.Comparison) -> html.Html:
    text = "Line: mean over the runs of an arm, smoothed within a phase. Band: from the smallest to the largest run."
    figures = pictures.gallery(bands.curves(result, legend=False))
    return html.join([html.tag("p", text, class_="quiet"), _legend(result), figures])


def _settings(result: comparison.Comparison) -> html.Html:
    names = [arm.name for arm in result.arms]
    different = html.table(["field", *names], [[f, *v] for f, v in result.fields.items()], text=range(len(names) + 1))
    equal = html.table(["field", "value"], result.common.items(), text=(1,))
    texts: dict[str, list[str]] = {}
    for arm in result.arms:
        texts.setdefault(next(iter(arm.runs.values())).algorithm, []).append(arm.name)
    algorithms = [html.folded(f"Algorithm of {', '.join(a)}", html.tag("pre", t)) for t, a in texts.items() if t]
    return html.join([different, html.folded(f"{len(result.common)} fields are equal in all runs", equal), *algorithms])


def _runs(result: comparison.Comparison) -> html.Html:
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
    return html.table(["run", "arm", result.over, *map(writing.heading, names)], rows, text=(1,))
