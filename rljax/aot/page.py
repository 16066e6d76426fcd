"""Generator of tpu/TOPOLOGIES.md: models on slices of a suitable size, each program compiled in a separate process.

The records are kept beside the page in tpu/topologies.json, so that single rows can be updated.
"""

import dataclasses
import json
import pathlib
import shlex
import subprocess
import sys
import tempfile
from typing import Any

from rljax.aot import report, scaling, topology
from rljax.run.reports.pages import tables

Records = dict[str, dict[str, Any]]  # key of a job -> record of its program, or its error
LENGTHS = 512, 1024  # tokens of a prompt and of a completion
# Changes to configs/pretrained.py: the TPU attention kernel, and weights gathered once for a rollout.
_SETTINGS = {"model.attention": "splash", "sampler.layout": "resident", "learner.microbatches": 1}
_OF_AN_UPDATE = {name: value for name, value in _SETTINGS.items() if name != "sampler.layout"}


@dataclasses.dataclass(frozen=True)
class Row:
    """A model on a topology.

    Attributes:
      model: the argument of configs/pretrained.py.
      topology: such as "v5p:4x4x4".
      prompts: prompts of a step, with 8 completions each.
      settings: fields of the config and their values.
      slices: number of slices.
      programs: the programs to compile.
      common: fields of the config that all rows set.
    """

    model: str
    topology: str
    prompts: int
    settings: dict[str, Any]
    slices: int = 1
    programs: tuple[str, ...] = ("rollout", "update")
    common: dict[str, Any] = dataclasses.field(default_factory=_SETTINGS.copy)

    @property
    def name(self) -> str:
        """Model and topology, the section's title."""
        return (
            f"{self.model} on {self.topology}"
            if self.slices == 1
            else f"{self.model} on {self.slices} x {self.topology}"
        )

    @property
    def fields(self) -> dict[str, Any]:
        """The fields changed in configs/pretrained.py."""
        return {**self.common, **self.settings}

    def command(self) -> list[str]:
        """Return the arguments of tpu/compile.py."""
        words = ["--config", f"configs/pretrained.py:{self.model}", "--topology", self.topology]
        words += ["--num_slices", str(self.slices)] * (self.slices > 1)
        words += ["--prompt_length", str(LENGTHS[0]), "--completion_length", str(LENGTHS[1])]
        words += ["--prompts", str(self.prompts), "--samples", "8"]
        for field, value in self.fields.items():
            words += ["--set", f"{field}={value}"]
        return words


_ALL = ("rollout", "score", "update")


def _mesh(**sizes: int) -> dict[str, int]:
    return {f"mesh.{axis}": size for axis, size in sizes.items()}


# Per micro-batch, each chip has the 8 completions of one prompt. ``fsdp_tensor`` is as large as rollout weights need.
ROWS = (
    Row("qwen2.5-0.5b", "v5e:2x2", 32, {"learner.microbatches": 8, **_mesh(fsdp=4)}, programs=_ALL),
    Row("qwen3-8b", "v5e:16x16", 256, _mesh(fsdp=32, fsdp_tensor=8)),
    Row("qwen3-8b", "v6e:8x8", 64, _mesh(fsdp=16, fsdp_tensor=4)),
    Row("qwen3-8b", "v5p:4x4x4", 64, _mesh(fsdp=16, fsdp_tensor=4), programs=_ALL),
    Row("qwen3-8b", "v5p:4x4x4", 128, _mesh(data=2, fsdp=16, fsdp_tensor=4), slices=2),
    Row("qwen2.5-32b", "v5p:8x8x8", 512, _mesh(fsdp=64, fsdp_tensor=8)),
    Row("llama-3.1-70b", "v5p:8x8x8", 512, _mesh(fsdp=64, fsdp_tensor=8)),
    Row("qwen3-30b-a3b", "v5p:4x4x4", 64, _mesh(fsdp=16, expert=4)),
)


def compiled(command: pathlib.Path, arguments: list[str], program: str) -> dict[str, Any]:
    """Compile a program in a separate process.

    Args:
      command: the path of tpu/compile.py.
      arguments: its arguments.
      program: the program to compile.

    Returns:
      The program's record, or {"error": message}.
    """
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder, "record.json")
        words = [sys.executable, str(command), *arguments, "--programs", program, "--json", str(out)]
        done = subprocess.run(words, cwd=command.parent.parent, capture_output=True, text=True)
        if done.returncode:
            message = done.stderr.rpartition("error: ")[2].strip()
            return {"error": message or f"exit code {done.returncode}"}
        return json.loads(out.read_text())["programs"][0]


def write(command: pathlib.Path, only: list[str]) -> None:
    """Compile the rows and sizes whose name contains one of ``only`` (empty: all); write records, page and figure."""
    folder = command.parent
    file = folder / "topologies.json"

    def stored() -> Records:
        return json.loads(file.read_text()) if file.exists() else {}

    jobs = [(f"{row.name}: {name}", row.command(), name) for row in ROWS for name in row.programs]
    for size, chips in scaling.SIZES.items():
        row = Row(scaling.MODEL, size, chips, _mesh(fsdp=chips), common=_OF_AN_UPDATE)
        jobs.append((f"scaling {size}: update", row.command(), "update"))
    for key, arguments, name in jobs:
        if only and not any(word in key for word in only):
            continue
        record = compiled(command, arguments, name)
        file.write_text(json.dumps({**stored(), key: record}, indent=1, sort_keys=True) + "\n")
        print(key, record.get("error", f"compiled in {record.get('compile_s', 0):.0f} s"), flush=True)
    records = stored()
    scaling.draw(records, folder / "scaling.png")
    (folder / "TOPOLOGIES.md").write_text(page(records))


def _cells(name: str, r: dict[str, Any], total: float) -> list[str]:
    if "error" in r:
        return [name, r["error"].splitlines()[0]]
    gib, share = 2**30, f"{100 * r['overlapped_s'] / total:.0f} %" if name in ("rollout", "update") and total else "-"
    return [
        name,
        f"{r['peak'] / gib:.1f} of {r['hbm'] / gib:.0f}",
        f"{r['arguments'] / gib:.1f} + {r['temporaries'] / gib:.1f}",
        f"{r['flops'] / 1e12:.4g} ({100 * r['model_flops'] / r['flops']:.0f} %)",
        f"{r['moved'] / gib:,.0f}",
        f"{r['sent_ici'] / gib:.3g}",
        f"{r['sent_dcn'] / gib:.3g}",
        f"{r['overlapped_s']:.3g} ({r['bound']}), {r['serial_s']:.3g}",
        share,
        f"{r['compile_s']:.0f} ({r['compile_cpu_s']:.0f})",
        f"{r['peak_rss'] / gib:.1f}",
    ]


def _sends(r: dict[str, Any]) -> str:
    """Return the collectives of a program that send the most bytes, as text."""
    most = [c for c in r.get("collectives", []) if c["sent"] > 0.01 * (r["sent_ici"] + r["sent_dcn"])][:6]
    return "; ".join(f"{c['kind']} {'+'.join(c['axes'])} {report.size(c['sent'])}" for c in most)


_COLUMNS = (
    *("program", "peak of HBM, GiB", "arguments + temporaries", "TFLOPs (needed by model)", "moved, GiB", "ICI, GiB"),
    *("DCN, GiB", "seconds overlapped, not overlapped", "of the step", "compile s (CPU)", "RSS, GiB"),
)


def _section(row: Row, records: Records) -> list[str]:
    programs = {name: records.get(f"{row.name}: {name}", {"error": "not compiled"}) for name in row.programs}
    phases = [programs[n].get("overlapped_s", 0) for n in ("rollout", "update")]
    total = sum(phases) if all(phases) else 0
    kind, _ = topology.read(row.topology)
    mesh = ", ".join(f"{k.removeprefix('mesh.')} {v}" for k, v in row.settings.items() if k.startswith("mesh."))
    cells = [_cells(name, r, total) for name, r in programs.items()]
    rows, tokens = row.prompts * 8, row.prompts * 8 * LENGTHS[1]
    lines = [
        f"## {row.name}",
        "",
        f"{rows} rows ({row.prompts} prompts x 8) of {LENGTHS[0]} + {LENGTHS[1]} tokens, mesh {mesh}; "
        f"a {kind.name} chip has {kind.hbm / 2**30:.0f} GiB and {kind.flops / 1e12:.0f} TFLOP/s."
        + (f" At most {tokens / total:,.0f} completion tokens per second." if total else ""),
        "",
        *tables.Table(_COLUMNS, cells, left=len(_COLUMNS)).markdown(),
        "",
        *(f"- {name} sends {_sends(r)}" for name, r in programs.items() if _sends(r)),
        "",
        f"    python tpu/compile.py {shlex.join(row.command())}",
        "",
    ]
    return lines


_HEAD = """\
# Steps compiled ahead of time for TPUs

Generated by `python tpu/compile.py --page` (`--rows "v5e:2x2,scaling"` updates some rows); do not edit. Every program
was compiled by the TPU compiler on a machine without a TPU, each in a separate process. Memory is what the compiler
allocates on one chip; it rejects programs that do not fit. The peak is what is live at once; temporaries are all the
space reserved, including gaps. Nothing was run: seconds are lower bounds, not measurements.

{assumptions}

The share needed by the model is 2 N per token forward and 4 N backward, plus attention, divided by the operations
counted; below 100 %, something is recomputed (the backward pass recomputes each layer and the logits). `score` is one
forward pass over the rows, which this algorithm does not use; for an algorithm with a reference policy it is part of
the update. The share of the step is between rollout and update. Compile seconds are wall time and, in parentheses, CPU
time of the compiling process, on two cores that were shared with other work; RSS is the peak of that process.

{rows}
## From 4 to 512 chips

![bytes sent and memory by number of chips](scaling.png)

{scaling}
"""


def page(records: Records) -> str:
    """Return the page as Markdown."""
    sections = [line for row in ROWS for line in _section(row, records)]
    table = scaling.table(records)
    return _HEAD.format(assumptions=report.ASSUMPTIONS, rows="\n".join(sections), scaling=table)
