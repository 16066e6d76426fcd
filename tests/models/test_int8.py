"""Sampling from matrices rounded to int8: what is rounded, and that the log-probs say so."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.models.architectures import MATRICES
from rljax.models.network import layer
from rljax.training import phases
from tests.support import tiny


@functools.cache
def run():
    """Return plan, parameters and a rollout of a policy sampled in int8."""
    program = tiny.program("tis()", model__decode_weights="int8")
    step = program.steps[0]
    state = step.begin(None, program.key)
    return step, state, step.rollout(state, program.key)


def restored(model, params):
    """Return the parameters that ``prepare`` makes, matrices as floats again, stacked."""
    layers = model.decode_params(params)["layers"]
    is_int8 = lambda w: isinstance(w, layer.Int8)  # noqa: E731
    whole = [jax.tree.map(lambda w: w.value * w.scale if is_int8(w) else w, x, is_leaf=is_int8) for x in layers]
    return {**params, "layers": jax.tree.map(lambda *x: jnp.stack(x), *whole)}


@pytest.mark.full
def test_every_output_is_rounded_by_half_a_step_at_most():
    step, state, _ = run()
    params = state.params["policy"]
    ready = step.setup.networks["policy"].decode_params(params)["layers"][0]
    for name, w in params["layers"].items():
        if name not in MATRICES:
            np.testing.assert_array_equal(ready[name], w[0])
            continue
        assert ready[name].value.dtype == jnp.int8
        # the scale is that of each output: its largest entry is 127 steps
        inputs = tuple(range(MATRICES[name][0]))
        np.testing.assert_allclose(127 * ready[name].scale, np.abs(w[0]).max(axis=inputs, keepdims=True), rtol=1e-6)
        error = np.abs(ready[name].value * ready[name].scale - w[0])
        assert np.all(error <= 0.5001 * ready[name].scale) and error.max() > 0


@pytest.mark.full
def test_the_sampler_reports_the_policy_it_sampled():
    step, state, rows = run()
    params, setup = state.params["policy"], step.setup
    score = jax.jit(lambda params: phases.score(setup, "policy", params, rows, types.Needs()).logp)
    drawn = np.asarray(rows.mask) > 0
    gap = np.abs(score(restored(setup.networks["policy"], params)) - rows.behaviour_logp)[drawn]
    assert gap.max() < 1e-5
    # and it is another one than the policy that is trained, by what the metric says
    apart = np.abs(score(params) - rows.behaviour_logp)[drawn]
    assert apart.max() > 1e-4
    _, metrics = step.update(state, rows, tiny.program("tis()", model__decode_weights="int8").key)
    np.testing.assert_allclose(metrics["sampler_gap"], apart.mean(), rtol=1e-4)
