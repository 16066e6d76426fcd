"""The programs of a step, traced with abstract arguments: nothing is compiled, and no array is created."""

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
    prompts = _prompts(step)
    scalar = jax.ShapeDtypeStruct((), jnp.int32)
    return step.shape.params["policy"], scalar, prompts.index, _by_rows(step, prompts), _KEY


def rows(step: steps.Step) -> types.Rollout:
    """Return the abstract rows of a step, with verdicts."""
    setup = step.setup
    if setup.stored is not None:
        count = setup.prompts * setup.algorithm.source.oversample
        return _by_rows(step, jax.eval_shape(lambda: stored.example(setup, count)))

    def sample(params: types.Tree, number: types.Array, position: types.Array, prompts: types.Prompts, key: types.Key):
        if hasattr(step.sample, "trace"):
            rollout = step.sample(params, number, position, prompts, key)
        else:  # a host task's demonstrations are read on the host, which needs the indices
            index: Any = np.arange(position.size, dtype=np.int32) % setup.task.size("train")
            rollout = rollouts.demonstrate(setup, number, position, setup.task.prompts(index, "train"), key)
        if not setup.task.host or setup.algorithm.source.origin != "policy":
            return rollout
        number_of_rows = rollout.reward.shape
        parts = {name: jnp.zeros(number_of_rows) for name in setup.task.parts}
        return rows_lib.judged(rollout, types.Verdict(jnp.zeros(number_of_rows), jnp.zeros(number_of_rows, int), parts))

    return _by_rows(step, jax.eval_shape(sample, *_arguments(step)))


def trace(step: steps.Step, name: str) -> Any:
    """Trace a program of a step; ``name`` is one of ``names(step)``."""
    if name == "rollout":
        return step.sample.trace(*_arguments(step))
    if name == "fused":
        assert step.fused is not None
        return step.fused.trace(step.shape, _KEY)
    return step.update.trace(step.shape, rows(step), _KEY)
