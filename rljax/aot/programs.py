"""The programs of a step, traced with abstract arguments and compiled for a topology."""

import contextlib
import dataclasses
import re
import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache

from rljax import types
from rljax.aot import flops, topology
from rljax.bench import shapes
from rljax.config import files, schema
from rljax.language import parse
from rljax.run import programs
from rljax.training import phases, sharding, steps

NAMES = ("rollout", "score", "update", "fused")
_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


class DoesNotFitError(Exception):
    """A program that needs more memory than a chip has."""


@dataclasses.dataclass(frozen=True)
class Compiled:
    """A program of a step as the compiler left it; bytes are of one device."""

    name: str
    lower_s: float
    compile_s: float
    compile_cpu_s: float  # of all threads of this process
    flops: float  # of all devices together
    arguments: int
    outputs: int
    temporaries: int
    aliased: int
    peak: int
    text: str


def make(config: schema.ConfigDict, target: topology.Topology, tokens: tuple[int, int] | None = None) -> steps.Step:
    """Return the step of a config's last phase on a topology.

    ``tokens`` (of a prompt, of a completion) stand in for the config's task, whose files then need not be there.

    Raises:
      ValueError: what the config says does not fit the topology, or its task cannot be read here.
    """
    config = files.last_phase(config)
    if tokens is None:
        try:
            return programs.build(config, devices=target.devices).steps[-1]
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and "config.task" not in str(error):
                raise
            raise ValueError(f"{error}. --prompt_length and --completion_length stand in for a task.") from error
    config.task = schema.default().task  # not used, and needs no file
    tokenizer: Any = shapes.Tokens(config.model.vocabulary) if config.model.vocabulary else None
    return programs.build(config, tokenizer, devices=target.devices, task=shapes.Filler(*tokens)).steps[-1]


def names(step: steps.Step) -> list[str]:
    """Return the programs that a step has."""
    sampled = step.setup.algorithm.source.origin == "policy"
    return ["rollout"] * sampled + ["score", "update"] + ["fused"] * (step.fused is not None)


def blocks(step: steps.Step) -> float:
    """Return how many blocks of its cache decoding reads for a token, on average, where every row is full."""
    columns = max(1, step.setup.task.completion_length - 1)
    block = step.setup.settings.sampler.cache_block or columns
    return sum(column // block + 1 for column in range(columns)) / columns


def assumed(step: steps.Step) -> flops.Assumed:
    """Return what is taken of a step's work where shapes do not say."""
    return flops.Assumed(blocks(step), step.setup.networks["policy"].architecture.experts)


def _prompts(step: steps.Step) -> types.Prompts:
    """Return the prompts of a step, abstract."""
    setup = step.setup
    count, length = setup.prompts * setup.algorithm.source.oversample, setup.task.prompt_length
    return jax.eval_shape(
        lambda: types.Prompts(
            jnp.zeros((count, length), jnp.int32), jnp.zeros((count, length)), jnp.zeros((count,), jnp.int32)
        )
    )


def _by_rows(step: steps.Step, tree: types.Tree) -> types.Tree:
    """Lay abstract arrays out by their rows, as a step leaves them."""
    mesh = step.setup.mesh
    rows, whole = sharding.batch_sharding(mesh), sharding.replicated(mesh)

    def lay(x: Any) -> jax.ShapeDtypeStruct:
        try:
            layout = rows if x.ndim else whole
            layout.shard_shape(x.shape)
        except ValueError:  # rows that do not divide
            layout = whole
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)

    return jax.tree.map(lay, tree)


def _arguments(step: steps.Step) -> tuple[Any, ...]:
    prompts = _prompts(step)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    return step.shape.params["policy"], scalar, prompts.index, _by_rows(step, prompts), _KEY


def trace(step: steps.Step, name: str) -> Any:
    """Return a program of a step, traced.

    Raises:
      ValueError: there is no such program, or this step does not have it.
    """
    if name not in NAMES:
        raise ValueError(f"program {name!r}.{parse.nearest(name, NAMES)}")
    if name not in names(step):
        raise ValueError(f"program {name!r}: this step has {', '.join(names(step))}.")
    if name == "rollout":
        return step.sample.trace(*_arguments(step))
    if name == "fused":
        assert step.fused is not None
        return step.fused.trace(step.shape, _KEY)
    rows = _by_rows(step, jax.eval_shape(step.sample, *_arguments(step)))
    if name == "update":
        return step.update.trace(step.shape, rows, _KEY)
    count = step.setup.rows  # what is trained on, where the source draws more
    rows = jax.tree.map(lambda x: x.update(shape=(count, *x.shape[1:])) if x.ndim else x, rows)
    return jax.jit(lambda params, rows: _score(step.setup, params, rows)).trace(step.shape.params["policy"], rows)


def _score(setup: phases.Setup, params: types.Tree, rows: types.Rollout) -> types.Array:
    """Score rows once, a micro-batch at a time: what a reference or a proximal policy costs."""

    def one(rows: types.Rollout) -> types.Array:
        found = phases.score(setup, "policy", params, rows, types.Needs(), kept=False).logp
        assert found is not None
        return found

    if setup.learner.microbatches == 1:
        return one(rows)
    split = jax.tree.map(lambda x: x.reshape((setup.learner.microbatches, -1, *x.shape[1:])), rows)
    return jax.lax.map(one, sharding.constrain(split, setup.mesh, leading=1))


@contextlib.contextmanager
def uncached() -> Iterator[None]:
    """Keep programs for chips that are not there out of the compilation cache: no machine here could load them."""
    before = jax.config.values["jax_enable_compilation_cache"]
    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # it remembers whether it is in use
    try:
        yield
    finally:
        jax.config.update("jax_enable_compilation_cache", before)
        compilation_cache.reset_cache()


def compile_one(step: steps.Step, name: str, target: topology.Topology) -> Compiled:
    """Trace, lower and compile a program of a step.

    Raises:
      DoesNotFitError: it needs more memory than a chip has.
    """
    start, limit = time.perf_counter(), target.kind.share().hbm
    traced = trace(step, name)
    held = sum(map(_own_bytes, jax.tree.leaves(_state(step, name))))
    if held > limit:
        said = f"its arguments alone are {held / 2**30:.1f} GiB, and a chip has {limit / 2**30:.0f} GiB"
        raise DoesNotFitError(_too_large(step, name, target, traced, said))
    operations = flops.of_jaxpr(traced.jaxpr, assumed(step))
    lowered = traced.lower()
    middle, busy = time.perf_counter(), time.process_time()
    with uncached():
        try:
            compiled = lowered.compile()
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            raise DoesNotFitError(_too_large(step, name, target, traced, str(error))) from error
    end, done = time.perf_counter(), time.process_time()
    memory = compiled.memory_analysis()
    found = Compiled(
        name=name,
        lower_s=middle - start,
        compile_s=end - middle,
        compile_cpu_s=done - busy,
        flops=operations,
        arguments=memory.argument_size_in_bytes,
        outputs=memory.output_size_in_bytes,
        temporaries=memory.temp_size_in_bytes,
        aliased=memory.alias_size_in_bytes,
        peak=memory.peak_memory_in_bytes,
        text=compiled.as_text(),
    )
    if found.peak > limit:
        said = f"its peak is {found.peak / 2**30:.1f} GiB, and a chip has {limit / 2**30:.0f} GiB"
        raise DoesNotFitError(_too_large(step, name, target, traced, said))
    return found


def _too_large(step: steps.Step, name: str, target: topology.Topology, traced: Any, said: str) -> str:
    """Return what to say of a program that does not fit: by how much, and what in it is large."""
    count = len(target.devices)
    sizes = re.search(r"\(?([\d.]+[KMGT])\)? exceeds available \w+ \(([\d.]+[KMGT])\)", said)
    needs = f"it needs {sizes[1]}, and a chip has {sizes[2]}" if sizes else said.splitlines()[0]
    lines = [f"{name} does not fit {target.name}: {needs} (bytes of one chip).", "Its largest arguments, of one chip:"]
    leaves = [(p, x) for p, x in jax.tree_util.tree_leaves_with_path(_state(step, name)) if x.ndim]
    own = [(_own_bytes(x), jax.tree_util.keystr(p, simple=True, separator="."), x) for p, x in leaves]
    for size, path, x in sorted(own, key=lambda o: -o[0])[:5]:
        lines.append(f"  {size / 2**30:8.2f} GiB  {path} {x.dtype}{list(x.shape)} {x.sharding.spec}")
    lines.append(f"Its largest intermediate arrays, of all {count} devices together (each alone is spread or not):")
    for shape, size, line in flops.largest(traced.jaxpr, 8):
        lines.append(f"  {size / 2**30:8.2f} GiB  {shape}  {line}")
    lines.append(
        "More micro-batches, a smaller batch, more chips, or another mesh; see learner.* and mesh.* of the config."
    )
    return "\n".join(lines)


def _state(step: steps.Step, name: str) -> Any:
    """Return what a program is given of the state."""
    return step.shape if name in ("update", "fused") else {"policy": step.shape.params["policy"]}


def _own_bytes(x: Any) -> int:
    size = x.dtype.itemsize
    for n in x.sharding.shard_shape(x.shape):
        size *= n
    return size
