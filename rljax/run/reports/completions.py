"""Sampled completions on a page: those of a prompt side by side, tokens colored by a quantity that the reader selects.

Without the script the texts are readable. The numbers are one JSON block, from which the script builds the tokens of a
step when it is unfolded.
"""

import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.run.reports import html, runs

BUDGET = 24_000
"""The most tokens of a page; fewer steps are shown, then fewer rows of the last one."""

_TEXT = 8_000  # characters of a prompt or completion
_HELP = {
    "advantage": "weight of the token in the loss; above 0 it is made more probable",
    "ratio": "probability under the policy over that at sampling, in the last gradient step on the row",
    "entropy": "of the distribution that the token was drawn from, nats",
    "kl": "estimate of the KL divergence from the reference, nats",
    "logp": "log-probability of the token of a demonstration, nats",
}


def head() -> html.Html:
    """Return the style and the script, for the head of a page."""
    return html.Html(pathlib.Path(__file__).with_name("completions.html").read_text())


def section(run: runs.Run, budget: int = BUDGET) -> html.Html:
    """Return the completions of a run: of evenly spaced steps, the newest one with gradients unfolded.

    Args:
      run: the work directory.
      budget: the most tokens shown.

    Returns:
      The content of a section.
    """
    steps = choose(run.rollouts, budget)
    if not steps:
        return html.tag("p", "No rollouts are logged; log.rollouts is the number of steps between dumps.")
    trained = {record["step"] for record in run.rollouts if _trains(record)} & set(steps)
    unfolded = max((step for step in trained if run.phase(step) == run.phase(steps[-1])), default=steps[-1])
    values: list[dict[str, Any]] = []
    parts = []
    for step in reversed(steps):
        rows = [record for record in run.rollouts if record["step"] == step]
        parts.append(_step(run, rows, values, budget, unfolded=step == unfolded))
        budget -= sum(map(_cost, rows))
    names = [name for name in _HELP if any(name in value for value in values)]
    options = [html.tag("option", f"{name}: {_HELP[name]}", value=name) for name in names]
    label = html.tag("label", html.join(["Color of tokens ", html.tag("select", html.join(options), id="quantity")]))
    block = json.dumps(values, ensure_ascii=False, separators=(",", ":")).replace("<", "\\u003c")
    data = html.Html(f'<script type="application/json" id="tokens">{block}</script>')
    legend = html.tag("span", "", id="scale")
    chooser = html.tag("p", html.join([label, legend]), class_="chooser", hidden="hidden") if options else ""
    return html.join([chooser, *parts, data])


def choose(records: Sequence[runs.Record], budget: int) -> list[int]:
    """Return steps to show, evenly spaced, the newest always: as many as the budget of tokens allows."""
    cost: dict[int, int] = {}
    for record in records:
        cost[record["step"]] = cost.get(record["step"], 0) + _cost(record)
    steps = sorted(cost)
    for count in range(len(steps), 1, -1):
        chosen = sorted({steps[round(i)] for i in np.linspace(0, len(steps) - 1, count)})
        if sum(cost[step] for step in chosen) <= budget:
            return chosen
    return steps[-1:]


def groups(rows: Iterable[runs.Record]) -> dict[Any, list[runs.Record]]:
    """Return the rows of each prompt, by its group; records without one by the prompt's text."""
    out: dict[Any, list[runs.Record]] = {}
    for row in rows:
        out.setdefault(row.get("group", row["prompt"]), []).append(row)
    return out


def facts(row: Mapping[str, Any]) -> list[str]:
    """Return the outcome, rewards, advantage and finish of a completion as short texts."""
    parts = [f"{name} {value:g}" for name, value in row.get("parts", {}).items()]
    advantage = [f"advantage {row['advantage']:+.3f}"] if "advantage" in row else []
    finish = [f"finish {row['finish']}"] if "finish" in row else []
    return [row.get("outcome", "unjudged"), f"reward {row['reward']:g}", *parts, *advantage, *finish]


def spread(tokens: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the quantities of a record's "tokens", one number a token."""
    count = len(tokens.get("text", ()))
    return {
        name: value if isinstance(value, list) else [value] * count
        for name, value in tokens.items()
        if name not in ("text", "omitted")
    }


def _trains(record: runs.Record) -> bool:
    return abs(record.get("advantage", 1.0)) > 1e-6  # of a group with equal rewards: 0 up to rounding


def _cost(record: runs.Record) -> int:
    return len(record.get("tokens", {}).get("text", ())) + len(record["completion"]) // 8


def _step(
    run: runs.Run, rows: list[runs.Record], values: list[dict[str, Any]], budget: int, unfolded: bool
) -> html.Html:
    parts, left = [], budget
    together = groups(rows)
    for members in together.values():
        cards = []
        for row in members:
            left -= _cost(row)
            if left >= 0:
                cards.append(_card(row, len(values)))
                values.append({name: _finite(value) for name, value in row.get("tokens", {}).items()})
        if cards:
            prompt = html.tag("pre", _cut(members[0]["prompt"]), class_="prompt")
            more = len(members) - len(cards)
            note = html.tag("p", f"{more} more completions of this prompt are in rollouts.jsonl.") if more else ""
            parts += [prompt, html.tag("div", html.join(cards), class_="cards"), note]
    right = sum(row.get("outcome") == "correct" for row in rows)
    judged = f", {right} correct" if any("outcome" in row for row in rows) else ""
    flat = "" if any(map(_trains, rows)) else ", all advantages 0"
    name = run.phase(rows[0]["step"])
    prompts = f"{len(together)} prompt{'s' * (len(together) > 1)}"
    title = f"step {rows[0]['step']}{f' ({name})' * bool(name)}: {len(rows)} completions of {prompts}{judged}{flat}"
    return html.tag("details", html.join([html.tag("summary", title), *parts]), open="open" if unfolded else "")


def _card(row: runs.Record, number: int) -> html.Html:
    kind = {"correct": "good", "wrong": "bad"}.get(row.get("outcome", ""), "quiet")
    above = html.tag("p", "  ".join(facts(row)), class_=f"facts {kind}")
    text = html.tag("pre", _cut(row["completion"]), class_="completion", data_row=str(number))
    return html.tag("div", html.join([above, text]), class_="card")


def _finite(value: Any) -> Any:
    """Return None for NaN and infinities, which are not JSON: a browser would refuse the numbers of all tokens."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n[...]\n{text[-_TEXT // 2 :]}"
