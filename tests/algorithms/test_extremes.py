"""Every recipe on batches at the edge: loss, metrics and all gradients stay finite.

One program for each family, compiled without care for its speed; hypothesis draws the batches, and a list of the worst
ones is always tried.
"""

import functools

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rljax import algorithms
from rljax.algorithms import interpreter
from rljax.algorithms.battery import edges
from tests.algorithms import test_algorithms as battery
from tests.support import batch


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
            finite = run(*batch.records(edges.extreme(**choice, paid=paid)))
            bad = [n for n in members if not finite[n]]
            assert not bad, f"{', '.join(bad)} on {choice}"


every_family = pytest.mark.parametrize("family", algorithms.FAMILIES)


@pytest.mark.full
@every_family
def test_the_worst_batches(family):
    for choice in edges.WORST:
        check(family, choice)


@pytest.mark.full
@every_family
@settings(max_examples=5, derandomize=True, deadline=None, database=None)
@given(
    choice=st.fixed_dictionaries({
        "seed": st.integers(0, 1000),
        "rows": st.sampled_from(edges.ROWS),
        "valid": st.sampled_from(edges.VALID),
        "rewards": st.sampled_from(edges.REWARDS),
        "level": st.sampled_from(edges.LEVELS),
        "gap": st.sampled_from(edges.GAPS),
        "entropy": st.sampled_from(edges.ENTROPIES),
    })
)  # fmt: skip
def test_extreme_batches(family, choice):
    check(family, choice)
