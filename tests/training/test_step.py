"""The step: every kind of transform runs in it, and no way of splitting the work changes what is computed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import types
from rljax.training import rows as rows_lib
from rljax.training import steps
from rljax.training.learning import optimizers
from tests.support import tiny


def copy(state):
    return jax.tree.map(jnp.copy, state)


def begun(step, key):
    """Return the first state, without the compiled program that begins a run: one for each test would be many."""
    return jax.device_put(copy(step.begin.__wrapped__(None, key)), step.sharding)


def start(program):
    (step,) = program.steps
    return step, begun(step, program.key)


def mixed(step, state, key):
    """Return a rollout whose rewards differ within groups, whatever the policy can do yet."""
    rollout = step.rollout(state, key)
    reward = (jnp.arange(rollout.reward.shape[0]) % 3 == 0) * 1.0
    return rollout.replace(reward=reward)


def close(a, b, tolerance=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=tolerance, rtol=0), a, b)


def updated(program, **replace):
    """Update once, from the same rollout whatever the program's mesh and splits are."""
    reference = tiny.program(program.config.algorithm)
    step, state = start(reference)
    rollout = jax.device_get(mixed(step, state, reference.key)).replace(**replace)
    step, state = start(program)
    state, metrics = step.update(state, rollout, program.key)
    metrics.pop("rows")
    return jax.device_get(state), jax.device_get(metrics)


@pytest.mark.full
def test_fused_equals_rollout_then_update():
    program = tiny.program()
    step, state = start(program)
    fused, fused_metrics = step.fused(copy(state), program.key)
    split, metrics = step.update(copy(state), step.rollout(state, program.key), program.key)
    close(fused.params, split.params)
    assert int(fused.cursor[0]) == 8 and int(fused.step) == 1
    fused_metrics.pop("rows"), metrics.pop("rows")
    close(fused_metrics, metrics)


SHARDED = {
    "mesh__data": 2,
    "mesh__fsdp": 4,
    "learner__microbatches": 4,
    "log__diagnostics": ("clip", "entropy", "kl", "moved", "signs", "weights"),
}


@pytest.mark.full
def test_no_split_of_the_work_changes_the_update_and_all_state_stays_sharded_over_fsdp():
    whole, metrics = updated(tiny.program("grpo()"))
    program = tiny.program("grpo()", **SHARDED)
    rows = jax.device_get(mixed(*start(tiny.program("grpo()")), program.key))
    step, state = start(program)
    embedding = state.params["policy"]["embedding"]
    assert embedding.addressable_shards[0].data.size * 4 == embedding.size
    sharded = [x for x in jax.tree.leaves(state.opt_state) if not x.sharding.is_fully_replicated]
    assert len(sharded) >= 2 * 8  # both moments of the eight matrices
    after, others = step.update(state, rows, program.key)
    jax.tree.map(
        lambda x, s: None if x.sharding.is_equivalent_to(s, x.ndim) else pytest.fail(f"{s}"), after, step.sharding
    )
    close(whole.params, jax.device_get(after.params))
    for name in ("loss", "gradient_norm", "reward", "kl", "ratio"):
        np.testing.assert_allclose(others[name], metrics[name], atol=1e-5)


@pytest.mark.full
def test_diagnostics_of_a_sharded_update_agree_with_its_other_metrics():
    """On rows of the policy itself, then on rows of the policy before, then in an update that is skipped."""
    program = tiny.program("grpo()", **SHARDED)
    rows = jax.device_get(mixed(*start(tiny.program("grpo()")), program.key))
    step, state = start(program)
    state, first = step.update(state, rows, program.key)
    parts = np.array([first["gradient_positive"], first["gradient_negative"]])
    both = np.sum(parts**2) + 2 * first["gradient_cosine"] * np.prod(parts)
    np.testing.assert_allclose(both, first["gradient_norm"] ** 2, rtol=1e-4)  # that of the KL is still 0
    np.testing.assert_allclose(first["effective_samples"], 1.0, atol=1e-5)
    assert abs(first["kl_exact"]) < 1e-6 and 0 < first["moved_mean"] < first["moved_largest"] < 1
    state, second = step.update(state, rows, program.key)
    np.testing.assert_allclose(second["kl_k3"], second["kl"], rtol=1e-4)
    np.testing.assert_allclose(second["kl_exact"], second["kl"], rtol=0.5)  # an estimate from 32 rows
    assert second["kl_k3"] > 1e-5 and second["effective_samples"] < first["effective_samples"]
    state, third = step.update(state, rows.replace(reward=rows.reward * np.nan), program.key)
    assert third["skipped"] == 1 and third["moved_largest"] < 1e-6


@pytest.mark.full
def test_several_minibatches_and_epochs_move_further_and_use_the_proximal_policy():
    one, _ = updated(tiny.program())
    program = tiny.program(learner__epochs=2, learner__minibatches=2)
    many, metrics = updated(program)
    assert metrics["proximal_kl"] > 0  # later minibatches are off-policy with respect to the first
    (count,) = {int(x) for x in jax.tree.leaves(many.opt_state) if x.ndim == 0}
    assert count == 4
    assert any(np.any(a != b) for a, b in zip(jax.tree.leaves(one.params), jax.tree.leaves(many.params), strict=True))


@pytest.mark.full
def test_a_minibatch_step_equals_two_updates_by_hand():
    """Two minibatches with row-local losses are two updates of half the rows each."""
    program = tiny.program("reinforce()", learner__minibatches=2)
    step, state = start(program)
    rollout = mixed(step, state, program.key)
    both, _ = step.update(copy(state), rollout, program.key)
    half = tiny.program("reinforce()", batch__prompts=4)
    (small,), moving = half.steps, state
    for rows in (slice(0, 16), slice(16, 32)):
        moving, _ = small.update(copy(moving), jax.tree.map(lambda x, r=rows: x[r], rollout), program.key)
    close(both.params, moving.params, 1e-6)


def test_a_non_finite_update_is_skipped_and_counted():
    program = tiny.program()
    step, state = start(program)
    before = jax.device_get(state)
    rollout = mixed(step, state, program.key)
    poisoned = rollout.replace(reward=rollout.reward.at[0].set(jnp.nan))
    state, metrics = step.update(state, poisoned, program.key)
    jax.tree.map(np.testing.assert_array_equal, before.params, jax.device_get(state.params))
    jax.tree.map(np.testing.assert_array_equal, before.opt_state, jax.device_get(state.opt_state))
    assert (int(state.skipped), int(state.skipped_total), int(state.step), int(state.cursor[0])) == (1, 1, 1, 8)
    assert metrics["skipped"] == 1
    state, _ = step.update(state, rollout, program.key)
    assert (int(state.skipped), int(state.skipped_total)) == (0, 1)


def test_the_same_state_and_key_replay_bit_for_bit():
    program = tiny.program()
    step, state = start(program)
    a, b = (step.fused(copy(state), program.key) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, a, b)


@pytest.mark.full
def test_a_rows_draw_does_not_depend_on_the_batch_or_the_mesh():
    step, state = start(tiny.program())
    key = tiny.program().key
    whole = step.rollout(state, key)
    other, other_state = start(tiny.program(mesh__data=8))
    np.testing.assert_array_equal(whole.action.token, other.rollout(other_state, key).action.token)
    few, few_state = start(tiny.program(batch__prompts=2))
    np.testing.assert_array_equal(whole.action.token[:8], few.rollout(few_state, key).action.token)


# --- every kind of piece, in the step ------------------------------------------------------------


def run(algorithm, steps=1, **fields):
    """Update on rows of the plain step, whose source is theirs; return what each step leaves."""
    plain, state = start(tiny.program())
    rows = jax.device_get(mixed(plain, state, tiny.program().key))
    program = tiny.program(algorithm, **fields)
    step, state = start(program)
    for _ in range(steps):
        state, metrics = step.update(state, rows, program.key)
        yield jax.device_get(state), {k: float(v) for k, v in metrics.items() if k != "rows"}


@pytest.mark.full
def test_ppo_trains_a_critic_of_its_own_which_may_run_every_other_step():
    program = tiny.program("ppo(kl=0.01, critic_optimizer='adam(learning_rate=0.1)')")
    setup = program.steps[0].setup
    policy, critic = setup.algorithm.objectives
    rare = dataclasses.replace(setup.algorithm, objectives=(policy, dataclasses.replace(critic, every=2)))
    step = steps.make_step(tiny.changed(setup, rare))
    state = begun(step, program.key)
    rows, fresh, counts = mixed(step, state, program.key), jax.device_get(state.params), []
    for number in range(3):
        state, metrics = step.update(state, rows, program.key)
        counts.append(next(int(x) for x in jax.tree.leaves(state.opt_state[1]) if x.ndim == 0))
        trained = jax.device_get(state.params["value"]["scalar"])
        assert np.any(trained != fresh["value"]["scalar"]) and metrics["value/skipped"] == 0
        assert (metrics["value/loss"] > 0) == (number % 2 == 0)
    assert counts == [1, 1, 2] and len(state.opt_state) == 2


@functools.cache
def penalized():
    """Return the first state of a step with three penalties and a moving reference, and what two steps leave."""
    penalty = "exact_kl('js', 0.1) | kl('k3', adaptive_kl(0.1, 0.5, 100)) | entropy(linear(0.1, 0.0, 4))"
    fields = {"seam__penalty": penalty, "seam__after": "ema_reference(0.5) | reset_reference(2)"}
    _, state = start(tiny.program("nsr()", **fields))
    return jax.device_get(state), *run("nsr()", steps=2, **fields)


LESS = 1 - 0.2 * 32 / 100  # far below its target a coefficient takes the largest step down, 32 rows in a horizon of 100


@pytest.mark.full
def test_exact_and_estimated_divergences_vanish_at_the_reference_and_grow_from_it():
    _, (_, first), (_, second) = penalized()
    np.testing.assert_allclose([first["kl"], first["loss/kl"]], 0, atol=1e-6)
    # both penalties count; the metric is the last one's
    assert second["loss/kl"] > 0.1 * LESS * second["kl"] > 1e-9


@pytest.mark.full
def test_references_follow_and_reset():
    before, (once, _), (twice, _) = penalized()
    first = before.params["policy"]["embedding"]
    policy, reference = (x["embedding"] for x in (once.params["policy"], once.reference))
    np.testing.assert_allclose(reference, 0.5 * first + 0.5 * policy, rtol=1e-5)
    assert np.abs(policy - first).max() > 1e-4
    jax.tree.map(np.testing.assert_array_equal, twice.reference, twice.params["policy"])


@pytest.mark.full
def test_schedules_and_adaptive_coefficients_are_state():
    _, _, (state, _) = penalized()
    kl, entropy = state.algorithm["objectives"][0]["loss"][-2:]
    np.testing.assert_allclose(kl[0]["coefficient"], 0.1 * LESS**2, rtol=1e-5)
    assert int(entropy[0]["coefficient"]) == 2


@pytest.mark.full
def test_weights_touch_the_policy_term_of_branches_and_leave_penalties_alone():
    seam = "where('positive', unclipped(), chain(reinforce()))"
    weighted = {"seam__weight": "by_sign(0.0, 0.0)", "seam__penalty": "entropy(0.1)"}
    ((_, none),) = run("rloo()", seam__ratio="token()", seam__surrogate=seam, **weighted)
    assert none["loss/policy"] == 0
    assert none["loss/live_entropy"] < 0


@pytest.mark.full
def test_live_rejection_sees_the_minibatch():
    ((_, none),) = run("rloo()", seam__prepare="reject('abs', -0.0)")
    assert none["sampler_gap"] < 1e-4 and np.isfinite(none["loss"])


@pytest.mark.full
def test_replay_mixes_rows_of_the_step_before():
    program = tiny.program("nsr()", seam__source="replay(0.5)")
    step, state = start(program)
    state, first = step.update(state, step.rollout(state, program.key), program.key)
    before = jax.device_get(state.pool["rows"])
    fresh = jax.device_get(step.rollout(state, program.key))
    state, second = step.update(state, fresh, program.key)
    source = step.setup.algorithm.source
    mixed, _ = source.select(fresh, {"rows": before, "filled": jnp.ones((), bool)}, 32, program.key)
    np.testing.assert_array_equal(
        mixed.action.token, np.concatenate([fresh.action.token[:16], before.action.token[16:]])
    )
    assert mixed.on_policy.tolist() == [1.0] * 16 + [0.0] * 16
    assert mixed.version[0, 0] == 1 and mixed.version[-1, 0] == 0
    # the policy has moved since the replayed half was sampled
    assert second["sampler_gap"] > 10 * first["sampler_gap"]


@pytest.mark.full
def test_dynamic_sampling_draws_more_and_keeps_informative_groups():
    program = tiny.program("dapo(oversample=3)")
    step, state = start(program)
    source = step.setup.algorithm.source
    rollout = step.rollout(state, program.key)
    state, metrics = step.update(state, rollout, program.key)
    assert int(state.cursor[0]) == 24
    reward = jnp.zeros_like(rollout.reward).at[jnp.array([50, 90])].set(1.0)  # groups 12 and 22 have spread
    chosen, _ = source.select(rollout.replace(reward=reward), (), 32, program.key)
    assert chosen.group[:8].tolist() == [12] * 4 + [22] * 4
    assert chosen.valid.tolist() == [1.0] * 8 + [0.0] * 24
    assert 0 <= metrics["valid_rows"] <= 32


@pytest.mark.full
@pytest.mark.parametrize("rescore", ["kept", "unfiltered"])
def test_the_gap_compares_equal_distributions_whatever_the_filters(rescore):
    filters = {"temperature": 0.8, "top_p": 0.7, "top_k": 12, "min_p": 0.02, "rescore": rescore}
    program = tiny.program("grpo()", **{f"sampler__{name}": value for name, value in filters.items()})
    step, state = start(program)
    rows = step.rollout(state, program.key)
    assert jnp.max(rows.behaviour_logp - rows.raw_logp) > 0.1  # the filters do exclude tokens
    _, metrics = step.update(state, rows, program.key)
    assert 0 < metrics["sampler_gap"] < 1e-5


@pytest.mark.full
def test_invalid_rows_do_not_count():
    program = tiny.program()
    step, state = start(program)
    rollout = mixed(step, state, program.key)
    verdict = types.Verdict(
        reward=rollout.reward, outcome=jnp.full(32, types.Outcome.WRONG).at[3].set(types.Outcome.CRASHED)
    )
    judged = rows_lib.judged(rollout, verdict)
    assert judged.valid.tolist() == [1, 1, 1, 0] + [1] * 28 and judged.reward[3] == 0
    after, metrics = step.update(state, judged, program.key)
    assert metrics["valid_rows"] == 31 and metrics["outcome/crashed"] == 1 / 32
    assert (metrics["failed"], metrics["failed_row"], metrics["failed_problem"]) == (1, 3, judged.index[3])
    # a reward that is not a number is a crash of its row alone
    wrong = types.Verdict(reward=rollout.reward.at[3].set(jnp.nan), outcome=jnp.full(32, types.Outcome.WRONG))
    other, metrics = step.update(start(program)[1], rows_lib.judged(rollout, wrong), program.key)
    assert metrics["skipped"] == 0 and tiny.equal(after, other)


# --- updates that are not finite ------------------------------------------------------------------------


def overflow(count):
    """A learning rate that overflows at the optimizer's third step."""
    return 10.0 ** (20.0 * count)


# Its state, the least norm of an update so far, is infinite before the first.
LEAST = optax.GradientTransformation(
    lambda params: jnp.float32(jnp.inf), lambda u, s, p=None: (u, jnp.minimum(s, optax.tree.norm(u)))
)


@pytest.mark.default_tier("rate")
@pytest.mark.parametrize(
    ("tx", "sound"),
    [
        (optax.adamw(float("nan")), 0),
        (optax.chain(optax.adam(0.1), optax.scale(float("inf"))), 0),
        (optax.chain(optax.scale_by_adam(), optax.masked(optax.scale(float("nan")), {"a": False, "b": True})), 0),
        (optax.chain(optax.clip_by_global_norm(1.0), optax.trace(0.9), optax.scale_by_schedule(overflow)), 2),
        (optax.chain(optax.trace(1e30), optax.clip(1.0)), 2),  # its state overflows, its update does not
        (optax.chain(optax.adam(0.1), LEAST), 4),
    ],
    ids=["rate", "infinite", "one module", "schedule", "state", "infinite at first"],
)
def test_an_update_from_a_finite_gradient_that_is_not_finite_changes_nothing(tx, sound):
    params = {"a": jnp.ones(3), "b": jnp.full((2,), 2.0)}
    gradient = jax.tree.map(lambda x: 0.5 * x, params)
    state = tx.init(params)
    apply = jax.jit(functools.partial(optimizers.apply, tx))
    for step in range(4):
        new, new_state, norm, finite = apply(gradient, jnp.float32(0), params, state)
        assert bool(finite) == (step < sound) and np.isfinite(norm)
        changed = [bool(np.any(a != b)) for a, b in zip(jax.tree.leaves(new), jax.tree.leaves(params), strict=True)]
        assert changed == [step < sound] * 2
        if step >= sound:
            jax.tree.map(np.testing.assert_array_equal, new_state, state)
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(new))
        params, state = new, new_state
