"""Recipes in the loop's own step: one step of every piece on a tiny policy, demonstrations in the group among them.

A few are compiled whole, as a run does. The others run the same function operation by operation, on the rows of one
rollout if their source is the plain one: what XLA compiles for an operation serves all of them.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.algorithms import inputs
from rljax.training import updates
from tests import tiny

MEBIBYTES = 4000  # of compiled operations, which all recipes share
# one of each way to use the step: off-policy rows, whole groups, live statistics with a key, two objectives with a
# reference, states of pieces
QUICK = ("luffy", "dpo", "clip_cov", "flow_rl", "skywork_or1")


def covering():
    """Return recipes that have every piece of the table at its seam, those first that have most of the missing ones."""
    pieces = {}
    for name in algorithms.TABLE:
        seams = algorithms.by_seam(algorithms.example(name))
        pieces[name] = {(seam, p) for seam, specs in seams.items() for p in re.findall(r"(\w+)\(", " ".join(specs))}
    missing, chosen = set().union(*pieces.values()), []
    while missing:
        chosen.append(max(pieces, key=lambda name: len(pieces[name] & missing)))
        missing -= pieces[chosen[-1]]
    return chosen


@functools.cache
def plain_rows():
    program = tiny.program()
    return program.steps[-1].rollout(program.steps[-1].begin(None, program.key), program.key)


def one_step(name, compiled=True):
    """Run a step of a recipe; None where the config refuses it, and says what is missing."""
    built = algorithms.example(name)
    absent = (
        *inputs.missing_parts(built, ("format",)),
        *inputs.unsupplied(built),
    )  # the tiny task reports no other part
    call = {"pass_at_k": "pass_at_k(k=2)"}.get(name, built.spec)  # of 4, all but none are solved
    if absent:
        with pytest.raises(ValueError, match=re.escape(absent[0])):
            tiny.program.__wrapped__(call)
        return None
    program = tiny.program.__wrapped__(call)  # not kept: there are many
    (step,) = program.steps
    state = step.begin(None, program.key)
    params = jax.device_get(state.params)
    alike = not compiled and step.setup.algorithm.source.spec == "task()"
    rollout = plain_rows() if alike else step.rollout(state, program.key)
    reward = (jnp.arange(rollout.reward.shape[0]) % 3 == 0) * 1.0  # differs within groups, whatever the policy can do
    rows = rollout.replace(reward=reward)
    if compiled:
        state, metrics = step.update(state, rows, program.key)
    else:
        with jax.disable_jit():
            state, metrics = updates.update(step.setup, state, rows, program.key)
    assert int(state.skipped_total) == 0
    for key, value in metrics.items():
        assert key == "rows" or np.isfinite(value), key
    changed = jax.tree.map(lambda x, y: bool(np.any(x != np.asarray(y))), params, jax.device_get(state.params))
    if built.source.spec.startswith("base_samples("):  # its first steps sample only
        assert not any(jax.tree.leaves(changed))
        return rollout
    assert any(jax.tree.leaves(changed["policy"]))
    assert all(any(jax.tree.leaves(changed[m])) for m in changed), "a module was not trained"
    return rollout


@pytest.mark.full
@pytest.mark.parametrize("name", QUICK)
def test_a_step_of(name):
    assert one_step(name) is not None


@pytest.mark.parametrize("name", ["spiral", "webagent_r1", "golongrl"])
def test_ids_that_nobody_supplies_are_refused(name):
    assert one_step(name) is None


@pytest.mark.full
@pytest.mark.parametrize("name", [n for n in covering() if n not in QUICK])
def test_a_step_of_every_other_piece(name):
    one_step(name, compiled=False)


@pytest.mark.full
def test_demonstrations_stand_at_the_end_of_each_group_and_are_verified():
    program = tiny.program("luffy()")
    (step,) = program.steps
    rollout = step.rollout(step.begin(None, program.key), program.key)
    demonstrated = np.arange(32) % 4 == 3
    np.testing.assert_array_equal(rollout.on_policy, np.where(demonstrated, 0.0, 1.0))
    assert np.all(np.asarray(rollout.behaviour_logp)[demonstrated] == 0)
    assert np.all(np.asarray(rollout.behaviour_logp)[~demonstrated].min(axis=1) < 0)
    verdict = program.tasks[-1].verify(rollout.index, "train", rollout.action.token, rollout.mask)
    np.testing.assert_array_equal(rollout.reward, verdict.reward)
    # the teacher errs in 3 of 10, an untrained policy always
    assert np.mean(np.asarray(rollout.reward)[demonstrated]) > 0.5


def test_a_group_of_demonstrations_alone_is_refused():
    with pytest.raises(ValueError, match=r"samples=4 .*guided\(demonstrations=4\) leaves no sample to the policy"):
        tiny.program("luffy(demonstrations=4)")


@pytest.mark.full
def test_a_coefficient_in_the_reward_follows_the_kl():
    program = tiny.program("rloo(kl=adaptive_kl(0.1, target=0.001, horizon=100.0))", phase__main__reference="start")
    (step,) = program.steps
    state = step.begin(None, program.key)
    apart = jax.tree.map(lambda x: x * 1.5, state.reference)  # else the reference is the policy, and their KL is 0
    state, metrics = step.update(state.replace(reference=apart), step.rollout(state, program.key), program.key)
    assert metrics["kl"] > 0.0012  # a fifth above the target and more: the coefficient rises by the most it may
    beta = jax.tree.leaves(state.algorithm["transforms"])[0]
    np.testing.assert_allclose(beta, 0.1 * (1 + 0.2 * 32 / 100), rtol=1e-5)
