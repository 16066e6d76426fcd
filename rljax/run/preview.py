"""What a run would do: ``python -m rljax --config CONFIG --check``.

Everything is resolved as for the run: config, task, data, tokenizer, headers of public weights, and the work directory.
The programs of each phase are traced with abstract arguments, on simulated CPU devices. Nothing is compiled, trained or
written.
"""

import math
import os
from typing import Any

import jax

from rljax import algorithms
from rljax.config import resolve, schema
from rljax.data import tokenizers
from rljax.host import workdirs
from rljax.language import messages
from rljax.run import programs, sharding
from rljax.run.records import checkpoints, forks, identity
from rljax.training import traces
from rljax.training.learning import splits


def lines(
    config: schema.ConfigDict, workdir: str | os.PathLike[str], devices: int = 0, allow_config_change: bool = False
) -> list[str]:
    """Check a run.

    Args:
      config: the config.
      workdir: its work directory, which is only read.
      devices: number of devices to assume; 0: the product of the sizes in ``config.mesh``, where -1 counts as 1.
      allow_config_change: whether the work directory may have a run of another config.

    Returns:
      The lines to print.

    Raises:
      ValueError: the run would be refused.
    """
    resolved = resolve.run(forks.complete(config))
    directory = workdirs.WorkDirectory(workdir)
    identity.check(directory, resolved.config, resolved.code, allow_config_change)
    simulated = resolved.config.copy_and_resolve_references()
    sizes = resolved.settings.mesh
    simulated.cpu_devices = devices or math.prod(max(1, size) for size in sizes.axes.values()) + sizes.rollout
    if simulated.model.kind == "transformer":
        simulated.model.scan = True  # shapes are the same, and the layers are traced once
    jax.config.update("jax_platforms", "cpu")
    stored = directory.read("tokenizer.model")
    program = programs.build(simulated, None if stored is None else tokenizers.load(stored))
    mesh = ", ".join(f"{axis} {size}" for axis, size in program.mesh.shape.items() if size > 1)
    out = [
        f"config          {config.name}, seed {program.settings.seed}",
        f"work directory  {workdir}: {_progress(program, directory)}",
        f"devices         {program.mesh.size} assumed ({mesh or 'alone'})"
        + f", and {sizes.rollout} that sample" * bool(sizes.rollout),
        f"parameters      {', '.join(sharding.modules(*(step.shape for step in program.steps)))}",
        f"vocabulary      {program.tokenizer.vocabulary:,} tokens",
    ]
    for phase, step in zip(program.phases, program.steps, strict=True):
        out += _phase(phase, step)
    return [*out, "checked: nothing was compiled, trained or written"]


def _progress(program: programs.Program, directory: workdirs.WorkDirectory) -> str:
    """Return where the run would start."""
    with checkpoints.Checkpointer(directory.path / "checkpoints") as saved:
        step = saved.latest_step()
    if step is None:
        return f"new, {program.updates} steps"
    if step >= program.updates:
        return f"finished at step {step} of {program.updates}; nothing would be run"
    return f"resumes after step {step} of {program.updates}"


def _unit(setup: programs.Setup) -> str:
    """Return what the samples of a prompt are."""
    each = setup.rows_of_episode
    return "samples" if setup.world is None and each == 1 else f"episodes x {each} row{'s' * (each != 1)}"


def _world(setup: programs.Setup) -> list[str]:
    """Return a line on the world of a phase, if its task is one."""
    world = setup.world
    if world is None:
        return []
    seats, rows = world.seats, "a row for each turn" if world.rows == "chapters" else "a row for each seat"
    players = ", ".join(setup.settings.world.players)
    lengths = f"up to {world.max_turns} turns of {world.turn_length} tokens and replies of {world.reply_length}"
    return [f"  world         {seats} seat{'s' * (seats != 1)}, {lengths}; {rows}; players: {players}"]


def _phase(phase: programs.Phase, step: Any) -> list[str]:
    """Trace the programs of a phase and describe it."""
    setup, settings = step.setup, phase.settings
    names = traces.names(step)
    for name in ["fused"] if "fused" in names else names:
        traces.trace(step, name)
    sizes = sharding.sizes(step.shape)
    memory = ", ".join(f"{part} {messages.size(count)}" for part, count in sizes.items() if count >= 1024)
    held_out = min(settings.evaluation.final_prompts, setup.task.size("heldout"))
    evaluation = f"{held_out} prompts x {settings.evaluation.final_samples} samples"
    ends = " and ".join(end for end, name in (("start", phase.start.before), ("end", phase.start.evaluate)) if name)
    return [
        "",
        f"phase {phase.name}: steps {phase.first + 1} to {phase.last}, {phase.algorithm.spec}",
        f"  task          {settings.task}: {setup.task.size('train'):,} problems, and "
        f"{setup.task.size('heldout'):,} held out",
        f"  a step        {setup.prompts} prompts x {settings.batch.samples} {_unit(setup)} = {setup.rows} rows "
        f"of up to {setup.task.prompt_length} + {setup.task.completion_length} tokens",
        *_world(setup),
        *(f"  {line}" for line in splits.over_devices(setup)),
        f"  evaluation    {f'{evaluation} at the {ends}' if ends else 'none at the start or the end'}",
        f"  state         {messages.size(sum(sizes.values()))} on each device ({memory}), without activations",
        *algorithms.describe(setup.algorithm).splitlines()[1:],
        *(f"  {remark}" for remark in programs.remarks(step)),
    ]
