"""Advantages: on the whole batch, whole groups, no gradient.

The first piece that needs an advantage starts from the reward-to-go (the row's reward on each of its
tokens when there are no token rewards); those after it work on what they find. Statistics skip rows
with ``valid`` 0 and are taken of the row's total reward. A group of one valid row gets advantage 0
from every group baseline.
"""

import jax.numpy as jnp

from rljax import ops, transforms, types


def _current(r: types.Rollout):
    if r.advantage is not None:
        return r.advantage
    return ops.reward_to_go(ops.token_rewards(r), r.mask)


def _rollout(function, needs: types.Needs = types.Needs()) -> types.RolloutTransform:
    return transforms.stateless(types.RolloutTransform, function, needs=needs)


def _set(r: types.Rollout, advantage) -> types.Rollout:
    return r.replace(advantage=advantage * r.mask * ops.valid_rows(r)[:, None])


@transforms.piece
def returns(gamma: types.Fraction = 1.0):
    """Use the return itself: A_t = sum over s >= t of gamma^(s-t) r_s.

    No baseline. Source: Williams 1992 (REINFORCE). Masked tokens carry the return through.
    """
    return _rollout(lambda r: _set(r, ops.reward_to_go(ops.token_rewards(r), r.mask, gamma)))


@transforms.piece
def center_by_group():
    """Subtract the group's mean reward: A = r - mean(group).

    Source: Dr. GRPO (arXiv 2503.20783, eq. 3). Sums to 0 over a group.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        mean = ops.group_mean(ops.row_reward(r), r.group, ops.valid_rows(r))
        return _set(r, _current(r) - mean[:, None])

    return _rollout(apply, types.Needs(siblings=True))


@transforms.piece
def leave_one_out():
    """Subtract the mean reward of the other rows of the group: A_i = r_i - mean over j != i of r_j.

    Source: RLOO (arXiv 2402.14740, eq. 5). Equals G / (G - 1) times ``center_by_group``.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        reward, valid = ops.row_reward(r), ops.valid_rows(r)
        others = ops.segment_total(valid, r.group) - valid
        total = ops.segment_total(jnp.where(valid > 0, reward, 0.0), r.group) - jnp.where(valid > 0, reward, 0.0)
        baseline = jnp.where(others > 0, total / jnp.maximum(others, 1.0), reward)
        return _set(r, _current(r) - baseline[:, None])

    return _rollout(apply, types.Needs(siblings=True))


@transforms.piece
def scale_by_group(epsilon: types.NonNegative = 1e-6, ddof: int = 1):
    """Divide by the standard deviation of the group's rewards: A / (std + epsilon).

    With ``center_by_group`` before it, GRPO's advantage (arXiv 2402.03300, section 4.1.2). ``ddof`` 1 is what
    most systems use; 0 makes mean |A| = 2 sqrt(p (1 - p)) for 0/1 rewards.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        std = ops.group_std(ops.row_reward(r), r.group, ops.valid_rows(r), ddof)
        return _set(r, _current(r) / (std[:, None] + epsilon))

    return _rollout(apply, types.Needs(siblings=True))


@transforms.piece
def scale_by_batch(epsilon: types.NonNegative = 1e-4, ddof: int = 1):
    """Divide by the standard deviation of all the batch's rewards (Lite PPO, arXiv 2508.08221)."""

    def apply(r: types.Rollout) -> types.Rollout:
        return _set(r, _current(r) / (ops.masked_std(ops.row_reward(r), ops.valid_rows(r), ddof) + epsilon))

    return _rollout(apply)


@transforms.piece
def whiten(epsilon: types.NonNegative = 1e-8):
    """Standardise over all tokens of the batch: (A - mean) / sqrt(var + epsilon), var with ddof 1.

    Long rows weigh more. Source: PPO practice; REINFORCE++ (arXiv 2501.03262).
    """

    def apply(r: types.Rollout) -> types.Rollout:
        a, mask = _current(r), r.mask * ops.valid_rows(r)[:, None]
        centred = a - ops.masked_mean(a, mask)
        return _set(r, centred / jnp.sqrt(ops.masked_std(a, mask, ddof=1) ** 2 + epsilon))

    return _rollout(apply)


@transforms.piece
def sign_weighted(positive: types.Number = 1.0, negative: types.Number = 1.0):
    """Weigh right and wrong rows by constants: A = positive 1[r = 1] - negative 1[r = 0].

    Source: The Surprising Effectiveness of Negative Reinforcement (arXiv 2506.01347, section 3): PSR is (1, 0),
    NSR (0, 1), W-REINFORCE (0.1, 1). No group statistics; rewards other than exactly 0 and 1 get 0.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        row = jnp.where(r.reward == 1.0, positive, 0.0) - jnp.where(r.reward == 0.0, negative, 0.0)
        return _set(r, row[:, None] * jnp.ones_like(r.mask))

    return _rollout(apply)


@transforms.piece
def gae(gamma: types.Fraction = 1.0, lam: types.Fraction = 1.0):
    """Use generalised advantage estimates of the critic's values; write the critic's target too.

    A_t = delta_t + gamma lam A_{t+1}, returns = A + V (arXiv 1506.02438, eq. 16). With both 1, A_t = R - V_t.
    """

    def apply(r: types.Rollout) -> types.Rollout:
        if r.value is None:
            raise ValueError("advantage.gae: the rollout has no value")
        advantage = ops.gae(ops.token_rewards(r), r.value, r.mask, gamma, lam)
        return _set(r, advantage).replace(returns=(advantage + r.value) * r.mask)

    return _rollout(apply, types.Needs(value=True))
