"""Small pure functions the pieces are made of: masks, segments, returns, divergences."""

import jax
import jax.numpy as jnp

from rljax import types

Array = jax.Array

DIVERGENCES = ("reverse_kl", "forward_kl", "js")
"""Exact full-vocabulary divergences of the policy against the reference that ``Scores`` can hold."""

ESTIMATORS = ("k1", "k2", "k3", "abs")


def masked_mean(x: Array, mask: Array) -> Array:
    """Return the mean of ``x`` where ``mask`` is 1; 0 where nothing counts."""
    return jnp.sum(jnp.where(mask > 0, x, 0.0) * mask) / jnp.maximum(jnp.sum(mask), 1.0)


def masked_std(x: Array, mask: Array, ddof: int = 0) -> Array:
    """Return the standard deviation of ``x`` where ``mask`` is 1."""
    deviation = jnp.where(mask > 0, x - masked_mean(x, mask), 0.0)
    count = jnp.sum(mask)
    return jnp.sqrt(jnp.sum(deviation**2) / jnp.maximum(count - ddof, 1.0))


def segment_total(x: Array, ids: Array) -> Array:
    """Sum ``x`` [B] over the rows that share an id, given back at every row, [B]. Ids are any integers."""
    rows = ids.shape[0]
    _, dense = jnp.unique(ids, return_inverse=True, size=rows)
    return jax.ops.segment_sum(x, dense, num_segments=rows)[dense]


def group_mean(x: Array, ids: Array, valid: Array) -> Array:
    """Return, at every row, the mean of ``x`` over the valid rows of its group, [B]; 0 when there are none."""
    return segment_total(jnp.where(valid > 0, x, 0.0), ids) / jnp.maximum(segment_total(valid, ids), 1.0)


def group_std(x: Array, ids: Array, valid: Array, ddof: int = 0) -> Array:
    """Return, at every row, the standard deviation over the valid rows of its group, [B]; 0 for a group of one."""
    deviation = jnp.where(valid > 0, x - group_mean(x, ids, valid), 0.0)
    count = segment_total(valid, ids)
    return jnp.sqrt(segment_total(deviation**2, ids) / jnp.maximum(count - ddof, 1.0))


def given(array: Array | None, missing: str) -> Array:
    """Return an optional field of a record; ValueError with ``missing`` when it is absent."""
    if array is None:
        raise ValueError(missing)
    return array


def valid_rows(rollout: types.Rollout) -> Array:
    """Return [B], 1 on rows that count."""
    return jnp.ones_like(rollout.reward) if rollout.valid is None else rollout.valid


def row_reward(rollout: types.Rollout) -> Array:
    """Return [B], the row's reward and all its token rewards."""
    if rollout.token_reward is None:
        return rollout.reward
    return rollout.reward + jnp.sum(rollout.token_reward * rollout.mask, axis=1)


def last_token(mask: Array) -> Array:
    """Return [B, T], 1 on the last position of each row with mask 1; a row of zeros stays so."""
    width = mask.shape[1]
    last = width - 1 - jnp.argmax(mask[:, ::-1], axis=1)
    return jax.nn.one_hot(last, width, dtype=mask.dtype) * mask


def token_rewards(rollout: types.Rollout) -> Array:
    """Return [B, T], what is paid at each token: token rewards, and the row's reward at its last token."""
    terminal = rollout.reward[:, None] * last_token(rollout.mask)
    return terminal if rollout.token_reward is None else terminal + rollout.token_reward * rollout.mask


def reward_to_go(reward: Array, mask: Array, gamma: Array | float = 1.0) -> Array:
    """Return G_t = r_t + gamma G_{t+1} over tokens with mask 1, [B, T]; other tokens carry G through."""

    def back(carry: Array, column: tuple[Array, Array]) -> tuple[Array, Array]:
        r, m = column
        carry = jnp.where(m > 0, r + gamma * carry, carry)
        return carry, carry * m

    _, out = jax.lax.scan(back, jnp.zeros_like(reward[:, 0]), (reward.T, mask.T), reverse=True)
    return out.T


def gae(reward: Array, value: Array, mask: Array, gamma: Array | float, lam: Array | float) -> Array:
    """Return generalised advantage estimates, [B, T] (Schulman et al., arXiv 1506.02438, eq. 16).

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = delta_t + gamma lam A_{t+1}; the value after the last
    token is 0, and tokens with mask 0 carry (V, A) through unchanged.
    """

    def back(carry: tuple[Array, Array], column: tuple[Array, Array, Array]):
        next_value, next_advantage = carry
        r, v, m = column
        advantage = r + gamma * next_value - v + gamma * lam * next_advantage
        carry = (jnp.where(m > 0, v, next_value), jnp.where(m > 0, advantage, next_advantage))
        return carry, advantage * m

    zero = jnp.zeros_like(reward[:, 0])
    _, out = jax.lax.scan(back, (zero, zero), (reward.T, value.T, mask.T), reverse=True)
    return out.T


def kl_estimate(estimator: str, log_ratio: Array) -> Array:
    """Estimate KL(pi || ref) per token from d = log pi - log ref on samples of pi (Schulman 2020).

    k1 = d, unbiased; k2 = d^2 / 2, biased, its gradient is that of reverse KL;
    k3 = exp(-d) - 1 + d, unbiased and never negative, its gradient is that of forward KL; abs = |d|.
    """
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio**2
    if estimator == "k3":
        # expm1(-d) + d loses nothing near d = 0; the clamp only keeps a garbage token from overflowing.
        return jnp.expm1(jnp.clip(-log_ratio, -20.0, 20.0)) + log_ratio
    if estimator == "abs":
        return jnp.abs(log_ratio)
    raise ValueError(f"estimator={estimator!r}: choose one of {', '.join(ESTIMATORS)}")
