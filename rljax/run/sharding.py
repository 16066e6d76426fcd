"""Print the sharding of a config's train state over a mesh.

    python -m rljax sharding CONFIG [--devices N] [--set FIELD=VALUE]
    python -m rljax sharding quickstart --devices 8 --set mesh.fsdp=8

For each array: its shape with the mesh axes that split each dimension, its bytes per device, and the mesh axes over
which it is replicated. Then the memory of rollout weights, and the reasons for each replication. Nothing is computed or
compiled, so ``--devices 256`` runs on any machine.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from absl import flags

from rljax import types
from rljax.config import files
from rljax.host import memory
from rljax.language import messages, parse
from rljax.models import layouts
from rljax.run import programs
from rljax.training import sharding
from rljax.training.learning import splits

_LARGE = 1 << 20  # bytes: smaller replicated arrays are summarized
_ACTIVATIONS = ("rows", "positions", "attending", "drawing")
_AXIS = {
    "data": "data replicates the state: its devices exchange gradients only",
    "sequence": "sequence splits positions, and parameters have none",
}


class Row(NamedTuple):
    """An array of the state."""

    name: str
    shape: str  # each dimension, with the mesh axes that split it
    bytes: int  # per device
    copied: tuple[str, ...]  # mesh axes over which it is replicated
    names: tuple[str | None, ...]  # logical axes of a parameter


def rows(state: types.TrainState, axes: dict[str, Any]) -> list[Row]:
    """Describe every array of an abstract state; ``axes`` contains the logical axes of each module's parameters."""
    logical = {
        f"params.{module}.{_name(path)}": names
        for module, tree in axes.items()
        for path, names in jax.tree_util.tree_leaves_with_path(tree, is_leaf=lambda x: isinstance(x, tuple))
    }
    described = []
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        mesh, spec = leaf.sharding.mesh, [*leaf.sharding.spec, *[None] * leaf.ndim]
        split = [axes if isinstance(axes, tuple) else (axes,) if axes else () for axes in spec[: leaf.ndim]]
        used = [[f"{axis} {mesh.shape[axis]}" for axis in axes if mesh.shape[axis] > 1] for axes in split]
        shape = ", ".join(f"{n} / ({' x '.join(by)})" if by else str(n) for n, by in zip(leaf.shape, used, strict=True))
        splitting = {axis for axes in split for axis in axes}
        copied = tuple(axis for axis, size in mesh.shape.items() if size > 1 and axis not in splitting)
        size = memory.held(leaf)
        name = _name(path)
        described.append(Row(name, f"[{shape}] {leaf.dtype}", size, copied, _like(name, leaf, logical)))
    return described


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".")


def _like(name: str, leaf: Any, logical: dict[str, tuple[str | None, ...]]) -> tuple[str | None, ...]:
    """Return the logical axes of a parameter, of its reference or of its optimizer moments."""
    for whole, names in logical.items():
        if name.endswith(whole.split(".", 2)[2]) and len(names) == leaf.ndim:
            return names
    return ()


def why(row: Row) -> str:
    """Return the reasons why an array is replicated."""
    others = [axis for axis in row.copied if axis not in _AXIS]
    reasons = [_AXIS[axis] for axis in row.copied if axis in _AXIS]
    if others:
        wanted = [n for n, to in sharding.RULES.items() if n and set(others) & set(to) and n not in _ACTIVATIONS]
        has = ", ".join(str(name) for name in row.names) or "a number"
        reasons.append(f"{', '.join(others)} split {' or '.join(wanted)}, and this array has only ({has})")
    return "; ".join(reasons)


def sizes(state: types.TrainState) -> dict[str, int]:
    """Return the bytes per device of each field of an abstract state."""
    total: dict[str, int] = {}
    for row in rows(state, {}):
        part = row.name.split(".")[0]
        total[part] = total.get(part, 0) + row.bytes
    return total


def modules(*states: types.TrainState) -> list[str]:
    """Return the parameters of each module of some abstract states, and their memory on each device."""
    trees = {name: tree for state in states for name, tree in {**state.params, **state.frozen}.items()}
    return [
        f"{name} {sum(leaf.size for leaf in jax.tree.leaves(tree)):,} ({messages.size(memory.held(tree))})"
        for name, tree in trees.items()
    ]


def resident(program: programs.Program, policy: Any) -> tuple[int, int]:
    """Return the bytes per device of the weights of a "resident" rollout, and how many of them are gathered."""
    layout, wide = sharding.Layout(program.mesh, "resident"), jnp.dtype(program.policy.architecture.dtype).itemsize
    total = gathered = 0
    axes = jax.tree.leaves(program.policy.axes, is_leaf=lambda x: isinstance(x, tuple))
    for leaf, names in zip(jax.tree.leaves(policy), axes, strict=True):
        update = math.prod(leaf.sharding.shard_shape(leaf.shape)) * wide
        rollout = leaf.size // layouts.parts(layout, leaf.shape, names) * wide
        total, gathered = total + rollout, gathered + max(0, rollout - update)
    return total, gathered


def page(program: programs.Program) -> str:
    """Return the report on the last phase of a program."""
    state = program.steps[-1].shape
    arrays = rows(state, {module: program.model(module).axes for module in (*state.params, *state.frozen)})
    mesh = ", ".join(f"{axis} {size}" for axis, size in program.mesh.shape.items() if size > 1)
    width = max(len(row.name) for row in arrays)
    lines = [f"{program.settings.name}: {program.mesh.size} devices ({mesh or 'alone'})", ""]
    for row in arrays:
        copied = f"copied over {', '.join(row.copied)}" if row.copied else ""
        lines.append(f"{row.name:{width}}  {messages.size(row.bytes):>10}  {row.shape}  {copied}".rstrip())
    lines += ["", "on each device"]
    lines += [f"  {part:13}{messages.size(count):>10}" for part, count in sizes(state).items()]
    lines.append(f"  {'total':13}{messages.size(sum(row.bytes for row in arrays)):>10}")
    if program.settings.model.kind == "transformer":
        total, gathered = resident(program, state.params["policy"])
        dtype, layout = program.policy.architecture.dtype, program.phases[-1].settings.sampler.layout
        lines += ["", f"weights of a rollout, in {dtype} (sampler.layout={layout!r})"]
        if layout == "update":
            lines.append("  sharded as above; axes fsdp and expert are gathered for every token, a layer at a time")
        moved = f"of which {messages.size(gathered)} are gathered, once per rollout"
        lines.append(f"  {'resident':13}{messages.size(total):>10}, {moved}")
    if program.rollout is not None:
        moved = memory.held(program.sampler.steps[-1].shape.params["policy"])
        lines.append(
            f"  moved to each of the {program.rollout.size} devices that sample, every step: {messages.size(moved)}"
        )
    lines += ["", *splits.over_devices(program.steps[-1].setup)]
    copied = [row for row in arrays if row.copied]
    large = [row for row in copied if row.bytes > _LARGE]
    lines += ["", f"copied, and why: {len(copied)} arrays, {len(large)} of them above 1 MiB per device"]
    lines += [f"  {row.name}: {why(row)}" for row in large]
    if len(copied) > len(large):
        small = [row for row in copied if row.bytes <= _LARGE]
        lines.append(f"  {len(small)} small arrays, {messages.size(sum(row.bytes for row in small))} in total:")
        lines += [f"    {reason}" for reason in dict.fromkeys(why(row) for row in small)]
    return "\n".join(lines)


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_integer("devices", 0, "Number of devices to assume; 0: those of this machine.", lower_bound=0)
    flags.DEFINE_multi_string("set", [], "field=value, such as mesh.tensor=4.")


def main(argv: Sequence[str]) -> None:
    """Print the report on a config."""
    f = flags.FLAGS
    meaning = "the path of a config file or the name of a shipped config, and :argument"
    config = files.load(*messages.argument(argv, meaning).split(":", 1))
    for edit in f.set:
        files.override(config, *parse.setting(edit))
    if f.devices:
        jax.config.update("jax_platforms", "cpu")
        config.cpu_devices = f.devices
    print(page(programs.build(config)))
