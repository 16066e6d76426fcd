"""An algorithm of a study's own is built by its dotted path and is a composition like any other."""

import jax
import numpy as np
import pytest

import rljax
from rljax import algorithms
from rljax.config import files, resolve
from rljax.run.members import sweep
from tests.support import batch

PIECES = "experiments.example_pieces.pieces"


def resolved(**fields):
    c = files.load("quickstart", "quick")
    for field, value in fields.items():
        files.override(c, field.replace("__", "."), value)
    return resolve.phases(c)[-1].algorithm


def value_and_gradient(algorithm):
    rollout, scores = batch.records(batch.arrays())
    return jax.value_and_grad(lambda x: rljax.objective(algorithm, rollout, scores.replace(logp=x, value=None))[0])(
        scores.logp
    )


def test_a_dotted_path_builds_the_algorithm_and_its_loss_is_finite():
    algorithm = resolved(algorithm=f"{PIECES}.tapered_rloo(power=0.5)")
    assert "surrogate tapered(power=0.5)" in algorithms.describe(algorithm)
    value, gradient = value_and_gradient(algorithm)
    assert np.isfinite(value) and value != 0
    assert np.all(np.isfinite(gradient)) and np.any(gradient != 0)
    assert "tapered_rloo" not in algorithms.TABLE  # it is a study's, not the library's


def test_the_piece_replaces_the_surrogate_of_a_recipe():
    recipe = resolved(algorithm=f"{PIECES}.tapered_rloo(power=0.5)")
    edited = resolved(algorithm="rloo()", seam__surrogate=f"{PIECES}.tapered(power=0.5)")
    assert edited.objectives[0].loss[0].spec == recipe.objectives[0].loss[0].spec
    for a, b in zip(value_and_gradient(edited), value_and_gradient(recipe), strict=True):
        np.testing.assert_array_equal(a, b)


def test_its_argument_may_be_a_schedule():
    algorithm = resolved(algorithm="rloo()", seam__surrogate=f"{PIECES}.tapered(linear(0.0, 1.0, 100))")
    # a schedule stands at its first value, 0, before the first step, where the piece is that of rloo
    np.testing.assert_allclose(value_and_gradient(algorithm)[1], value_and_gradient(algorithms.rloo())[1], rtol=1e-6)


def test_it_belongs_to_its_seam_only():
    with pytest.raises(ValueError, match=r"config\.seam\.penalty.*tapered.*belongs to seam 'surrogate'"):
        resolved(algorithm="rloo()", seam__penalty=f"{PIECES}.tapered()")


def test_wrong_tokens_are_pushed_by_their_probability_to_the_power():
    d = batch.arrays()
    # d/dlogp of -A sg(p^power) logp is -A p^power; with one right row in the group a wrong row has A < 0
    factor = np.where(d["reward"][:, None] == 0, np.exp(0.5 * d["logp"]), 1.0)
    gradient = value_and_gradient(resolved(algorithm=f"{PIECES}.tapered_rloo(power=0.5)"))[1]
    plain = value_and_gradient(algorithms.rloo())[1]
    wrong = np.where(d["reward"][:, None] == 0, plain, 0)
    assert np.any(wrong > 0) and np.any(factor < 0.9)  # there is something to taper
    np.testing.assert_allclose(gradient, factor * plain, rtol=1e-5, atol=1e-8)


# --- studies that are configs ---------------------------------------------------------------------


@pytest.mark.parametrize(("path", "arms"), [("experiments/worlds/retry.py", 2), ("experiments/worlds/revise.py", 3)])
def test_the_arms_of_a_study_resolve_and_its_quick_mode_is_short(path, arms):
    config, quick = files.load(path), files.load(path, "quick")
    assert len(sweep.expand(sweep.load(path), config)) == 3 * arms
    assert sum(quick.phase[name].steps for name in quick.phases) <= 10
    with pytest.raises(ValueError, match="the only variant is 'quick'"):
        files.load(path, "quik")
