"""Decoding that critics steer, against logits and values of whole rows computed apart from the sampler."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rljax
from rljax import models, sampling
from rljax.models.scores import scoring
from rljax.run import loop
from rljax.run.evaluation import evaluate, loading, sample
from rljax.sampling import critics as critics_lib
from rljax.sampling import processors
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


@pytest.mark.full
@pytest.mark.parametrize("compact", [0, 2])
def test_the_distribution_drawn_from_is_the_policys_shifted_by_the_least_q(compact):
    prompts = prompts_of(*TEXTS, width=5)
    model = critics_lib.Shifted(NETWORKS, BETA)
    out = draw(weights(), prompts, keys_for(3, 3), FILTERED, model=model, compact=compact, **SHAPE)
    raw = expected(out, prompts, FILTERED["temperature"])
    drawn = np.arange(37) == out.token[:, :, None]
    np.testing.assert_allclose(out.raw_logp, raw[drawn].reshape(9, 6) * out.mask, atol=2e-5)
    kept = np.asarray(jax.device_get(scoring.unpack_bits(jnp.asarray(out.kept), 37)))
    behaviour = raw - np.log((np.exp(raw) * kept).sum(axis=2, keepdims=True))
    np.testing.assert_allclose(out.behaviour_logp, behaviour[drawn].reshape(9, 6) * out.mask, atol=2e-5)


@pytest.mark.full
def test_greedy_takes_the_token_of_the_largest_shifted_logit():
    prompts, model = prompts_of(*TEXTS, width=5), critics_lib.Shifted(NETWORKS, BETA)
    out = draw(weights(), prompts, keys_for(3, 3), FILTERED | {"temperature": 0.0}, model=model, **SHAPE)
    best = expected(out, prompts, 1.0).argmax(axis=2)
    assert (out.token == best)[out.mask > 0].all()


VALUED = models.build(dataclasses.replace(WIDER.architecture, output="scalar"))
DELIMITERS = tuple(range(10, 24))


def searched(prompt, key, critic, count, branches, length):
    """Return the beams of a prompt, tokens and values, by a loop over rows that are read whole for each token."""

    def hidden(model, params, tokens):
        row = np.zeros((1, 5 + length), np.int32), np.zeros((1, 5 + length), np.float32)
        whole = [*prompt, *tokens]
        row[0][0, : len(whole)], row[1][0, : len(whole)] = whole, 1.0
        return jax.jit(model.apply)(params, *row)[0, : len(whole)]

    def value(tokens, ended):
        h = hidden(VALUED, critic, tokens)
        return float(VALUED.scalar(critic, h)[-1 - ended])

    def step(place, tokens):
        while len(tokens) < length:
            logits = TRANSFORMER.logits(parameters(), hidden(TRANSFORMER, parameters(), tokens)[-1])
            drawn = jax.random.fold_in(jax.random.fold_in(key, place), len(tokens))
            tokens = [*tokens, int(processors.inverse(drawn, logits / FILTERED["temperature"]))]
            if tokens[-1] in SHAPE["stop"]:
                return tokens, True
            if tokens[-1] in DELIMITERS:
                break
        return tokens, len(tokens) == length

    beams = [([], False)] * count
    while not all(ended for _, ended in beams):
        new = []
        for place in range(count * branches):
            tokens, ended = beams[place // branches]
            if not ended:
                new.append(step(place, tokens))
            elif place % branches == 0:
                new.append((tokens, True))
        beams = sorted(new, key=lambda row: -value(*row))[:count]
    return [(tokens, value(tokens, True)) for tokens, _ in beams]


@pytest.mark.full
def test_beams_are_the_continuations_of_largest_value():
    length, prompts, keys = 5, prompts_of(*TEXTS, width=5), keys_for(3, 2)
    critic = jax.tree.map(jnp.asarray, VALUED.init(jax.random.key(3)))
    critic["scalar"] = jax.random.normal(jax.random.key(4), critic["scalar"].shape)
    ends = sampling.Ends((0, 1, 2, 3), pad=0)
    config = sampling.SamplerConfig(temperature=FILTERED["temperature"], rescore="unfiltered")

    def found(samples, config, count=2, branches=3):
        beams = critics_lib.Beams(TRANSFORMER, VALUED, count, branches, DELIMITERS)
        search = jax.jit(beams.search, static_argnames=("samples", "config", "ends", "length"))
        return search((parameters(), critic), prompts, keys[:: 2 // samples], samples, config, ends=ends, length=length)

    out, steps = found(2, config), set()
    for number, prompt in enumerate(TEXTS):
        want = searched(prompt, keys[2 * number], critic, 2, 3, length)
        assert want[0][1] >= want[1][1]
        for place, (tokens, _) in enumerate(want):
            row = 2 * number + place
            assert out.token[row, : out.length[row]].tolist() == tokens
            steps.add(sum(token in DELIMITERS for token in tokens[:-1]))
    assert steps - {0}  # beams of more than one step
    greedy = found(1, dataclasses.replace(config, temperature=0.0))
    plain = draw(
        parameters(),
        prompts,
        keys[::2],
        {"temperature": 0.0},
        model=TRANSFORMER,
        **SHAPE | {"samples": 1, "length": length},
    )
    np.testing.assert_array_equal(greedy.token, plain.token)
    with pytest.raises(ValueError, match="samples=2: the search keeps 1 beams"):
        found(2, config, count=1)
    both = found(2, dataclasses.replace(config, temperature=0.0))
    np.testing.assert_array_equal(both.token, np.repeat(greedy.token, 2, axis=0))


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
    search = loading.Search(2, 2, "=", "value")
    program, params, _ = loading.load(str(tmp_path), search=search)
    record = evaluate.evaluate(program, params, **asked | {"samples": 2})
    assert record["samples"] == 2 and record["greedy_correct"] == plain[0]["greedy_correct"]
    assert len(sample.complete(program, params, "1+2=", samples=2)) == 2
    for changed, message in (
        ({"critic": "q"}, "--critic='q': it has logits, expected one number"),
        ({"critic": "none"}, "has no module 'none', only"),
        ({"delimiter": "?"}, r"--delimiter='\?': expected text that the run's tokenizer knows"),
    ):
        with pytest.raises(ValueError, match=message):
            loading.load(str(tmp_path), search=dataclasses.replace(search, **changed))
    with pytest.raises(ValueError, match="--beams=2: task 'guess' is a world; a search needs one turn"):
        loading._searched(tiny.program(task="guess()"), 0, search)
    with pytest.raises(ValueError, match="--shift=1: expected 0 with --beams=2"):
        loading.load(str(tmp_path), shift=1.0, search=search)
