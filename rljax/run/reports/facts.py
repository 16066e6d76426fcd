"""The parts of a report that are text and tables: status, phases, costs, warnings, commands, what ran."""

import json
import os
import re
import shlex
from collections.abc import Iterable
from typing import Any

import numpy as np

from rljax.run.reports import runs
from rljax.run.reports.pages import html, tables

_REST = ("seconds", "tokens_per_second")  # the other timings are parts of the seconds


def status(run: runs.Run) -> html.Html:
    """Return where the run is, in a sentence."""
    starts = run.of("start")
    place = f"Step {run.steps} of {run.planned}" if run.planned else f"Step {run.steps}"
    latest = run.events[-1] if run.events else {}
    how, kind = "still running, or killed: no end is recorded", ""
    if latest.get("event") == "end":
        reason = latest.get("reason", "")
        how, kind = ("finished", "good") if reason == "finished" else (f"stopped: {reason.rstrip('.')}", "bad")
    resumed = f", started {len(starts)} times" if len(starts) > 1 else ""
    time = f" {latest['time']}." if latest.get("time") else ""
    name = run.config.get("algorithm", "")
    return html.join(
        [
            html.tag("p", f"{place}, {how}{resumed}.{time}", class_=kind),
            html.tag("p", html.join([html.tag("code", name), "on", html.tag("code", run.config.get("task", ""))])),
            html.tag("p", run.path, class_="quiet"),
        ]
    )


def phases(run: runs.Run) -> html.Html:
    """Return a table of the phases: what each trains, and its last metrics."""
    present = runs.numbers(run.metrics)
    shown = [name for name in ("reward", "accuracy", "entropy", "kl", "length", "loss") if name in present]
    rows, first = [], 0
    for name, last in run.phases:
        records = [record for record in run.metrics if first < record["step"] <= last]
        described = re.search(
            rf"^phase {re.escape(name)}: .*, (\d+ prompts x \d+) samples$", run.algorithm, re.MULTILINE
        )
        size = described[1].replace(" prompts", "") if described else None
        call = run.fields.get(f"phase.{name}.algorithm") or run.config.get("algorithm")
        rows.append([name, f"{first + 1} to {last}", call, size, *(runs.tail(records, metric) for metric in shown)])
        first = last
    columns = ["phase", "steps", "algorithm", "prompts x samples", *shown]
    return tables.Table(columns, rows, "Metrics are means over the last tenth of a phase.", left=4).html()


def costs(run: runs.Run) -> html.Html:
    """Return how the time of a step divides into activities, by phase, and the largest memory."""
    names = [name for name in runs.numbers(run.timings) if name not in _REST]
    rows = []
    for phase, records in runs.by_phase(run.timings).items():
        later = records[max(1, len(records) // 20) :] or records  # the first steps include compilation
        step, rate = (float(np.median([r.get(name, 0.0) for r in later])) for name in _REST)
        parts = [1000 * float(np.mean([r.get(name, 0.0) for r in later])) for name in names]
        rows.append([phase, len(records), sum(r.get("seconds", 0.0) for r in records), 1000 * step, rate, *parts])
    columns = ["phase", "steps", "total s", "step ms", "tokens/s", *(f"{name} ms" for name in names)]
    note = (
        "Medians of a step, then means of the host's activities, without the first steps. What the devices do is in "
        "'wait' and 'dispatch', with a verifier on the host also in 'rollout', 'verify' and 'update'."
    )
    parts: list[Any] = [tables.Table(columns, rows, note).html()] if rows else [html.tag("p", "No timings yet.")]
    memory = [record for record in run.events if "host_bytes" in record]
    if memory:
        device = max((record.get("device_bytes", 0) for record in memory), default=0)
        host = max(record["host_bytes"] for record in memory)
        text = f"Largest memory: {host / 2**30:.2f} GiB of process 0 on the host"
        devices = f", {device / 2**30:.2f} GiB of a device" if device else ""
        parts.append(html.tag("p", f"{text}{devices}."))
    return html.join(parts)


def warnings(run: runs.Run) -> html.Html:
    """Return the warnings that the run printed, each once, with the step."""
    texts: dict[str, int] = {}
    for record in run.of("warning"):
        texts.setdefault(str(record.get("text", "")), record["step"])
    if not texts:
        return html.tag("p", "None." if run.events else "The run recorded no events.")
    items = [html.tag("li", f"step {step}: {text}") for text, step in texts.items()]
    return html.tag("ul", html.join(items), class_="notes")


def commands(run: runs.Run) -> html.Html:
    """Return what to type next."""
    start = (run.of("start") or [{}])[-1]
    lines = following(run.path, run.code)
    if run.steps < run.planned:
        resume = [f"{shlex.join(start['command'])}   # resume"] if start.get("command") else []
        lines = [*resume, f"{lines[0]} --live", *lines[1:]]
    return html.tag("pre", html.tag("code", "\n".join(lines)))


def following(path: str | os.PathLike[str], code: Iterable[str]) -> list[str]:
    """Return the commands that look at a run.

    Args:
      path: its work directory.
      code: the files outside rljax that its config reaches: modules, which commands import only if they are allowed
        to, and files of stored rows, which need no permission.
    """
    place = shlex.quote(os.fspath(path))
    packages = sorted({file.partition("/")[0].removesuffix(".py") for file in code if file.endswith(".py")})
    allowed = f" --allow_code={','.join(packages)}" if packages else ""
    return [
        f"python -m rljax report {place}",
        f"python -m rljax compare {place} OTHER_RUN",
        f"python -m rljax rollouts {place}",
        f"python -m rljax metrics {place}",
        f"python -m rljax evaluate {place}{allowed}",
        f"python -m rljax sample {place}{allowed}",
        f"python -m rljax convert {place} --target FOLDER{allowed}",
    ]


def description(run: runs.Run) -> html.Html:
    """Return the algorithm with every default, the config, and where it ran."""
    values = {name: value for name, value in run.fields.items() if value is not None}  # None: a phase inherits
    shown = [(name, json.dumps(value, ensure_ascii=False)) for name, value in values.items()]
    parts = [
        html.tag("pre", html.tag("code", run.algorithm)),
        html.folded("Config: every field", tables.Table(("field", "value"), shown, left=2).html()),
    ]
    if run.code:
        digests = tables.Table(("file", "digest"), run.code.items(), left=2).html()
        parts.append(html.folded("Code outside rljax that the config reaches", digests))
    for number, start in enumerate(run.of("start"), 1):
        known = [(name, _plain(value)) for name, value in start.items() if name != "event"]
        machine = tables.Table(("", ""), known, left=2).html()
        parts.append(html.folded(f"Start {number}: machine and versions", machine))
    return html.join(parts)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
