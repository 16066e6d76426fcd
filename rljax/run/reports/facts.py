"""The parts of a report that are text and tables: status, phases, costs, warnings, commands, what ran."""

import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.run.reports import directory, html

_REST = ("seconds", "tokens_per_second")  # the other timings are parts of the seconds


def status(run: directory.Directory) -> html.Html:
    """Return where the run is, in a sentence."""
    starts, ends = run.of("start"), run.of("end")
    place = f"Step {run.last} of {run.steps}" if run.steps else f"Step {run.last}"
    latest = run.events[-1] if run.events else {}
    if latest.get("event") == "end":
        reason = ends[-1].get("reason", "")
        how = "finished" if reason == "finished" else f"stopped: {reason.rstrip('.')}"
    else:
        how = "still running, or killed: no end is recorded"
    resumed = f", started {len(starts)} times" if len(starts) > 1 else ""
    time = f" {latest['time']}." if latest.get("time") else ""
    name = run.config.get("algorithm", "")
    return html.join(
        [
            html.tag(
                "p",
                f"{place}, {how}{resumed}.{time}",
                class_="good" if how == "finished" else "bad" if how.startswith("stopped") else "",
            ),
            html.tag("p", html.join([html.tag("code", name), "on", html.tag("code", run.config.get("task", ""))])),
            html.tag("p", run.place, class_="quiet"),
        ]
    )


def phases(run: directory.Directory) -> html.Html:
    """Return a table of the phases: what each trains, and its last metrics."""
    shown = [name for name in ("reward", "accuracy", "entropy", "kl", "length", "loss") if _any(run.metrics, name)]
    rows, first = [], 0
    for name, last in run.phases:
        own = run.config["phase"][name] or {}
        records = [record for record in run.metrics if first < record["step"] <= last]
        described = re.search(
            rf"^phase {re.escape(name)}: .*, (\d+ prompts x \d+) samples$", run.algorithm, re.MULTILINE
        )
        size = described[1].replace(" prompts", "") if described else None
        call = own.get("algorithm") or run.config.get("algorithm")
        rows.append(
            [name, f"{first + 1} to {last}", call, size, *(directory.tail(records, metric) for metric in shown)]
        )
        first = last
    columns = ["phase", "steps", "algorithm", "prompts x samples", *shown]
    return html.table(columns, rows, caption="Metrics are means over the last tenth of a phase.", text=(1, 2, 3))


def _any(records: Sequence[directory.Record], name: str) -> bool:
    return any(name in record for record in records)


def costs(run: directory.Directory) -> html.Html:
    """Return how the time of a step divides into activities, by phase, and the largest memory."""
    names = sorted({name for record in run.timings for name in record} - {"step", "phase", *_REST})
    rows = []
    for phase in dict.fromkeys(record["phase"] for record in run.timings):
        records = [record for record in run.timings if record["phase"] == phase]
        later = records[max(1, len(records) // 20) :] or records  # the first steps include compilation
        step, rate = (float(np.median([r.get(name, 0.0) for r in later])) for name in _REST)
        parts = [1000 * float(np.mean([r.get(name, 0.0) for r in later])) for name in names]
        rows.append([phase, len(records), sum(r.get("seconds", 0.0) for r in records), 1000 * step, rate, *parts])
    columns = ["phase", "steps", "total s", "step ms", "tokens/s", *(f"{name} ms" for name in names)]
    note = (
        "Medians of a step, then means of the host's activities, without the first steps. What the devices do is in "
        "'wait' and 'dispatch', with a verifier on the host also in 'rollout', 'verify' and 'update'."
    )
    parts: list[Any] = [html.table(columns, rows, caption=note)] if rows else [html.tag("p", "No timings yet.")]
    memory = [record for record in run.events if "host_bytes" in record]
    if memory:
        device = max((record.get("device_bytes", 0) for record in memory), default=0)
        host = max(record["host_bytes"] for record in memory)
        text = f"Largest memory: {host / 2**30:.2f} GiB of process 0 on the host"
        devices = f", {device / 2**30:.2f} GiB of a device" if device else ""
        parts.append(html.tag("p", f"{text}{devices}."))
    return html.join(parts)


def warnings(run: directory.Directory) -> html.Html:
    """Return the warnings that the run printed, each once, with the step."""
    texts: dict[str, int] = {}
    for record in run.of("warning"):
        texts.setdefault(str(record.get("text", "")), record["step"])
    if not texts:
        return html.tag("p", "None." if run.events else "The run recorded no events.")
    items = [html.tag("li", f"step {step}: {text}") for text, step in texts.items()]
    return html.tag("ul", html.join(items), class_="notes")


def commands(run: directory.Directory) -> html.Html:
    """Return what to type next."""
    place, start = shlex.quote(run.place), (run.of("start") or [{}])[-1]
    packages = sorted({file.partition("/")[0].removesuffix(".py") for file in run.code})
    allowed = f" --allow_code={','.join(packages)}" if packages else ""
    lines = []
    if run.last < run.steps and start.get("command"):
        lines += [f"{shlex.join(start['command'])}   # resume"]
    lines += [
        f"python -m rljax evaluate --workdir {place} --samples 64{allowed}",
        f"python -m rljax sample --workdir {place}{allowed}",
        f"python -m rljax rollouts {place}",
        f"python -m rljax metrics {place}",
        f"python -m rljax report {place} --live",
        f"python -m rljax compare {place} OTHER",
        f"python -m rljax convert --source {place} --target OUT",
    ]
    return html.tag("pre", html.tag("code", "\n".join(lines)))


def description(run: directory.Directory) -> html.Html:
    """Return the algorithm with every default, the config, and where it ran."""
    flat = dict(_flat(run.config))
    shown = [(name, json.dumps(value, ensure_ascii=False)) for name, value in flat.items()]
    parts = [
        html.tag("pre", html.tag("code", run.algorithm)),
        html.folded("Config: every field", html.table(("field", "value"), shown, text=(1,))),
    ]
    if run.code:
        digests = html.table(("file", "digest"), run.code.items(), text=(1,))
        parts.append(html.folded("Code outside rljax that the config reaches", digests))
    for number, start in enumerate(run.of("start"), 1):
        known = [(name, _plain(value)) for name, value in start.items() if name != "event"]
        parts.append(html.folded(f"Start {number}: machine and versions", html.table(("", ""), known, text=(1,))))
    return html.join(parts)


def _flat(value: Any, name: str = "") -> list[tuple[str, Any]]:
    """Return the leaves of nested objects by dotted name; None, which a phase inherits, is left out."""
    if isinstance(value, dict):
        return [leaf for key, inner in value.items() for leaf in _flat(inner, f"{name}.{key}" if name else key)]
    return [] if value is None else [(name, value)]


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {inner}" for key, inner in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
