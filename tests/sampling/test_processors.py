"""The logits processors against a NumPy oracle, and by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import sampling


def oracle_filter(logits: np.ndarray, top_k: int, top_p: float, min_p: float) -> tuple[np.ndarray, float]:
    """Filter one distribution token by token, in float64; return it, and the margin of the closest decision."""
    margin = math.inf
    prob = np.exp(logits.astype(np.float64) - logits.max())
    prob = prob / prob.sum()
    order = sorted(range(len(prob)), key=lambda v: (-prob[v], v))
    if top_k:
        prob = np.array([prob[v] if order.index(v) < top_k else 0.0 for v in range(len(prob))])
        prob = prob / prob.sum()
    if top_p < 1:
        kept, total = [], 0.0
        while total < top_p:
            kept.append(order[len(kept)])
            total += prob[kept[-1]]
            margin = min(margin, abs(total - top_p))
        prob = np.array([prob[v] if v in kept else 0.0 for v in range(len(prob))])
        prob = prob / prob.sum()
    if min_p > 0:
        ratio = prob / prob.max()
        margin = min(margin, float(np.min(np.abs(ratio - min_p))))
        prob = np.where(ratio >= min_p, prob, 0.0)
        prob = prob / prob.sum()
    return prob, margin


def cases() -> list[np.ndarray]:
    """Random, tied and partly ruled-out logits, [8, 33] each."""
    out = []
    for seed in range(4):
        rng = np.random.default_rng(seed)
        plain = rng.normal(size=(8, 33)) * 2
        tied = rng.integers(0, 4, size=(8, 33))
        out += [plain, tied, np.where(rng.random((8, 33)) < 0.3, -np.inf, tied)]
    return [case.astype(np.float32) for case in out]


# top-k, top-p, min-p
ONE = [(1, 1, 0), (5, 1, 0), (40, 1, 0), (0, 0.03, 0), (0, 0.437, 0), (0, 0.951, 0), (0, 1, 0.071), (0, 1, 0.51)]
SEVERAL = [(9, 0.637, 0), (9, 1, 0.171), (20, 0.871, 0.171)]


@pytest.mark.parametrize("settings", [*ONE, *SEVERAL])
def test_processors_keep_what_the_oracle_keeps(settings):
    processor = sampling.build(sampling.SamplerConfig(1.0, *settings)).filter
    assert processor is not None
    compared = 0
    for logits in cases():
        got = np.asarray(jax.jit(processor)(jnp.asarray(logits)))
        for row in range(len(logits)):
            prob, margin = oracle_filter(logits[row], *settings)
            if margin > 1e-5:
                np.testing.assert_array_equal(got[row], np.where(prob > 0, logits[row], -np.inf))
                compared += 1
    assert compared > 80


def test_processors_by_hand():
    logits = jnp.log(jnp.array([[0.1, 0.4, 0.2, 0.3]]))

    def kept(processor):
        return np.flatnonzero(np.isfinite(processor(logits)[0])).tolist()

    assert kept(sampling.top_k(2)) == [1, 3]
    assert kept(sampling.top_p(0.5)) == [1, 3]  # 0.4 < 0.5 <= 0.4 + 0.3
    assert kept(sampling.top_p(0.001)) == [1]
    assert kept(sampling.min_p(0.6)) == [1, 3]  # 0.3 / 0.4 and 0.2 / 0.4
    # Of {0.4, 0.3} the first has 0.4 / 0.7 = 0.571 > 0.5: top-p sees what top-k renormalised.
    assert kept(sampling.build(sampling.SamplerConfig(top_k=2, top_p=0.5)).filter) == [1]
    assert kept(sampling.chain(sampling.top_p(0.5), sampling.top_k(2))) == [1, 3]
    assert kept(sampling.chain()) == [0, 1, 2, 3]
    even = jnp.array([[0.0, -0.0] * 4])  # one number
    np.testing.assert_array_equal(np.isfinite(sampling.top_k(3)(even)[0]), np.arange(8) < 3)
    np.testing.assert_array_equal(np.isfinite(sampling.top_p(0.3)(even)[0]), np.arange(8) < 3)
    np.testing.assert_array_equal(np.isfinite(sampling.min_p(1.0)(even)[0]), True)


def test_build_leaves_out_what_is_off():
    assert sampling.build(sampling.SamplerConfig()) == sampling.Processors(1.0, None)
    assert sampling.build(
        sampling.SamplerConfig(temperature=0.0, top_k=5, top_p=0.5, min_p=0.1)
    ) == sampling.Processors(0.0, None)
    assert sampling.build(sampling.SamplerConfig(top_p=0.9)).filter is not None
    assert sampling.build(sampling.SamplerConfig(top_p=0.9)) == sampling.build(
        sampling.SamplerConfig(top_p=0.9)
    )  # or jit would compile each anew


@pytest.mark.parametrize(
    ("field", "given"),
    [("temperature", bad) for bad in (-1.0, math.nan)]
    + [("top_k", bad) for bad in (-1, 2.5)]
    + [(field, bad) for field, bad in (("top_p", 0.0), ("top_p", 1.1), ("min_p", -0.1), ("min_p", 1.5))],
)
def test_build_names_the_field_out_of_range(field, given):
    with pytest.raises(ValueError, match=rf"{field}={given}: must be a"):
        sampling.SamplerConfig(**{field: given})
