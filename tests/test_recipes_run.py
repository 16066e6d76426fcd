"""Recipes in the loop's own step on a tiny policy, demonstrations in the group among them.

Every recipe runs on abstract arrays that hold only what the step computes for it. Some take a real step: together they
ask everything of the step that the table does (``recipes.uses``); what their pieces compute is shown on arrays, by
``test_algorithms``. Those of unusual sources are compiled whole, as a run does. The others run the same function
operation by operation: what XLA compiles for an operation serves all of them.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.config import resolve
from rljax.training import checks, updates
from tests import recipes, tiny

MEBIBYTES = 4000  # of compiled operations, which all recipes share
SHARED = ("task()", "dynamic(oversample=2)")  # sources whose rows have the shapes of many recipes
COMPILED = ("luffy", "dpo", "clip_cov", "flow_rl")  # off-policy rows, whole groups, live statistics, two objectives
TRAINED = [name for name in algorithms.TABLE if not recipes.refused(name)]
ROWS = {}  # of each source, from the first recipe that has it


def begun(program):
    """Return the first state; leaves that are donated share no buffer."""
    return jax.tree.map(jnp.copy, program.steps[-1].begin.__wrapped__(None, program.key))


def sampled(program, state):
    """Return the rows of the source of a program."""
    spec = program.setups[-1].algorithm.source.spec
    if spec not in ROWS:
        ROWS[spec] = program.steps[-1].rollout(state, program.key)
    return ROWS[spec]


def one_step(name, compiled=True):
    """Run a step of a recipe."""
    call = {"pass_at_k": "pass_at_k(k=2)"}.get(name, algorithms.example(name).spec)  # of 4, all but none are solved
    program = tiny.program.__wrapped__(call)  # not kept: there are many
    (step,) = program.steps
    state = begun(program)
    params = jax.device_get(state.params)
    rows = sampled(program, state)
    reward = (jnp.arange(rows.reward.shape[0]) % 3 == 0) * 1.0  # differs within groups, whatever the policy can do
    rows = rows.replace(reward=reward)
    if compiled:
        state, metrics = step.update(state, rows, program.key)
    else:
        with jax.disable_jit():
            state, metrics = updates.update(step.setup, state, rows, program.key)
    assert int(state.skipped_total) == 0
    for key, value in metrics.items():
        assert key == "rows" or np.isfinite(value), key
    changed = jax.tree.map(lambda x, y: bool(np.any(x != np.asarray(y))), params, jax.device_get(state.params))
    if step.setup.algorithm.source.spec.startswith("base_samples("):  # its first steps sample only
        assert not any(jax.tree.leaves(changed))
    else:
        assert any(jax.tree.leaves(changed["policy"]))
        assert all(any(jax.tree.leaves(changed[m])) for m in changed), "a module was not trained"


@pytest.mark.full
@pytest.mark.parametrize("name", COMPILED)
def test_a_step_of(name):
    one_step(name)


@pytest.mark.full
@pytest.mark.parametrize("name", recipes.covering(TRAINED, (*COMPILED, "sft")))  # every tiny run begins with sft
def test_a_step_of_every_other_use(name):
    one_step(name, compiled=algorithms.example(name).source.spec not in SHARED)


@functools.cache
def setup():
    return tiny.program().setups[0]


@pytest.mark.full
@pytest.mark.parametrize("name", TRAINED)
def test_the_pieces_of_a_recipe_read_only_what_the_step_computes(name):
    checks.check(tiny.changed(setup(), algorithm=algorithms.example(name)))


@pytest.mark.default_tier("spiral", "webagent_r1", "golongrl")
@pytest.mark.parametrize("name", [n for n in algorithms.TABLE if recipes.refused(n)])
def test_what_nobody_supplies_is_refused(name):
    call = algorithms.example(name).spec
    with pytest.raises(ValueError, match=re.escape(recipes.refused(name)[0])):
        resolve.phases(tiny.config(call, phases=("main",)))


@pytest.mark.full
def test_demonstrations_stand_at_the_end_of_each_group_and_are_verified():
    program = tiny.program("luffy()")
    rollout = sampled(program, begun(program))
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
    state = begun(program)
    apart = jax.tree.map(lambda x: x * 1.5, state.reference)  # else the reference is the policy, and their KL is 0
    state, metrics = step.update(state.replace(reference=apart), sampled(program, state), program.key)
    assert metrics["kl"] > 0.0012  # a fifth above the target and more: the coefficient rises by the most it may
    beta = jax.tree.leaves(state.algorithm["transforms"])[0]
    np.testing.assert_allclose(beta, 0.1 * (1 + 0.2 * 32 / 100), rtol=1e-5)
