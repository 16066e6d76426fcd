"""Diagnostics: their estimators by enumeration and in NumPy, on rows split in every way, and their errors."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.config import resolve
from rljax.training.learning import diagnostics, gradients, row_metrics
from tests.support import batch, tiny

KEY = jax.random.key(0)


def close(a, b, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(a, np.float64), np.asarray(b, np.float64), rtol=tolerance, atol=tolerance)


# --- noise ------------------------------------------------------------------------------------------


def test_the_estimates_of_noise_are_unbiased_over_all_draws_from_a_population():
    population = np.random.default_rng(0).normal(size=(3, 4)) + 0.3
    draws = population[np.array(list(itertools.product(range(3), repeat=4)))]  # 81 batches of 4 prompts
    large = np.sum(draws.mean(axis=1) ** 2, axis=-1)
    mean = population.mean(axis=0)
    for size in (1, 2):
        means = draws.reshape(81, 4 // size, size, 4).mean(axis=2)
        small = np.mean(np.sum(means**2, axis=-1), axis=1)
        square, trace = diagnostics.noise(small, large, size, 4)
        np.testing.assert_allclose(square.mean(), mean @ mean, rtol=1e-12)
        np.testing.assert_allclose(trace.mean(), np.sum((population - mean) ** 2) / 3, rtol=1e-12)


def linear(part, rows, number):
    """Return the gradient of sum over rows of reward * (place, place^2) * part: one population of gradients."""
    place = rows[0].extra["place"].astype(jnp.float32)
    grads = {name: jnp.sum(rows[0].reward * place**k) for k, name in enumerate(part)}
    return (jnp.zeros(()), []), grads


@pytest.mark.full
@pytest.mark.parametrize("devices", [1, 8])
def test_the_noise_of_a_minibatch_is_that_of_its_prompts_however_it_is_split(devices):
    setup = tiny.program(mesh__data=devices).steps[0].setup
    reward = np.random.default_rng(0).normal(size=32)
    place = np.arange(32)
    rows = types.Rollout(jnp.ones((32, 2)), jnp.asarray(reward), jnp.asarray(place // 4), extra={"place": place})
    each = np.stack([reward, reward * place]).reshape(2, 8, 4).sum(axis=-1).T * 8  # [8 prompts, 2]
    trace = np.sum(np.var(each, axis=0, ddof=1))
    square = np.sum(each.mean(axis=0) ** 2) - trace / 8
    part = {"a": jnp.zeros(()), "b": jnp.zeros(())}
    splits = [tiny.changed(setup, learner={"microbatches": n}) for n in ((1, 4) if devices == 1 else (2,))]

    @jax.jit
    def noises(part, rows):
        wholes = [gradients._summed(s, linear, part, [rows], read=False)[1] for s in splits]
        return [gradients._noise(s, linear, part, [rows], w) for s, w in zip(splits, wholes, strict=True)]

    for found in noises(part, rows):
        close(found["noise_square"], square, 1e-4 * abs(square))
        close(found["noise_trace"], trace, 1e-4 * trace)
    scale = diagnostics.of_gradient_steps({"noise_square": jnp.asarray(2.0), "noise_trace": jnp.asarray(6.0)})
    assert scale["noise_scale"] == 3.0 and diagnostics.noise_scale(jnp.asarray(-1.0), jnp.asarray(6.0)) == 0.0


def test_parts_divide_the_prompts_and_are_no_larger_than_micro_batches():
    for prompts, microbatches in itertools.product(range(2, 40), (1, 2, 4, 16)):
        parts = diagnostics.parts(prompts, microbatches)
        assert prompts % parts == 0 and parts >= min(prompts, 8, microbatches)
        assert microbatches > 8 or parts == diagnostics.parts(prompts, 1)


# --- signs and clips ---------------------------------------------------------------------------------


@pytest.mark.full
def test_the_halves_of_the_policy_term_add_up_in_value_gradient_and_clips():
    algorithm = algorithms.dapo()
    (o,) = algorithm.objectives
    rollout, scores = batch.records(batch.arrays(name="dapo"))
    advantage = np.random.default_rng(0).normal(size=(batch.B, 1)) * (np.arange(batch.B) > 0)[:, None]
    rollout = rollout.replace(advantage=jnp.asarray(np.repeat(advantage, batch.T, axis=1)))
    rows, inner = interpreter.prepare_minibatch(o, rollout, scores, interpreter.init(algorithm)["objectives"][0], KEY)

    def halves(logp):
        return diagnostics.by_sign(rows, interpreter.loss_terms(o, rows, scores.replace(logp=logp), inner, KEY))

    def whole(logp):
        return interpreter.loss(o, rows, scores.replace(logp=logp), inner, KEY)[1]["loss/policy"]

    @jax.jit
    def both(logp):
        built = interpreter.loss_terms(o, rows, scores, inner, KEY)
        clipped = diagnostics.of_clip(rows, built), built.metrics["clipped"]
        return halves(logp), jax.jacrev(halves)(logp), *jax.value_and_grad(whole)(logp), *clipped

    values, parts, value, gradient, clipped, hit = both(scores.logp)
    close(jnp.sum(parts, axis=0), gradient)
    close(jnp.sum(values), value)
    mask = np.asarray(rows.mask)
    for half, sign, where in zip(parts, ("positive", "negative"), (advantage > 0, advantage < 0), strict=True):
        assert np.any(half != 0) and np.all((half == 0) | where)
        close(clipped[f"clipped_{sign}"], np.sum(np.asarray(hit) * mask * where) / mask.sum())


@pytest.mark.full
def test_norms_and_cosine_of_two_gradients():
    one, two = (
        {"a": jnp.asarray([3.0, 0.0]), "b": jnp.asarray(4.0)},
        {"a": jnp.asarray([0.0, 1.0]), "b": jnp.asarray(-1.0)},
    )
    of_signs = jax.jit(diagnostics.of_signs)
    found = of_signs(one, two)
    close(found["gradient_positive"], 5.0)
    close(found["gradient_negative"], np.sqrt(2))
    close(found["gradient_cosine"], -4 / (5 * np.sqrt(2)))
    assert of_signs(one, jax.tree.map(jnp.zeros_like, two))["gradient_cosine"] == 0


# --- tokens -----------------------------------------------------------------------------------------


@pytest.mark.full
def test_the_effective_sample_size_is_that_of_all_micro_batches_together():
    r = np.random.default_rng(0)
    log_weight, mask = r.normal(size=(4, 6)), (r.uniform(size=(4, 6)) < 0.7) * 1.0
    w = np.exp(log_weight[mask > 0])
    halves = [diagnostics.moments(jnp.asarray(log_weight[h]), jnp.asarray(mask[h])) for h in (slice(2), slice(2, 4))]
    found = diagnostics.completed({**jax.tree.map(jnp.add, *halves), "loss": jnp.zeros(())})
    assert {*found} == {"effective_samples", "loss"}
    close(found["effective_samples"], w.sum() ** 2 / (w.size * (w**2).sum()))
    equal = diagnostics.completed(diagnostics.moments(jnp.full((4, 6), 0.3), jnp.asarray(mask)))
    close(equal["effective_samples"], 1.0)
    single = jnp.where(jnp.arange(24).reshape(4, 6) == 5, 0.0, -jnp.inf)
    close(diagnostics.completed(diagnostics.moments(single, jnp.ones((4, 6))))["effective_samples"], 1 / 24)


@pytest.mark.full
def test_probability_moved_and_entropy_by_thirds():
    r = np.random.default_rng(0)
    before, after, entropy = (r.uniform(0.1, 0.9, size=(2, 7)) for _ in range(3))
    mask = np.array([[1, 1, 0, 1, 1, 1, 1], [0, 1, 1, 1, 0, 0, 0]], np.float32)
    found = diagnostics.moved(jnp.log(before), jnp.log(after), jnp.asarray(mask))
    close(found["moved_mean"], np.abs(after - before)[mask > 0].mean())
    close(found["moved_largest"], np.abs(after - before)[mask > 0].max())
    rows = types.Rollout(jnp.asarray(mask), jnp.zeros(2), jnp.zeros(2, int), entropy=jnp.asarray(entropy))
    thirds = row_metrics.metrics(rows, judged=False, positions=True)
    for name, places in (("early", ([0, 0, 1], [0, 1, 1])), ("late", ([0, 0, 1], [5, 6, 3]))):
        close(thirds[f"entropy_{name}"], entropy[places].mean())
    assert "entropy_middle" in thirds and "entropy_middle" not in row_metrics.metrics(rows, judged=False)


# --- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"log__diagnostics": ("nose",)}, "log.diagnostics=.*one of 'clip', 'entropy', 'kl', 'moved', 'noise'"),
        ({"log__diagnostics": ("noise",), "learner__minibatches": 8}, "8 prompts are split into 8 minibatches"),
        ({"log__diagnostics": ("noise",), "seam__source": "knapsack()"}, r"'noise'.*knapsack\("),
    ],
)
def test_what_cannot_be_measured_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny.program.__wrapped__(**fields)


def test_a_divergence_without_a_reference_has_no_effect():
    for name, expected in (("grpo(kl=0.0)", True), ("grpo(kl=0.1)", False)):
        (phase,) = resolve.phases(tiny.config(name, log__diagnostics=("kl",)))
        assert any(re.search("'kl' has no effect", line) for line in phase.warnings) is expected
