"""How the rows of a gradient step are split: into micro-batches, for the backward pass, and over devices."""

import dataclasses
from typing import Any

from jax.sharding import Mesh

from rljax import environments, models
from rljax.environments import traits
from rljax.training import phases, sharding

_TOKENS = 1024  # of a micro-batch on each CPU device: products are large enough, and activations stay in the cache
_SAVED = 2 << 30  # bytes of activations that the backward pass may keep without being asked


def divided(phase: phases.Phase, task: environments.Task, mesh: Mesh) -> phases.Phase:
    """Return a phase with its number of micro-batches, which ``learner.microbatches=0`` leaves open.

    It is then 1, and on a CPU the largest number of equal parts, of whole prompts and without idle devices, that have
    at least ``_TOKENS`` tokens on each device.

    Args:
      phase: the phase.
      task: its task, bound to the tokenizer.
      mesh: the mesh of the update.

    Returns:
      The phase.
    """
    learner = phase.settings.learner
    if learner.microbatches:
        return phase
    actor = traits.traits(task).actions is not None  # its activations are small
    batch, count = phase.settings.batch, 1
    each = [batch.prompts // m for m in _minibatches(phase)]  # prompts of a minibatch, of each objective
    even = not phase.algorithm.source.uneven and batch.prompts % max(_minibatches(phase)) == 0
    if mesh.devices.flat[0].platform == "cpu" and even and not actor:
        rows = batch.samples * traits.traits(task).rows_of_episode
        tokens = rows * task.completion_length + (1 if learner.share_prompt else rows) * task.prompt_length
        _, devices = sharding.spread(mesh, batch.prompts)
        fits = (n for n in range(min(each) * tokens // (_TOKENS * devices), 1, -1))
        count = next((n for n in fits if not any(prompts % (n * devices) for prompts in each)), 1)
    settings = dataclasses.replace(phase.settings, learner=dataclasses.replace(learner, microbatches=count))
    return dataclasses.replace(phase, settings=settings)


def remat(architecture: models.Architecture, phase: phases.Phase, task: environments.Task, mesh: Mesh) -> Any:
    """Return what the backward pass recomputes: "auto" is "none" if that fits into ``_SAVED`` a device.

    Args:
      architecture: of the network.
      phase: the phase, with its number of micro-batches.
      task: its task, bound to the tokenizer.
      mesh: the mesh of the update.

    Returns:
      A value of ``model.remat`` other than "auto".
    """
    if architecture.remat != "auto":
        return architecture.remat
    batch, learner = phase.settings.batch, phase.settings.learner
    length = task.prompt_length + task.completion_length
    tokens = batch.prompts * batch.samples * traits.traits(task).rows_of_episode * length
    tokens //= learner.minibatches * learner.microbatches * mesh.size
    return "none" if architecture.saved(tokens, length) <= _SAVED else "full"


def over_devices(setup: phases.Setup) -> list[str]:
    """Return a line on how micro-batches divide over devices, and a second one with a remedy if they do not.

    Raises:
      ValueError: the attention needs them to divide.
    """
    learner, model = setup.learner, setup.networks["policy"].architecture
    parts = max(_minibatches(setup.phase)) * learner.microbatches
    shared = bool(setup.shared(setup.rows // parts))
    count, unit = (setup.prompts if shared else setup.rows) // parts, "prompts" if shared else "rows"
    used, available = sharding.spread(setup.mesh, count)
    lines = [f"an update: micro-batches of {count} {unit}, over {used} of the {available} devices that split rows"]
    if used < available:
        remedy = f"use fewer micro-batches (learner.microbatches={learner.microbatches}), more {unit}"
        remedy += ", or learner.share_prompt=False" if shared else ""
        if shared and model.attention == "cudnn":  # it needs keys and queries that are sharded alike
            raise ValueError(
                f"config.model.attention='cudnn' (phase {setup.phase.name!r}): micro-batches of {count} prompts "
                f"cannot be split over {available} devices; {remedy}, or attention='blocked'."
            )
        lines.append(f"groups of {available // used} devices do the same work. To fix: {remedy}")
    return lines


def _minibatches(phase: phases.Phase) -> list[int]:
    """Return the number of minibatches of each objective."""
    return [phase.settings.learner.of(o)[1] for o in phase.algorithm.objectives]
