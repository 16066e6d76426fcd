"""The sampler against exact enumeration, NumPy oracles and teacher-forced re-scoring: the transformer."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sampling, types
from rljax.models.scores import scoring
from rljax.sampling import processors
from tests.sampling.sampling_cases import (
    FILTERED,
    SHAPE,
    TEXTS,
    TRANSFORMER,
    draw,
    keys_for,
    parameters,
    prompts_of,
    softmax,
)


def test_reported_numbers_are_those_of_the_whole_sequence_read_at_once():
    prompts = prompts_of(*TEXTS, width=5)
    sample = draw(parameters(), prompts, keys_for(3, 3), FILTERED, model=TRANSFORMER, **SHAPE)
    context = types.Context(jnp.repeat(prompts.token, 3, axis=0), jnp.repeat(prompts.mask, 3, axis=0))
    token = np.concatenate([context.token, sample.token], axis=1)
    mask = np.concatenate([context.mask, sample.mask], axis=1)
    hidden = jax.jit(TRANSFORMER.apply)(parameters(), token, mask)
    logits = np.asarray(TRANSFORMER.logits(parameters(), hidden[:, 4:-1]), np.float64) / FILTERED["temperature"]
    raw = logits - np.log(np.exp(logits).sum(axis=2, keepdims=True))
    kept = np.asarray(scoring.unpack_bits(jnp.asarray(sample.kept), 37))
    behaviour = raw - np.log((np.exp(raw) * kept).sum(axis=2, keepdims=True))
    drawn = np.arange(37) == sample.token[:, :, None]
    assert kept[drawn].all()
    assert not kept[sample.mask == 1].all(axis=1).any()  # the filter did leave tokens out
    assert 0 < sample.mask.sum() < sample.mask.size  # some row stopped early
    np.testing.assert_allclose(sample.raw_logp, raw[drawn].reshape(9, 6) * sample.mask, atol=1e-5)
    np.testing.assert_allclose(sample.behaviour_logp, behaviour[drawn].reshape(9, 6) * sample.mask, atol=1e-5)
    np.testing.assert_allclose(sample.entropy, -(np.exp(raw) * raw).sum(axis=2) * sample.mask, atol=1e-5)

    action = types.Action(token=sample.token, kept=sample.kept)
    rows = types.Rollout(
        mask=sample.mask, reward=jnp.zeros(9), group=jnp.arange(9) // 3, context=context, action=action
    )
    run = functools.partial(scoring.score, TRANSFORMER, needs=types.Needs(entropy=True), temperature=0.7, kept=True)
    scores = jax.jit(run)(parameters(), rows)
    np.testing.assert_allclose(sample.behaviour_logp, scores.logp, atol=1e-5)
    np.testing.assert_allclose(sample.raw_logp, scores.raw_logp, atol=1e-5)
    np.testing.assert_allclose(sample.entropy, scores.entropy, atol=1e-5)


@pytest.mark.full
def test_the_transformer_draws_the_same_alone_and_behind_more_padding():
    keys = keys_for(3, 3)
    together = draw(parameters(), prompts_of(*TEXTS, width=5), keys, FILTERED, model=TRANSFORMER, **SHAPE)
    for p, text in enumerate(TEXTS):
        group = slice(3 * p, 3 * p + 3)
        alone = draw(parameters(), prompts_of(text, width=7), keys[group], FILTERED, model=TRANSFORMER, **SHAPE)
        np.testing.assert_array_equal(together.token[group], alone.token)
        for name in ("behaviour_logp", "raw_logp", "entropy"):
            np.testing.assert_allclose(getattr(together, name)[group], getattr(alone, name), atol=1e-5)


@pytest.mark.parametrize("size", [1, 2, 37])
def test_the_inverse_draw_has_the_frequencies_of_its_logits(size):
    logits = np.random.default_rng(size).normal(0, 2, size)
    if size > 2:
        logits[[5, 36]] = -np.inf  # one inside, one at the end
    keys, count = jax.random.split(jax.random.key(size), 20_000), np.zeros(size)
    drawn = jax.jit(jax.vmap(sampling.build(sampling.SamplerConfig(draw="inverse")).draw, in_axes=(0, None)))(
        keys, jnp.float32(logits)
    )
    np.add.at(count, np.asarray(drawn), 1)
    prob = softmax(logits)
    assert np.all(count[prob == 0] == 0)
    deviation = np.sqrt(len(keys) * prob * (1 - prob)) + 1
    assert np.all(np.abs(count - len(keys) * prob) < 5 * deviation)


@pytest.mark.parametrize(("size", "kept"), [(40, 8), (1000, 50)])
def test_no_number_draws_a_token_that_is_excluded(size, kept):
    """Of numbers around the bounds between tokens, where rounding decides."""
    logits = jnp.asarray(np.random.default_rng(size).normal(size=(64, size)) * 2, jnp.float32)
    logits = processors.top_k(kept)(logits)
    weight = np.exp(np.float64(logits) - np.float64(logits).max(1, keepdims=True))
    edge = np.cumsum(weight, axis=1) / weight.sum(1, keepdims=True)
    number = np.clip(np.round(edge * 2**23)[..., None] + np.arange(-8, 9), 0, 2**23 - 1) / 2**23
    number = number.reshape(64, -1)
    token = np.asarray(jax.jit(jax.vmap(jax.vmap(processors.inverted, (0, None))))(jnp.float32(number), logits))
    assert np.all(np.take_along_axis(weight, token, axis=1) > 0)
    high = np.take_along_axis(edge, token, axis=1)
    low = high - np.take_along_axis(weight / weight.sum(1, keepdims=True), token, axis=1)
    assert np.all((low - 2e-6 <= number) & (number <= high + 2e-6))


@pytest.mark.full
def test_the_inverse_draw_never_passes_the_last_token_there_is():
    # Uniform numbers next to 1, and a tail of tokens that are ruled out.
    logits = jnp.where(jnp.arange(50) < 30, 0.0, -jnp.inf)
    drawn = jax.vmap(sampling.build(sampling.SamplerConfig(draw="inverse")).draw, in_axes=(0, None))
    assert int(jnp.max(drawn(jax.random.split(jax.random.key(0), 4096), logits))) == 29
    with pytest.raises(ValueError, match=r"draw=.exact.: must be one of .gumbel., .inverse."):
        sampling.build(sampling.SamplerConfig(draw="exact"))
