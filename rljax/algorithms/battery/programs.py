"""The program that the battery runs: losses, gradients and the losses of micro-batches of an algorithm, on arrays.

And finite differences of a loss whose ``stop_gradient`` parts are held constant, in float64.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from rljax import types
from rljax.algorithms import interpreter
from rljax.algorithms.battery import batch
from rljax.algorithms.battery.batch import Arrays, B, T
from rljax.transforms.frame import shapes

_GROUPS, _ROWS = ((0, 5), (5, 9), (9, 12)), ((0, 1), (1, 12))  # micro-batches of the batch's rows


@functools.cache
def _options() -> dict[str, Any]:
    """Return options to compile quickly, as the programs run a few times on small arrays; only those XLA knows."""
    options = {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False}
    for name, value in tuple(options.items()):
        try:
            jax.jit(lambda: 0, compiler_options={name: value}).lower().compile()
        except jax.errors.JaxRuntimeError:  # XLA of jax 0.12 has one set of emitters
            del options[name]
    return options


class Outcome(NamedTuple):
    """What the program returns for one objective."""

    value: Any  # the loss, a scalar
    metrics: dict[str, Any]
    gradient: types.Scores  # of the loss in the scores
    parts: tuple[Any, types.Scores]  # loss and gradient, summed over micro-batches
    rows: types.Rollout  # after the prepare transforms


class Program:
    """The losses of an algorithm's objectives, compiled once for each shape; ``traces`` counts the compilations."""

    def __init__(self, algorithm: types.Algorithm, dtype: Any = jnp.float32):
        """Compile nothing yet."""
        self.dtype = dtype
        self.algorithm, self.needs, self.traces = algorithm, interpreter.needs(algorithm), 0
        self._compiled = jax.jit(self._run, compiler_options=_options())

    def arrays(self, seed: int = 0) -> Arrays:
        """Return the batch, with every array that the algorithm reads."""
        return self.completed(batch.arrays(seed, self.needs.token_reward, self.needs.episodes))

    def completed(self, d: Arrays) -> Arrays:
        """Add the scores that the algorithm declares, and random numbers for parts and extras that have no meaning."""
        r = np.random.default_rng(7)
        asked = shapes.requested(self.needs, d["mask"])
        live = {name: r.random(shape) for name, shape in asked.items() if name not in batch.LIVE}
        return d | {
            "parts": {**{name: r.random(B) for name in sorted(self.needs.parts)}, **d["parts"]},
            "extra": {**{name: r.random((B, T)) for name in sorted(self.needs.extra)}, **d["extra"]},
            "live": live,
            "divergence": {name: r.random((B, T)) for name in sorted(self.needs.divergence)},
        }

    def records(self, d: Arrays, dtype: Any = jnp.float32) -> tuple[types.Rollout, types.Scores]:
        """Return ``arrays`` as records."""
        rollout, scores = batch.records(d, dtype)
        live, divergence = ({k: jnp.asarray(x, dtype) for k, x in d[n].items()} for n in ("live", "divergence"))
        return rollout, scores.replace(divergence=divergence, **live)

    def __call__(self, d: Arrays, key: types.Key | None = None) -> list[Outcome]:
        """Return the outcome of each objective, as NumPy arrays."""
        with jax.enable_x64(self.dtype == jnp.float64):
            key = jax.random.key(0) if key is None else key
            return jax.device_get(self._compiled(*self.records(d, self.dtype), key))

    def minibatches(self, rollout: types.Rollout, scores: types.Scores, key: types.Key) -> list[tuple[Any, ...]]:
        """Return (objective, its rows, its state) for each objective; the whole batch is one minibatch."""
        rollout, state = interpreter.transform(self.algorithm, rollout, interpreter.init(self.algorithm), key)
        pairs = zip(self.algorithm.objectives, state["objectives"], strict=True)
        return [(o, *interpreter.prepare_minibatch(o, rollout, scores, s, key)) for o, s in pairs]

    def _run(self, rollout: types.Rollout, scores: types.Scores, key: types.Key) -> list[Outcome]:
        self.traces += 1
        outcomes = []
        for o, rows, inner in self.minibatches(rollout, scores, key):
            loss = functools.partial(interpreter.loss, o, state=inner, key=key)
            cuts = _ROWS if interpreter.objective_needs(o).whole == "row" else _GROUPS

            def split(scores: types.Scores, loss: Any = loss, rows: types.Rollout = rows, cuts: Any = cuts) -> Any:
                parts = (jax.tree.map(lambda x, a=a, b=b: x[a:b], (rows, scores)) for a, b in cuts)
                return sum(loss(*part)[0] for part in parts)

            (value, metrics), gradient = jax.value_and_grad(functools.partial(loss, rows), has_aux=True)(scores)
            outcomes.append(Outcome(value, metrics, gradient, jax.value_and_grad(split)(scores), rows))
        return outcomes


_CALLS = ("jit", "pjit", "closed_call", "checkpoint", "remat2", "custom_jvp_call", "custom_vjp_call")
STEPS = (1e-5, 1e-3)  # the second one is for pieces that compute in float32 throughout


def largest_error(program: Program) -> float:
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


def _slopes(program: Program, rollout: types.Rollout, scores: types.Scores, direction: Any, key: types.Key):
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
