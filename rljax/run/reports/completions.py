"""Sampled completions on a page: each prompt's side by side, tokens colored by a quantity that the reader selects.

A conversation is shown as messages: what the world said has no color. The rows of an episode, which are seats or
chapters, share a card. Without the script the texts are readable. The numbers are one JSON block, from which the script
builds the tokens of a step when it is unfolded.
"""

import json
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.run.reports import runs, turns
from rljax.run.reports.pages import html, images

BUDGET = 24_000
"""The most tokens of a page; fewer steps are shown, then fewer rows of the last one."""

_TEXT = 8_000  # characters of a prompt or completion
_HELP = {
    "advantage": "weight of the token in the loss; above 0 it is made more probable",
    "token_reward": "reward that a world paid at the token",
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
    """Return the outcome, rewards, head, turns, advantage and finish of a row as short texts."""
    parts = [f"{name} {value:g}" for name, value in row.get("parts", {}).items()]
    advantage = [f"advantage {row['advantage']:+.3f}"] if "advantage" in row else []
    finish = [f"finish {row['finish']}"] if "finish" in row else []
    invalid = ["invalid"] if not row.get("valid", True) else []
    count = sum(message["by"] != "world" for message in row.get("turns", ()))
    wrote = [f"{count} turns"] if count > 1 else []
    reward = f"reward {row.get('total', row['reward']):g}"
    head = [f"head {row['head']} tokens"] if row.get("head") else []
    return [*invalid, row.get("outcome", "unjudged"), reward, *parts, *head, *wrote, *advantage, *finish]


def spread(tokens: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return the quantities of a record's "tokens", one number a token; None where the policy did not write it."""
    count = len(tokens.get("text", ()))
    return {
        name: value if isinstance(value, list) else [value] * count
        for name, value in tokens.items()
        if name not in ("text", "omitted")
    }


def _trains(record: runs.Record) -> bool:
    mean = record.get("advantage", 1.0)
    inner = [message["advantage"] for message in record.get("turns", ()) if "advantage" in message]
    return max(abs(value) for value in (mean, *inner)) > 1e-6  # of a group with equal rewards: 0 up to rounding


def _cost(record: runs.Record) -> int:
    return len(record.get("tokens", {}).get("text", ())) + len(record["completion"]) // 8


def _step(
    run: runs.Run, rows: list[runs.Record], values: list[dict[str, Any]], budget: int, unfolded: bool
) -> html.Html:
    parts, left = [], budget
    together = {group: turns.episodes(members) for group, members in groups(rows).items()}
    world = any("turns" in row for row in rows)
    for episodes in together.values():
        cards, prompt, shown = [], episodes[0][0]["prompt"], 0
        for episode in episodes:
            left -= sum(map(_cost, episode))
            if left >= 0:
                shown += 1
                cards.append(_card(episode, episodes[0][0], values))
        if cards:
            more = len(episodes) - shown
            what = "episodes" if world else "completions"
            note = html.tag("p", f"{more} more {what} of this prompt are in rollouts.jsonl.") if more else ""
            above = html.tag("pre", images.written(_cut(prompt)), class_="prompt")
            firsts = [episode[0] for episode in episodes[:shown]]
            parts += [images.shown(firsts), above, html.tag("div", html.join(cards), class_="cards"), note]
    firsts = [episode[0] for episodes in together.values() for episode in episodes]
    right = sum(row.get("outcome") == "correct" for row in firsts)
    judged = f", {right} correct" if any("outcome" in row for row in firsts) else ""
    flat = "" if any(map(_trains, rows)) else ", all advantages 0"
    name = run.phase(rows[0]["step"])
    prompts = f"{len(together)} prompt{'s' * (len(together) > 1)}"
    count = f"{len(firsts)} {'episodes' if world else 'completions'}"
    title = f"step {rows[0]['step']}{f' ({name})' * bool(name)}: {count} of {prompts}{judged}{flat}"
    return html.tag("details", html.join([html.tag("summary", title), *parts]), open="open" if unfolded else "")


def _card(episode: list[runs.Record], asked: runs.Record, values: list[dict[str, Any]]) -> html.Html:
    """Return the card of an episode, with prompts unlike that of ``asked``; numbers of tokens go to ``values``."""
    parts = []
    for row in episode:
        kind = {"correct": "good", "wrong": "bad"}.get(row.get("outcome", ""), "quiet")
        heading = turns.heading(row, episode)
        title = html.tag("p", heading, class_="seat") if heading else ""
        above = html.tag("p", "  ".join(facts(row)), class_=f"facts {kind}")
        seen = images.shown([row]) if row.get("pictures") != asked.get("pictures") else ""
        written = images.written(_cut(row["prompt"]))
        given = html.join([seen, html.tag("pre", written, class_="given") if row["prompt"] != asked["prompt"] else ""])
        number = str(len(values))
        values.append({name: _finite(value) for name, value in row.get("tokens", {}).items()})
        plain = html.tag("pre", _cut(row["completion"]), class_="completion", data_row=number)
        parts += [title, above, given, _conversation(row, number) if "turns" in row else plain]
    return html.tag("div", html.join(part for part in parts if part), class_="card")


def _conversation(row: runs.Record, number: str) -> html.Html:
    """Return the messages of a row: who wrote them, the text, and what the turn was paid."""
    lines = []
    for message, span in zip(row["turns"], turns.spans(row), strict=True):
        by_policy, text = message["by"] != "world", _cut(message["text"])
        if by_policy and span.stop > span.start:
            where = {"data_from": str(span.start), "data_to": str(span.stop)}
            if span.omitted:
                where |= {"data_cut": str(span.cut), "data_omitted": str(span.omitted)}
            body = html.tag("pre", text, class_="completion", data_row=number, **where)
        else:
            body = html.tag("pre", text)
        who = html.tag("span", message["by"], class_="who")
        mean = f"; mean advantage {message['advantage']:+.3g}" if "advantage" in message else ""
        hint = f"reward of the turn{mean}" if "reward" in message else ""
        paid = html.tag("span", "\n".join(turns.said(message)), class_="paid", title=hint)
        lines.append(html.tag("div", html.join([who, body, paid]), class_=f"said {'own' if by_policy else 'world'}"))
    return html.tag("div", html.join(lines), class_="conversation")


def _finite(value: Any) -> Any:
    """Return None for NaN and infinities, which are not JSON: a browser would refuse the numbers of all tokens."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT else f"{text[: _TEXT // 2]}\n[...]\n{text[-_TEXT // 2 :]}"
