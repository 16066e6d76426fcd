"""The first measurements on a new accelerator: ``python -m rljax bench device --out DIR``.

Each part is a command of its own in a process of its own, in order of worth, until the minutes are used up. A part that
has a record in the folder is not repeated, so that the same command resumes. The parent does not start JAX, which would
take the memory of the device.
"""

import json
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

from rljax import bench
from rljax.data import storage
from rljax.language import parse
from rljax.run.reports.pages import tables

PARTS: dict[str, dict[str, str]] = bench.TABLES["device"]
_LATE = "the minutes were used up"


def run(out: str, minutes: float, only: Sequence[str], quick: bool) -> None:
    """Run the parts that have no record yet, and write the page.

    Args:
      out: folder of the records and of the page.
      minutes: for all parts.
      only: names of parts; empty: all.
      quick: whether to run tiny sizes, to try the command.

    Raises:
      ValueError: no folder, or an unknown part.
    """
    if not out:
        raise ValueError("--out is required: the folder of the records and of the page.")
    for name in only:
        if name not in PARTS:
            raise ValueError(f"--parts: no part {name!r}.{parse.nearest(name, PARTS)}")
    folder, end = pathlib.Path(out), time.monotonic() + 60 * minutes
    folder.mkdir(parents=True, exist_ok=True)
    for name in only or PARTS:
        record = folder / f"{name}.json"
        if not (record.exists() and "error" not in json.loads(record.read_text())) and time.monotonic() < end:
            print(f"{name}: {PARTS[name]['question']}", flush=True)
            storage.write(storage.path(str(record)), json.dumps(_measured(name, folder, end, quick), indent=1) + "\n")
        storage.write(storage.path(str(folder / "README.md")), page(folder))
    print(page(folder))


def _words(name: str, folder: pathlib.Path, quick: bool) -> list[str]:
    """Return the words of a part's command, after ``python -m rljax``."""
    text = f"{PARTS[name]['words']} {PARTS[name]['quick'] if quick else ''}"
    return shlex.split(text.format(out=shlex.quote(str(folder)), **bench.TABLES["words"]))


def _finished(words: list[str], end: float) -> subprocess.CompletedProcess[str] | None:
    """Run ``python -m rljax`` with these words until ``end``, of the monotonic clock; None if that was too early."""
    command, left = [sys.executable, "-m", "rljax", *words], max(1.0, end - time.monotonic())
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=left)
    except subprocess.TimeoutExpired:
        return None


def _measured(name: str, folder: pathlib.Path, end: float, quick: bool) -> dict[str, Any]:
    """Run a part, and return its record: what it printed, and the last line if that is JSON."""
    words, begun = _words(name, folder, quick), time.monotonic()
    done = _finished(words, end)
    known = {"command": f"python -m rljax {' '.join(words)}", "seconds": time.monotonic() - begun}
    if done is None:
        return known | {"error": _LATE}
    if done.returncode:
        text = done.stderr.strip()[-2000:].removeprefix("error: ")
        return known | {"error": text or f"exit code {done.returncode}"}
    *lines, last = done.stdout.rstrip().split("\n")
    if not last.startswith("{"):
        return known | {"text": done.stdout.strip()}
    record = json.loads(last)
    known |= {"text": "\n".join(lines), "record": record}
    return known | ({"predicted": _predicted(name, folder, end, quick)} if record.get("bench") == "step" else {})


def _predicted(name: str, folder: pathlib.Path, end: float, quick: bool) -> dict[str, Any]:
    """Return the record of the compiler's answer for the program of a step, or {"error": why}."""
    out, words = folder / "predicted.tmp", _words(name, folder, quick)[1:]
    renamed = {"--new_tokens": "--completion_length"}
    if "--steps" in words:
        place = words.index("--steps")
        del words[place : place + 2]
    words = [renamed.get(word, word) for word in words]
    done = _finished(["aot", *words, "--target", "attached", "--programs", "fused", "--json", str(out)], end)
    if done is None:
        return {"error": _LATE}
    if done.returncode:
        text = done.stderr.rpartition("error: ")[2].strip() or f"exit code {done.returncode}"
        return {"error": text.splitlines()[0]}
    record = json.loads(out.read_text())["programs"][0]
    out.unlink()
    return record


def _compared(stored: dict[str, dict[str, Any]]) -> list[str]:
    """Return a table of what was predicted and measured of steps, as Markdown."""
    rows = []
    for name, r, p in ((n, r["record"], r["predicted"]) for n, r in stored.items() if "predicted" in r):
        predicted, why = ("-", "-"), p.get("error", "")
        if not why:
            times = f"{1e3 * p['overlapped_s']:.1f} to {1e3 * p['serial_s']:.1f}"
            predicted, why = (f"{p['peak'] / 2**30:.2f}", times), p["networks"].get(p["bound"], p["bound"])
        rows.append([name, predicted[0], f"{r['peak_gib']:.2f}", predicted[1], f"{r['step_ms']:.1f}", why])
    columns = ["step", "peak predicted, GiB", "measured", "ms predicted, at least", "measured", "bound by"]
    return ["## Predicted and measured", "", *tables.Table(columns, rows, left=1).markdown(), ""] if rows else []


def page(folder: pathlib.Path) -> str:
    """Return the page of a folder as Markdown."""
    stored = {n: json.loads((folder / f"{n}.json").read_text()) for n in PARTS if (folder / f"{n}.json").exists()}
    devices = sorted({r["record"]["device"] for r in stored.values() if "device" in r.get("record", {})})
    lines = [f"# Measured on {', '.join(devices) or 'an unknown device'}", "", "By `python -m rljax bench device`.", ""]
    lines += _compared(stored)
    for name, record in stored.items():
        said = f"error: {record['error']}" if "error" in record else record["text"]
        lines += [f"## {name}", "", f"{PARTS[name]['question']} {record['seconds']:.0f} s.", ""]
        lines += [f"    {record['command']}", "", "```", said, "```", ""]
    missing = ", ".join(name for name in PARTS if name not in stored)
    return "\n".join([*lines, *([f"Not measured: {missing}."] if missing else [])]).rstrip() + "\n"
