"""The programs of a step, traced with abstract arguments: nothing is compiled, and no array is created."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.training import rows as rows_lib
from rljax.training import sharding, steps

_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def names(step: steps.Step) -> list[str]:
    """Return the names of the programs that a step has: some of "rollout", "update" and "fused"."""
    sampled = step.setup.algorithm.source.origin == "policy"
    return ["rollout"] * sampled + ["update"] + ["fused"] * (step.fused is not None)


def by_rows(step: steps.Step, tree: types.Tree) -> types.Tree:
    """Return abstract arrays with the shardings of a step's rows."""
    mesh = step.setup.mesh
    rows, replicated = sharding.batch_sharding(mesh), sharding.replicated(mesh)

    def shard(x: Any) -> jax.ShapeDtypeStruct:
        try:
            layout = rows if x.ndim else replicated
            layout.shard_shape(x.shape)
        except ValueError:  # the rows do not divide evenly
            layout = replicated
        return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=layout)

    return jax.tree.map(shard, tree)


def _arguments(step: steps.Step) -> tuple[Any, ...]:
    """Return the abstract arguments of ``step.sample``."""
    setup = step.setup
    prompts = jax.eval_shape(functools.partial(rows_lib.placeholders, setup))
    scalar, index = jax.ShapeDtypeStruct((), jnp.int32), prompts.index
    drawn = rows_lib.Drawn(index, index, index, index if setup.algorithm.source.uneven else None)
    solutions = None
    if setup.solutions:
        count = index.shape[0] * setup.solutions

        def shown() -> types.Action:
            token = jnp.zeros((count, setup.task.completion_length), jnp.int32)
            return types.Action(token, length=jnp.zeros((count,), jnp.int32))

        solutions = by_rows(step, jax.eval_shape(shown))
    return step.shape.params["policy"], step.shape.pool, scalar, drawn, by_rows(step, prompts), solutions, _KEY


def rows(step: steps.Step) -> types.Rollout:
    """Return the abstract rows of a step, with verdicts."""
    return by_rows(step, jax.eval_shape(step.producer.example, step.shape, _KEY))


def trace(step: steps.Step, name: str) -> Any:
    """Trace a program of a step; ``name`` is one of ``names(step)``."""
    if name == "rollout":
        return step.sample.trace(*_arguments(step))
    if name == "fused":
        assert step.fused is not None
        return step.fused.trace(step.shape, _KEY)
    return step.update.trace(step.shape, rows(step), _KEY)
