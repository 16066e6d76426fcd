"""The programs of a step, traced with abstract arguments and compiled ahead of time for a topology."""

import contextlib
import dataclasses
import pathlib
import re
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax.experimental.compilation_cache import compilation_cache

from rljax import types
from rljax.aot import hlo, live, topology
from rljax.bench import shapes
from rljax.config import files, schema
from rljax.host import flops, memory
from rljax.language import parse
from rljax.models.network import reads
from rljax.run import programs
from rljax.training import phases, steps, traces
from rljax.training.learning import gradients

SAMPLED = ("rollout", "part")
NAMES = ("rollout", "score", "update", "fused", *traces.PARTS)


class DoesNotFitError(Exception):
    """A program needs more memory than a chip has."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A compiled program of a step.

    Attributes:
      name: one of ``NAMES``.
      lower_s: seconds to trace and lower it.
      compile_s: seconds to compile it.
      compile_cpu_s: CPU seconds of all threads of this process during compilation.
      flops: floating-point operations of all devices together.
      arguments: bytes of its arguments, on one device, as the following.
      outputs: bytes of its outputs.
      temporaries: bytes reserved for temporaries.
      aliased: bytes of outputs that reuse arguments.
      peak: the largest number of bytes live at once.
      text: optimized HLO.
      buffers: what is live at the peak; none if the compiler does not write it.
    """

    name: str
    lower_s: float
    compile_s: float
    compile_cpu_s: float
    flops: float
    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    peak: int
    text: str
    buffers: tuple[live.Buffer, ...] = ()


def make(
    config: schema.ConfigDict, target: topology.Topology, tokens: tuple[int, int] | None = None
) -> programs.Program:
    """Return a config's last phase on a topology, as a program of one phase.

    Args:
      config: a config.
      target: the topology.
      tokens: the lengths of prompts and completions in tokens, which replace the config's task; its files are then
        not needed. None uses the task.

    Returns:
      The program, on the devices of the topology.

    Raises:
      ValueError: the config does not fit the topology, or its task cannot be read on this machine.
    """
    config = files.last_phase(config)
    hosts = len({device.process_index for device in target.devices})
    if config.mesh.rollout and target.kind.dims == 2 and hosts > 1:  # the compiler fails, or aborts
        raise ValueError(
            f"config.mesh.rollout={config.mesh.rollout}: {target.name} has {hosts} hosts, and the compiler of "
            f"{target.kind.name} takes programs on some chips of one host alone. To fix: 0, or --target "
            f"{target.kind.name}:2x2."
        )
    if tokens is None:
        try:
            return programs.build(config, devices=target.devices)
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and "config.task" not in str(error):
                raise
            raise ValueError(f"{error}. To fix: set --prompt_length and --completion_length.") from error
    config.task, config.phase[config.phases[-1]].task = schema.default().task, None  # unused; it needs no files
    tokenizer: Any = shapes.Tokens(config.model.vocabulary) if config.model.vocabulary else None
    return programs.build(config, tokenizer, devices=target.devices, task=shapes.Filler(*tokens))


def blocks(step: steps.Step) -> hlo.Assumed:
    """Return how many cache blocks decoding reads per token, and how often it reads one beside the first.

    These are averages over a completion of full length. Stacked layers read blocks in a loop; otherwise each block
    but the first is read under a condition, or a kernel reads the columns in use.
    """
    columns = max(1, step.setup.task.completion_length - 1)
    block = step.setup.settings.sampler.cache_block or columns
    used, most = sum(column // block + 1 for column in range(columns)) / columns, -(-columns // block)
    width = -(-columns // reads.COLUMNS)
    read = sum(column // reads.COLUMNS + 1 for column in range(columns)) / columns / width
    return hlo.Assumed(used, (used - 1) / (most - 1) if most > 1 else 1.0, read)


def assumed(step: steps.Step) -> flops.Assumed:
    """Return the assumptions about a step's work where shapes do not determine it."""
    return flops.Assumed(blocks(step).trips, step.setup.networks["policy"].architecture.experts)


def names(step: steps.Step) -> list[str]:
    """Return the names of the programs that are compiled of a step."""
    run = traces.names(step)
    return [*(n for n in run if n in SAMPLED), "score", *(n for n in run if n not in SAMPLED)]


def check(step: steps.Step, name: str) -> None:
    """Raise ValueError for an unknown program, or one that this step does not have."""
    if name not in NAMES:
        raise ValueError(f"program {name!r}.{parse.nearest(name, NAMES)}")
    if name not in names(step):
        count = step.setup.settings.mesh.rollout
        reason = f", as config.mesh.rollout={count} sample" if count else ""
        reason += ", as config.run.overlap=True" if step.setup.overlapped else ""
        raise ValueError(f"program {name!r}: this step has {', '.join(names(step))}{reason}.")


def trace(step: steps.Step, name: str) -> Any:
    """Trace a program of a step, or "score"; raises the errors of ``check``."""
    check(step, name)
    if name != "score":
        return traces.trace(step, name)
    count = step.setup.rows  # rows trained on; the source may oversample
    rows = jax.tree.map(lambda x: x.update(shape=(count, *x.shape[1:])) if x.ndim else x, traces.rows(step))
    return jax.jit(lambda params, rows: _score(step.setup, params, rows)).trace(step.shape.params["policy"], rows)


def _score(setup: phases.Setup, params: types.Tree, rows: types.Rollout) -> types.Array:
    """Score the rows once, a micro-batch at a time: the cost of a reference or proximal policy."""

    def one(rows: types.Rollout) -> types.Array:
        logp = phases.score(setup, "policy", params, rows, types.Needs(), kept=False).logp
        assert logp is not None
        return logp

    return gradients.map_rows(one, rows, setup)


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Disable the compilation cache: programs compiled for another machine cannot be loaded on this one."""
    previous = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # jax caches whether the cache is enabled
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", previous)
        compilation_cache.reset_cache()


def compile_one(step: steps.Step, name: str, target: topology.Topology) -> Compiled:
    """Trace, lower and compile a program of a step.

    Args:
      step: a step on the devices of ``target``.
      name: one of ``names(step)``.
      target: the topology.

    Returns:
      The compiled program with its times, operations and memory.

    Raises:
      DoesNotFitError: the program needs more memory than a chip has.
    """
    start, limit = time.perf_counter(), target.kind.share().hbm
    traced = trace(step, name)
    held = memory.held(_state(step, name))
    if held > limit:
        reason = f"its arguments alone are {held / 2**30:.1f} GiB, and a chip has {limit / 2**30:.0f} GiB"
        raise DoesNotFitError(_too_large(step, name, target, traced, reason))
    operations = flops.of_jaxpr(traced.jaxpr, assumed(step))
    lowered = traced.lower()
    lowered_at, cpu_start = time.perf_counter(), time.process_time()
    with uncached(), tempfile.TemporaryDirectory() as folder:
        try:
            compiled = lowered.compile(compiler_options={"xla_dump_to": folder})
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DoesNotFitError(_too_large(step, name, target, traced, str(error))) from error
        buffers = live.at_peak(pathlib.Path(folder))
    end, cpu_end = time.perf_counter(), time.process_time()
    sizes = compiled.memory_analysis()
    program = Compiled(
        name=name,
        lower_s=lowered_at - start,
        compile_s=end - lowered_at,
        compile_cpu_s=cpu_end - cpu_start,
        flops=operations,
        arguments=sizes.argument_size_in_bytes,
        outputs=sizes.output_size_in_bytes,
        temporaries=sizes.temp_size_in_bytes,
        aliased=sizes.alias_size_in_bytes,
        peak=sizes.peak_memory_in_bytes,
        text=compiled.as_text(),
        buffers=buffers,
    )
    if program.peak > limit:
        reason = f"its peak is {program.peak / 2**30:.1f} GiB, and a chip has {limit / 2**30:.0f} GiB"
        text = program.text.replace("S(1)", "") if target.kind.gpu else program.text
        held = live.causes(buffers, hlo.parse(text), step, program.peak)
        raise DoesNotFitError(_too_large(step, name, target, traced, reason, held))
    return program


def _too_large(
    step: steps.Step, name: str, target: topology.Topology, traced: Any, reason: str, held: dict[str, int] | None = None
) -> str:
    """Return the error message of a program that does not fit: the sizes, the peak by cause, and its largest arrays."""
    count = len(target.devices)
    sizes = re.search(r"\(?([\d.]+[KMGT])\)? exceeds available \w+ \(([\d.]+[KMGT])\)", reason)
    needs = f"it needs {sizes[1]}, and a chip has {sizes[2]}" if sizes else reason.splitlines()[0]
    lines = [f"{name} does not fit {target.name}: {needs} (bytes on one chip)."]
    lines += ["At its peak:"] * bool(held)
    lines += [f"  {size / 2**30:8.2f} GiB  {cause}" for cause, size in (held or {}).items()]
    lines.append("Its largest arguments, on one chip:")
    leaves = [(p, x) for p, x in jax.tree_util.tree_leaves_with_path(_state(step, name)) if x.ndim]
    arguments = [(memory.held(x), jax.tree_util.keystr(p, simple=True, separator="."), x) for p, x in leaves]
    for size, path, x in sorted(arguments, key=lambda argument: -argument[0])[:5]:
        lines.append(f"  {size / 2**30:8.2f} GiB  {path} {x.dtype}{list(x.shape)} {x.sharding.spec}")
    lines.append(f"Its largest intermediate arrays, on all {count} devices together (sharded or not):")
    for shape, size, line in flops.largest(traced.jaxpr, 8):
        lines.append(f"  {size / 2**30:8.2f} GiB  {shape}  {line}")
    lines.append(
        "To fix: use more micro-batches, a smaller batch, more chips or another mesh (learner.*, batch.* and mesh.*)."
    )
    return "\n".join(lines)


def _state(step: steps.Step, name: str) -> Any:
    """Return the part of the state that a program takes."""
    return step.shape if name not in (*SAMPLED, "score") else {"policy": step.shape.params["policy"]}
