"""Every recipe on batches at the edge: loss, metrics and all gradients stay finite.

One program for each family, compiled without care for its speed; hypothesis draws the batches, and a list of the worst
ones is always tried.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax import algorithms
from rljax.algorithms import interpreter
from tests import batch
from tests import test_algorithms as battery
from tests.batch import B, T

ROWS = ("as they are", "one token", "one token in some", "some empty", "all empty", "full")
VALID = ("most", "one group not", "one row", "none")
REWARDS = ("0/1", "all wrong", "all right", "wild", "wild in some groups", "nearly equal")
LEVELS = (0.0, -1e-7, -1.0, -20.0, -100.0)  # log-probs; exp(-100) is 0 in float32 but for a denormal
GAPS = ("none", "up", "down", "mixed")  # log-ratios of 0, 20, -20, either
ENTROPIES = (0.0, 1e-6, 12.0)


def arrays(seed=0, rows="as they are", valid="most", rewards="0/1", level=-1.0, gap="none", entropy=1.0, paid=False):
    """Return a batch; ``gap`` is between the live log-probs and every other."""
    r = np.random.default_rng(seed)
    d = batch.arrays(seed % 3, "mars" if paid else "")
    first = np.arange(T) == 0
    d["mask"] = {
        "as they are": d["mask"],
        "one token": np.ones((B, 1)) * first,
        "one token in some": np.where(np.arange(B)[:, None] % 2 == 0, d["mask"], d["mask"] * first),
        "some empty": d["mask"] * (np.arange(B)[:, None] % 3 > 0),
        "all empty": np.zeros((B, T)),
        "full": np.ones((B, T)),
    }[rows]
    d["valid"] = {
        "most": d["valid"],
        "one group not": d["valid"] * (d["group"] != 7),
        "one row": (np.arange(B) == 3) * 1.0,
        "none": np.zeros(B),
    }[valid]
    wild = r.choice([-1e4, 0.0, 1.0, 1e4], B)
    d["reward"] = {
        "0/1": d["reward"],
        "all wrong": np.zeros(B),
        "all right": np.ones(B),
        "wild": wild,
        "wild in some groups": np.where(d["group"] == 7, wild, 0.0),
        "nearly equal": 0.1 + 1e-8 * np.arange(B),
    }[rewards]
    d["outcome"] = (d["reward"] > 0) * 1
    sign = {"none": np.zeros((B, T)), "up": 1, "down": -1, "mixed": r.choice([-1, 1], (B, T))}[gap] * np.ones((B, T))
    d["logp"] = level + 20 * np.minimum(sign, 0)  # the larger of the two is ``level``
    for name in ("proximal", "behaviour", "raw", "ref"):
        d[name] = d["logp"] - 20 * sign
    d["entropy"], d["sampled_entropy"] = np.full((2, B, T), entropy)
    d["square_prob"] = np.exp(2 * d["raw"])
    if rewards.startswith("wild"):
        d["value"] = d["live_value"] = r.choice([-1e4, 0.0, 1e4], (B, T))
        if paid:
            d["token_reward"] = r.choice([-1e4, 0.0, 1e4], (B, T)) * d["mask"]
    if not paid:
        d.pop("token_reward", None)
    if level == 0 or level < -1:
        d["extra"]["student_logp"] = d["extra"]["probe_logp"] = np.full((B, T), level)
    return d


@functools.cache
def program(family, paid):
    """Return the recipes of a family, and a program of their losses and gradients on batches of one shape."""
    members = [n for n in algorithms.TABLE if algorithms.TABLE[n].__module__.endswith(family)]
    members = [n for n in members if (n in batch.PAID_AT_TOKENS) == paid]

    def run(rollout, scores):
        def total(s, name):
            losses = [
                interpreter.loss(o, rows, s, inner, battery.KEY)
                for o, rows, inner in battery.prepared(battery.recipe(name), rollout, s)[0]
            ]
            return sum(value for value, _ in losses), losses

        out = {}
        for name in members:
            leaves = jax.tree.leaves(jax.grad(total, has_aux=True)(scores, name))  # gradients, losses, metrics
            out[name] = jnp.all(jnp.stack([jnp.all(jnp.isfinite(x)) for x in leaves]))
        return out

    return members, jax.jit(run)


def check(family, choice):
    for paid in (False, True):
        members, run = program(family, paid)
        if members:
            finite = run(*batch.records(arrays(**choice, paid=paid)))
            bad = [n for n in members if not finite[n]]
            assert not bad, f"{', '.join(bad)} on {choice}"


WORST = [
    {},
    {"rows": "all empty"},
    {"valid": "none"},
    {"valid": "one row", "rows": "one token"},
    {"rewards": "all wrong", "entropy": 0.0, "level": 0.0},
    {"rewards": "all right", "level": -100.0, "rows": "one token"},
    {"rewards": "wild", "gap": "mixed", "rows": "full"},
    {"rewards": "wild", "gap": "up", "level": 0.0, "rows": "full"},
    {"rewards": "wild", "gap": "down", "level": -100.0, "rows": "full"},
    {"rewards": "wild in some groups", "gap": "mixed", "rows": "some empty", "valid": "one group not"},
    {"rewards": "0/1", "gap": "up", "rows": "full"},
    {"rewards": "0/1", "gap": "down", "rows": "full", "level": 0.0},
    {"rewards": "nearly equal", "level": -1e-7, "gap": "none", "entropy": 0.0},
]
every_family = pytest.mark.parametrize("family", algorithms.FAMILIES)


@pytest.mark.default_tier("stale", "regression")
@every_family
def test_the_worst_batches(family):
    for choice in WORST:
        check(family, choice)


@pytest.mark.full
@every_family
@settings(max_examples=5, derandomize=True, deadline=None, database=None)
@given(
    choice=st.fixed_dictionaries({
        "seed": st.integers(0, 1000),
        "rows": st.sampled_from(ROWS),
        "valid": st.sampled_from(VALID),
        "rewards": st.sampled_from(REWARDS),
        "level": st.sampled_from(LEVELS),
        "gap": st.sampled_from(GAPS),
        "entropy": st.sampled_from(ENTROPIES),
    })
)  # fmt: skip
def test_extreme_batches(family, choice):
    check(family, choice)
