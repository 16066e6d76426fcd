"""All conversations of a world of two turns and three tokens: their frequencies, records, and expected gradient."""

import dataclasses
import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.transforms import advantage, ratio, reduce, surrogate
from tests.sampling.replay import FLOATS, KEY, ONE, SOFT, episode_of, sampled, written

DRAWS = 8192
TURNS = [(0,), *itertools.product((1, 2), range(3))]
RECIPES = {
    "reinforce": algorithms.TABLE["reinforce"](),
    "clipped": algorithms.base.compose(
        advantage=[advantage.returns()],
        loss=[ratio.token(), surrogate.clip(0.2, 0.2)],
        reduce=reduce.mean_over_rows_of_sums(),
    ),
}


def every(luck):
    """Return (turns, coin, pay of each turn) of all conversations; the coin is None where it does not matter."""
    outcomes = []
    for first in TURNS:
        pay = first.count(1) / 4
        if first in ((0,), (2, 2)):
            outcomes.append(((first,), None, (pay,)))
            continue
        for coin, second in itertools.product((0, 1), TURNS):
            hit = second[0] == (luck + coin) % 3
            outcomes.append(((first, second), coin, (pay, second.count(1) / 4 + hit - 0.5 * (0 not in second))))
    return outcomes


def contexts(rows, luck, turns, coin):
    """Return what the seat has read before each turn."""
    before = (luck,)
    yield before
    if len(turns) == 2:
        first = turns[0]
        reply = (2, *(0,) * coin, (first[0] + coin) % 3)
        yield before + first + reply if rows == "conversation" else (first[0], 1 + coin, luck)


def log_softmax(x):
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


def logp_of(rows, luck, table, turns, coin):
    """Return the log-prob of each token, turn by turn."""
    logp = log_softmax(table)
    return [
        [logp[sum(v + 1 for v in before + turn[:i]) % 5, turn[i]] for i in range(len(turn))]
        for before, turn in zip(contexts(rows, luck, turns, coin), turns, strict=False)
    ]


def probability(rows, luck, table):
    """Return the probability of each conversation of ``every``: the world's coin is fair."""
    each = [math.exp(sum(map(sum, logp_of(rows, luck, table, t, c)))) for t, c, _ in every(luck)]
    return np.array(each) * [0.5 if coin is not None else 1.0 for _, coin, _ in every(luck)]


@functools.cache
def enumerated(rows):
    """Return (luck, rollout, {conversation: [rows]}, counts) of one problem, sampled many times."""
    world = dataclasses.replace(ONE, rows=rows)
    r, each = sampled(world, 1, DRAWS, table=SOFT), world.max_turns if rows == "chapters" else 1
    luck, first, count = int(episode_of(world, 0, 0)[0]["luck"]), {}, {}
    for e in range(DRAWS):
        if each == 1:
            turns = tuple(map(tuple, written(r.action.token[e], r.mask[e], r.turn[e])))
        else:
            pages = [r.action.token[b][r.mask[b] > 0] for b in (2 * e, 2 * e + 1)]
            turns = tuple(tuple(int(t) for t in page) for page in pages if len(page))
        coin = int(r.extra["coin"][e * each, 0]) if len(turns) == 2 else None
        first.setdefault((turns, coin), [e * each + k for k in range(each)])
        count[turns, coin] = count.get((turns, coin), 0) + 1
    return luck, r, first, count


@pytest.mark.parametrize("rows", ["conversation", "chapters"])
def test_every_conversation_has_its_exact_frequency_and_record(rows):
    luck, r, first, count = enumerated(rows)
    prob = probability(rows, luck, SOFT)
    assert len(prob) == 72 and abs(prob.sum() - 1) < 1e-12 and prob.min() > 1e-3
    assert set(first) == {(turns, coin) for turns, coin, _ in every(luck)}
    observed = np.array([count[turns, coin] for turns, coin, _ in every(luck)])
    square = np.sum((observed - DRAWS * prob) ** 2 / (DRAWS * prob))
    assert square < 71 + 6 * math.sqrt(2 * 71)  # mean f and variance 2f: six standard deviations
    for turns, coin, pay in every(luck):
        b = first[turns, coin]
        mine = r.mask[b] > 0
        logp = logp_of(rows, luck, SOFT, turns, coin)
        np.testing.assert_allclose(r.behaviour_logp[b][mine], [*itertools.chain(*logp)], atol=1e-5)
        np.testing.assert_allclose(r.raw_logp[b][mine], [*itertools.chain(*logp)], atol=1e-5)
        if rows == "conversation":
            paid = [p for turn, p in zip(turns, pay, strict=True) for p in (*(0.0,) * (len(turn) - 1), p)]
            np.testing.assert_allclose(r.token_reward[b][mine], paid)
        else:
            np.testing.assert_array_equal(r.valid[b], [1, len(turns) - 1])
            np.testing.assert_allclose(r.token_reward[b].sum(axis=1), [*pay, 0.0][:2])
        assert np.all(r.token_reward[b][~mine] == 0) and np.all(r.reward[b] == 0)


def expected_ascent(recipe, luck, r, first, table):
    """Return the expected direction of ascent in the table, [5, 3], of one row of the batch for each conversation."""
    cases = every(luck)
    order = np.concatenate([first[turns, coin] for turns, coin, _ in cases])
    each = order.size // len(cases)
    batch = jax.tree.map(lambda x: jnp.asarray(x[order]), r.replace(action=None))
    weight = np.repeat(probability("conversation" if each == 1 else "chapters", luck, table), each)
    batch = batch.replace(group=jnp.arange(order.size), episode=jnp.arange(order.size) // each)

    @jax.jit
    def slope(batch):
        rows, state = interpreter.transform(recipe, batch, interpreter.init(recipe), KEY)
        (objective,) = recipe.objectives
        inner = state["objectives"][0]
        rows, inner = interpreter.prepare_minibatch(objective, rows, None, inner, KEY)

        def loss(logp):
            return interpreter.loss(objective, rows, types.Scores(logp=logp), inner, KEY)[0]

        return jax.grad(loss)(batch.behaviour_logp)

    gradient = -np.asarray(slope(batch), np.float64) * weight[:, None] * len(cases)  # a mean over episodes
    assert np.all(gradient[r.mask[order] == 0] == 0)  # replies and padding, exactly
    prompt, token = r.context.token[order], r.action.token[order]
    used = np.arange(token.shape[1])[None, :] < r.action.length[order][:, None]
    real = np.concatenate([r.context.mask[order] > 0, used], axis=1)
    state = np.cumsum((np.concatenate([prompt, token], axis=1) + 1) * real, axis=1)[:, prompt.shape[1] - 1 : -1] % 5
    mine = r.mask[order] > 0
    out, pi = np.zeros((5, 3)), np.exp(log_softmax(table))
    np.add.at(out, (state[mine], token[mine]), gradient[mine])
    np.add.at(out, state[mine], -gradient[mine][:, None] * pi[state[mine]])
    return out


@pytest.mark.parametrize("rows", ["conversation", "chapters"])
def test_the_expected_gradient_over_all_conversations_is_the_true_one(rows):
    luck, r, first, _ = enumerated(rows)
    reward = np.array([sum(pay) for _, _, pay in every(luck)])

    def value(table):
        return probability(rows, luck, table) @ reward

    steps = 1e-5 * np.eye(15).reshape(15, 5, 3)
    truth = np.array([(value(SOFT + h) - value(SOFT - h)) / 2e-5 for h in steps]).reshape(5, 3)
    assert np.abs(truth).max() > 0.05
    for recipe in RECIPES.values():
        np.testing.assert_allclose(expected_ascent(recipe, luck, r, first, SOFT), truth, atol=1e-5)


@pytest.mark.full
def test_replies_have_no_gradient_and_no_value_of_theirs_is_read():
    r = sampled(ONE)
    reply = (r.mask == 0) & (np.arange(7)[None, :] < r.action.length[:, None])
    assert reply.sum() > 20
    recipes = {name: algorithms.TABLE[name]() for name in ("reinforce", "grpo", "rollout_is", "turn_ppo")}
    poison = np.where(r.mask > 0, 0, np.nan).astype(np.float32)
    fields = (*FLOATS, "value", "ref_logp", "proximal_logp")
    r = r.replace(value=r.mask * 0.1, ref_logp=r.behaviour_logp * 0.9, proximal_logp=r.behaviour_logp)
    poisoned = r.replace(**{name: getattr(r, name) + poison for name in fields})

    @jax.jit
    def run(r, logits):
        def loss(logits, recipe):
            logp = jnp.take_along_axis(jax.nn.log_softmax(logits), r.action.token[:, :, None], axis=2)[:, :, 0]
            rows, state = interpreter.transform(recipe, r, interpreter.init(recipe), KEY)
            inner = state["objectives"][0]
            scores = types.Scores(logp=logp, value=logp, entropy=logp)
            rows, inner = interpreter.prepare_minibatch(recipe.objectives[0], rows, scores, inner, KEY)
            return interpreter.loss(recipe.objectives[0], rows, scores, inner, KEY)[0]

        return {name: jax.value_and_grad(loss)(logits, recipe) for name, recipe in recipes.items()}

    logits = np.random.default_rng(0).normal(size=(*r.mask.shape, 4)).astype(np.float32)
    plain = jax.device_get(run(r, logits))
    spoilt = jax.device_get(run(poisoned, np.where(reply[:, :, None], np.float32(np.nan), logits)))
    for name, (loss, gradient) in plain.items():
        assert np.all(gradient[r.mask == 0] == 0) and np.any(gradient[r.mask > 0] != 0), name
        assert loss == spoilt[name][0], name
        np.testing.assert_array_equal(gradient[r.mask > 0], spoilt[name][1][r.mask > 0])
