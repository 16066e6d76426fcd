"""Pieces on episodes of several rows: what a trajectory is paid counts once, and a charge of a KL makes no step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import algorithms, types
from rljax.algorithms import interpreter
from rljax.methods import prepare
from rljax.methods.advantage import steps
from rljax.methods.reward import outcomes, turns
from rljax.transforms import advantage, reward, trajectories
from rljax.transforms.surrogate import row

EPISODE = np.array([0, 0, 0, 1], np.int32)


def rows(paid, **fields):
    """Return an episode of three rows and one of one row, two tokens each, of one group."""
    paid = np.asarray(paid, np.float32)
    mask = np.ones((paid.size, 2), np.float32)
    fields = {
        "episode": EPISODE,
        "group": np.zeros(paid.size, np.int32),
        "valid": np.ones(paid.size, np.float32),
    } | fields
    return jax.tree.map(jnp.asarray, types.Rollout(mask, paid, **fields))


def run(piece, r):
    return jax.jit(lambda r: piece.apply(r, piece.init(), jax.random.key(0))[0])(r)


def test_the_reward_that_all_rows_of_an_episode_repeat_is_paid_at_its_last_token():
    r = rows([1, 1, 1, 0], token_reward=np.zeros((4, 2), np.float32))
    np.testing.assert_array_equal(trajectories.reward_to_go(r), np.repeat([[1.0], [0.0]], (3, 1), axis=0).repeat(2, 1))
    np.testing.assert_array_equal(trajectories.last(r), [False, False, True, True])
    silent = r.replace(mask=r.mask.at[2].set(0.0))  # its last row has no token of its own
    np.testing.assert_array_equal(trajectories.reward_to_go(silent)[:, 0], [1, 1, 0, 0])
    whole = r.replace(token_reward=None)  # rows are judged as wholes
    np.testing.assert_array_equal(trajectories.reward_to_go(whole)[:, 0], [1, 1, 1, 0])


def test_a_cut_episode_is_continued_by_the_critic_once():
    finish = np.full(4, int(types.Finish.LENGTH), np.int32)
    r = rows([0, 0, 0, 0], token_reward=np.zeros((4, 2), np.float32), value=np.full((4, 2), 0.5), finish=finish)
    out = run(steps.truncated_gae(), r)
    np.testing.assert_allclose(out.advantage, 0.0, atol=1e-6)


@pytest.mark.parametrize("charge", [0.0, 5e-4])
def test_a_charge_at_every_token_makes_no_step(charge):
    paid = np.zeros((2, 3), np.float32)
    paid[:, 1] = [1.0, -1.0]
    mask, zero = np.ones((2, 3), np.float32), np.zeros(2, np.float32)
    r = types.Rollout(mask, zero, np.zeros(2, np.int32), token_reward=paid - charge, valid=1 + zero)
    r = jax.tree.map(jnp.asarray, r.replace(extra={"paid": paid} if charge else {}))
    np.testing.assert_allclose(run(steps.process_supervision(), r).advantage[:, 0], [0.7071, -0.7071], atol=2e-3)
    clipped = run(turns.clip_process(0.5), r).extra["step_end"]
    np.testing.assert_array_equal(clipped, paid != 0)


def test_a_charge_of_a_kl_does_not_decide_which_rows_are_right_or_which_groups_are_flat():
    charge, zero = np.array([[0.1, -0.3], [0.2, 0.1], [0.4, 0.0], [-0.5, 0.1]], np.float32), np.zeros((4, 2))
    r = rows([1, 1, 0, 1], group=np.array([0, 0, 1, 1], np.int32), token_reward=-charge, episode=np.arange(4))
    r = r.replace(extra={"paid": jnp.asarray(zero)})
    np.testing.assert_array_equal(
        run(advantage.sign_weighted(0.1, 1.0), r).advantage[:, 0], np.float32([0.1, 0.1, -1, 0.1])
    )
    np.testing.assert_array_equal(trajectories.flat(r), [True, True, False, False])
    kept = prepare.drop_flat_groups().apply(r, None, (), jax.random.key(0))[0].mask
    np.testing.assert_array_equal(kept[:, 0], [0, 0, 1, 1])
    wrong = r.replace(reward=0 * r.reward)
    np.testing.assert_array_equal(row._desirable(wrong, 0.0), [False] * 4)
    lens = run(advantage.scale_mixed_groups(0.25), wrong.replace(advantage=jnp.ones((4, 2)))).advantage
    np.testing.assert_array_equal(lens, 0.25)  # no row has a positive reward


def test_a_mean_over_rows_is_of_what_their_episodes_are_paid():
    paid = np.array([[0, 0], [0, 1], [0, 0], [0, 1]], np.float32)
    r = rows(np.zeros(4), episode=np.array([0, 0, 1, 1], np.int32), agent=np.zeros(4, np.int32), token_reward=paid)
    a = algorithms.TABLE["dr_mas"]()
    flat, _ = interpreter.transform(a, r, interpreter.init(a), jax.random.key(0))
    np.testing.assert_allclose(flat.advantage, 0.0, atol=1e-6)
    one = r.replace(token_reward=r.token_reward.at[3].set(0.0))
    by_row = one.replace(token_reward=None, reward=jnp.array([1.0, 1, 0, 0]))
    got, want = (
        interpreter.transform(a, x, interpreter.init(a), jax.random.key(0))[0].advantage for x in (one, by_row)
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.parametrize("paid", [0.1, 0.7])
def test_equal_rewards_whose_mean_is_rounded_have_no_spread(paid):
    r = rows(np.full(8, paid), episode=np.arange(8), token_reward=np.full((8, 2), paid) * [0, 1], turn=np.zeros((8, 2)))
    np.testing.assert_array_equal(outcomes.zscore(r.reward, r, r.valid, 1), 0.0)
    for piece in (advantage.zscore_steps(), steps.process_supervision()):
        np.testing.assert_allclose(run(piece, r).advantage, 0.0, atol=1e-6)


def test_other_rows_of_a_game_are_those_of_the_same_seat():
    game = {"episode": np.array([0, 0, 1, 1], np.int32), "agent": np.array([0, 1, 0, 1], np.int32)}
    r = rows([1, -1, -1, 1], **game)
    by_row, by_step = (run(p, r).advantage[:, 0] for p in (advantage.leave_one_out(), steps.process_leave_one_out()))
    np.testing.assert_array_equal(by_row, [2, -2, -2, 2])
    np.testing.assert_array_equal(by_step, by_row)


def test_a_cut_of_a_control_world_is_continued_once():
    finish = np.full(1, int(types.Finish.LENGTH), np.int32)
    r = rows([0], episode=None, value=np.array([[1.0, 2.0]]), finish=finish, motion={"x": np.zeros((1, 2))})
    r = r.replace(mask=jnp.array([[1.0, 0.0]]))
    plain, cut = run(advantage.gae(1.0, 1.0), r), run(steps.truncated_gae(1.0, 1.0), r)
    np.testing.assert_array_equal(cut.advantage, plain.advantage)
    np.testing.assert_array_equal(cut.returns, plain.returns)


def test_returns_behind_differences_of_steps_are_the_rewards_of_the_steps_of_an_episode():
    r = rows([0, 0], episode=np.zeros(2, np.int32), token_reward=np.array([[0.5, 0.7], [0.2, 0.9]], np.float32))
    out = run(advantage.returns(), run(turns.delta_process(), r))
    np.testing.assert_allclose(out.advantage, [[0.5, 0.7], [0.2, 0.9]], rtol=1e-6)


def test_an_episode_has_one_vote():
    r = rows(np.zeros(5), episode=np.array([0, 0, 0, 1, 2], np.int32), parts={"answer": np.array([5.0, 5, 5, 3, 3])})
    np.testing.assert_array_equal(run(outcomes.majority_vote(), r).reward, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(run(outcomes.collective_vote(1), r).reward, [0, 0, 0, 1, 1])


def test_what_stands_on_masked_tokens_is_not_charged():
    logp = np.array([[-1.0, -np.inf]] * 4, np.float32)
    r = rows([1, 1, 1, 0], raw_logp=logp, ref_logp=logp - 0.5, advantage=np.zeros((4, 2), np.float32))
    r = r.replace(mask=r.mask.at[:, 1].set(0.0))
    np.testing.assert_allclose(run(reward.kl("k1", 1.0), r).token_reward, [[-0.5, 0.0]] * 4)
    assert np.all(np.isfinite(run(advantage.charge_kl("k1", 1.0), r).advantage))


@pytest.mark.parametrize(
    "piece",
    [
        turns.clip_process(0.5),
        turns.delta_process(),
        turns.gated(0.5),
        turns.center_turns("group"),
        reward.improvement(2.0),
        reward.only_turn(1),
        outcomes.in_domains((1,), turns.clip_process(0.5)),
    ],
)
def test_a_charge_and_what_tokens_are_paid_do_not_depend_on_their_order(piece):
    keys = jax.random.split(jax.random.key(0), 3)
    paid, logp, reference = (np.asarray(jax.random.normal(k, (4, 4))) for k in keys)
    numbers = {
        "token_reward": paid,
        "raw_logp": logp,
        "ref_logp": reference,
        "domain": np.array([0, 1, 0, 1], np.int32),
    }
    r = types.Rollout(np.ones((4, 4), np.float32), np.ones(4, np.float32), np.array([0, 0, 1, 1], np.int32), **numbers)
    r = r.replace(turn=np.tile(np.array([0, 0, 1, 1], np.int32), (4, 1)), valid=np.ones(4, np.float32))
    kl, r = reward.kl("k1", 0.3), jax.tree.map(jnp.asarray, r)
    one, two = run(kl, run(piece, r)), run(piece, run(kl, r))
    for total in (trajectories.total, trajectories.uncharged, trajectories.reward_to_go):
        np.testing.assert_allclose(total(one), total(two), rtol=1e-5, atol=1e-5)


def test_each_domain_has_steps_of_its_own():
    paid, domain = np.array([[1.0, -1.0]] * 2, np.float32), np.array([0, 1], np.int32)
    r = rows([0, 1], token_reward=paid, domain=domain, episode=domain)
    both = r
    for number in (0, 1):
        both = run(outcomes.in_domains((number,), turns.clip_process(0.2)), both)
    np.testing.assert_allclose(both.token_reward, run(turns.clip_process(0.2), r).token_reward)


def test_a_tree_judges_the_rows_of_an_episode_by_its_total():
    paid = np.array([[0, 0], [0, 0], [0, 2], [0, -1]], np.float32)  # the third row ends the first episode
    token = np.array([[1, 2], [1, 3], [1, 2], [1, 4]], np.int32)
    r = rows(np.zeros(4), token_reward=paid, action=types.Action(token=token))
    a = run(steps.prefix_tree(), r).advantage
    np.testing.assert_allclose(a, [[1.5, 3.0], [1.5, 1.5], [1.5, 1.5], [-1.5, -3.0]], atol=1e-6)
    np.testing.assert_allclose(
        run(steps.tree_targets(), r).returns, [[0.5, 0.5], [2, 2], [2, 2], [0.5, 0.5]], atol=1e-6
    )
    np.testing.assert_allclose(run(steps.branch_tree(), r).advantage[1:3], 1.5, atol=1e-6)


def test_an_episode_of_several_rows_counts_once_among_the_others():
    r = rows([1, 1, 1, 0], token_reward=np.array([[0.5, 0], [0, 0], [0, 0], [0.25, 0]], np.float32))
    # of tokens 0.5 / 6 and 0.25 / 2 on average, each of which the other episode pays less; of rows 1 and 0
    a = run(steps.process_leave_one_out(), r).advantage[:, 0]
    np.testing.assert_allclose(a, [-0.25 + 1, -0.5 + 1, -0.25 + 1, 0.25 - 2 / 12 - 1], atol=1e-6)


def test_the_total_of_an_episode_is_known_to_a_part_of_its_rows():
    algorithm = algorithms.grpo(kl=0.0)
    r = rows(np.zeros(4), token_reward=np.array([[0, 0], [0, 1], [2, 0], [0, 4]], np.float32))
    r = interpreter.transform(algorithm, r, interpreter.init(algorithm), jax.random.key(0))[0]
    for total in (trajectories.total, trajectories.uncharged):
        np.testing.assert_array_equal(total(jax.tree.map(lambda x: x[1:2], r)), [3.0])
