"""The programs of a step, traced with abstract arguments: nothing is compiled, and no array is created."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.training import rollouts, sharding, steps, stored
from rljax.training import rows as rows_lib

_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def names(step: steps.Step) -> list[str]:
    """Return the names of the programs that a step has: some of "rollout", "update" and "fused"."""
    sampled = step.setup.algorithm.source.origin == "policy"
    return ["rollout"] * sampled + ["update"] + ["fused"] * (step.fused is not None)


def _prompts(step: steps.Step) -> types.Prompts:
    """Return the abstract prompts of a step."""
    setup = step.setup
    count, length = setup.prompts * setup.algorithm.source.oversample, setup.task.prompt_length
    return jax.eval_shape(
        lambda: types.Prompts(
            jnp.zeros((count, length), jnp.int32), jnp.zeros((count, length)), jnp.zeros((count,), jnp.int32)
        )
    )


def _by_rows(step: steps.Step, tree: types.Tree) -> types.Tree:
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
    setup, prompts = step.setup, _prompts(step)
    scalar, index = jax.ShapeDtypeStruct((), jnp.int32), prompts.index
    drawn = rows_lib.Drawn(index, index, index, index if setup.algorithm.source.uneven else None)
    solutions = None
    if setup.solutions:
        count = index.shape[0] * setup.solutions

        def shown() -> types.Action:
            token = jnp.zeros((count, setup.task.completion_length), jnp.int32)
            return types.Action(token, length=jnp.zeros((count,), jnp.int32))

        solutions = _by_rows(step, jax.eval_shape(shown))
    return step.shape.params["policy"], step.shape.pool, scalar, drawn, _by_rows(step, prompts), solutions, _KEY


def rows(step: steps.Step) -> types.Rollout:
    """Return the abstract rows of a step, with verdicts."""
    setup = step.setup
    if setup.stored is not None:
        count = setup.prompts * setup.algorithm.source.oversample
        return _by_rows(step, jax.eval_shape(lambda: stored.example(setup, count)))
    if setup.algorithm.source.origin == "policy":
        return _by_rows(step, jax.eval_shape(functools.partial(rollouts.example, setup), step.shape, _KEY))

    def shown(position: types.Array, prompts: types.Prompts, key: types.Key) -> types.Rollout:
        number = jnp.zeros((), jnp.int32)
        if setup.task.host:  # its demonstrations are read on the host, which needs the indices
            index: Any = np.arange(position.size, dtype=np.int32) % setup.task.size("train")
            prompts = setup.task.prompts(index, "train")
        return rollouts.demonstrate(setup, number, position, prompts, key)

    prompts = _prompts(step)
    return _by_rows(step, jax.eval_shape(shown, prompts.index, prompts, _KEY))


def trace(step: steps.Step, name: str) -> Any:
    """Trace a program of a step; ``name`` is one of ``names(step)``."""
    if name == "rollout":
        return step.sample.trace(*_arguments(step))
    if name == "fused":
        assert step.fused is not None
        return step.fused.trace(step.shape, _KEY)
    return step.update.trace(step.shape, rows(step), _KEY)
