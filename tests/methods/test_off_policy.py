"""Rows that the policy of the step has not sampled: what they are compared with, and what metrics say of them."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.algorithms import base
from rljax.config import resolve
from rljax.training import phases
from rljax.training.learning import row_metrics, updates
from rljax.transforms import advantage, ratio, reduce, surrogate, trajectories
from tests.support import control, tiny


def copy(tree):
    return jax.tree.map(jnp.copy, tree)


def started(call, **fields):
    """Return the step of a program, its first state, the rows of its first rollout, and the root key."""
    program = tiny.program(call, **fields)
    (step,) = program.steps
    state = step.begin(None, program.key)
    return step, state, step.rollout(state, program.key), program.key


@pytest.mark.full
def test_a_demonstration_is_charged_nothing_and_measures_no_policy():
    """At the first step the policy is its reference."""
    step, state, rows, _ = started("ppo(kl=0.05)", seam__source="guided(1)")
    shown = np.asarray(rows.on_policy) == 0
    assert 0 < shown.sum() < shown.size and np.all(np.asarray(rows.raw_logp)[shown] == 0)
    full = updates.complete(step.setup, state, rows)
    np.testing.assert_allclose(trajectories.to_reference(full, "test") * full.mask, 0, atol=2e-6)
    metrics = row_metrics.metrics(updates.placed(full, state), True)
    written = np.asarray(rows.mask)[~shown]
    want = (np.asarray(rows.entropy)[~shown] * written).sum() / written.sum()
    np.testing.assert_allclose(metrics["entropy"], want, rtol=1e-5)
    np.testing.assert_allclose(metrics["kl"], 0, atol=1e-6)


@pytest.mark.full
def test_stored_steps_of_control_have_the_log_probs_of_the_policy_that_is_trained():
    fields = {"seam__weight": "+ truncated_importance(cap=5.0)", "seam__source": "replay(0.5, 2)"}
    program, step, state = control.started(algorithm="ppo()", learner__epochs=2, phase__main__steps=6, **fields)
    gap, source = 0.0, step.setup.algorithm.source
    for _ in range(4):
        rows = step.rollout(state, program.key)
        key = jax.random.fold_in(updates.step_key(program.key, state), 0)
        rows, _ = source.select(rows, state.pool, step.setup.rows, key)
        full = updates.complete(step.setup, state, rows)
        now = phases.score(step.setup, "policy", state.params["policy"], rows, types.Needs(), kept=False).logp
        np.testing.assert_allclose(full.proximal_logp * rows.mask, now * rows.mask, atol=1e-6)
        gap = max(gap, float(jnp.max(jnp.abs(now - rows.behaviour_logp) * rows.mask)))
        state, _ = step.update(copy(state), rows, program.key)
    assert gap > 1e-3  # which the log-probs at sampling are not


@base.recipe
def twice(count: int) -> types.Algorithm:
    """Update the policy by objectives that are equal, one after the other."""
    loss = [ratio.token(), surrogate.clip(0.2, 0.2)]
    one = base.compose(advantage=[advantage.center_by_group()], loss=loss, reduce=reduce.mean_over_tokens())
    return dataclasses.replace(one, objectives=one.objectives * count)


@pytest.mark.full
def test_a_second_objective_is_clipped_around_the_policy_before_the_first():
    ended = {}
    for count, epochs in ((1, 2), (2, 1)):
        fields = {"phase__main__optimizer": "sgd(30.0)", "learner__clip_norm": 0.0, "learner__epochs": epochs}
        step, state, rows, key = started(f"tests.methods.test_off_policy.twice({count})", **fields)
        rows = rows.replace(reward=(jnp.arange(rows.reward.size) % 3 == 0) * 1.0)
        after, metrics = step.update(copy(state), rows, key)
        ended[count] = after.params["policy"], metrics["clipped"]
    # the two objectives take the two steps of two epochs; the metrics are the mean of both, and of the last one
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), ended[1][0], ended[2][0])
    assert ended[2][1] > ended[1][1] > 0


@pytest.mark.full
def test_an_update_that_is_skipped_leaves_the_numbers_of_a_source():
    source = "guided_if(multiplier('loss', 0.0, 0.05, 0.5), 64)"
    step, state, rows, key = started("grpo(kl=0.0)", seam__source=source)
    after, metrics = step.update(copy(state), rows.replace(reward=rows.reward.at[0].set(jnp.nan)), key)
    assert metrics["skipped"] == 1
    assert all(np.all(np.isfinite(x)) for x in jax.tree.leaves(after.pool["numbers"]))


def test_rows_of_a_second_pass_do_not_measure_a_domain():
    right, wrong = int(types.Outcome.CORRECT), int(types.Outcome.WRONG)
    ids, ones = jnp.arange(8, dtype=jnp.int32), jnp.ones(8)
    first = jnp.array([right, wrong, wrong, wrong] * 2, jnp.int32)
    r = types.Rollout(jnp.ones((8, 3)), ones, ids // 4, valid=ones, domain=ids // 4, on_policy=ones)
    r = r.replace(
        outcome=first.at[3::4].set(right),
        extra={"pass": (ids % 4 == 3) * 1.0, "first_outcome": first, "first_reward": ones},
    )
    metrics = row_metrics.metrics(r, True, domains=("a", "b"))
    assert [float(metrics[name]) for name in ("accuracy", "accuracy/domain/a", "accuracy/domain/b")] == [0.25] * 3


def test_a_prompt_has_one_demonstration():
    with pytest.raises(ValueError, match=r"config\.phase\.main\.batch\.samples=2: .* has groups of 1\."):
        resolve.phases(tiny.config("sft()", phase__main__batch={"samples": 2}))
