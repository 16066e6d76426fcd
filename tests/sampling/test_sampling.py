"""The sampler against exact enumeration, NumPy oracles and teacher-forced re-scoring."""

import itertools
import math

import numpy as np
import pytest

from rljax import sampling, types
from tests.sampling.sampling_cases import (
    DRAWS,
    OFF,
    PAD,
    PROMPT,
    SETTINGS,
    STOP,
    TABLE,
    draw,
    drawn,
    keys_for,
    prompts_of,
    softmax,
)

# --- oracles, in float64 --------------------------------------------------------------


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


def emitted(sample: sampling.Sample, row: int) -> tuple[int, ...]:
    return tuple(int(v) for v in sample.token[row][sample.mask[row] == 1])


# --- exactness ------------------------------------------------------------------------


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
