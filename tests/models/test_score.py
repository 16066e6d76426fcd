"""Scores against NumPy on whole logits; what the chunked head computes, and what it never holds."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models, types
from rljax.models.scores import head, scoring
from tests.support import jaxprs

SMALL = models.Architecture(vocabulary=37, layers=1, width=8, heads=2, kv_heads=1, hidden=12, norm_epsilon=1e-3)
EVERYTHING = types.Needs(
    entropy=True,
    square_prob=True,
    log_normaliser=True,
    divergence=frozenset({"reverse_kl", "forward_kl", "js"}),
    value=True,
    reward=True,
)


def _model(**changes) -> models.Model:
    return models.build(dataclasses.replace(SMALL, **changes))


def _params(model: models.Model, seed: int = 0):
    """Random values everywhere, the norms' scales and the scalar head among them."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0.3, 0.4, x.shape), jnp.float32), shapes)


@functools.cache
def _jit(model: models.Model, what: str):
    return jax.jit(getattr(model, what))


@functools.cache
def _jit_score(model: models.Model, needs: types.Needs, temperature: float, chunk: int, kept: bool):
    def run(params, rollout, reference):
        return scoring.score(
            model, params, rollout, needs, temperature=temperature, chunk=chunk, kept=kept, reference=reference
        )

    return jax.jit(run)


LENGTH, WIDTH = 3, 5
LOSS_MASK = np.array([[1, 1, 0, 0, 0], [1, 0, 0, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], np.float32)
# Row 1 has tool output in its middle: read, scored, but not the policy's.
REAL = np.array([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]], bool)


def _rollout(seed: int = 0) -> types.Rollout:
    rng = np.random.default_rng(seed)
    token = rng.integers(0, SMALL.vocabulary, (4, WIDTH)).astype(np.int32)
    support = rng.random((4, WIDTH, SMALL.vocabulary)) < 0.3
    np.put_along_axis(support, token[:, :, None], True, axis=2)
    support[1, 1:3] = False  # the sampler stores nothing for what it did not draw
    return types.Rollout(
        mask=jnp.asarray(LOSS_MASK),
        reward=jnp.zeros(4),
        group=jnp.arange(4),
        context=types.Context(
            token=jnp.asarray(rng.integers(0, SMALL.vocabulary, (4, LENGTH)), jnp.int32),
            mask=jnp.asarray([[1, 1, 1], [0, 1, 1], [0, 0, 1], [1, 1, 1]], jnp.float32),
        ),
        action=types.Action(token=jnp.asarray(token), kept=scoring.pack_bits(jnp.asarray(support))),
    )


def _logp(model, params, rollout, temperature):
    """Log-probabilities [B, T, V] in float64, from the whole logits."""
    token = np.concatenate([rollout.context.token, rollout.action.token], axis=1)
    mask = np.concatenate([rollout.context.mask, REAL], axis=1)
    hidden = _jit(model, "apply")(params, token, mask)
    z = np.asarray(_jit(model, "logits")(params, hidden), np.float64)[:, LENGTH - 1 : -1] / temperature
    normaliser = np.log(np.sum(np.exp(z), axis=-1))
    return z - normaliser[:, :, None], normaliser


@pytest.mark.parametrize("chunk", [8, 1000])  # two columns at a time (three groups, the last half empty), and all
def test_scores_equal_those_of_whole_logits(chunk):
    model, rollout = _model(), _rollout()
    params, reference = _params(model), _params(model, 1)
    got = _jit_score(model, EVERYTHING, 0.7, chunk, True)(params, rollout, reference)
    logp, normaliser = _logp(model, params, rollout, 0.7)
    ref, _ = _logp(model, reference, rollout, 0.7)
    p, q = np.exp(logp), np.exp(ref)
    token = np.asarray(rollout.action.token)[:, :, None]
    support = np.array(scoring.unpack_bits(rollout.action.kept, SMALL.vocabulary))
    np.put_along_axis(support, token, True, axis=2)
    sampled = np.take_along_axis(logp, token, axis=2)[:, :, 0]
    middle = np.log((p + q) / 2)
    expected = {
        "logp": sampled - np.log(np.sum(p * support, axis=2)),
        "raw_logp": sampled,
        "entropy": -np.sum(p * logp, axis=2),
        "square_prob": np.sum(p * p, axis=2),
        "log_normaliser": normaliser,
        "reverse_kl": np.sum(p * (logp - ref), axis=2),
        "forward_kl": np.sum(q * (ref - logp), axis=2),
        "js": np.sum(p * (logp - middle) + q * (ref - middle), axis=2) / 2,
    }
    values = {**got.divergence, **{name: getattr(got, name) for name in expected if hasattr(got, name)}}
    assert set(values) == set(expected) and got.value is None and got.reward is None
    for name, value in expected.items():
        np.testing.assert_allclose(values[name], np.where(REAL, value, 0), rtol=2e-4, atol=2e-5, err_msg=name)
        np.testing.assert_array_equal(np.asarray(values[name])[~REAL], 0)


def test_only_what_is_needed_is_filled():
    model = _model()
    got = _jit_score(model, types.Needs(), 1.0, 8, False)(_params(model), _rollout(), None)
    filled = {f.name for f in dataclasses.fields(got) if jax.tree.leaves(getattr(got, f.name))}
    assert filled == {"logp"}


def test_temperature_zero_is_scored_at_one_and_may_be_traced():
    model, rollout = _model(), _rollout()
    params = _params(model)
    one = _jit_score(model, types.Needs(), 1.0, 8, False)(params, rollout, None).logp
    greedy = _jit_score(model, types.Needs(), 0.0, 8, False)(params, rollout, None).logp
    np.testing.assert_array_equal(one, greedy)
    traced = jax.jit(lambda t: scoring.score(model, params, rollout, types.Needs(), temperature=t).logp)
    np.testing.assert_allclose(traced(0.0), one, rtol=1e-5, atol=1e-5)
    at = _jit_score(model, EVERYTHING, 0.7, 8, True)(params, rollout, params).raw_logp
    np.testing.assert_allclose(traced(0.7), at, rtol=1e-5, atol=1e-5)


def test_no_stored_support_means_nothing_was_filtered():
    model, rollout = _model(), _rollout()
    plain = rollout.replace(action=rollout.action.replace(kept=None))
    params = _params(model)
    got = _jit_score(model, types.Needs(), 1.0, 8, True)(params, plain, None)
    assert got.raw_logp is None
    np.testing.assert_array_equal(got.logp, _jit_score(model, types.Needs(), 1.0, 8, False)(params, rollout, None).logp)


def test_training_prompt_is_read_where_it_differs():
    model, rollout = _model(), _rollout()
    other = _rollout(5).context
    both = rollout.replace(context=rollout.context.replace(train_token=other.token, train_mask=other.mask))
    run = _jit_score(model, types.Needs(), 1.0, 8, False)
    params = _params(model)
    np.testing.assert_allclose(
        run(params, both, None).logp, run(params, rollout.replace(context=other), None).logp, rtol=1e-5, atol=1e-5
    )
    assert np.any(run(params, both, None).logp != run(params, rollout, None).logp)


WEIGHT = jnp.asarray(np.random.default_rng(7).normal(size=(3, 4, WIDTH)), jnp.float32)


def _chunked(model, params, rollout, weight, chunk=8):
    got = scoring.score(model, params, rollout, types.Needs(entropy=True), chunk=chunk, kept=True)
    assert got.raw_logp is not None and got.entropy is not None
    return jnp.sum(weight * jnp.stack([got.logp, got.raw_logp, got.entropy]))


def _whole(model, params, rollout, weight):
    token = jnp.concatenate([rollout.context.token, rollout.action.token], axis=1)
    hidden = model.apply(params, token, jnp.concatenate([rollout.context.mask, REAL], axis=1))
    z = model.logits(params, hidden)[:, LENGTH - 1 : -1]
    logp = jax.nn.log_softmax(z)
    raw = jnp.take_along_axis(logp, rollout.action.token[:, :, None], axis=2)[:, :, 0]
    one_hot = jax.nn.one_hot(rollout.action.token, SMALL.vocabulary, dtype=bool)
    support = scoring.unpack_bits(rollout.action.kept, SMALL.vocabulary) | one_hot
    kept = raw - jnp.log(jnp.sum(jnp.exp(logp), axis=2, where=support))
    scores = jnp.stack([kept, raw, -jnp.sum(jnp.exp(logp) * logp, axis=2)])
    return jnp.sum(jnp.where(REAL[None], weight * scores, 0.0))


@functools.cache
def _slope(function):
    return jax.jit(jax.grad(functools.partial(function, _model())))


def test_gradient_through_the_chunked_head():
    params, rollout = _params(_model()), _rollout()
    got, expected = (_slope(f)(params, rollout, WEIGHT) for f in (_chunked, _whole))
    for left, right in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
        assert np.any(right != 0)
        np.testing.assert_allclose(left, right, rtol=1e-3, atol=2e-4)


def test_positions_after_the_end_have_no_gradient_and_no_influence():
    params, rollout = _params(_model()), _rollout()
    slope = _slope(_chunked)
    for leaf in jax.tree.leaves(slope(params, rollout, jnp.where(REAL[None], 0.0, WEIGHT))):
        np.testing.assert_array_equal(leaf, 0)
    action = rollout.action.replace(token=jnp.where(REAL, rollout.action.token, 99))
    changed = slope(params, rollout.replace(action=action), WEIGHT)
    for left, right in zip(jax.tree.leaves(changed), jax.tree.leaves(slope(params, rollout, WEIGHT)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)


def test_value_before_each_token_process_after_it_and_reward_at_the_last():
    model, rollout = _model(output="scalar"), _rollout()
    params = _params(model)
    needs = types.Needs(value=True, reward=True, process=True, entropy=True)
    got = _jit_score(model, needs, 1.0, 8, False)(params, rollout, None)
    assert got.logp is None and got.entropy is None
    for row in range(4):
        context = np.asarray(rollout.context.token[row])[np.asarray(rollout.context.mask[row]) > 0]
        done = np.asarray(rollout.action.token[row])[REAL[row]]
        alone = np.zeros((1, LENGTH + WIDTH), np.int32)  # the row by itself, from position 0
        count = len(context) + len(done)
        alone[0, :count] = np.concatenate([context, done])
        hidden = _jit(model, "apply")(params, alone, np.arange(LENGTH + WIDTH)[None, :] < count)
        number = np.asarray(hidden)[0, :count] @ np.asarray(params["scalar"])
        value = np.zeros(WIDTH)
        value[: len(done)] = number[len(context) - 1 : count - 1]
        np.testing.assert_allclose(got.value[row], value, rtol=1e-4, atol=1e-4)
        after = np.zeros(WIDTH)
        after[: len(done)] = number[len(context) : count]
        np.testing.assert_allclose(got.process[row], after, rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(got.reward[row], number[-1], rtol=1e-4, atol=1e-4)


def test_no_array_of_rows_by_positions_by_vocabulary():
    model = _model(vocabulary=1000, width=8, hidden=8)
    rollout = _rollout().replace(action=types.Action(token=jnp.zeros((4, WIDTH), jnp.int32)))
    params = jax.eval_shape(model.init, jax.random.key(0))

    def largest(chunk):
        def loss(params, reference):
            got = scoring.score(model, params, rollout, EVERYTHING, chunk=chunk, reference=reference)
            return sum(jnp.sum(x) for x in jax.tree.leaves(got))

        jaxpr = jax.make_jaxpr(jax.value_and_grad(loss))(params, params).jaxpr
        return max(v.aval.size for e in jaxprs.equations(jaxpr) for v in e.outvars)

    assert largest(4) < 2 * 4 * 1000 + 1000 * 8  # one column of logits, or the embedding
    assert largest(1000) >= 4 * WIDTH * 1000  # the walk does see them


def test_bits():
    mask = np.zeros((2, 34), bool)
    mask[0, [0, 33]] = True
    mask[1, 31] = True
    np.testing.assert_array_equal(scoring.pack_bits(jnp.asarray(mask)), np.array([[1, 2], [2**31, 0]], np.uint32))
    np.testing.assert_array_equal(scoring.unpack_bits(scoring.pack_bits(jnp.asarray(mask)), 34), mask)


@pytest.mark.parametrize(
    ("rollout", "options", "message"),
    [
        ({"context": None}, {}, "rollout.context is None"),
        ({"action": None}, {}, "rollout.action is None"),
        ({"mask": np.ones((4, 1), np.float32)}, {}, "rollout.action.token"),
        ({"mask": np.ones(4, np.float32)}, {}, "rollout.mask"),
        ({"context": types.Context(np.ones((4, 3), np.int32), np.ones((1, 3)))}, {}, "rollout.context.mask"),
        ({}, {"samples": 3}, "samples=3 must divide the 4 rows"),
        ({}, {"temperature": -1.0}, "temperature=-1.0"),
        ({}, {"chunk": 0}, "chunk=0"),
        ({}, {"needs": types.Needs(divergence=frozenset({"kl"}))}, "choose from reverse_kl, forward_kl, js"),
        ({}, {"needs": types.Needs(divergence=frozenset({"js"}))}, "needs parameters of reference"),
    ],
)
def test_score_refuses(rollout, options, message):
    model = _model()
    with pytest.raises(ValueError, match=message):
        scoring.score(model, {}, _rollout().replace(**rollout), **{"needs": types.Needs(), **options})


def test_every_score_that_a_piece_may_ask_for_is_computed():
    """One on request is a number of a head, or a statistic of the distribution; the others are there by default."""
    needs = {field.name for field in dataclasses.fields(types.Needs)}
    asked = {name for name in types.SCORES if name in needs}
    assert {*types.SCORES} - asked == {"logp", "raw_logp", "after_logp", "after_mask"}
    assert {name for name in asked if not types.SCORES[name].at} == {"log_normaliser", *head.STATISTICS}
    arrays = {field.name for field in dataclasses.fields(types.Scores)} - {"divergence", "top", "heads"}
    assert {*types.SCORES} == arrays
