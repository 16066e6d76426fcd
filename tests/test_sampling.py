"""The sampler against exact enumeration, NumPy oracles and teacher-forced re-scoring."""

import dataclasses
import functools
import itertools
import math
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models, sampling, types
from rljax.models import scoring
from tests import drawing

STOP = 0
PAD = 2
OFF = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
# No probability in TABLE comes nearer than 0.02 to a threshold of these.
SETTINGS = [
    OFF,
    OFF | {"top_p": 0.62},
    OFF | {"temperature": 0.6, "min_p": 0.45},
    {"temperature": 1.4, "top_k": 2, "top_p": 0.62, "min_p": 0.2},
]
TABLE = np.array([[-0.5, 0.9, 1.1], [0.1, -1.5, 0.5], [-0.5, -0.2, -0.1], [-0.4, 0.9, 1.2], [0.6, 0.2, -0.5]])


# --- a policy small enough to enumerate ------------------------------------------------------------


class Memory(typing.NamedTuple):
    """The toy policy's cache: the sum of token + 1 over the real tokens of each prompt and of each row."""

    prompt: jax.Array  # [P]
    row: jax.Array  # [B]


class Toy(typing.NamedTuple):
    """A policy as functions."""

    decode_params: typing.Callable
    prefill: typing.Callable
    extend: typing.Callable
    select: typing.Callable
    logits: typing.Callable


def toy_prefill(params, token, mask, samples, columns, block):
    """Hidden state of a position: the sum of token + 1 over the real tokens up to it."""
    state = jnp.cumsum((token + 1) * mask, axis=1)
    return state[:, :, None], Memory(state[:, -1], jnp.zeros((token.shape[0] * samples,)))


def toy_extend(params, token, mask, cache):
    row = cache.row + (token + 1) * mask
    return (jnp.repeat(cache.prompt, row.shape[0] // cache.prompt.shape[0]) + row)[:, None], cache._replace(row=row)


def toy_select(cache, prompts, rows):
    return Memory(cache.prompt if prompts is None else cache.prompt[prompts], cache.row[rows])


def toy_logits(params, hidden):
    """Row ``state mod M`` of the table ``params [M, V]``."""
    return params[hidden[..., 0].astype(jnp.int32) % params.shape[0]]


TOY = Toy(lambda params: params, toy_prefill, toy_extend, toy_select, toy_logits)


def prompts_of(*texts: tuple[int, ...], width: int) -> types.Prompts:
    token = np.full((len(texts), width), 1, np.int32)  # a real id under the padding must not matter
    mask = np.zeros((len(texts), width), np.float32)
    for row, text in enumerate(texts):
        token[row, width - len(text) :] = text
        mask[row, width - len(text) :] = 1
    return types.Prompts(token=jnp.asarray(token), mask=jnp.asarray(mask), index=jnp.arange(len(texts)))


def root(seed: int) -> types.Key:
    return jax.random.key(seed, impl="threefry2x32")


def keys_for(prompts: int, samples: int, seed: int = 0) -> types.Key:
    index = jnp.repeat(jnp.arange(prompts), samples)
    return sampling.row_keys(jax.random.key(seed), 0, index, jnp.tile(jnp.arange(samples), prompts))


@functools.cache
def compiled(model, settings: tuple, options: tuple):
    arguments = drawing.arguments(**dict(settings), **dict(options))
    return jax.jit(functools.partial(sampling.generate, model, **arguments))


def draw(params, prompts, keys, settings, model: sampling.Policy = TOY, **options) -> sampling.Sample:
    options = {"samples": 1, "length": 3, "stop": (STOP,), "pad": PAD} | options
    run = compiled(model, tuple(settings.items()), tuple(options.items()))
    return jax.tree.map(np.asarray, run(jax.tree.map(jnp.float32, params), prompts, keys))


# --- oracles, in float64 ------------------------------------------------------------------------------


def softmax(logits: np.ndarray) -> np.ndarray:
    weight = np.exp(logits - np.max(logits))
    return weight / weight.sum()


def conditional(before: tuple[int, ...], settings: dict) -> tuple[np.ndarray, np.ndarray]:
    """Tempered, and tempered and filtered, next-token probabilities of TABLE after the real tokens ``before``."""
    raw = softmax(TABLE[sum(v + 1 for v in before) % len(TABLE)] / settings["temperature"])
    order = sorted(range(3), key=lambda v: -raw[v])[: settings["top_k"] or 3]
    mass = raw / sum(raw[order])
    nucleus = [v for rank, v in enumerate(order) if sum(mass[order[:rank]]) < settings["top_p"]]
    kept = [v for v in nucleus if mass[v] >= settings["min_p"] * mass[order[0]]]
    return raw, np.where([v in kept for v in range(3)], raw, 0) / sum(raw[kept])


def every_completion(length: int) -> list[tuple[int, ...]]:
    """All completions over three tokens that end at STOP or at ``length``."""
    whole = [c for n in range(1, length + 1) for c in itertools.product(range(3), repeat=n)]
    return [c for c in whole if STOP not in c[:-1] and (c[-1] == STOP or len(c) == length)]


PROMPT = (1, 2)
DRAWS = 4096


@functools.cache
def drawn(setting: int) -> sampling.Sample:
    prompts = prompts_of(PROMPT, width=3)
    return draw(TABLE, prompts, keys_for(1, DRAWS), SETTINGS[setting], samples=DRAWS, rescore="kept")


def emitted(sample: sampling.Sample, row: int) -> tuple[int, ...]:
    return tuple(int(v) for v in sample.token[row][sample.mask[row] == 1])


# --- exactness -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_completions_have_their_exact_frequencies(setting):
    sample = drawn(setting)
    count = {completion: 0 for completion in every_completion(3)}
    for row in range(DRAWS):
        count[emitted(sample, row)] += 1
    prob = {c: 1.0 for c in count}
    for completion in count:
        for t, v in enumerate(completion):
            prob[completion] *= conditional(PROMPT + completion[:t], SETTINGS[setting])[1][v]
    assert abs(sum(prob.values()) - 1) < 1e-12
    assert all(count[c] == 0 for c in count if prob[c] == 0)
    likely = [c for c in count if prob[c] * DRAWS >= 5]
    rest = [c for c in count if 0 < prob[c] * DRAWS < 5]
    assert sum(count[c] for c in rest) <= 5 * len(rest) + 10
    square = sum((count[c] - DRAWS * prob[c]) ** 2 / (DRAWS * prob[c]) for c in likely)
    # Chi-square of mean f and variance 2f: six standard deviations.
    freedom = max(len(likely) - 1, 1)
    assert square < freedom + 6 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("setting", range(len(SETTINGS)))
def test_reported_numbers_are_those_of_the_enumeration(setting):
    sample = drawn(setting)
    rows = {emitted(sample, row): row for row in range(DRAWS)}
    assert len(rows) >= 8
    for completion, row in rows.items():
        end = len(completion)
        assert sample.finish[row] == (types.Finish.STOP if completion[-1] == STOP else types.Finish.LENGTH)
        np.testing.assert_array_equal(sample.mask[row], np.arange(3) < end)
        np.testing.assert_array_equal(sample.token[row, end:], PAD)
        for name in ("behaviour_logp", "raw_logp", "entropy"):
            np.testing.assert_array_equal(getattr(sample, name)[row, end:], 0)
        for t, v in enumerate(completion):
            raw, filtered = conditional(PROMPT + completion[:t], SETTINGS[setting])
            np.testing.assert_allclose(sample.raw_logp[row, t], np.log(raw[v]), atol=1e-5)
            np.testing.assert_allclose(sample.behaviour_logp[row, t], np.log(filtered[v]), atol=1e-5)
            np.testing.assert_allclose(sample.entropy[row, t], -np.sum(raw * np.log(raw)), atol=1e-5)
            if sample.kept is not None:
                bits = [bool(int(sample.kept[row, t, 0]) >> v & 1) for v in range(3)]
                np.testing.assert_array_equal(bits, filtered > 0)
                assert bits[v]
        if sample.kept is not None:
            np.testing.assert_array_equal(sample.kept[row, end:], 0xFFFFFFFF)
    assert (sample.kept is None) == (sampling.build(sampling.SamplerConfig(**SETTINGS[setting])).filter is None)


@pytest.mark.full
def test_tokens_the_model_rules_out_leave_every_number_finite():
    # The second token never; the other two have odds e : 1 and entropy log(1 + e) - e / (1 + e).
    table = np.array([[1.0, -np.inf, 0.0]])
    for settings in (OFF, OFF | {"top_k": 3, "top_p": 0.9, "min_p": 0.1}):
        sample = draw(table, prompts_of((1,), width=1), keys_for(1, 64), settings, samples=64, stop=())
        assert not np.any(sample.token == 1)
        e = math.e
        np.testing.assert_allclose(sample.entropy, math.log(1 + e) - e / (1 + e), atol=1e-6)
        expected = np.where(sample.token == 0, 1.0, 0.0) - math.log(1 + e)
        np.testing.assert_allclose(sample.raw_logp, expected, atol=1e-6)
        np.testing.assert_allclose(sample.behaviour_logp, expected, atol=1e-6)


def test_greedy_takes_the_lowest_of_equals_and_reports_temperature_one():
    table = np.array([[0.0, 1.0, 1.0], [2.0, 2.0, 2.0]])
    prompts = prompts_of((1,), (2,), width=2)  # states 2 and 3: rows 0 and 1
    sample = draw(table, prompts, keys_for(2, 1), OFF | {"temperature": 0.0, "top_k": 2}, rescore="kept")
    # Row 0 emits 1, whose + 2 keeps the state even, for ever; row 1 emits 0 and stops.
    np.testing.assert_array_equal(sample.token, [[1, 1, 1], [0, PAD, PAD]])
    np.testing.assert_array_equal(sample.finish, [types.Finish.LENGTH, types.Finish.STOP])
    np.testing.assert_array_equal(sample.behaviour_logp, 0)
    prob = softmax(table[0])
    np.testing.assert_allclose(sample.raw_logp[0], np.log(prob[1]), atol=1e-6)
    np.testing.assert_allclose(sample.entropy[0], -np.sum(prob * np.log(prob)), atol=1e-6)
    np.testing.assert_allclose(sample.raw_logp[1], [-math.log(3), 0, 0], atol=1e-6)
    np.testing.assert_allclose(sample.entropy[1], [math.log(3), 0, 0], atol=1e-6)
    assert sample.kept is None


# --- the loop ------------------------------------------------------------------------------------------


def counted(calls: list[int]):
    """Make a toy policy that appends the rows of every ``extend`` that really runs to ``calls``."""

    def extend(params, token, mask, cache):
        jax.debug.callback(lambda: calls.append(token.shape[0]))
        return toy_extend(params, token, mask, cache)

    return TOY._replace(extend=extend)


@pytest.mark.parametrize(
    ("texts", "stop", "steps", "ends"),
    [
        # Greedy on five states: from state s token 1 (+ 2) until state 0, where token 0.
        (((1, 1, 0), (3,)), (STOP,), 3, (1, 3)),  # states 0 and 4: ends at once; 4, 1, 3, 0 is past three tokens
        (((1, 1, 0), (1, 1, 0)), (STOP,), 1, (1, 1)),
        (((1, 1, 0), (2,)), (STOP,), 2, (1, 2)),  # state 3: 1, then 0
        (((2,), (2,)), (7, 1), 1, (1, 1)),
        (((2,), (2,)), (), 40, (40, 40)),
    ],
)
def test_the_loop_ends_when_every_row_has(texts, stop, steps, ends):
    table = np.array([[1.0, 0, 0]] + [[0, 1.0, 0]] * 4)
    calls: list[int] = []
    sample = draw(
        table,
        prompts_of(*texts, width=3),
        keys_for(2, 1),
        OFF | {"temperature": 0.0},
        model=counted(calls),
        stop=stop,
        length=3 if steps == 3 else 40,
    )
    jax.effects_barrier()
    assert sample.steps == steps
    assert calls == [2] * (steps - 1)  # nothing after the last token
    np.testing.assert_array_equal(sample.mask.sum(axis=1), ends)
    for row, end in enumerate(ends):
        stopped = int(sample.token[row, end - 1]) in stop
        assert sample.finish[row] == (types.Finish.STOP if stopped else types.Finish.LENGTH)


def test_a_draw_depends_on_its_own_key_and_prompt_only():
    texts = ((1, 2, 2), (0,), (2, 1))
    keys = keys_for(3, 4)
    whole = draw(TABLE, prompts_of(*texts, width=3), keys, SETTINGS[2], samples=4, length=6)
    for p, text in enumerate(texts):
        group = slice(4 * p, 4 * p + 4)
        alone = draw(TABLE, prompts_of(text, width=8), keys[group], SETTINGS[2], samples=4, length=6)
        for name in ("token", "mask", "behaviour_logp", "raw_logp", "entropy", "finish"):
            np.testing.assert_array_equal(getattr(whole, name)[group], getattr(alone, name))
    order = np.array([2, 0, 1])
    mixed_keys = keys.reshape(3, 4)[order].reshape(12)
    mixed = draw(TABLE, prompts_of(*(texts[p] for p in order), width=3), mixed_keys, SETTINGS[2], samples=4, length=6)
    np.testing.assert_array_equal(mixed.token, whole.token.reshape(3, 4, 6)[order].reshape(12, 6))
    # A longer budget continues the same draws.
    longer = draw(TABLE, prompts_of(*texts, width=3), keys, SETTINGS[2], samples=4, length=9)
    np.testing.assert_array_equal(longer.token[:, :6], whole.token)
    assert len(np.unique(whole.token, axis=0)) > 4  # or all of this would hold of a constant


@pytest.mark.full
def test_rows_sharded_over_a_mesh_draw_the_same():
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices), ("data",))
    rows = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    texts = [(v % 3,) * (1 + v % 2) for v in range(len(devices))]
    prompts, keys = prompts_of(*texts, width=2), keys_for(len(devices), 2)
    plain = draw(TABLE, prompts, keys, SETTINGS[3], samples=2, rescore="kept")
    prompts, keys = jax.device_put((prompts, keys), rows)
    spread = draw(TABLE, prompts, keys, SETTINGS[3], samples=2, rescore="kept")
    jax.tree.map(np.testing.assert_array_equal, plain, spread)


@pytest.mark.full
def test_a_vmapped_loop_has_one_predicate_and_the_same_draws():
    tables = jnp.stack([jnp.asarray(TABLE), jnp.asarray(TABLE[::-1].copy())])
    prompts, keys = prompts_of(PROMPT, (0,), width=2), keys_for(2, 3)
    arguments = drawing.arguments(samples=3, length=5, stop=(STOP,), pad=PAD, top_k=2)
    generate = functools.partial(sampling.generate, TOY, **arguments)

    def run(table):
        sample = generate(table, prompts, keys)
        return dataclasses.replace(sample, steps=None), sample.steps

    # out_axes None is refused where the numbers of steps differ from member to member.
    swept, steps = jax.jit(jax.vmap(run, out_axes=(0, None)))(tables)
    each = [draw(table, prompts, keys, OFF | {"top_k": 2}, samples=3, length=5) for table in tables]
    assert steps == max(sample.steps for sample in each)
    together = jax.tree.map(
        lambda *members: np.stack(members), *(dataclasses.replace(sample, steps=None) for sample in each)
    )
    jax.tree.map(np.testing.assert_array_equal, swept, together)


def test_row_keys_fold_in_step_prompt_and_sample():
    root, index, sample = jax.random.key(7), jnp.array([5, 5, 9]), jnp.array([0, 1, 0])
    keys = sampling.row_keys(root, jnp.int32(3), index, sample)
    for row in range(3):
        key = root
        for number in (3, int(index[row]), int(sample[row])):
            key = jax.random.fold_in(key, number)
        np.testing.assert_array_equal(jax.random.key_data(keys[row]), jax.random.key_data(key))
    by_row = sampling.row_keys(root, jnp.array([3, 4, 3]), index, sample)
    same = np.all(np.asarray(jax.random.key_data(by_row) == jax.random.key_data(keys)), axis=1)
    np.testing.assert_array_equal(same, [True, False, True])


def test_generate_refuses_wrong_counts():
    prompts = prompts_of(PROMPT, (0,), width=2)
    with pytest.raises(ValueError, match=r"shape \(3,\) but expected \(4\).*keys"):
        draw(TABLE, prompts, keys_for(1, 3), OFF, samples=2)
    with pytest.raises(ValueError, match="length = 0: expected at least 1"):
        draw(TABLE, prompts, keys_for(2, 1), OFF, length=0)


# --- the transformer -----------------------------------------------------------------------------------

TRANSFORMER = models.build(
    models.Architecture(vocabulary=37, layers=2, width=16, heads=4, kv_heads=2, hidden=16, tied=False)
)
TEXTS = ((3, 4, 5, 6), (7,), (8, 9))
SHAPE = {"samples": 3, "length": 6, "stop": (0, 1, 2, 3), "pad": 0, "rescore": "kept"}


@functools.cache
def parameters() -> types.Tree:
    params = jax.jit(TRANSFORMER.init)(jax.random.key(0))
    return params | {"unembedding": 2 * params["unembedding"]}  # less even than at the start


FILTERED = {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "min_p": 0.02}


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


@pytest.mark.full
def test_the_inverse_draw_never_passes_the_last_token_there_is():
    # Uniform numbers next to 1, and a tail of tokens that are ruled out.
    logits = jnp.where(jnp.arange(50) < 30, 0.0, -jnp.inf)
    drawn = jax.vmap(sampling.build(sampling.SamplerConfig(draw="inverse")).draw, in_axes=(0, None))
    assert int(jnp.max(drawn(jax.random.split(jax.random.key(0), 4096), logits))) == 29
    with pytest.raises(ValueError, match=r"draw=.exact.: must be one of .gumbel., .inverse."):
        sampling.build(sampling.SamplerConfig(draw="exact"))
