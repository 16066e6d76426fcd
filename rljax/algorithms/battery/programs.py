"""The program that the battery runs: losses, gradients and the losses of micro-batches of an algorithm, on arrays."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

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
