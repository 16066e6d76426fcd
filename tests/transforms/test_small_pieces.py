"""Small pieces against plain NumPy: proximal regression, clips and bonuses by entropy, gates, spans, supports."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.config import resolve
from rljax.run.evaluation import evaluate, passk
from rljax.transforms import penalty, prepare, reward, schedule, surrogate, weight
from tests.support import batch, tiny
from tests.support.reference import dual, parts

KEY = jax.random.key(0)


def close(a, b):
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=2e-5, atol=1e-6)


def term(piece, rollout, scores, ratio=None):
    """Return the term of a piece and the gradient of its sum in logp, [B, T] each."""

    def total(scores):
        rows = rollout
        for statistic in piece.statistics:
            rows = statistic.apply(rows, jax.lax.stop_gradient(scores), statistic.init(), KEY)[0]
        loss = types.Loss(log_ratio=None if ratio is None else ratio(scores))
        (value,) = piece.apply(loss, rows, scores, piece.init(), KEY).terms.values()
        return jnp.sum(jnp.where(rollout.mask > 0, value, 0.0)), value

    gradient, value = jax.jit(jax.grad(total, has_aux=True))(scores)
    return value, gradient


# --- the proximal form of the regression of pairs ------------------------------------------------


def regression(d, beta, bound):
    """Return [B] of max(L(logp), L(proximal + clip(logp - proximal))) of each row's pair, Duals."""
    sign, losses = d["extra"]["preference"], [0.0] * batch.B
    for group in np.unique(d["group"]):
        rows = [i for i in range(batch.B) if d["group"][i] == group]
        plain = near = float(d["extra"]["margin"][rows[0]])
        for i in rows:
            for t in parts.trained(d, i):
                moved = d["logp"][i, t] - d["proximal"][i, t]
                plain = plain - beta * sign[i] * (d["logp"][i, t] - d["ref"][i, t])
                held = d["proximal"][i, t] + dual.clip(moved, -bound, bound)
                near = near - beta * sign[i] * (held - d["ref"][i, t])
        for i in rows:
            losses[i] = max(plain**2, near**2)
    return losses


def test_proximal_regression_is_the_larger_of_two_losses():
    d = batch.arrays()
    rollout, scores = batch.records(d)
    live = dict(d) | {"logp": dual.variables(d["logp"])[0]}
    binds = []
    for bound in (0.05, 0.15):
        value, gradient = term(surrogate.reward_difference(0.5, proximal=bound), rollout, scores)
        want = regression(live, 0.5, bound)
        close(value[:, 0], [dual.value(x) for x in want])
        on_tokens = sum((x * float(n) for x, n in zip(want, d["mask"].sum(axis=1), strict=True)), 0.0)
        close(gradient.logp, on_tokens.gradient.reshape(batch.B, batch.T))
        far = (np.abs(d["logp"] - d["proximal"]) > bound) & (d["mask"] > 0) & (d["extra"]["preference"] != 0)[:, None]
        stopped = np.asarray(gradient.logp)[far] == 0
        binds += [stopped.any(), (~stopped).any()]
    assert all(binds)  # the clamped loss is the larger in one group, the plain one in another
    plain, slope = term(surrogate.reward_difference(0.5), rollout, scores)
    value, gradient = term(surrogate.reward_difference(0.5, proximal=100.0), rollout, scores)
    close(value, plain)
    close(gradient.logp, slope.logp)


# --- the upper clip by entropy -------------------------------------------------------------------


def test_the_upper_bound_of_the_ratio_follows_the_entropy_of_the_row():
    d = batch.arrays()
    rollout, scores = batch.records(d)
    a = np.random.default_rng(1).normal(size=(batch.B, batch.T)) * d["mask"]
    rollout = rollout.replace(advantage=jnp.asarray(a, jnp.float32))

    def ratio(s):
        return s.logp - rollout.proximal_logp

    value, _ = term(surrogate.entropy_clip(0.1, 0.05, 0.3, 0.9), rollout, scores, ratio)
    bounds = []
    for i, ts in parts.rows(d):
        entropy = np.mean([d["sampled_entropy"][i, t] for t in ts]) if ts else 0.0
        bounds.append(0.05 + 0.25 * min(entropy / 0.9, 1.0))
        for t in ts:
            close(value[i, t], parts.clipped(np.exp(d["logp"][i, t] - d["proximal"][i, t]), a[i, t], 0.1, bounds[-1]))
    assert min(bounds) < 0.2 < max(bounds) == pytest.approx(0.3)
    for x, y in zip(
        term(surrogate.entropy_clip(0.1, 0.2, 0.2), rollout, scores, ratio),
        term(surrogate.clip(0.1, 0.2), rollout, scores, ratio),
        strict=True,
    ):
        jax.tree.map(np.testing.assert_array_equal, x, y)


# --- entropy where confidence goes with success --------------------------------------------------


def test_the_entropy_bonus_is_weighed_by_capped_covariances():
    d = batch.arrays()
    rollout, scores = batch.records(d)
    a = np.random.default_rng(2).normal(size=(batch.B, batch.T)) * 2
    rollout = rollout.replace(advantage=jnp.asarray(a, jnp.float32))
    trained = d["mask"] > 0
    logp, advantage = d["logp"][trained], a[trained]
    covariance = (advantage - advantage.mean()) * (logp - logp.mean())
    share = np.exp(covariance / 0.5) / np.exp(covariance / 0.5).sum()
    weight = len(logp) * np.minimum(share, 2.0 / len(logp))
    assert weight.max() == pytest.approx(2.0) and weight.min() < 0.5
    value, gradient = term(penalty.covariant_entropy(0.1, tau=0.5, cap=2.0), rollout, scores)
    close(np.asarray(value)[trained], -0.1 * weight * d["entropy"][trained])
    close(np.asarray(gradient.entropy)[trained], -0.1 * weight)
    assert np.all(np.asarray(gradient.logp) == 0)  # the weights are constants
    equal, _ = term(penalty.covariant_entropy(0.1, tau=1e8), rollout, scores)
    plain, _ = term(penalty.entropy(0.1), rollout, scores)
    close(np.asarray(equal)[trained], np.asarray(plain)[trained])
    assert (
        "live_entropy"
        in penalty.covariant_entropy()
        .apply(types.Loss(), rollout.replace(extra={**rollout.extra, "protected": rollout.mask}), scores, (), KEY)
        .metrics
    )  # what adaptive_entropy reads


def test_the_weight_of_imitation_follows_the_entropy_and_both_weights_add_up_to_1():
    imitation, policy = schedule.adaptive_mixture(0.5, step=0.1), schedule.adaptive_mixture(0.5, step=-0.1)
    mu, one_minus_mu, want = imitation.init(), policy.init(), 0.5
    for entropy in (0.2, 0.9, 0.1, 0.0, -9.0, 1.0):  # -9: to the bound
        want = min(max(want + 0.1 * (0.5 - entropy), 0.05), 0.95)
        mu, one_minus_mu = (c.update(s, {"entropy": entropy}) for c, s in ((imitation, mu), (policy, one_minus_mu)))
        close([imitation.value(mu), policy.value(one_minus_mu)], [want, 1 - want])


# --- rewards ------------------------------------------------------------------------------------


def rows(reward, group, mask, **fields):
    return types.Rollout(
        mask=jnp.asarray(mask, jnp.float32), reward=jnp.asarray(reward), group=jnp.asarray(group), **fields
    )


def paid(piece, rollout):
    return np.asarray(jax.jit(lambda r: piece.apply(r, piece.init(), KEY)[0].reward)(rollout))


def test_only_groups_that_are_all_right_are_paid_for_brevity():
    mask = np.arange(4) < np.array([1, 4, 2, 3, 2, 2])[:, None]
    r = rows([1.0, 1.0, 1.0, 0.0, 1.0, 0.0], [7, 7, 3, 3, 5, 5], mask)
    piece = reward.brevity_if_solved(4.0, 0.4)
    close(paid(piece, r), [1.3, 1.0, 1.0, 0.0, 1.0, 0.0])  # 0.4 (1 - 1/4) and 0.4 (1 - 4/4); mixed groups unchanged
    # a row that does not count leaves its group all right; a row beyond the limit is not charged
    close(paid(piece, r.replace(valid=jnp.asarray([1.0, 1, 1, 0, 1, 1])))[:3], [1.3, 1.0, 1.2])
    close(paid(reward.brevity_if_solved(2.0), r)[:2], [1.5, 1.0])


def test_a_criterion_that_is_met_pays_no_more():
    named = {"style": jnp.asarray([0.2, 0.5, 0.9]), "fact": jnp.asarray([1.0, 0.4, -0.3])}
    r = rows([0.0, 0.0, 1.0], [0, 0, 0], np.ones((3, 1)), parts=named)
    weights = (("style", 1.0), ("fact", 2.0))
    close(paid(reward.add_parts(weights, full=0.5), r), [1.2, 1.3, 0.9])
    close(paid(reward.add_parts(weights), r), [2.2, 1.3, 1.3])


# --- spans that the policy wrote in the place of a tool ------------------------------------------


def test_spans_between_markers_leave_every_term():
    """Against regular expressions on the same letters: "ab" opens, "c" closes, and the padding holds markers too."""
    random, count, width = np.random.default_rng(0), 200, 12
    token, length = random.integers(0, 4, (count, width)), random.integers(0, width + 1, count)
    mask = (np.arange(width) < length[:, None]).astype(np.float32)
    gaps = mask * (random.random((count, width)) < 0.8)  # a reply in between has mask 0, and its tokens count
    r = rows(np.zeros(count, np.float32), np.arange(count), gaps)
    r = r.replace(action=types.Action(token=jnp.asarray(token), length=jnp.asarray(length)))
    piece = prepare.drop_between((0, 1), (2,))
    program = jax.jit(lambda r: piece.apply(r, None, (), KEY)[0].mask)
    kept = np.asarray(program(r))
    want, spans = gaps.copy(), 0
    for i in range(count):
        text = "".join("abcd"[t] for t in token[i, : length[i]])
        for span in re.finditer("ab.*?c", text):
            want[i, slice(*span.span())] = 0
            spans += 1
    assert spans > 30
    np.testing.assert_array_equal(kept, want)
    whole = rows(np.zeros(count, np.float32), np.arange(count), mask, action=types.Action(token=jnp.asarray(token)))
    np.testing.assert_array_equal(np.asarray(program(whole)) * gaps, want)  # without a length it is that of the mask
    with pytest.raises(ValueError, match=r"closing=\(\) must be at least one token id"):
        prepare.drop_between((0,), ())


# --- what a config writes -----------------------------------------------------------------------

SPECS = [
    ("dpo()", {"prepare": "random_pair()", "surrogate": "reward_difference(proximal=0.2)"}),
    ("dapo()", {"surrogate": "entropy_clip()"}),
    ("dapo()", {"penalty": "covariant_entropy()", "reward": "+ add_parts((('format', 1.0),), full=0.5)"}),
    ("dapo()", {"source": "task()", "penalty": "entropy()", "reward": "brevity_if_solved(8)"}),
    ("grpo()", {"prepare": "drop_between((3,), (4, 5))"}),
    (
        "exp_grpo(beta=adaptive_mixture(0.5))",
        {"source": "guided(1)", "weight": "constant(adaptive_mixture(0.5, step=-5e-4))"},
    ),
    ("grpo(kl=0.0)", {"reward": "add_parts((('format', 0.5),), full=1.0) | require('format')"}),
]


@pytest.mark.parametrize(("algorithm", "seams"), SPECS, ids=lambda value: value if isinstance(value, str) else "")
def test_a_config_takes_the_specs_of_methods_that_are_not_in_the_table(algorithm, seams):
    config = tiny.config(algorithm=algorithm, **{f"seam__{name}": text for name, text in seams.items()})
    text = algorithms.describe(resolve.phases(config)[-1].algorithm)
    for spec in seams.values():
        assert all(name in text for name in re.findall(r"([a-z_]+)\(", spec))


@pytest.mark.full
def test_the_pieces_run_in_one_compiled_step_of_several_epochs():
    seams = {
        "reward": "budget_triangle(4.0) | brevity_if_solved(8) | add_parts((('format', 0.1),), full=0.5)",
        "prepare": "random_pair() | drop_between((49,), (50,))",
        "surrogate": "entropy_clip() | reward_difference(proximal=0.01)",
        "weight": "constant(adaptive_mixture(0.5))",
        "penalty": "covariant_entropy()",
    }
    program = tiny.program("grpo(kl=0.0)", learner__epochs=2, **{f"seam__{k}": v for k, v in seams.items()})
    step = program.steps[-1]
    before = step.begin(None, program.key)
    params = jax.device_get(before.params)
    after, metrics = step.fused(before, program.key)
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves((after.params, metrics)))
    moved = [np.any(a != b) for a, b in zip(*map(jax.tree.leaves, (params, jax.device_get(after.params))), strict=True)]
    assert all(moved) and {"loss/policy", "live_entropy", "clipped"} <= {*metrics}


def test_a_random_share_of_positions_is_kept():
    mask = np.tile(np.repeat([[1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0], [0, 0, 0, 0, 0, 0]], 1, axis=0), (500, 1))
    r = types.Rollout(jnp.asarray(mask, jnp.float32), jnp.zeros(1500), jnp.zeros(1500, int))

    def kept(share, key=0):
        piece = prepare.random_positions(share)
        return np.asarray(piece.apply(r, None, piece.init(), jax.random.key(key))[0].mask)

    out = kept(0.6)
    assert np.all(out <= mask) and np.array_equal(out.sum(axis=1), np.tile([3, 2, 0], 500))  # of 5, 3 and no position
    shares = out.reshape(500, 3, 6).mean(axis=0)[mask[:3] > 0]
    want = np.repeat([3 / 5, 2 / 3], [5, 3])
    assert np.all(np.abs(shares - want) < 4 * np.sqrt(want * (1 - want) / 500))
    assert np.any(out != kept(0.6, key=1)) and np.array_equal(kept(1.0), mask)
    assert np.array_equal(kept(0.01).sum(axis=1), np.tile([1, 1, 0], 500))


# --- which prompts an evaluation solves ----------------------------------------------------------


def test_the_supports_of_two_evaluations_are_compared(capsys):
    base, result = [4, 1, 0, 0, 2, 0, 0, 0], [4, 0, 3, 0, 1, 1, 0, 1]
    # both 0, 4; base alone 1; result alone 2, 5, 7; neither 3, 6
    counts = passk.support(base, result)
    assert counts == {
        "both": 2 / 8,
        "base": 1 / 8,
        "result": 3 / 8,
        "neither": 2 / 8,
        "retention": 2 / 3,
        "discovery": 0.6,
    }
    nothing = passk.support([0, 0], [0, 0])
    assert nothing["neither"] == 1 and np.isnan(nothing["retention"]) and np.isnan(nothing["discovery"])
    with pytest.raises(ValueError, match="got shapes"):
        passk.support([1, 0], [1])
    shared = {"task": "sums()", "prompts": 8, "samples": 4, "pass_at_k": {"1": [0.3, 0.1, 0.5]}, "examples": []}
    shared |= {"greedy": [0.3, 0.1, 0.5]}
    evaluations = [
        {**shared, "name": name, "step": i, "correct": c}
        for i, (name, c) in enumerate([("base", base), ("result", result)])
    ]
    evaluate.table([*evaluations, {**shared, "name": "other", "step": 2, "samples": 2, "correct": base}])
    shown = {line.split("  ")[0].strip(): line.split() for line in capsys.readouterr().out.splitlines()}
    assert shown["solved as in the first"][-1] == "25.0" and shown["solved here alone"][-1] == "37.5"
    assert shown["solved in the first alone"][-1] == "12.5"


# --- limits, ties and rows out of range ----------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "limit"), [(0.0, lambda u: u * np.log(u) - u + 1), (1.0, lambda u: u - 1 - np.log(u))]
)
def test_the_alpha_divergence_has_its_limits(alpha, limit):
    d = batch.arrays()
    rollout, scores = batch.records(d)
    u = np.exp(np.where(d["mask"] > 0, d["logp"] - d["ref"], 0.0))
    value, gradient = term(penalty.f_divergence("alpha", 1.0, alpha), rollout, scores)
    near, its = term(penalty.f_divergence("alpha", 1.0, alpha + 1e-2), rollout, scores)
    close(value * d["mask"], limit(u) * d["mask"])
    for x, y in ((value, near), (gradient, its)):
        close_by = [np.asarray(z.logp if isinstance(z, types.Scores) else z) * d["mask"] for z in (x, y)]
        np.testing.assert_allclose(*close_by, atol=0.05 * np.abs(close_by[1]).max())


def weighed(piece, rollout):
    """Return the weight that a piece gives every token."""
    for statistic in piece.statistics:
        rollout = statistic.apply(rollout, types.Scores(), statistic.init(), KEY)[0]
    return np.asarray(piece.apply(types.Loss(), rollout, types.Scores(), piece.init(), KEY).metrics["weight"])


def plain(**fields):
    """Return a rollout of two rows of four tokens."""
    fields = {"mask": np.ones((2, 4)), "reward": np.zeros(2), "group": np.zeros(2, np.int32)} | fields
    return types.Rollout(
        **{
            k: jnp.asarray(x, np.asarray(x).dtype if k in ("group", "agent") else jnp.float32)
            for k, x in fields.items()
        }
    )


def test_tokens_of_equal_moment_are_dropped_until_the_mean_is_below():
    gap = np.sqrt(np.array([[0.0, 0.06, 0.06, 0.06], [0.06, 0.0, 0.06, 0.06]]))
    kept = weighed(weight.second_moment_mask(0.04), plain(proximal_logp=gap, behaviour_logp=np.zeros((2, 4))))
    assert kept.sum() == 5 and kept[0, 0] == kept[1, 1] == 1  # 3 of 0.06 beside 2 of 0: 0.036; 4 would be 0.04


def test_rows_of_an_agent_without_a_weight_are_not_trained_on():
    w = weighed(weight.by_role((1.0, 0.25)), plain(agent=np.array([1, 2], np.int32)))
    np.testing.assert_array_equal(w[:, 0], [0.25, np.nan])


@pytest.mark.parametrize("length", [5, 25, 50, 200])
def test_a_share_of_the_positions_is_kept_exactly(length):
    r = plain(mask=np.ones((2, length)))
    kept, _ = prepare.random_positions(0.6).apply(r, None, (), KEY)
    np.testing.assert_array_equal(kept.mask.sum(axis=1), 0.6 * length)
