"""The programs of a step, traced with abstract arguments: nothing is compiled, and no array is created."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.training import rows as rows_lib
from rljax.training import sharding, states, steps

PARTS = ("part", "accumulate", "finish")  # with ``run.overlap``: the first two run for each micro-batch
_KEY = jax.eval_shape(lambda: jax.random.key(0, impl="threefry2x32"))


def names(step: steps.Step) -> list[str]:
    """Return the names of the programs that a step has: some of "rollout", "update" and "fused", or ``PARTS``."""
    if step.setup.overlapped:
        return list(PARTS)
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


def _arguments(step: steps.Step, parts: int = 1) -> tuple[Any, ...]:
    """Return the abstract arguments of ``step.sample`` for one of equal parts of the prompts."""
    setup = step.setup
    prompts = _cut(jax.eval_shape(functools.partial(rows_lib.placeholders, setup)), parts)
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


def _cut(tree: types.Tree, parts: int) -> types.Tree:
    """Return abstract arrays with the rows of one of equal parts."""
    return jax.tree.map(lambda x: x.update(shape=(x.shape[0] // parts, *x.shape[1:])) if x.ndim else x, tree)


def rows(step: steps.Step) -> types.Rollout:
    """Return the abstract rows of a step, with verdicts."""
    return by_rows(step, jax.eval_shape(step.producer.example, step.shape, _KEY))


def trace(step: steps.Step, name: str) -> Any:
    """Trace a program of a step; ``name`` is one of ``names(step)``."""
    if name == "rollout" and step.producer.traced:
        return step.rollout.trace(states.sampled(step.setup, step.shape), _KEY)  # type: ignore
    if name == "rollout":
        return step.sample.trace(*_arguments(step))
    if name == "fused":
        assert step.fused is not None
        return step.fused.trace(step.shape, _KEY)
    if name in PARTS:
        return _trace_part(step, name)
    return step.update.trace(step.shape, rows(step), _KEY)


def _trace_part(step: steps.Step, name: str) -> Any:
    count, number, compiled = step.setup.learner.microbatches, jax.ShapeDtypeStruct((), jnp.int32), step.overlapped
    if name == "finish":
        return compiled.finish.trace(step.shape, compiled.arrived, _KEY)
    if name == "accumulate":
        mine = by_rows(step, _cut(rows(step), count))
        return compiled.accumulate.trace(step.shape, compiled.arrived, mine, number, _KEY)
    if step.setup.task.host:  # which a host judges
        return step.sample.trace(*_arguments(step, count))
    policy, pool, scalar, drawn, *_ = _arguments(step)
    return step.part.trace(policy, pool, scalar, drawn, number, _KEY)
