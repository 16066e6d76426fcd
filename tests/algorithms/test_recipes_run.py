"""Recipes in the loop's own step on a tiny policy, demonstrations in the group among them.

Every recipe runs on abstract arrays that hold only what the step computes for it. Some take a real step: together they
ask everything of the step that the table does (``recipes.uses``); what their pieces compute is shown on arrays, by
``test_algorithms``.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.config import resolve
from rljax.training import checks
from tests.algorithms import recipes
from tests.support import tiny

# Off-policy rows, whole groups, two objectives, and a second pass of single rows; what other recipes ask, in one.
EVERYTHING = {
    "seam__source": "dynamic(2) | ghpo()",
    "seam__reward": "budget_triangle(decay(1000.0, 0.9, 100, low=1.0))",
    "seam__advantage": "optimal_token_baseline()",
    "seam__ratio": "interpolated()",
    "seam__surrogate": "implicit_negative()",
    "seam__weight": "+ second_moment_mask(0.04)",
    "seam__penalty": "kl('k2', 0.001) | distillation((), 'js')",
    "seam__after": "ema_reference(0.99)",
}
IMITATED = {"seam__penalty": "+ nll(0.1, reduce=mean_over_tokens(only='off_policy'))"}
STEPS = {"luffy": IMITATED, "dpo": {}, "flow_rl": {}, "critique_grpo": {}, "clip_cov": EVERYTHING}
ELSEWHERE = ("sft", "t_ppo", "remix", "twin_critics")  # in every tiny run, test_partial, test_memories, test_targets
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


def built(name):
    """Return the algorithm of a step, without its program."""
    config = tiny.config(algorithms.example(name).spec, phases=("main",), **STEPS.get(name, {}))
    return resolve.phases(config)[0].algorithm


REST = recipes.covering(TRAINED, [built(name) for name in (*STEPS, *ELSEWHERE)])  # as a new recipe may ask for more


@pytest.mark.full
@pytest.mark.parametrize("name", [*STEPS, *REST])
def test_a_step_of(name):
    call = algorithms.example(name).spec
    program = tiny.program.__wrapped__(call, **STEPS.get(name, {}))  # not kept: there are many
    (step,) = program.steps
    state = begun(program)
    params = jax.device_get(state.params)
    rows = sampled(program, state)
    reward = (jnp.arange(rows.reward.shape[0]) % 3 == 0) * 1.0  # differs within groups, whatever the policy can do
    state, metrics = step.update(state, rows.replace(reward=reward), program.key)
    assert int(state.skipped_total) == 0
    for key, value in metrics.items():
        assert key == "rows" or np.isfinite(value), key
    changed = jax.tree.map(lambda x, y: bool(np.any(x != np.asarray(y))), params, jax.device_get(state.params))
    trained = {o.module for o in algorithms.example(name).objectives}
    assert {m: any(jax.tree.leaves(changed[m])) for m in changed} == {m: m in trained for m in changed}


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
    verify = jax.jit(functools.partial(program.tasks[-1].verify, split="train"))
    verdict = verify(rollout.index, token=rollout.action.token, mask=rollout.mask)
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
