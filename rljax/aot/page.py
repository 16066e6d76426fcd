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
from typing import Any

from rljax.aot import report, scaling, topology
from rljax.run.reports.pages import tables

_FOLDER = pathlib.Path(__file__).parents[2] / "tpu"
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
      label: what sets it apart from other rows of the model and the topology.
      lengths: tokens of a prompt and of a completion; a row with a task has the task's instead.
    """

    model: str
    topology: str
    prompts: int
    settings: dict[str, Any]
    slices: int = 1
    programs: tuple[str, ...] = ("rollout", "update")
    common: dict[str, Any] = dataclasses.field(default_factory=_SETTINGS.copy)
    label: str = ""
    lengths: tuple[int, int] = LENGTHS

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


# A conversation of 64 turns, each a few moves and the answer of the world: 70 + 954 tokens.
_MAZE = {"task": "maze(side=8, moves=8, view='ways', turns=64)", "tokenizer.kind": "char"}

_ADAPTERS = {
    **{"model.adapter_rank": 16, "model.adapter_modules": "('query','key','value','attention_output')"},
    **{"model.param_dtype": "bfloat16", "learner.microbatches": 16},
}

# GPUs: cudnn's attention, and a kernel for that of decoding; a micro-batch has the completions of one prompt for each
# GPU.
_OF_GPUS = {"model.attention": "cudnn", "learner.microbatches": 8, "model.decode_attention": "kernel"}
GPU_ROWS = (
    *(
        Row(model, target, prompts, settings, common=_OF_GPUS, label=label)
        for model, target, prompts, settings, label in (
            ("qwen2.5-0.5b", "h100:1", 8, {}, ""),
            ("qwen2.5-0.5b", "h100:8", 64, _mesh(fsdp=8), ""),
            ("qwen3-8b", "h200:8", 64, _mesh(fsdp=8), ""),
            ("qwen3-8b", "h200:8", 64, _mesh(fsdp=1, fsdp_tensor=8), "fsdp_tensor"),
            ("qwen3-8b", "h200:8", 64, _mesh(fsdp=4, tensor=2), "tensor"),
            ("qwen3-8b", "h200:8", 32, _mesh(fsdp=4, sequence=2), "sequence"),
            ("qwen3-8b", "h200:8", 64, {"model.adapter_rank": 16, **_mesh(fsdp=8)}, "LoRA"),
            ("qwen3-8b", "h200:8", 64, {"model.decode_weights": "int8", **_mesh(fsdp=8)}, "int8 sampler"),
            ("qwen3-8b", "h200:8", 64, {"algorithm": "ppo()", **_mesh(fsdp=8)}, "critic and reference"),
            ("qwen3-8b", "h100:8", 64, _mesh(fsdp=1, fsdp_tensor=8), ""),
            ("qwen3-8b", "b200:8", 64, _mesh(fsdp=8), ""),
            ("qwen3-8b", "h100:16x8", 1024, _mesh(data=16, fsdp=1, fsdp_tensor=8), ""),
            ("qwen2.5-32b", "h200:8", 64, _mesh(fsdp=1, fsdp_tensor=8), ""),
            ("qwen2.5-32b", "h100:16x8", 1024, _mesh(data=16, fsdp=1, fsdp_tensor=8), ""),
            ("qwen3-30b-a3b", "h200:8", 64, _mesh(fsdp=1, expert=8), ""),
            ("qwen3-30b-a3b", "h200:8", 64, {**_ADAPTERS, **_mesh(fsdp=4, sequence=2)}, "adapters of attention"),
        )
    ),
    Row("qwen3-8b", "h200:8", 64, {**_MAZE, **_mesh(fsdp=8)}, common=_OF_GPUS, label="world", lengths=(70, 954)),
)


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
            row = Row(scaling.MODEL, size, chips, _mesh(fsdp=chips), common=_OF_AN_UPDATE)
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


_HEAD = """\
# Steps compiled ahead of time for TPUs

Generated by `python -m rljax aot --page` (`--rows "v5e:2x2,scaling"` updates some rows); do not edit. Every program
was compiled by the TPU compiler on a machine without a TPU, each in a separate process. Memory is what the compiler
allocates on one chip; it rejects programs that do not fit. The peak is what is live at once; temporaries are all the
space reserved, including gaps. Nothing was run: seconds are lower bounds, not measurements.

{assumptions}

The share needed by the model is 2 N per token forward and 4 N backward, plus attention, divided by the operations
counted; below 100 %, something is recomputed (the backward pass recomputes each layer and the logits). `score` is one
forward pass over the rows, which this algorithm does not use; for an algorithm with a reference policy it is part of
the update. The share of the step is between rollout and update. Compile seconds are wall time and, in parentheses, CPU
time of the compiling process, on two cores that were shared with other work; RSS is the peak of that process. Programs
with a * were compiled before layers were gathered one by one and decoding was unrolled; [GPUS.md](GPUS.md) says what
that changed.

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


_GPU_HEAD = """\
# Steps compiled ahead of time for GPUs

Generated by `python -m rljax aot --page` (`--rows "h100:1"` updates some rows); do not edit. Every program was compiled
by XLA's GPU compiler (jax {jax}, jax-cuda12-plugin of the same version, `pip install -e '.[gpu_aot]'`) on a machine
without a GPU, from a description of the device ([gpus.toml](../rljax/aot/gpus.toml)), each in a separate process.
Kernels were not tuned, since that needs the device. The peak is what is live at once; all memory of the device is
counted as free, of which JAX takes 75 % unless XLA_PYTHON_CLIENT_MEM_FRACTION says more. Nothing was run: seconds are
lower bounds, not measurements. [TOPOLOGIES.md](TOPOLOGIES.md) explains the figures; "NVLink" is within a node, and
"network" between nodes, along `mesh.data` alone.

## What reading the compiler's answer changed

qwen3-8b, 64 prompts x 8 completions of 512 + 1024 tokens, mesh fsdp 8, 8 micro-batches, on 8 chips; GiB and seconds of
one. Weights are 15.3 GiB in bfloat16, the cache 9.6, the shards of the float32 parameters 3.8.

| target | program | peak | moved | sent | seconds overlapped, not overlapped |
| --- | --- | --- | --- | --- | --- |
{changes}

- Layers are converted on their shards and gathered one by one (`decode_params`): the compiler gathered float32, and
  kept a transposed copy beside each gathered array. The peak of a rollout on GPUs is 1.03 of parameters, weights and
  cache together.
- Decoding is unrolled (`sampler.unroll`): a loop over layers copied each layer's weights and cache out of the stacked
  arrays at every token. It compiles for minutes in place of seconds.
- A layer of an update gathers each matrix once forward and once for recomputation and gradients (`Layout.used`), where
  the compiler gathered for each product. The least that 8 micro-batches send is 2 gathers in bfloat16 and a
  reduce-scatter in float32 each: 427 GiB. The head still gathers its matrix 4 times for each.
- The fused step holds the state of the optimizer during the rollout: its peak is that of the rollout with this state.
- A loop over layers saved its weights for the backward pass, 3.5 GiB for qwen3-8b; now it reads its input again.
  Programs below that say what they hold at the peak were compiled since.
- The peak of an update is often at its end: where an update may be skipped, this compiler writes the new parameters and
  moments beside the old ones, which the TPU's does not.
- The product of rows with experts (`ragged_dot`) becomes an array of rows x experts x width here: a layer of
  qwen3-30b-a3b needs 188 GiB for 8,704 tokens of a GPU. Adapters of attention over half of the tokens fit, bound by
  what such arrays move. For TPUs there is no such array.
- `model.decode_attention="kernel"`: one kernel a layer reads the keys and values in use, in place of seven for each
  block of the cache. Of qwen2.5-0.5b on h100:1, a decoded token starts 492 kernels in place of 1,419, and a rollout
  moves 2,536 GiB in place of 3,212. Starting a kernel takes microseconds, which the roofline does not have. Rollouts
  below without a number of kernels were compiled before, without it, and count every block of the cache at every token.
- The head of an update has no kernel: it moves 437 GiB of 6,451, so that a kernel without any traffic would take 0.985
  of the update if nothing overlaps, and the same time if everything does.

{rows}"""

# What the programs of the section above were before and after, by target and program: peak, moved, sent, seconds.
_CHANGES = {
    ("h200:8", "rollout"): ("41.4 -> 29.6", "64,210 -> 30,958", "26.7 -> 13.4", "14.4, 15.5 -> 6.93, 8.08"),
    ("h200:8", "update"): ("28.6 -> 28.6", "6,470 -> 6,451", "511 -> 444", "3.99, 6.65 -> 3.99, 6.49"),
    ("h200:8", "fused"): ("50.2 -> 37.1", "70,678 -> 37,409", "538 -> 458", "15.8, 22.2 -> 8.37, 14.6"),
    ("v5p:2x2x2", "rollout"): ("28.7 -> 28.7", "21,312 -> 9,538", "13.4 -> 13.4", "8.28, 10.7 -> 3.70, 6.14"),
    ("v5p:2x2x2", "update"): ("28.1 -> 27.2", "13,793 -> 7,761", "545 -> 494", "9.32, 15.6 -> 9.32, 13.2"),
}


def gpu_page(records: Records) -> str:
    """Return the page of GPUs as Markdown."""
    sections = [line for row in GPU_ROWS for line in _section(row, records)]
    versions = sorted({r["jax"] for r in records.values() if "jax" in r})
    changes = [f"| {' | '.join((*program, *figures))} |" for program, figures in _CHANGES.items()]
    return _GPU_HEAD.format(jax=", ".join(versions), changes="\n".join(changes), rows="\n".join(sections))
