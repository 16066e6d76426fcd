"""Generator of tpu/TOPOLOGIES.md and tpu/GPUS.md: models on meshes, each program compiled in a separate process.

The records are kept beside the pages in tpu/topologies.json and tpu/gpus.json, so that single rows can be updated.
"""

import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from typing import Any

from rljax.aot import report, scaling, topology
from rljax.run.reports.pages import tables

_FOLDER = pathlib.Path(__file__).parents[2] / "tpu"
Records = dict[str, dict[str, Any]]  # key of a job -> record of its program, or its error
LENGTHS = 512, 1024  # tokens of a prompt and of a completion
_TABLE = tomllib.loads(pathlib.Path(__file__).with_name("rows.toml").read_text())


@dataclasses.dataclass(frozen=True)
class Row:
    """A model on a topology.

    Attributes:
      model: the argument of configs/pretrained.py.
      topology: such as "v5p:4x4x4".
      prompts: prompts of a step, with 8 completions each.
      settings: fields of the config and their values.
      common: fields of the config that all rows set.
      slices: number of slices.
      programs: the programs to compile.
      label: what sets it apart from other rows of the model and the topology.
      lengths: tokens of a prompt and of a completion; a row with a task has the task's instead.
    """

    model: str
    topology: str
    prompts: int
    settings: dict[str, Any]
    common: dict[str, Any]
    slices: int = 1
    programs: Sequence[str] = ("rollout", "update")
    label: str = ""
    lengths: Sequence[int] = LENGTHS

    @property
    def name(self) -> str:
        """Model and topology, the section's title."""
        several = f"{self.slices} x " if self.slices > 1 else ""
        return f"{self.model} on {several}{self.topology}{f', {self.label}' if self.label else ''}"

    @property
    def fields(self) -> dict[str, Any]:
        """The fields changed in configs/pretrained.py."""
        return {**self.common, **self.settings}

    def command(self) -> list[str]:
        """Return the arguments of ``python -m rljax aot``."""
        words = ["--config", f"configs/pretrained.py:{self.model}", "--target", self.topology]
        words += ["--num_slices", str(self.slices)] * (self.slices > 1)
        if "task" not in self.settings:
            words += ["--prompt_length", str(self.lengths[0]), "--completion_length", str(self.lengths[1])]
        words += ["--prompts", str(self.prompts), "--samples", "8"]
        for field, value in self.fields.items():
            words += ["--set", f"{field}={value}"]
        return words


def _rows(kind: str) -> tuple[Row, ...]:
    """Return the rows of rows.toml for "tpu" or "gpu"."""
    return tuple(Row(**fields, common=_TABLE["common"][kind]) for fields in _TABLE[kind])


ROWS, GPU_ROWS = _rows("tpu"), _rows("gpu")


def compiled(arguments: list[str], program: str) -> dict[str, Any]:
    """Compile a program in a separate process.

    Args:
      arguments: of ``python -m rljax aot``.
      program: the program to compile.

    Returns:
      The program's record, or {"error": message}.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "record.json")
        words = [sys.executable, "-m", "rljax", "aot", *arguments, "--programs", program, "--json", str(out)]
        done = subprocess.run(words, cwd=_FOLDER.parent, capture_output=True, text=True)
        if done.returncode:
            message = done.stderr.rpartition("error: ")[2].strip()
            return {"error": message or f"exit code {done.returncode}"}
        return json.loads(out.read_text())["programs"][0]


def write(only: list[str]) -> None:
    """Compile the rows and sizes whose name contains one of ``only`` (empty: all); write records, pages and figure."""
    for file, rows in (("topologies.json", ROWS), ("gpus.json", GPU_ROWS)):
        jobs = [(f"{row.name}: {name}", row.command(), name) for row in rows for name in row.programs]
        for size, chips in scaling.SIZES.items() if rows is ROWS else ():
            common = {name: value for name, value in _TABLE["common"]["tpu"].items() if name != "sampler.layout"}
            row = Row(scaling.MODEL, size, chips, {"mesh.fsdp": chips}, common)
            jobs.append((f"scaling {size}: update", row.command(), "update"))
        for key, arguments, name in jobs:
            if not only or any(word in key for word in only):
                record = compiled(arguments, name)
                text = json.dumps({**_stored(file), key: record}, indent=1, sort_keys=True)
                (_FOLDER / file).write_text(text + "\n")
                print(key, record.get("error", f"compiled in {record.get('compile_s', 0):.0f} s"), flush=True)
    records = _stored("topologies.json")
    scaling.draw(records, _FOLDER / "scaling.png")
    (_FOLDER / "TOPOLOGIES.md").write_text(page(records))
    (_FOLDER / "GPUS.md").write_text(gpu_page(_stored("gpus.json")))


def _stored(file: str) -> Records:
    return json.loads((_FOLDER / file).read_text()) if (_FOLDER / file).exists() else {}


def _cells(name: str, r: dict[str, Any], total: float) -> list[str]:
    if "error" in r:
        return [name, r["error"].splitlines()[0]]
    gib, share = 2**30, f"{100 * r['overlapped_s'] / total:.0f} %" if name in ("rollout", "update") and total else "-"
    return [
        name if "networks" in r else f"{name} *",
        f"{r['peak'] / gib:.1f} of {r['hbm'] / gib:.0f}",
        f"{r['arguments'] / gib:.1f} + {r['temporaries'] / gib:.1f}",
        f"{r['flops'] / 1e12:.4g} ({100 * r['model_flops'] / r['flops']:.0f} %)",
        f"{r['moved'] / gib:,.0f}",
        f"{r['sent_ici'] / gib:.3g}",
        f"{r['sent_dcn'] / gib:.3g}",
        f"{r['overlapped_s']:.3g} ({r.get('networks', {}).get(r['bound'], r['bound'])}), {r['serial_s']:.3g}",
        share,
        f"{r['compile_s']:.0f} ({r['compile_cpu_s']:.0f})",
        f"{r['peak_rss'] / gib:.1f}",
    ]


def _details(r: dict[str, Any]) -> dict[str, str]:
    """Return what a program holds at its peak, sends most and starts, as text by verb."""
    by_size = sorted(r.get("by_cause", {}).items(), key=lambda item: -item[1])
    held = [f"{cause} {report.size(b)}" for cause, b in by_size if b > 0.01 * r["peak"]]
    most = [c for c in r.get("collectives", []) if c["sent"] > 0.01 * (r["sent_ici"] + r["sent_dcn"])][:6]
    sends = [f"{c['kind']} {'+'.join(c['axes'])} {report.size(c['sent'])}" for c in most]
    starts = f"{r['kernels']:,.0f} kernels" if r.get("kernels") else ""
    return {"holds": "; ".join(held), "sends": "; ".join(sends), "starts": starts}


def _columns(kind: topology.Kind) -> list[str]:
    first = ["program", "peak of memory, GiB", "arguments + temporaries", "TFLOPs (needed by model)", "moved, GiB"]
    sent = [f"{name}, GiB" for name in kind.networks.values()]
    return [*first, *sent, "seconds overlapped, not overlapped", "of the step", "compile s (CPU)", "RSS, GiB"]


def _section(row: Row, records: Records) -> list[str]:
    programs = {name: records.get(f"{row.name}: {name}", {"error": "not compiled"}) for name in row.programs}
    phases = [programs[n].get("overlapped_s", 0) for n in ("rollout", "update")]
    total = sum(phases) if all(phases) else 0
    kind, _ = topology.read(row.topology)
    mesh = ", ".join(f"{k.removeprefix('mesh.')} {v}" for k, v in row.settings.items() if k.startswith("mesh."))
    columns, cells = _columns(kind), [_cells(name, r, total) for name, r in programs.items()]
    rows, tokens, lengths = row.prompts * 8, row.prompts * 8 * row.lengths[1], " + ".join(map(str, row.lengths))
    lines = [
        f"## {row.name}",
        "",
        f"{rows} rows ({row.prompts} prompts x 8) of {lengths} tokens{mesh and f', mesh {mesh}'}; "
        f"a {kind.name} chip has {kind.hbm / 2**30:.0f} GiB and {kind.flops / 1e12:.0f} TFLOP/s."
        + (f" At most {tokens / total:,.0f} completion tokens per second." if total else ""),
        "",
        *tables.Table(columns, cells, left=len(columns)).markdown(),
        "",
        *(f"- {name} {verb} {said}" for name, r in programs.items() for verb, said in _details(r).items() if said),
        "",
        f"    python -m rljax aot {shlex.join(row.command())}",
        "",
    ]
    return lines


def _page(template: str, rows: Sequence[Row], records: Records, **fields: str) -> str:
    """Fill a template beside this module with the sections of the rows, and with other fields."""
    sections = "\n".join(line for row in rows for line in _section(row, records))
    return pathlib.Path(__file__).with_name(template).read_text().format(rows=sections, **fields)


def page(records: Records) -> str:
    """Return the page of TPUs as Markdown."""
    return _page("topologies.txt", ROWS, records, assumptions=report.ASSUMPTIONS, scaling=scaling.table(records))


def gpu_page(records: Records) -> str:
    """Return the page of GPUs as Markdown."""
    versions = sorted({r["jax"] for r in records.values() if "jax" in r})
    return _page("gpus.txt", GPU_ROWS, records, jax=", ".join(versions))
