"""The smallest run that is still one: a one-layer policy on one-digit sums."""

import dataclasses
import functools
import math

import jax
import numpy as np

from rljax.config import files, schema
from rljax.run import programs


def config(algorithm="grpo(kl=0.0)", **fields):
    """Return a config of 2 steps of 8 prompts x 4 samples and nothing else; ``fields`` are dotted, with __ for the dot.

    Neither an evaluation nor the report and its pictures: what looks at them asks for them.
    """
    c = schema.default()
    c.name = "tiny"
    c.task = "arithmetic(operands=2, digits=1, working=False, noise=0.3)"
    c.algorithm = algorithm
    c.model.update({"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 64})
    c.batch.update({"prompts": 8, "samples": 4})
    c.phases = ("main",)
    c.phase.main = schema.phase(steps=2, warmup=1)
    c.evaluation.update({"prompts": 4, "samples": 4, "final_prompts": 8, "final_samples": 4})
    c.checkpoint.every = 1
    c.log.update({"rollouts": 1, "rollout_rows": 4, "report": False})
    return edited(c, fields)


def phases(algorithm="grpo(kl=0.0)", **fields):
    """Return a config of 2 + 2 steps: demonstrations, then the algorithm, and an evaluation after each."""
    c = config(algorithm)
    c.phases = ("warm", "main")
    c.phase.warm = schema.phase(algorithm="sft()", steps=2, batch={"prompts": 16}, evaluate="base", warmup=1)
    c.phase.main.evaluate = "result"
    return edited(c, fields)


def edited(c, fields):
    """Return the config with fields set, which are dotted, with __ for the dot."""
    for name, value in fields.items():
        files.override(c, name.replace("__", "."), value)
    return c


@functools.cache
def program(algorithm="grpo(kl=0.0)", **fields):
    """Return the program of a one-phase config, on one device unless ``mesh__...`` fields ask for more."""
    c = config(algorithm, **{"mesh__data": 1, **fields})
    return programs.build(c, devices=jax.devices()[: math.prod(max(1, size) for size in c.mesh.values())])


def changed(setup, algorithm=None, **groups):
    """Return a setup with some settings changed: ``changed(setup, learner={"lanes": 2})``."""
    settings = setup.phase.settings
    new = {name: dataclasses.replace(getattr(settings, name), **fields) for name, fields in groups.items()}
    phase = dataclasses.replace(
        setup.phase, settings=dataclasses.replace(settings, **new), algorithm=algorithm or setup.algorithm
    )
    return dataclasses.replace(setup, phase=phase)


def leaves(tree):
    """Return the arrays of a tree in its order."""
    return [np.asarray(x) for x in jax.tree.leaves(tree)]


def equal(one, two):
    """Return whether two trees have bit for bit the same arrays."""
    return all(np.array_equal(a, b) for a, b in zip(leaves(one), leaves(two), strict=True))
