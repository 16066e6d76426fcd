"""Recipes on rows as worlds make them: replies in between, payments at turns, several rows and seats of an episode."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms
from rljax.algorithms import interpreter
from rljax.transforms import PREDICATES, advantage, prepare, reduce, reward, source, trajectories
from tests.algorithms.recipes_on_worlds_cases import KEY, chapters, rows, run


def trajectory_tokens(r):
    """Return {(episode, agent): its (row, position) in order}."""
    out = {}
    for i in range(r.mask.shape[0]):
        for t in range(r.mask.shape[1]):
            if r.valid[i] > 0 and r.mask[i, t] > 0:
                out.setdefault((int(r.episode[i]), int(r.agent[i])), []).append((i, t))
    return out


@pytest.mark.default_tier("0")
@pytest.mark.parametrize("seed", range(3))
def test_returns_and_estimates_run_over_the_rows_of_a_trajectory(seed):
    r = chapters(seed)
    paid, value = np.asarray(r.token_reward), np.asarray(r.value)
    gamma, lam = 0.9, 0.7
    returns, estimates, totals = (np.zeros(r.mask.shape) for _ in range(3))
    for places in trajectory_tokens(r).values():
        ahead = following = estimate = 0.0
        for i, t in reversed(places):
            ahead = paid[i, t] + gamma * ahead
            estimate = paid[i, t] + gamma * following - value[i, t] + gamma * lam * estimate
            following = value[i, t]
            returns[i, t], estimates[i, t] = ahead, estimate
            totals[i, t] = sum(paid[p] for p in places)
    np.testing.assert_allclose(run(r, advantage.returns(gamma)).advantage, returns, rtol=1e-5, atol=1e-5)
    both = run(r, advantage.gae(gamma, lam))
    np.testing.assert_allclose(both.advantage, estimates, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(both.returns, (estimates + value) * np.asarray(r.mask), rtol=1e-5, atol=1e-5)
    trained = np.asarray(r.mask * r.valid[:, None]) > 0
    total = np.broadcast_to(np.asarray(trajectories.total(r))[:, None], trained.shape)
    np.testing.assert_allclose(total[trained], totals[trained], rtol=1e-6)


@pytest.mark.default_tier("0")
@pytest.mark.parametrize("seed", range(3))
def test_a_trajectory_counts_once_in_its_group(seed):
    r = chapters(seed)
    paid, group = np.asarray(r.token_reward), np.asarray(r.group)
    tokens = trajectory_tokens(r)
    total = {key: sum(paid[p] for p in places) for key, places in tokens.items()}
    of_group = {key: group[places[0][0]] for key, places in tokens.items()}
    centred, alone = np.zeros(r.mask.shape), np.zeros(r.mask.shape)
    for key, places in tokens.items():
        others = [x for k, x in total.items() if of_group[k] == of_group[key]]
        rest = [x for k, x in total.items() if of_group[k] == of_group[key] and k != key and k[1] == key[1]]
        for n, p in enumerate(places):
            ahead = sum(paid[q] for q in places[n:])
            centred[p], alone[p] = ahead - np.mean(others), ahead - (np.mean(rest) if rest else total[key])
    np.testing.assert_allclose(run(r, advantage.center_by_group()).advantage, centred, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(run(r, advantage.leave_one_out()).advantage, alone, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "name",
    [
        *("center_by_group", "gae", "zscore_by_group", "leave_one_out", "returns", "log_partition_baseline"),
        *("best_minus_second", "scale_by_informative_share", "mean_over_rows", "mean_over_rows_of_sums"),
    ],
)
@pytest.mark.default_tier("mean_over_rows")
def test_with_one_row_an_episode_nothing_changes_bit_for_bit(name):
    r = np.random.default_rng(0)
    mask = (r.random((8, 5)) < 0.7) * 1.0
    fields = {
        "reward": r.normal(size=8).astype(np.float32),
        "group": np.arange(8) // 4,
        "valid": np.array([1, 1, 1, 0, 1, 1, 1, 1], np.float32),
        "value": r.random((8, 5)).astype(np.float32),
    }
    paid = r.normal(size=(8, 5))
    for payments in (None, paid):
        rollout = rows(mask, payments, **fields, episode=np.array([5, 3, 9, 1, 0, 2, 8, 4]))
        both = rollout, rollout.replace(episode=None, agent=None)
        if name.startswith("mean"):
            one, two = (coefficients(x, getattr(reduce, name)()) for x in both)
        else:
            piece = getattr(advantage, name)()
            one, two = (piece.apply(x, piece.init(), KEY)[0].advantage for x in both)
        np.testing.assert_array_equal(one, two)


def coefficients(rollout, piece):
    """Return the common coefficient of a reduction."""
    prepared = jax.jit(lambda r: piece.apply(r, None, piece.init(), KEY)[0])(rollout)
    return np.asarray(prepared.coefficient["common"])


def test_means_over_rows_give_episodes_of_unequal_length_equal_weight():
    mask = [[1, 1, 0], [1, 0, 0], [1, 1, 1], [1, 1, 0], [0, 0, 0], [0, 0, 0]]
    r = rows(mask, episode=np.array([0, 0, 0, 1, 1, 1]), valid=np.array([1, 1, 1, 1, 0, 0], np.float32))
    by_episode = coefficients(r, reduce.mean_over_rows()).sum(axis=1).reshape(2, 3)
    np.testing.assert_allclose(by_episode, [[1 / 6] * 3, [1 / 2, 0, 0]], rtol=1e-6)
    np.testing.assert_allclose(coefficients(r, reduce.mean_over_rows(per="row")).sum(axis=1)[:4], 0.25, rtol=1e-6)
    np.testing.assert_array_equal(coefficients(r, reduce.mean_over_rows_of_sums()), np.asarray(mask) / 2)


def test_the_expected_gradient_over_episodes_of_one_and_two_rows_is_the_true_one():
    logits = jnp.asarray([0.3, -0.6])  # of going on after the first turn, and of token 1 in the second
    worth = {(0,): 1.0, (1, 0): -2.0, (1, 1): 5.0}

    def logps(logits, tokens):
        signs = [1.0 if t else -1.0 for t in tokens]
        return jnp.stack([jax.nn.log_sigmoid(s * logits[k]) for k, s in enumerate(signs)])

    def value(logits):
        return sum(jnp.exp(jnp.sum(logps(logits, t))) * w for t, w in worth.items())

    def batch(pair):  # two episodes, absent turns among their rows
        present = [[k < len(tokens) for k in range(2)] for tokens in pair]
        paid = [[0.0] * (len(tokens) - 1) + [worth[tokens]] + [0.0] * (2 - len(tokens)) for tokens in pair]
        mask = np.asarray(present, np.float32).reshape(4, 1)
        return rows(mask, np.reshape(paid, (4, 1)), episode=np.array([0, 0, 1, 1]), valid=mask[:, 0])

    def weights(r):
        prepared, _ = mean.apply(run(r, advantage.returns()), None, mean.init(), KEY)
        return prepared.coefficient["common"] * prepared.advantage

    mean, pairs = reduce.mean_over_rows_of_sums(), [*itertools.product(worth, repeat=2)]
    weight = jax.jit(jax.vmap(weights))(jax.tree.map(lambda *x: jnp.stack(x), *(batch(pair) for pair in pairs)))
    sequence = [np.pad(tokens, (0, 2 - len(tokens))) for pair in pairs for tokens in pair]
    token = np.reshape(sequence, (-1, 4))
    chance = jnp.asarray([jnp.exp(sum(jnp.sum(logps(logits, tokens)) for tokens in pair)) for pair in pairs])
    score = (token - np.tile(jax.nn.sigmoid(logits), 2))[..., None] * np.tile(np.eye(2), (2, 1))
    expected = np.sum(np.asarray(chance)[:, None, None] * np.asarray(weight) * score, axis=(0, 1))
    np.testing.assert_allclose(expected, jax.grad(value)(logits), rtol=1e-5)


PAID = np.array([[0.0, 1.0, 0.0, 2.0], [0.0, 0.0, 0.0, -1.0]])


TURNS = np.array([[0, 0, 1, 1], [0, 0, 1, 1]])


def conversation(**fields):
    """Return two rows of two turns, whose position 2 is a reply."""
    return rows([[1, 1, 0, 1], [1, 1, 0, 1]], PAID + np.array([0, 0, 9, 0]), turn=TURNS, **fields)


def test_right_is_the_total_and_pieces_that_replace_the_reward_replace_what_turns_were_paid():
    r = conversation()
    np.testing.assert_array_equal(PREDICATES["correct"](r)[:, 0], [True, False])
    for piece, total in ((reward.affine(2.0), [6, -2]), (reward.truncated(0.5), [1.5, -1])):
        out = run(r.replace(finish=jnp.asarray([0, 1])), piece)
        np.testing.assert_allclose(trajectories.total(out), total, rtol=1e-6)
    charged = run(
        r.replace(raw_logp=r.mask * -1.0, ref_logp=r.mask * -2.0, outcome=jnp.asarray([1, 0])),
        reward.kl("k1", 5.0),
    )
    np.testing.assert_allclose(trajectories.total(charged), [3 - 15, -1 - 15])
    np.testing.assert_array_equal(PREDICATES["correct"](charged)[:, 0], [True, False])
    kept = run(charged, reward.outcome(1.0, 0.0))  # the charge stays
    np.testing.assert_allclose(trajectories.total(kept), [1 - 15, -15], rtol=1e-6)
    built = algorithms.example("vision_zero")
    voted = rows(
        np.ones((6, 2)),
        np.ones((6, 2)),
        group=np.zeros(6, np.int32),
        episode=np.arange(6) // 3,
        agent=np.array([0, 1, 2] * 2),
        parts={"votes": np.array([2.0, 1, 0, 0, 1, 1], np.float32)},
        outcome=np.zeros(6, np.int32),
    )
    out = jax.jit(lambda r: interpreter.transform(built, r, interpreter.init(built), KEY)[0])(voted)
    paid = np.asarray(out.reward).reshape(2, 3)
    np.testing.assert_allclose(paid.sum(axis=1), 0, atol=1e-6)  # by game, though both are of one group
    np.testing.assert_allclose(paid[:, 0], [-0.15, 0.1], rtol=1e-5)
    assert out.token_reward is None


def test_turns_are_told_apart_by_replies_and_across_rows():
    r = conversation(extra={"match": np.array([[1, 1, 0, 1], [1, 0, 0, 1]], np.float32)})
    gained = run(r, reward.improvement(10.0)).token_reward
    np.testing.assert_allclose(np.asarray(gained * r.mask)[:, 3], [2 + 10 * (2 - 1), -1 + 10 * (-1 - 0)])
    steps = run(r, reward.turn_returns(0.5)).token_reward
    np.testing.assert_allclose(steps, [[0, 2, 0, 2], [0, 0, 0, -1]])  # the second row misses in turn 0
    split = rows(
        [[1, 1], [0, 1]] * 2,
        np.stack([PAID[:, :2], PAID[:, 2:]], axis=1).reshape(4, 2),
        turn=np.array([[0, 0], [1, 1]] * 2),
        episode=np.array([0, 0, 1, 1]),
    )
    np.testing.assert_allclose(run(split, reward.improvement(10.0)).token_reward[1::2, 1], [12, -11])
    rewarded = advantage.mix(advantage.center_by_group(), advantage.center_steps(("group", "turn")))
    won = run(r.replace(outcome=jnp.asarray([1, 0])), rewarded).advantage
    np.testing.assert_allclose(np.asarray(won)[:, 3], [0.5 + 1.5, -0.5 - 1.5])  # the verdict, and turn 1 against turn 1
    cut = r.replace(finish=jnp.asarray([0, 1]), episode=jnp.asarray([4, 4]))
    dropped, _ = prepare.drop_truncated("episode").apply(cut, None, (), KEY)
    assert not np.any(dropped.mask)


@pytest.mark.full
def test_sources_keep_the_rows_of_a_group_together():
    r = chapters(1, episodes=8)
    r = r.replace(group=(r.episode - 7) // 2, token_reward=r.mask * ((r.group == 0) * r.episode)[:, None])
    count = r.mask.shape[0] // 2
    kept, _ = source.dynamic(2).select(r, (), count, KEY)
    for number in np.unique(kept.group):
        np.testing.assert_array_equal(kept.episode[kept.group == number], r.episode[r.group == number])
    replay = source.replay(0.5)
    fresh = r.replace(group=r.group + 100, episode=r.episode + 100, token_reward=r.token_reward + 1)
    _, pool = replay.select(r, replay.init(r, None), r.mask.shape[0], KEY)
    mixed, _ = replay.select(fresh, pool, r.mask.shape[0], KEY)
    old = np.asarray(mixed.on_policy) == 0
    assert old.sum() == r.mask.shape[0] // 2
    np.testing.assert_array_equal(np.asarray(mixed.episode)[old], np.asarray(r.episode)[old])
    assert {*np.asarray(mixed.episode)[old].tolist()}.isdisjoint(np.asarray(mixed.episode)[~old].tolist())
