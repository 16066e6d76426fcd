"""A control world small enough to enumerate, configs of control runs, and the networks of actors in NumPy."""

import dataclasses
import functools
import itertools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments
from rljax.config import schema
from rljax.environments import control
from rljax.models.actors import mlp
from rljax.run import programs
from tests.support import tiny

NEXT = np.array([[1, 2], [0, 3], [2, 1], [3, 3]])  # of each state and action; 3 ends the episode
PAID = np.array([[0.5, -0.25], [1.0, 0.75], [-0.5, 2.0], [0.0, 0.0]])
HORIZON, END = 3, 3


@dataclasses.dataclass(frozen=True)
class _Tables:
    """Rules: three states, two actions, three steps; a table says what follows, and what is paid."""

    horizon: int
    defect: str

    name, parts, observed = "tables", ("twos",), 3

    @property
    def actions(self):
        return control.Box(2) if self.defect == "box" else control.Discrete(2)

    def size(self, split):
        return 64

    def text(self, index, split):
        return str(index)

    def begin(self, index, split):
        if self.defect == "begin":
            raise KeyError("no problems")
        return {"state": jnp.zeros((), jnp.int32)}

    def observe(self, state):
        seen = jax.nn.one_hot(state["state"], 3)
        wrong = {"observe": seen[:2], "whole": seen.astype(jnp.int32)}
        return wrong.get(self.defect, seen)

    def legal(self, state):
        if self.defect == "legal":
            return jnp.ones(2)
        return jnp.ones(3 if self.defect == "legal_three" else 2, bool)

    def step(self, state, action, key):
        place = jnp.asarray(NEXT)[state["state"], action]
        reward = jnp.asarray(PAID, jnp.float32)[state["state"], action]
        reward = {"reward": reward[None], "paid": reward.astype(jnp.int32)}.get(self.defect, reward)
        parts = {"threes" if self.defect == "parts" else "twos": (place == 2).astype(jnp.float32)}
        after = {"state": place.astype(jnp.float32 if self.defect == "state" else jnp.int32)}
        done = place.astype(jnp.float32) if self.defect == "done" else place == END
        return after, control.Moved(reward=reward, done=done, parts=parts)

    def solved(self, state, total):
        return total if self.defect == "solved" else total > 1.0


@environments.task
def tables(horizon: int = HORIZON, defect: str = ""):
    """Return the world of tables.

    Args:
      horizon: steps of an episode.
      defect: what is wrong with its rules.
    """
    return control.ControlTask(_Tables(horizon, defect))


def config(task="tests.support.control.tables()", algorithm="reinforce()", **fields):
    """Return a config of 2 steps of 8 problems and nothing else; ``fields`` are dotted, with __ for the dot."""
    c = schema.default()
    c.name, c.task, c.algorithm, c.model.kind = "tiny", task, algorithm, "mlp"
    c.model.mlp.update({"layers": 1, "width": 8})
    c.batch.update({"prompts": 8, "samples": 1})
    c.phases = ("main",)
    c.phase.main = schema.phase(steps=2, optimizer="adam(learning_rate=0.01)")
    c.evaluation.update({"prompts": 4, "samples": 4, "final_prompts": 8, "final_samples": 4})
    c.checkpoint.every = 1
    c.log.update({"rollouts": 1, "rollout_rows": 4, "report": False})
    return tiny.edited(c, fields)


@functools.cache
def program(task="tests.support.control.tables()", algorithm="reinforce()", **fields):
    """Return the program of a config, on one device unless ``mesh__...`` fields ask for more."""
    c = config(task, algorithm, **{"mesh__data": 1, **fields})
    return programs.build(c, devices=jax.devices()[: math.prod(max(1, size) for size in c.mesh.values())])


def started(task="tests.support.control.tables()", algorithm="reinforce()", **fields) -> tuple[Any, Any, Any]:
    """Return a program, its only step and a state, which may be donated."""
    p = program(task, algorithm, **fields)
    return p, p.steps[0], p.steps[0].begin(None, p.key)


@functools.cache
def enumerated():
    """Return all episodes of ``tables`` as arrays: places ``[n, T + 1]``, actions, rewards and mask ``[n, T]``."""
    rows = {}
    for actions in itertools.product(range(2), repeat=HORIZON):
        places, paid, place = [0], [], 0
        for action in actions:
            if place != END:
                paid.append(PAID[place, action])
                place = int(NEXT[place, action])
                places.append(place)
        rows[actions[: len(paid)]] = places, paid

    def padded(lists, width, last=0):
        return np.array([[*x, *[x[-1] if last else 0] * (width - len(x))] for x in lists])

    places, paid = zip(*rows.values(), strict=True)
    mask = np.array([np.arange(HORIZON) < len(actions) for actions in rows]) * 1.0
    return padded(places, HORIZON + 1, last=1), padded(rows, HORIZON), padded(paid, HORIZON), mask


def network(params, x, activation=np.tanh):
    """Return the outputs of an MLP for ``[..., O]``, in float64, with the statistics of its parameters if any."""
    x = np.asarray(x, np.float64)
    of = params.get(mlp.STATISTICS, {"count": 0})
    if of["count"] > 0:
        scale = np.sqrt(np.asarray(of["square"], np.float64) / of["count"] + 1e-8)
        x = np.clip((x - np.asarray(of["mean"], np.float64)) / scale, -10, 10)
    layers = sorted(name for name in params if name.startswith("layer_"))
    for name in layers:
        x = x @ np.asarray(params[name]["kernel"], np.float64) + np.asarray(params[name]["bias"], np.float64)
        x = x if name == layers[-1] else activation(x)
    return x
