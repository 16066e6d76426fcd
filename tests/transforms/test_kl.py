"""KL as a family: every identity by enumeration, and a page that says what is measured."""

import shlex

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.kl_estimators import study
from rljax import types
from rljax.config import files, resolve
from rljax.transforms import ops, penalty, reduce, schedule

LEVELS, ZERO = study.LEVELS, 1e-9  # the study remembers what it has measured


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def slope(f, x, direction, h=1e-5):
    return (f(x + h * direction) - f(x - h * direction)) / (2 * h)


def test_the_truth_has_the_slope_of_its_own_value():
    logits, ref = (x[0] for x in study.pairs((0.5,)))
    direction = np.random.default_rng(3).normal(size=logits.shape)
    value, gradient = study.reverse_kl(study.log_softmax(logits), ref)
    np.testing.assert_allclose(value, 0.5, rtol=1e-12)
    estimate = slope(lambda x: study.reverse_kl(study.log_softmax(x), ref)[0], logits, direction)
    np.testing.assert_allclose(estimate, np.sum(gradient * direction, axis=1), rtol=1e-6, atol=1e-8)
    for mask in (study.FULL, study.ENDED):
        logits, ref = study.sequences((0.5,), mask)
        direction = np.random.default_rng(4).normal(size=logits.shape)
        value, gradient, probability = study.sequence_truth(logits, ref, mask)
        np.testing.assert_allclose([value, probability.sum(axis=1) / 2], 0.5, rtol=1e-12)
        estimate = slope(lambda x, r=ref, m=mask: study.sequence_truth(x, r, m)[0], logits, direction)
        np.testing.assert_allclose(estimate, np.sum(gradient * direction, axis=(1, 2)), rtol=1e-6, atol=1e-8)


def test_k1_and_k3_have_the_value_of_reverse_kl_and_k2_and_abs_do_not():
    single = study.one_state(LEVELS)
    unbiased = {n for n, x in single.items() if x["bias"].max() < ZERO}
    k1_k3 = {n for n in single if n.startswith(("k1", "k3"))}
    assert unbiased == k1_k3 | {"reverse_kl"}
    assert np.all(single["abs"]["value"] >= 1) and np.median(single["k2"]["bias"]) > 0.1
    assert np.all(single["k3"]["spread"][0] < 0.2 * single["k1"]["spread"][0])  # close to the reference


def test_gradients_in_the_loss():
    single = study.one_state(LEVELS)
    reverse = {n for n, x in single.items() if x["reverse"].max() < ZERO}
    corrected = {f'{k}, correction="{how}"' for k in ("k1", "k3") for how in ("on_policy", "behaviour")}
    assert reverse == {"k2", "k1+", "k3+", "reverse_kl"} | corrected
    assert {n for n, x in single.items() if x["forward"].max() < ZERO} == {"k3", "forward_kl"}
    np.testing.assert_allclose(single["k1"]["reverse"], 1)  # no expected gradient: all of the true one is missing
    assert all(single[n]["noise"].max() < ZERO for n in study.EXACT)


def test_k2_both_straight_through_forms_and_corrected_k3_are_one_gradient_on_every_sample():
    logits, ref = study.pairs((1.0,))
    results = study.measured({**study.ESTIMATORS, **study.CORRECTED}, logits, ref, study.log_softmax(logits))
    for name in ("k1+", "k3+", 'k3, correction="on_policy"', 'k3, correction="behaviour"'):
        np.testing.assert_allclose(results[name][1], results["k2"][1], rtol=1e-9, atol=1e-12)
    for name in ("k1", "k3"):
        np.testing.assert_allclose(results[name + "+"][0], results[name][0], rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(results[f'{name}, correction="on_policy"'][0], results[name][0], rtol=1e-12)


def test_the_gradient_of_abs_is_twice_that_of_total_variation():
    logits, ref = study.pairs((0.1,))
    logp = study.log_softmax(logits)
    pieces = {"abs": penalty.kl("abs", 1.0), "twice": penalty.exact_kl("total_variation", 2.0)}
    results = {n: study.moments(np.exp(logp), *x)[2] for n, x in study.measured(pieces, logits, ref, logp).items()}
    np.testing.assert_allclose(results["abs"], results["twice"], rtol=1e-9, atol=1e-12)


def test_off_policy_only_k1_and_k3_with_the_behaviour_correction_are_exact():
    results = study.off_policy(0.1, study.STALE)
    right = {'k1, correction="behaviour"', 'k3, correction="behaviour"'}
    assert {n for n, x in results.items() if x["error"].max() < ZERO} == right
    # with the straight-through form the value is right and the gradient is not
    assert {n for n, x in results.items() if x["bias"].max() < ZERO} == right | {'k3+, correction="behaviour"'}


@pytest.mark.full
def test_of_sequences_only_k1_in_the_reward_or_the_advantage_has_the_gradient():
    along = study.over_rows(LEVELS)
    right = {'reward, `kl("k1")`', 'advantage, `charge_kl("k1")`'}
    assert {n for n, x in along.items() if x["error"].max() < ZERO} == right
    assert all(along[f'reward, `kl("{k}")`']["error"][0].min() > 0.9 for k in ("k2", "k3"))
    by_state = along['loss, `exact_kl("reverse_kl")`']["error"]  # what a sum over tokens in the loss can reach
    for name in ('loss, `kl("k2")`', 'loss, `kl("k1", correction="on_policy")`', 'reward, `kl("k1")`, gamma 0'):
        np.testing.assert_allclose(along[name]["error"], by_state, rtol=1e-9)
    np.testing.assert_allclose(along['loss, `kl("k1")`']["size"], 0, atol=ZERO)


@pytest.mark.full
def test_k1_in_the_loss_under_a_mean_of_each_row_descends_the_mean_of_one_over_the_length():
    logits, ref = (x[0] for x in study.sequences((0.1,), study.ENDED))
    inverse = 1 / study.ENDED.sum(axis=1)

    def probability(x):
        return jnp.exp(jnp.sum(jax.nn.log_softmax(x)[study.STATES, study.ROWS], axis=1))

    rows = study.in_loss(penalty.kl("k1", 1.0), reduce.mean_over_rows())
    got = jnp.einsum("y,ysv->sv", probability(logits), jax.jacrev(lambda x: rows(x, ref, study.ENDED))(logits))
    want = jax.grad(lambda x: jnp.sum(probability(x) * inverse))(jnp.asarray(logits))
    assert np.abs(want).max() > 0.01
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


NAMES = (*ops.DIVERGENCES, "alpha_0.2", "alpha_2", "alpha_-1", "alpha_0", "alpha_1")


@pytest.mark.parametrize("name", NAMES)
def test_a_divergence_is_positive_and_zero_only_at_equality(name):
    logits, ref = (x[0] for x in study.pairs((0.3,)))
    logp = study.log_softmax(logits)
    assert np.all(ops.divergence(name, logp, ref) > 1e-3)
    np.testing.assert_allclose(ops.divergence(name, logp, logp), 0, atol=1e-14)


def test_divergences_are_related():
    logits, ref = (x[0] for x in study.pairs((0.3,)))
    p, q = study.log_softmax(logits), ref
    f = ops.divergence
    np.testing.assert_allclose(f("hellinger", p, q), f("alpha_0.5", p, q) / 4, rtol=1e-12)
    for name in ("js", "hellinger", "total_variation", "alpha_0.5"):
        np.testing.assert_allclose(f(name, p, q), f(name, q, p), rtol=1e-12)
    np.testing.assert_allclose(f("forward_kl", p, q), f("reverse_kl", q, p), rtol=1e-12)
    np.testing.assert_allclose(f("alpha_0.2", p, q), f("alpha_0.8", q, p), rtol=1e-12)
    for end, name in ((1, "reverse_kl"), (0, "forward_kl")):
        np.testing.assert_array_equal(f(f"alpha_{end}", p, q), f(name, p, q))
        gaps = [np.abs(f(f"alpha_{a}", p, q) - f(name, p, q)).max() for a in (abs(end - 1e-2), abs(end - 1e-4))]
        assert gaps[1] < 1e-4 and 50 < gaps[0] / gaps[1] < 200  # of first order in the distance from the end
    far = study.log_softmax(np.array([[50.0, 0.0]])), study.log_softmax(np.array([[0.0, 50.0]]))
    np.testing.assert_allclose([f(n, *far)[0] for n in ("js", "hellinger", "total_variation")], [np.log(2), 1, 1])
    two = jnp.stack([p[:, 0], jnp.log1p(-jnp.exp(p[:, 0]))], 1), jnp.stack([q[:, 0], jnp.log1p(-jnp.exp(q[:, 0]))], 1)
    np.testing.assert_allclose(ops.bernoulli_kl(*(jnp.exp(x[:, 0]) for x in two)), f("reverse_kl", *two), rtol=1e-9)


def test_f_divergence_is_the_exact_one_on_rows_of_the_reference():
    for quantities in study.rehearsal(LEVELS).values():  # at one nat some ratios pass the limit
        assert quantities["bias"][:2].max() < ZERO and quantities["error"][:2].max() < ZERO


def term(piece, log_ratio):
    """Return the piece's term for one row of log pi, all other log-probabilities being 0."""
    d = jnp.asarray([log_ratio])
    rollout = types.Rollout(jnp.ones_like(d), jnp.zeros(1), jnp.zeros(1, int), ref_logp=0 * d, behaviour_logp=0 * d)
    (term,) = piece.apply(types.Loss(), rollout, types.Scores(logp=d), piece.init(), study.KEY).terms.values()
    return term[0]


@pytest.mark.parametrize("name", ["forward_kl", "js", "alpha"])
def test_f_is_zero_at_one_and_held_at_its_limit(name):
    piece = penalty.f_divergence(name, 1.0, limit=3.0)
    at_one, high, low, beyond, below = term(piece, [0.0, 3.0, -3.0, 1e4, -1e4])
    assert abs(at_one) < 1e-15 and high > 0 and low > 0
    np.testing.assert_allclose([beyond, below], [high, low])
    slopes = jax.grad(lambda d: term(piece, d).sum())(jnp.array([0.0, 1e4, -1e4]))
    np.testing.assert_allclose(slopes, 0, atol=1e-12)


@pytest.mark.full
def test_garbage_does_not_overflow_and_the_square_is_twice_k2():
    for name in ops.ESTIMATORS:
        with jax.enable_x64(False):
            assert np.all(np.isfinite(ops.kl_estimate(name, jnp.array([-1e4, 0.0, 1e4]))))
        assert ops.kl_estimate(name, jnp.zeros(1)) == 0
    d = [0.3, -2.0]
    np.testing.assert_allclose(
        term(penalty.squared_log_ratio(1.0), d), 2 * term(penalty.kl("k2", 1.0, against="behaviour"), d)
    )
    np.testing.assert_allclose(term(penalty.convex_kl("k3", 1.0, 0.25), d), 0.25 * term(penalty.kl("k3", 1.0), d))


@pytest.mark.full
def test_k3_falls_towards_the_reference_from_any_distance():
    d = np.array([-1e4, -500.0, -21.0, -20.5, -19.5, -3.0, -1e-3, 0.0, 1e-3, 3.0, 21.0, 1e4])
    with jax.enable_x64(False):
        value, slope = jax.vmap(jax.value_and_grad(lambda x: ops.kl_estimate("k3", x)))(jnp.array(d, jnp.float32))
    assert np.all(np.isfinite(value)) and np.all(np.sign(slope) == np.sign(d))
    exact = d > -20  # below, the tangent at -20
    np.testing.assert_allclose(value[exact], np.exp(-d[exact]) - 1 + d[exact], rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(slope[exact], 1 - np.exp(-d[exact]), rtol=1e-5, atol=1e-7)
    assert np.all(np.diff(value[d < 0]) < 0) and np.all(np.diff(slope) > -1e-3)


def test_the_adaptive_coefficient_is_the_penaltys_state_and_moves_as_stated():
    piece = penalty.kl("k3", schedule.adaptive_kl(0.1, target=0.5, horizon=100))
    state = piece.init()
    for divergence, factor in ((0.5, 1), (0.55, 1 + 0.1 * 32 / 100), (9.0, 1.064), (0.0, 0.936)):
        before = state[0]["coefficient"]
        state = piece.observe(state, {"kl": jnp.float64(divergence), "valid_rows": jnp.float64(32)})
        np.testing.assert_allclose(state[0]["coefficient"], before * factor, rtol=1e-6)


def test_the_page_holds_what_is_measured():
    page = study.PAGE.read_text()
    assert study.rewrite(page, study.tables()) == page


def test_the_page_has_configs_that_resolve():
    for line in [x for x in study.PAGE.read_text().splitlines() if x.startswith("--config")]:
        config = files.load("quickstart", "quick")
        for flag in shlex.split(line):
            field, value = flag.removeprefix("--config.").split("=", 1)
            files.override(config, field, value)
        resolve.phases(config)
