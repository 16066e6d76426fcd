"""Finite differences of a loss whose ``stop_gradient`` parts are held constant, in float64."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from rljax import types
from rljax.algorithms import interpreter
from rljax.algorithms.battery import programs

_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
STEPS = (1e-5, 1e-3)  # the second one is for pieces that compute in float32 throughout


def largest_error(program: programs.Program) -> float:
    """Return the largest relative difference between gradient and difference quotient, over the objectives.

    The derivative is taken along a random direction in all scores. Of the quotients at ``STEPS`` the nearest counts.
    """
    with jax.enable_x64(True):
        rollout, scores = program.records(program.arrays(), jnp.float64)
        leaves, tree = jax.tree.flatten(scores)
        keys = jax.random.split(jax.random.key(1), len(leaves))
        direction = jax.tree.unflatten(
            tree, [jax.random.normal(k, x.shape, x.dtype) for k, x in zip(keys, leaves, strict=True)]
        )
        pairs = jax.jit(lambda *args: _slopes(program, *args))(rollout, scores, direction, jax.random.key(0))
        return max(min(abs(slope - q) / (abs(slope) + 1e-3) for q in quotients) for slope, quotients in pairs).item()


def _slopes(program: programs.Program, rollout: types.Rollout, scores: types.Scores, direction: Any, key: types.Key):
    """Return (derivative, its quotients) of each objective along the direction."""
    pairs = []
    for o, rows, inner in program.minibatches(rollout, scores, key):

        def loss(scores: types.Scores, o: Any = o, rows: types.Rollout = rows, inner: Any = inner) -> jax.Array:
            return interpreter.loss(o, rows, scores, inner, key)[0]

        slopes = jax.tree.map(jnp.vdot, jax.grad(loss)(scores), direction)
        along = functools.partial(_along, _held(loss, scores), scores, direction)
        pairs.append((sum(jax.tree.leaves(slopes)), [(along(h) - along(-h)) / (2 * h) for h in STEPS]))
    return pairs


def _along(function: Callable[[Any], jax.Array], x: Any, direction: Any, h: float) -> jax.Array:
    return function(jax.tree.map(lambda a, v: a + h * v, x, direction))


def _held(function: Callable[[Any], jax.Array], x: Any) -> Callable[[Any], jax.Array]:
    """Return ``function`` with the values that its ``stop_gradient`` calls have at ``x``."""
    closed = jax.make_jaxpr(function)(x)
    values: list[Any] = []
    _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(x), lambda inputs: values.append(inputs) or inputs)

    def at(other: Any) -> jax.Array:
        remaining = iter(values)
        return _evaluate(closed.jaxpr, closed.consts, jax.tree.leaves(other), lambda _: next(remaining))[0]

    return at


def _evaluate(jaxpr: Any, constants: Sequence[Any], inputs: Sequence[Any], stopped: Callable[[Any], Any]) -> list[Any]:
    """Evaluate a jaxpr, with ``stopped(inputs)`` in place of ``stop_gradient``; loops are evaluated as they are."""
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*constants, *inputs], strict=True))

    def read(variable: Any) -> Any:
        return variable.val if isinstance(variable, core.Literal) else values[variable]

    for equation in jaxpr.eqns:
        arguments = [read(v) for v in equation.invars]
        inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
        if equation.primitive.name == "stop_gradient":
            outputs = stopped(arguments)
        elif equation.primitive.name in _CALLS:
            outputs = _evaluate(getattr(inner, "jaxpr", inner), getattr(inner, "consts", ()), arguments, stopped)
        else:
            outputs = equation.primitive.bind(*arguments, **equation.params)
            outputs = outputs if equation.primitive.multiple_results else [outputs]
        values.update(zip(equation.outvars, outputs, strict=True))
    return [read(v) for v in jaxpr.outvars]
