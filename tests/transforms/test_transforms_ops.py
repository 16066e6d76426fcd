"""The functions underneath; a piece nobody foresaw, and strict types."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, transforms, types
from rljax.algorithms import interpreter, seams
from rljax.transforms import (
    define,
    ops,
    reduce,
)
from rljax.transforms.frame import extras
from tests.algorithms import test_algorithms as battery
from tests.support import batch
from tests.transforms.transforms_cases import KEY, apply, close, floats, record

# --- the functions underneath ---------------------------------------------------------


@pytest.mark.full
def test_kl_estimators_against_enumeration():
    r = np.random.default_rng(0)
    theta, phi = floats(r.normal(size=5)), floats(r.normal(size=5))
    q = jax.nn.log_softmax(phi)

    def expected(estimator, x, value=True):
        """Return E over v ~ p of k(log p(v) - log q(v)), the samples not differentiated."""
        p = jax.nn.log_softmax(x)
        return jnp.sum(jax.lax.stop_gradient(jnp.exp(p)) * ops.kl_estimate(estimator, p - q))

    def reverse(x):
        p = jax.nn.log_softmax(x)
        return jnp.sum(jnp.exp(p) * (p - q))

    def forward(x):
        return jnp.sum(jnp.exp(q) * (q - jax.nn.log_softmax(x)))

    gradient = {e: jax.grad(lambda x, e=e: expected(e, x))(theta) for e in ops.ESTIMATORS}
    close(expected("k1", theta), reverse(theta))
    close(expected("k3", theta), reverse(theta))
    close(gradient["k1"], np.zeros(5))
    close(gradient["k2"], jax.grad(reverse)(theta))
    close(gradient["k3"], jax.grad(forward)(theta))
    assert np.abs(np.asarray(gradient["k2"] - gradient["k3"])).max() > 0.05  # the two do differ here
    d = jnp.linspace(-3, 3, 13)
    assert (ops.kl_estimate("k3", d) >= 0).all() and ops.kl_estimate("k3", jnp.zeros(1))[0] == 0
    close(ops.kl_estimate("abs", d), np.abs(d))
    assert np.isfinite(ops.kl_estimate("k3", floats([-1e4, 1e4]))).all()
    with pytest.raises(ValueError, match="choose one of k1, k2, k3, abs"):
        ops.kl_estimate("k4", d)


def test_gae_and_reward_to_go_equal_their_definitions():
    r = np.random.default_rng(1)
    mask = (r.random((4, 7)) < 0.6).astype(float)
    mask[3] = 0
    reward_, value = r.normal(size=(2, 4, 7))
    gamma, lam = 0.9, 0.7
    to_go, estimate = np.zeros((4, 7)), np.zeros((4, 7))
    for i in range(4):
        at = np.flatnonzero(mask[i])
        x, v = reward_[i, at], np.append(value[i, at], 0.0)
        delta = [x[k] + gamma * v[k + 1] - v[k] for k in range(len(at))]
        for k, t in enumerate(at):
            to_go[i, t] = sum(gamma**j * x[k + j] for j in range(len(at) - k))
            estimate[i, t] = sum((gamma * lam) ** j * delta[k + j] for j in range(len(at) - k))
    close(ops.reward_to_go(floats(reward_), floats(mask), gamma), to_go)
    close(ops.gae(floats(reward_), floats(value), floats(mask), gamma, lam), estimate)


def test_segments_take_any_ids():
    ids = jnp.array([2**31 - 1, -(2**31), 0, 2**31 - 1, -1, -(2**31)])
    x, valid = floats([1, 2, 3, 5, 8, 20]), floats([1, 1, 1, 1, 0, 1])
    close(ops.segment_total(x, ids), [6, 22, 3, 6, 8, 22])
    close(ops.segment_mean(x, ids, valid), [3, 11, 3, 3, 0, 11])
    close(ops.segment_max(x, ids), [5, 20, 3, 5, 8, 20])
    close(ops.segment_max(x, ids, valid), [5, 20, 3, 5, -np.inf, 20])
    close(ops.segment_max(x, ids, floats([1, 1, 1, 0, 1, 0])), [1, 2, 3, 1, 8, 2])
    close(ops.segment_max(x.astype(jnp.int32), ids, valid), [5, 20, 3, 5, jnp.iinfo(jnp.int32).min, 20])
    close(ops.segment_std(x, ids, valid), [2, 9, 0, 2, 0, 9])
    close(ops.segment_std(x, ids, valid, ddof=1), [np.sqrt(8), np.sqrt(162), 0, np.sqrt(8), 0, np.sqrt(162)])


def test_masked_statistics():
    x, mask = floats([1, 5, np.inf, 3]), floats([1, 1, 0, 1])
    close(ops.masked_mean(x, mask), 3)
    close(ops.masked_std(x, mask), np.sqrt(8 / 3))
    close(ops.masked_std(x, mask, ddof=1), 2)
    assert ops.masked_mean(x, mask * 0) == 0 and ops.masked_std(x, mask * 0) == 0
    np.testing.assert_array_equal(ops.last_token(floats([[1, 0, 1, 0], [0, 0, 0, 0]])), [[0, 0, 1, 0], [0, 0, 0, 0]])


# --- a piece nobody foresaw, and strict types -----------------------------------------


def test_a_penalty_without_a_coefficient_is_added_as_it_is():
    @define.penalty
    def plain(loss, r, scores):
        return r.reward[:, None] * r.mask

    r, scores = record([[1, 1]], (3,), (4,)), types.Scores(logp=floats([[-1, -1]]))
    algorithm = algorithms.compose(loss=[plain()], reduce=reduce.sum_over_tokens())
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    assert interpreter.loss(o, prepared, scores, state, KEY)[0] == 2 * 3.0


@pytest.mark.full
def test_a_loss_of_pairs_fits_the_seams():
    @define.surrogate(needs=types.Needs(whole="group"), term="pair")
    def pairs(loss, r, scores):
        """-log sigmoid of the difference of a group's two sequence log-probs, charged to the first row."""
        total = jnp.sum(scores.logp * r.mask, axis=1)
        sign = jnp.where(r.reward > 0, 1.0, -1.0)
        margin = ops.segment_total(total * sign, r.group)
        return -jax.nn.log_sigmoid(margin)[:, None] * (r.reward > 0)[:, None] * ops.last_token(r.mask)

    algorithm = algorithms.compose(loss=[pairs()], reduce=reduce.sum_over_tokens())
    assert interpreter.needs(algorithm).whole == "group"
    (o,), state = algorithm.objectives, interpreter.init(algorithm)["objectives"][0]
    r = record([[1, 1], [1, 0], [1, 1], [1, 1]], (1, 0, 0, 1), (4, 4, 6, 6))
    scores = types.Scores(logp=floats([[-1, -1], [-3, 0], [-1, -2], [-2, -2]]))
    prepared, state = interpreter.prepare_minibatch(o, r, scores, state, KEY)
    whole = interpreter.loss(o, prepared, scores, state, KEY)[0]
    close(whole, np.log1p(np.exp(-1)) + np.log1p(np.exp(1)))  # margins -2 + 3 and -4 + 3
    halves = [jax.tree.map(lambda x, i=i: x[i : i + 2], (prepared, scores)) for i in (0, 2)]
    close(sum(interpreter.loss(o, *half, state, KEY)[0] for half in halves), whole)


@pytest.mark.default_tier("grpo", "ppo", "dpo")
@pytest.mark.parametrize("name", algorithms.TABLE)
def test_recipes_promote_no_types_silently(name):
    algorithm = battery.recipe(name)

    def value(scores, rollout, number):
        return battery.total(algorithm, rollout, scores)[number]

    with jax.numpy_dtype_promotion("strict"):
        rollout, scores = batch.records(batch.arrays(name=name))
        for number in range(len(algorithm.objectives)):
            out = jax.eval_shape(lambda s, r, n=number: jax.value_and_grad(value)(s, r, n), scores, rollout)
            assert {x.dtype for x in jax.tree.leaves(out)} == {jnp.dtype("float32")}


@pytest.mark.default_tier("weight", "advantage")
@pytest.mark.parametrize("seam", ["reward", "advantage", "prepare", *transforms.LOSS_SEAMS, "reduce"])
def test_pieces_promote_no_types_silently(seam):
    rollout, scores = batch.records(batch.arrays(name=batch.PAID_AT_TOKENS[0]))
    pair = {"preference": jnp.zeros_like(rollout.reward), "margin": jnp.zeros_like(rollout.reward)}
    rollout = rollout.replace(advantage=rollout.value, returns=rollout.value, extra={**rollout.extra, **pair})
    scores = scores.replace(
        divergence=dict.fromkeys(
            (*ops.DIVERGENCES, "least_q/q/q_2", "every_q_10/policy", "greatest/base"), scores.entropy
        )
    )
    scores = scores.replace(value_logits=jnp.zeros((*rollout.mask.shape, 3)))
    shape = rollout.mask.shape
    before = types.Loss(log_ratio=jnp.zeros(shape), terms={"policy": jnp.zeros(shape)})
    records = {"reward": (rollout,), "advantage": (rollout,), "prepare": (rollout, scores), "reduce": (rollout, scores)}
    with jax.numpy_dtype_promotion("strict"):
        for name in transforms.pieces(seam):
            (piece,) = seams._edit(seam, f"{name}({batch.ARGUMENTS.get(name, '')})", ())
            if isinstance(piece, types.LossTransform):
                statistics = transforms.chain(*piece.statistics, kind=types.PrepareTransform)
                prepared = apply(statistics, rollout, scores)
                out = jax.eval_shape(lambda p=piece, r=prepared: apply(p, before, r, scores))
            else:
                out = jax.eval_shape(lambda p=piece: apply(p, *records[seam]))
            dtypes = {x.dtype for x in jax.tree.leaves(out)}
            assert dtypes <= {jnp.dtype("float32"), jnp.dtype("int32")}, name


# how a source text names an array of Rollout.extra: where it reads one, tests for one, or declares that it reads one
NAMED = re.compile(
    r"""extra\["(\w+)"\]|extra\.get\("(\w+)"|"(\w+)" (?:not )?in [\w.]+\.extra\b|ops\.extra\(\w+, "(\w+)\""""
    r"""|extra=\{"(\w+)"|extra=frozenset\(\{"(\w+)"|reads\(extra=\("(\w+)",(?: "(\w+)",?)?"""
)


WRITTEN = re.compile(r'(?:statistic|on_minibatch)\("(\w+)"')  # what a piece writes for itself


def test_every_array_of_extra_is_declared():
    used = set()
    for path in pathlib.Path(transforms.__file__).parents[1].rglob("*.py"):
        text = path.read_text()
        names = {name for match in NAMED.finditer(text) for name in match.groups() if name}
        assert names <= {*extras.EXTRAS, *WRITTEN.findall(text)}, path
        used |= names
    assert {*extras.EXTRAS} <= used
    with pytest.raises(KeyError, match="undeclared"):
        extras.put(record(), {"undeclared": jnp.zeros(5)})
