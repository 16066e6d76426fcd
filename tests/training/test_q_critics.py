"""State-action values in the logits of a module: learned in the loop against enumerated ones, and what is refused."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, types
from rljax.config import resolve
from rljax.methods.reward import turns
from rljax.run import programs
from rljax.training import phases
from rljax.transforms import advantage, ops, penalty, surrogate
from tests.support import tiny
from tests.training import test_critics

ONE = jax.devices()[:1]
GAMMA, KEY = 0.9, jax.random.key(0, impl="threefry2x32")


# --- exact values -----------------------------------------------------------------------------------


@algorithms.recipe
def critics(expectile: types.Fraction = 0.5, gamma: types.Fraction = GAMMA) -> types.Algorithm:
    """Return critics whose loss is the expectation over all rows."""
    built = algorithms.TABLE["q_critics"](expectile=expectile, gamma=gamma, q=("q",), target=("q_target",))
    objectives = [dataclasses.replace(o, reduce=test_critics.expectation()) for o in built.objectives]
    return dataclasses.replace(built, objectives=tuple(objectives))


def expectile_of(x, p, tau):
    """Return v with sum p |tau - [x < v]| (x - v) = 0, by bisection; its slope in v is negative."""
    low, high = x.min(), x.max()
    for _ in range(60):
        v = (low + high) / 2
        low, high = (v, high) if np.sum(p * np.where(x > v, tau, 1 - tau) * (x - v)) > 0 else (low, v)
    return (low + high) / 2


def enumerated(rows, behaviour, tau):
    """Return Q and V [B, T] of the tau-expectile by induction from the last token; tau 1 is the best token in support.

    ``behaviour`` is the probability [B] of each row; the reward is paid at a row's last token.
    """
    token, mask = np.asarray(rows.action.token), np.asarray(rows.mask) > 0
    q, v, known = np.zeros(mask.shape), np.zeros(mask.shape), {}
    for t in reversed(range(mask.shape[1])):
        for i in np.flatnonzero(mask[:, t]):
            ends = t + 1 == mask.shape[1] or not mask[i, t + 1]
            q[i, t] = rows.reward[i] if ends else GAMMA * known[tuple(token[i, : t + 1])]
        for prefix in {tuple(token[i, :t]) for i in np.flatnonzero(mask[:, t])}:
            here = [i for i in np.flatnonzero(mask[:, t]) if tuple(token[i, :t]) == prefix and behaviour[i] > 0]
            known[prefix] = 0.0  # a state that no row visits
            if here:
                best = np.max(q[here, t]) if tau == 1 else expectile_of(q[here, t], behaviour[here], tau)
                known[prefix] = best
                v[here, t] = best
    return q, v


def learned(tau):
    """Return (rows, behaviour, Q, V) after some updates of the critics on the rows of another behaviour."""
    c = tiny.config(f"tests.training.test_q_critics.critics({tau})", task="tests.training.test_critics.letters()")

    c.phase.main.optimizer = "adamw(learning_rate=1.5e-3, weight_decay=0.0)"
    c.batch.update({"prompts": 7, "samples": 37})
    c.learner.epochs = 200
    c.log.rollout_rows = 0
    c.module.q = rljax.module(weights="random")
    c.module.q_target = rljax.module(follows="q", rate=1.0)
    step = programs.build(c, devices=ONE).steps[0]
    state = step.begin(None, KEY)
    rows, _, _ = test_critics.every_row(step, state.params["policy"])
    r = np.random.default_rng(3)
    token, mask = np.asarray(rows.action.token), np.asarray(rows.mask)
    take = {prefix: r.dirichlet(np.full(7, 4.0)) for n in range(3) for prefix in itertools.product(range(7), repeat=n)}
    behaviour = np.array(
        [
            np.prod([take[tuple(y[:t])][y[t]] * (y[t] != 6) for t in range(int(n))])  # which never takes the last token
            for y, n in zip(token, mask.sum(axis=1), strict=True)
        ]
    )
    behaviour = behaviour / behaviour.sum()
    rows = rows.replace(parts={"probability": jnp.asarray(behaviour, jnp.float32)})
    for _ in range(12):
        state, _ = step.update(state, rows, KEY)
    scores = step.score("q", state.params["q"], rows, types.Needs(log_normaliser=True))
    v = step.score("value", state.params["value"], rows, types.Needs(value=True)).value
    return rows, behaviour, np.asarray(scores.logp + scores.log_normaliser), np.asarray(v)


@pytest.mark.full
@pytest.mark.parametrize("tau", [0.5, 0.9])
def test_critics_learn_the_enumerated_values_of_a_fixed_behaviour(tau):
    """At 0.5 these are the values of the behaviour."""
    rows, behaviour, q, v = learned(tau)
    weight = behaviour[:, None] * np.asarray(rows.mask)
    weight = weight / weight.sum()

    def error(x, want):
        return np.sqrt(np.sum(weight * np.where(weight > 0, x - want, 0.0) ** 2))

    want_q, want_v = enumerated(rows, behaviour, tau)
    assert error(want_v, np.sum(weight * want_v)) > 0.1  # values differ between states
    assert error(q, want_q) < 0.02 and error(v, want_v) < 0.02
    best = enumerated(rows, behaviour, 1)[1]
    gaps = [error(enumerated(rows, behaviour, x)[1], best) for x in (0.5, 0.9, 0.99, 0.9999)]
    assert np.all(np.diff(gaps) < 0) and gaps[-1] < 1e-3 < 0.5 < gaps[0]  # towards the best tokens that are taken


# --- pieces -----------------------------------------------------------------------------------------


def of_logits(z, token):
    """Return the scores of a module with logits [B, T, V]."""
    normaliser = jax.nn.logsumexp(z, axis=-1)
    return types.Scores(
        logp=jnp.take_along_axis(z, token[..., None], axis=-1)[..., 0] - normaliser, log_normaliser=normaliser
    )


def terms(pieces, rows, scores):
    """Return the sum over the tokens of all terms of loss pieces."""
    loss = types.Loss()
    for piece in pieces:
        loss = piece.apply(loss, rows, scores, piece.init(), jax.random.key(0))
    return sum(jnp.sum(term) for term in loss.terms.values())


@pytest.mark.full
def test_the_error_of_q_moves_one_logit_and_the_conservative_penalty_is_the_cross_entropy():
    r = np.random.default_rng(0)
    z, y = jnp.asarray(r.normal(size=(3, 4, 5)), jnp.float32), jnp.asarray(r.normal(size=(3, 4)), jnp.float32)
    token = jnp.asarray(r.integers(0, 5, (3, 4)))
    rows = types.Rollout(jnp.ones((3, 4)), jnp.zeros(3), jnp.zeros(3, int), extra={"q_returns": y})
    taken = np.eye(5)[np.asarray(token)]
    gradient = jax.grad(lambda z: terms([surrogate.q_error()], rows, of_logits(z, token)))(z)
    np.testing.assert_allclose(gradient, 2 * (np.sum(z * taken, -1) - y)[..., None] * taken, atol=1e-5)
    gradient = jax.grad(lambda z: terms([penalty.nll(0.3)], rows, of_logits(z, token)))(z)
    np.testing.assert_allclose(gradient, 0.3 * (jax.nn.softmax(z) - taken), atol=1e-6)
    with pytest.raises(ValueError, match="q_returns"):
        terms([surrogate.q_error()], rows.replace(extra={}), of_logits(z, token))


def test_the_policy_of_ilql_goes_to_the_reference_shifted_by_q():
    """Its loss is KL(pi || ref exp(beta Q) / Z) - log Z: the same gradient, and none there."""
    r, beta = np.random.default_rng(1), 2.5
    z, ref, one, two = jnp.asarray(r.normal(size=(4, 3, 2, 6)), jnp.float32)
    shifted = jax.nn.log_softmax(jax.nn.log_softmax(ref) + beta * (one + two) / 2)
    others = {"reverse_kl": ref, "reverse_kl/q_target": one, "reverse_kl/q_2_target": two}
    pieces = algorithms.TABLE["ilql"](beta=beta).objectives[0].loss
    rows = types.Rollout(jnp.ones((3, 2)), jnp.zeros(3), jnp.zeros(3, int))

    def kl(z, other):
        return ops.divergence("reverse_kl", jax.nn.log_softmax(z), jax.nn.log_softmax(other))

    def loss(z):
        logp = jax.nn.log_softmax(z)
        exact = {name: kl(z, other) for name, other in others.items()}
        return terms(pieces, rows, types.Scores(divergence=exact, entropy=-jnp.sum(jnp.exp(logp) * logp, axis=-1)))

    want = jax.grad(lambda z: jnp.sum(kl(z, shifted)))
    np.testing.assert_allclose(jax.grad(loss)(z), want(z), atol=1e-5)
    np.testing.assert_allclose(jax.grad(loss)(shifted), 0, atol=1e-5)


def test_a_turn_has_its_last_trained_token():
    mask = jnp.asarray([[1, 1, 0, 1, 1, 0], [0, 1, 1, 0, 0, 1]], jnp.float32)
    turn = jnp.asarray([[0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1]])
    rows = types.Rollout(mask, jnp.zeros(2), jnp.zeros(2, int), turn=turn)
    np.testing.assert_array_equal(turns.turns(rows)[1], [[0, 1, 0, 0, 1, 0], [0, 1, 0, 0, 0, 1]])


@pytest.mark.full
def test_n_steps_reach_the_return_and_value_only_its_states():
    """Two rows of one episode, with a gap in the mask: the next state of a row's last token is the next row's first."""
    rows = types.Rollout(
        jnp.asarray([[1, 0, 1], [1, 1, 0]], jnp.float32),
        jnp.zeros(2),
        jnp.zeros(2, int),
        token_reward=jnp.asarray([[1, 0, 2], [4, 8, 0]], jnp.float32),
        value=jnp.asarray([[10, 99, 20], [40, 80, 99]], jnp.float32),
        episode=jnp.zeros(2, int),
    )

    def target(**arguments):
        piece = advantage.q_returns(gamma=0.5, **arguments)
        return piece.apply(rows, piece.init(), jax.random.key(0))[0].extra["q_returns"]

    np.testing.assert_allclose(target(), [[1 + 10, 0, 2 + 20], [4 + 40, 8, 0]])
    np.testing.assert_allclose(target(steps=2), [[1 + 1 + 10, 0, 2 + 2 + 20], [4 + 4, 8, 0]])
    np.testing.assert_allclose(target(steps=9), [[4, 0, 6], [8, 8, 0]])  # 1 + (2 + (4 + 8 / 2) / 2) / 2
    np.testing.assert_allclose(target(lam=1.0), target(steps=9))


@pytest.mark.parametrize(
    ("divergence", "conjugate"), [("chi_square", lambda x: x + x**2 / 4), ("total_variation", abs)]
)
def test_the_dual_of_a_divergence_has_its_minimum_nearer_the_largest_q_the_larger_its_weight(divergence, conjugate):
    """Of total variation it is a quantile: the share (1 - weight) / weight of Q is above V."""
    q = np.random.default_rng(5).normal(size=999)
    every, best = np.linspace(-4, 4, 801), []
    rows = types.Rollout(np.ones((1, 999)), np.zeros(1), np.zeros(1, int), returns=jnp.asarray(q[None]))
    for weight in (0.6, 0.9):
        piece = surrogate.dual_value_error(weight, divergence)

        def loss(v, piece=piece):
            scores = types.Scores(value=jnp.full((1, 999), v))
            return jnp.mean(piece.apply(types.Loss(), rows, scores, piece.init(), KEY).terms["value"])

        x = q - every[:, None]
        want = np.mean((1 - weight) * -x + weight * np.where(x > 0, conjugate(x), 0.0), axis=1)
        np.testing.assert_allclose(jax.vmap(loss)(jnp.asarray(every)), want, rtol=1e-5, atol=1e-6)
        best.append(every[want.argmin()])
        if divergence == "total_variation":
            assert np.mean(q > best[-1]) == pytest.approx((1 - weight) / weight, abs=0.02)
    assert best[0] < best[1] < q.max() and q.mean() < best[1]


# --- in a run ---------------------------------------------------------------------------------------


def config(call):
    c = tiny.config(call)
    for name in ("q", "q_2"):
        c.module[name] = rljax.module(weights="random")
        c.module[f"{name}_target"] = rljax.module(follows=name, rate=0.5)
    return c


def test_critics_that_nobody_provides_are_refused():
    with pytest.raises(ValueError, match="uses the module 'q_2_target', which no phase trains"):
        resolve.phases(tiny.config("iql()"))
    with pytest.raises(ValueError, match=r"q_values: module=\('a', 'a'\) must be at least one name, each once"):
        advantage.q_values(("a", "a"))
    c = config("ilql()")
    c.module.q = rljax.module(trunk="policy")
    with pytest.raises(ValueError, match=r"config.module.q.trunk='policy'.* reads log-probs of 'q'"):
        resolve.phases(c)


@pytest.mark.full
@pytest.mark.parametrize("call", ["iql()", "ilql()", "f_dvl()", "hnpg()"])
def test_a_step_trains_policy_and_critics_and_moves_their_followers(call):
    step = programs.build(config(call), devices=ONE).steps[0]
    state = step.begin(None, KEY)
    before = jax.device_get(state)
    state, metrics = step.fused(state, KEY)
    assert int(state.skipped_total) == 0 and np.isfinite(metrics["q/loss/value"])
    for name in {o.module for o in step.setup.algorithm.objectives}:
        assert not tiny.equal(before.params[name], state.params[name]), name
    for name in ("q", "q_2"):
        moved = jax.tree.map(lambda a, b: (a + b) / 2, before.frozen[f"{name}_target"], state.params[name])
        follower = jax.device_get(state.frozen[f"{name}_target"])
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), follower, moved)


def dueling():
    """Return a step of ``b_coder`` whose base is another policy, and its state."""
    c = tiny.config("b_coder(scale=0.5)")
    c.module.base = rljax.module(weights="random")
    step = programs.build(c, devices=ONE).steps[0]
    return step, step.begin(None, KEY)


@pytest.mark.full
def test_scores_have_the_policys_largest_log_prob_and_the_one_of_the_bases_best_token():
    step, state = dueling()
    rows = jax.jit(step.producer.rollout)(state, KEY)
    setup, needs = step.setup, types.Needs(divergence=frozenset({"greatest/base", "at_mode/base"}))
    trees = {name: setup.params(state, name) for name in ("policy", "base")}
    run = functools.partial(phases.score, setup, "policy", needs=needs, samples=0)
    scores = jax.jit(lambda p, rows, base: run(p, rows, teachers={"base": base}))(trees["policy"], rows, trees["base"])
    token = jnp.concatenate([rows.context.token, rows.action.token], axis=1)
    real = jnp.concatenate([rows.context.mask, rows.mask], axis=1)
    start, model = rows.context.token.shape[1] - 1, setup.networks["policy"]
    hidden = {name: jax.jit(model.apply)(tree, token, real)[:, start:-1] for name, tree in trees.items()}
    logits = {name: np.asarray(model.logits(trees[name], h), np.float64) for name, h in hidden.items()}
    logp = logits["policy"] - np.log(np.exp(logits["policy"]).sum(axis=-1, keepdims=True))
    at = np.take_along_axis(logp, logits["base"].argmax(axis=-1)[..., None], axis=-1)[..., 0]
    mask = np.asarray(rows.mask) > 0
    assert (at < logp.max(axis=-1))[mask].any()
    for name, want in (("greatest/base", logp.max(axis=-1)), ("at_mode/base", at)):
        np.testing.assert_allclose(np.asarray(scores.divergence[name])[mask], want[mask], atol=1e-5)


@pytest.mark.full
def test_a_step_trains_a_dueling_policy_and_its_value_beside_a_base_that_stays():
    step, state = dueling()
    before = jax.device_get(state)
    state, metrics = step.fused(state, KEY)
    assert int(state.skipped_total) == 0 and np.isfinite(metrics["loss/value"])
    assert not any(tiny.equal(before.params[name], state.params[name]) for name in ("policy", "value"))
    assert tiny.equal(before.frozen["base"], state.frozen["base"])


@pytest.mark.full
def test_soft_q_in_the_policys_logits_bootstraps_from_a_follower_of_the_policy():
    c = tiny.config("arsq()")
    c.module.q_target = rljax.module(follows="policy", rate=0.5)
    step = programs.build(c, devices=ONE).steps[0]
    before = jax.device_get(step.begin(None, KEY))
    state, metrics = step.fused(step.begin(None, KEY), KEY)
    assert int(state.skipped_total) == 0 and np.isfinite(metrics["loss/value"])
    moved = jax.tree.map(lambda a, b: (a + b) / 2, before.frozen["q_target"], state.params["policy"])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), state.frozen["q_target"], moved)
