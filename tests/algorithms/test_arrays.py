"""Losses of arrays in hand: rollout_from_arrays, objective, advantages, and the command that prints the table."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import algorithms, types
from rljax.algorithms import interpreter
from tests.algorithms.arrays_cases import GROUP, MASK, REWARD, build, rollout
from tests.support import batch, jaxprs


def test_mask_reward_and_group_are_enough():
    # each group has rewards 1 and 0: centred +-1/2, over std (ddof 1) sqrt(1/2)
    got = rljax.advantages("grpo()", rollout())
    np.testing.assert_allclose(got, np.sqrt(0.5) * np.array([1, -1, -1, 1])[:, None] * MASK, rtol=1e-5)
    np.testing.assert_allclose(rljax.advantages("rloo()", rollout()), np.array([1, -1, -1, 1])[:, None] * MASK)
    logp = np.full((4, 3), -1.0, np.float32)
    loss, metrics = rljax.objective("rloo()", rollout(), rljax.Scores(logp=jnp.asarray(logp)))
    np.testing.assert_allclose(loss, (2 - 3 - 1 + 2) / 4)  # -A logp, token sums, mean over rows
    np.testing.assert_allclose(metrics["loss/policy"], loss)


@pytest.mark.full
@pytest.mark.parametrize("call", ["bradley_terry()", "bradley_terry(ties=0.5)", "implicit_bradley_terry()", "dpo()"])
def test_groups_without_a_pair_do_not_change_the_loss_of_pairs(call):
    """A pair alone, and beside a group that has none: one of equal rewards, or with ties one of a single row."""

    def loss(rows, shift):
        mask, reward, group = np.ones((rows, 2)), [1.0, 0.0, 1.0, 1.0][:rows], [0, 0, 1, 1][:rows]
        r = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, ref_logp=-mask)
        logp = -1.0 + shift * jnp.array([[1.0], [-1.0], [0.5], [2.0]])[:rows] * mask
        return rljax.objective(call, r, rljax.Scores(logp=logp, reward=logp[:, 0]))[0]

    slopes = [jax.grad(lambda x, rows=rows: loss(rows, x))(0.3) for rows in (2, 3 if "ties" in call else 4)]
    assert abs(slopes[0]) > 0.01
    np.testing.assert_allclose(slopes[1], slopes[0], rtol=1e-5)


def test_the_objective_is_differentiable_in_every_score_it_reads():
    fields = {"behaviour_logp": np.full((4, 3), -1.0), "ref_logp": np.full((4, 3), -1.1), "value": np.zeros((4, 3))}
    r = rollout(**fields)
    scores = rljax.Scores(logp=jnp.full((4, 3), -0.9), value=jnp.full((4, 3), 0.3), entropy=jnp.ones((4, 3)))

    def loss(call, scores):
        return rljax.objective(call, r, scores)[0]

    by = jax.grad(lambda s: loss("ppo(value_clip=None, kl=0.0)", s))(scores)
    counted = np.where(MASK > 0, by.logp, 1.0)
    assert np.all(counted != 0) and np.all(np.where(MASK == 0, by.logp, 0) == 0)
    # returns are A + V_old = the row's reward (gamma 1, lambda .95, V_old 0: the reward discounted by .95 a token)
    last = np.array([2, 3, 1, 2])[:, None] - 1 - np.arange(3)[None]
    returns = np.array(REWARD)[:, None] * 0.95**last
    np.testing.assert_allclose(by.value, (0.3 - returns) * MASK / MASK.sum(), rtol=1e-5, atol=1e-8)
    by = jax.grad(lambda s: loss("w_reinforce(entropy=0.5)", s))(scores)
    np.testing.assert_allclose(by.entropy, -0.5 * MASK / MASK.sum(), rtol=1e-6)


def test_without_a_value_the_critic_is_left_out():
    r = rollout(value=np.zeros((4, 3)), ref_logp=np.zeros((4, 3)), raw_logp=np.zeros((4, 3)))
    logp = jnp.full((4, 3), -1.0)
    policy, metrics = rljax.objective("ppo()", r, rljax.Scores(logp=logp))
    both, more = rljax.objective("ppo()", r, rljax.Scores(logp=logp, value=jnp.ones((4, 3))))
    assert "loss/value" not in metrics
    np.testing.assert_allclose(both - policy, more["loss/value"], rtol=1e-6)
    with pytest.raises(ValueError, match=r"scores have none of policy, value"):
        rljax.objective("ppo()", r, rljax.Scores())


def test_a_state_moves_what_is_scheduled():
    call, r, scores = (
        "w_reinforce(entropy=linear(1.0, 0.0, 2))",
        rollout(),
        rljax.Scores(logp=jnp.zeros((4, 3)), entropy=jnp.ones((4, 3))),
    )
    algorithm = build(call)
    state = interpreter.init(algorithm)
    seen = []
    for _ in range(3):
        _, metrics = rljax.objective(algorithm, r, scores, state=state)
        seen.append(float(metrics["loss/live_entropy"]))
        state = interpreter.observe(algorithm, state, metrics)
    np.testing.assert_allclose(seen, [-1, -0.5, 0])


@pytest.mark.full
def test_a_key_decides_what_is_drawn():
    rollout, scores = batch.records(batch.arrays())
    call = "clip_cov(share=0.1, bounds=(-10.0, 10.0))"
    loss = jax.jit(lambda key: rljax.objective(call, rollout, scores, key=key)[0])
    values = [float(loss(jax.random.key(k))) for k in (0, 0, 1, 2)]
    assert values[0] == values[1] and len(set(values)) > 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ref_logp": np.zeros((4, 2))}, r"ref_logp has shape \(4, 2\): expected \(4, 3\)"),
        ({"valid": np.zeros((4, 3))}, r"valid has shape \(4, 3\): expected \(4,\)"),
        ({"parts": {"format": [1, 2]}}, r"parts\['format'\] has shape \(2,\): expected \(4,\)"),
        ({"extra": {"segment": np.zeros((3, 3))}}, r"extra\['segment'\] has shape \(3, 3\): expected \(4, 3\)"),
        ({"ref_logprob": np.zeros((4, 3))}, r"unknown field 'ref_logprob'\. Did you mean 'ref_logp'"),
    ],
)
def test_a_wrong_array_is_named(fields, message):
    with pytest.raises(ValueError, match=message):
        rollout(**fields)


def test_what_a_recipe_reads_and_the_rollout_lacks_is_named():
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    for call, message in (
        ("remax()", "the rollout has no part 'greedy_reward'; it has none"),
        ("brpo_budget()", "the rollout has no extra 'cut_reward'; it has none"),
        ("aipo()", "anchor='behaviour', but the rollout has no such log-prob"),
        ("grpo()", "penalty: the rollout has no ref_logp"),
        ("gropo()", r"algorithm: unknown name 'gropo'\. Did you mean 'grpo'"),
    ):
        with pytest.raises(ValueError, match=message):
            rljax.objective(call, rollout(), scores)
    with pytest.raises(ValueError, match="has no advantage piece"):
        rljax.advantages("sft()", rollout())


def test_presets_fill_in_and_give_way():
    verl = algorithms.grpo(like="verl")
    assert "dual=3.0" in verl.spec and "aggregate=mean_over_tokens" in verl.spec and "like" not in verl.spec
    assert "dual=5.0" in algorithms.grpo(like="verl", dual=5.0).spec
    assert "low=0.1" in algorithms.grpo(0.1, like="verl").spec
    assert build("grpo(like='verl')").spec == verl.spec
    assert build(verl.spec).spec == verl.spec  # what is printed builds it again
    for call in ("grpo(like='verrl')", "gspo(like='verl')"):
        with pytest.raises(ValueError, match=r"like"):
            build(call)


# --- which log-probs a ratio reads ----------------------------------------------------


LOGPS = ("behaviour_logp", "proximal_logp")


KEY = jax.random.key(0)


zero = functools.cache(jnp.zeros)


def zeros(tree):
    return jax.tree.map(lambda x: zero(x.shape, x.dtype), tree)


def trace(apply, record):
    """Return which of the two log-probs a piece reads, and its result with zeros for the values."""
    given = {name: getattr(record, name) for name in LOGPS}

    def changed(**arrays):
        out = apply(record.replace(**arrays))
        return out.replace(behaviour_logp=None, proximal_logp=None) if isinstance(out, types.Rollout) else out

    read, out = jaxprs.reads(changed, **given)
    out = zeros(out)
    return read, out.replace(**given) if isinstance(out, types.Rollout) else out


def what_pieces_read(algorithm, rows, scores):
    """Return, for each piece that ``objective`` runs, which log-probs it reads; zeros stand for what comes before."""
    state, read = interpreter.init(algorithm), []
    for p, inner in zip(algorithm.transforms, state["transforms"], strict=True):
        names, rows = trace(lambda r, p=p, inner=inner: p.apply(r, inner, KEY)[0], rows)
        read.append(names)
    for o, inner in zip(algorithm.objectives, state["objectives"], strict=True):
        statistics = [q for p in o.loss for q in p.statistics]
        for p in (*o.prepare, *statistics, o.reduce):
            read.append(trace(lambda r, p=p: p.apply(r, scores, p.init(), KEY)[0], rows)[0])
        shapes = jax.eval_shape(lambda r, o=o, s=inner: interpreter.prepare_minibatch(o, r, scores, s, KEY)[0], rows)
        minibatch, loss = zeros(shapes), types.Loss()
        for p in o.loss:
            names, loss = trace(lambda r, p=p, loss=loss: p.apply(loss, r, scores, p.init(), KEY), minibatch)
            read.append(names)
    return read


@pytest.mark.full
@pytest.mark.parametrize("family", algorithms.FAMILIES)
def test_the_proximal_policy_is_the_sampler_only_where_no_piece_compares_them(family):
    names = [n for n, f in algorithms.TABLE.items() if f.__module__.endswith(f".recipes.{family}")]
    assert names
    for name in names:
        algorithm = algorithms.example(name)
        rows, scores = batch.records(batch.arrays(0, name))
        parts = dict.fromkeys(interpreter.needs(algorithm).parts, rows.reward)
        rows = rows.replace(parts={**parts, **rows.parts})
        read = what_pieces_read(algorithm, rows, scores)
        only = rows.replace(proximal_logp=None)

        def loss(behaviour_logp, rows=only, algorithm=algorithm, scores=scores):
            return rljax.objective(algorithm, rows.replace(behaviour_logp=behaviour_logp), scores)[0]

        needs = interpreter.needs(algorithm)
        assert needs.behaviour == any("behaviour_logp" in r for r in read), name
        # a proximal policy that a ratio puts in the place of the rollout's is not read from the rollout
        if "interpolated()" not in algorithms.describe(algorithm):
            assert (needs.proximal or needs.fixed_proximal) == any("proximal_logp" in r for r in read), name
        if set(LOGPS) in read:
            with pytest.raises(ValueError, match="no proximal_logp"):
                jax.eval_shape(loss, only.behaviour_logp)
        elif set(LOGPS) & set().union(*read) and "interpolated()" not in algorithms.describe(algorithm):
            read, _ = jaxprs.reads(loss, behaviour_logp=only.behaviour_logp)
            assert read == {"behaviour_logp"}, name


def test_a_ratio_to_the_sampler_is_not_one():
    logp = np.full((4, 3), -1.0)
    scores = rljax.Scores(logp=jnp.full((4, 3), -0.9))
    for call in ("grpo(kl=0.0)", "deepseek_v32(kl=0.0)"):
        for r in (rollout(behaviour_logp=logp), rollout(behaviour_logp=logp, proximal_logp=logp)):
            _, metrics = rljax.objective(call, r, scores)
            np.testing.assert_allclose(metrics["ratio"], np.exp(0.1), rtol=1e-6)
    _, metrics = rljax.objective("grpo(kl=0.0)", rollout(), scores)
    np.testing.assert_allclose(metrics["ratio"], 1.0)  # without either, the current policy sampled the rows


# --- rows with an advantage -----------------------------------------------------------


def test_a_given_advantage_is_used_as_it_is():
    a = np.array([[3.0, -2.0, 0.0], [1.0, 1.0, 5.0], [-1.0, 0.0, 0.0], [0.5, 0.25, 0.0]])
    r = rollout(advantage=a)
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    gradient = jax.grad(lambda x: rljax.objective("dapo(overlong=(2, 1))", r, scores.replace(logp=x))[0])(scores.logp)
    np.testing.assert_allclose(gradient, -a * MASK / MASK.sum(), rtol=1e-6)  # ratio 1, mean over tokens
    for call in (rljax.advantages, rljax.transform):
        with pytest.raises(ValueError, match="already has an advantage"):
            call("grpo()", r)
    with pytest.raises(ValueError, match=r"seam\['advantage'\] has no effect"):
        rljax.objective("grpo(kl=0.0)", r, scores, seam={"advantage": "+ whiten()"})


@pytest.mark.default_tier(2)
@pytest.mark.parametrize("call", ["grpo()", "dapo(overlong=(4, 2))", "ppo()", "ui_s1()", "best_minus_second()"])
def test_transformed_rows_have_the_same_loss(call):
    rows, scores = batch.records(batch.arrays(0, call.partition("(")[0]))
    both = [rljax.objective(call, r, scores)[0] for r in (rows, rljax.transform(call, rows))]
    np.testing.assert_array_equal(*both)


def test_transform_returns_rewards_advantages_and_returns():
    rows, _ = batch.records(batch.arrays())
    out = rljax.transform("ppo()", rows, seam={"reward": "affine(2.0)"})  # in place of the KL
    np.testing.assert_array_equal(out.reward, 2 * rows.reward)
    np.testing.assert_array_equal(out.advantage, rljax.advantages("ppo(kl=0.0)", rows.replace(reward=2 * rows.reward)))
    assert out.returns.shape == rows.mask.shape
    with pytest.raises(ValueError, match=r"seam\['penalty'\] has no effect here. Valid: advantage, reward"):
        rljax.transform("ppo()", rows, seam={"penalty": "none"})


def test_the_reward_may_be_left_out_beside_an_advantage():
    scores = rljax.Scores(logp=jnp.zeros((4, 3)))
    fields = {"mask": MASK, "group": GROUP}
    r = rljax.rollout_from_arrays(**fields, advantage=MASK)
    np.testing.assert_array_equal(
        rljax.objective("grpo(kl=0.0)", r, scores)[0],
        rljax.objective("grpo(kl=0.0)", rollout(advantage=MASK), scores)[0],
    )
    with pytest.raises(ValueError, match="reward is missing"):
        rljax.rollout_from_arrays(**fields)
    for seam in ({"prepare": "drop_flat_groups()"}, {"prepare": "keep('correct')"}, {"weight": "by_difficulty()"}):
        with pytest.raises(ValueError, match="the rollout has no reward"):
            rljax.objective("grpo(kl=0.0)", r, scores, seam=seam)
