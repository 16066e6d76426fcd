"""Decoding shifted by the values of critics, against logits of whole rows computed apart from the sampler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import models
from rljax.models.scores import scoring
from rljax.run import loop
from rljax.run.evaluation import evaluate, loading, sample
from rljax.sampling import shifted
from tests.sampling.sampling_cases import FILTERED, SHAPE, TEXTS, TRANSFORMER, draw, keys_for, parameters, prompts_of
from tests.support import tiny

WIDER = models.build(dataclasses.replace(TRANSFORMER.architecture, width=24, heads=2, layers=1))
BETA = 3.0
NETWORKS = TRANSFORMER, WIDER, WIDER


def weights():
    """Return parameters of a policy and two critics whose values differ by some tenths between tokens."""
    return parameters(), *(jax.tree.map(lambda x: 2 * x, WIDER.init(jax.random.key(k))) for k in (1, 2))


def expected(out, prompts, temperature):
    """Return log softmax((l + beta min Q) / temperature) at every position [B, T, V], in float64."""
    context = [jnp.repeat(x, 3, axis=0) for x in (prompts.token, prompts.mask)]
    read = (np.concatenate(x, axis=1) for x in zip(context, (out.token, out.mask), strict=True))
    token, mask = read
    hidden = [m.apply(w, token, mask)[:, 4:-1] for m, w in zip(NETWORKS, weights(), strict=True)]
    each = zip(NETWORKS, weights(), hidden, strict=True)
    z, one, two = (np.asarray(m.logits(w, h), np.float64) for m, w, h in each)
    assert np.ptp(np.minimum(one, two), axis=-1).min() > 0.1 and (one < two).any() and (one > two).any()
    z = (z + BETA * np.minimum(one, two)) / temperature
    return z - np.log(np.exp(z).sum(axis=2, keepdims=True))


@pytest.mark.parametrize("compact", [0, pytest.param(2, marks=pytest.mark.full)])
def test_the_distribution_drawn_from_is_the_policys_shifted_by_the_least_q(compact):
    prompts = prompts_of(*TEXTS, width=5)
    model = shifted.Shifted(NETWORKS, BETA)
    out = draw(weights(), prompts, keys_for(3, 3), FILTERED, model=model, compact=compact, **SHAPE)
    raw = expected(out, prompts, FILTERED["temperature"])
    drawn = np.arange(37) == out.token[:, :, None]
    np.testing.assert_allclose(out.raw_logp, raw[drawn].reshape(9, 6) * out.mask, atol=2e-5)
    kept = np.asarray(jax.device_get(scoring.unpack_bits(jnp.asarray(out.kept), 37)))
    behaviour = raw - np.log((np.exp(raw) * kept).sum(axis=2, keepdims=True))
    np.testing.assert_allclose(out.behaviour_logp, behaviour[drawn].reshape(9, 6) * out.mask, atol=2e-5)


@pytest.mark.full
def test_greedy_takes_the_token_of_the_largest_shifted_logit():
    prompts, model = prompts_of(*TEXTS, width=5), shifted.Shifted(NETWORKS, BETA)
    out = draw(weights(), prompts, keys_for(3, 3), FILTERED | {"temperature": 0.0}, model=model, **SHAPE)
    best = expected(out, prompts, 1.0).argmax(axis=2)
    assert (out.token == best)[out.mask > 0].all()


def critics(**fields):
    c = tiny.config("q_critics(q=('q',), target=('q_target',))", **fields)
    c.module.q = rljax.module(weights="random")
    c.module.q_target = rljax.module(follows="q", rate=1.0)
    return c


@pytest.mark.full
def test_a_checkpoint_is_evaluated_and_sampled_with_a_shift(tmp_path):
    """A shift of almost nothing changes no completion, a huge one decodes by Q alone."""
    loop.train(critics(), tmp_path)
    asked = {"name": "checkpoint", "step": 2, "prompts": 4, "samples": 4}

    def report(shift):
        program, params, _ = loading.load(str(tmp_path), shift=shift, critics=("q_target",))
        completions = sample.complete(program, params, "1+2=", samples=4)
        return evaluate.evaluate(program, params, **asked), completions

    plain, small, large = report(0.0), report(1e-7), report(1e4)
    assert plain[0]["correct"] == small[0]["correct"]
    assert [x["token"] for x in plain[1]] == [x["token"] for x in small[1]] != [x["token"] for x in large[1]]
    assert len({tuple(x["token"]) for x in large[1]}) == 1
    np.testing.assert_allclose(large[1][0]["behaviour_logp"], 0.0, atol=1e-3)
    with pytest.raises(ValueError, match="has no module 'q_2_target', only"):
        loading.load(str(tmp_path), shift=1.0)
    with pytest.raises(ValueError, match="--critics: 'value' has one number at each position, expected logits"):
        loading.load(str(tmp_path), shift=1.0, critics=("value",))
