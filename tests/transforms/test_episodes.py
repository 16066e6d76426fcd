"""Pieces on episodes of several rows: what a trajectory is paid counts once, and a charge of a KL makes no step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.methods.advantage import steps
from rljax.methods.reward import outcomes, turns
from rljax.transforms import advantage, reward, trajectories

EPISODE = np.array([0, 0, 0, 1], np.int32)


def rows(paid, **fields):
    """Return an episode of three rows and one of one row, two tokens each, of one group."""
    paid = np.asarray(paid, np.float32)
    mask = np.ones((paid.size, 2), np.float32)
    fields = {"episode": EPISODE, "valid": np.ones(paid.size, np.float32)} | fields
    return jax.tree.map(jnp.asarray, types.Rollout(mask, paid, np.zeros(paid.size, np.int32), **fields))


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
