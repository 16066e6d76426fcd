"""Other scales of an advantage, and bounds on it."""

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories
from rljax.transforms.advantage import credit, normalise


@define.constructor("advantage")
def zscore_by_group(epsilon: types.NonNegative = 1e-6, ddof: int = 1) -> types.RolloutTransform:
    """Standardize in the group: ``center_by_group``, then ``scale_by_group`` (arXiv 2402.03300)."""
    return transforms.chain(normalise.center_by("group"), normalise.scale_by("group", epsilon, ddof))


@define.constructor("advantage")
def zscore_by_prompt(
    prompts: types.Count, window: types.Count = 16, least: types.Count = 16, epsilon: types.NonNegative = 1e-6
) -> types.RolloutTransform:
    """Standardize by the last rewards of the prompt, over steps: A = (r - mean) / (std + epsilon), ddof 0.

    They include those of this batch, so that a prompt needs no group. A prompt with fewer than ``least`` of them is
    standardized by the batch. Source: DDPO (arXiv 2305.13301), whose tracker of statistics this is.

    Args:
      prompts: number of prompts; ``index`` is less than that.
      window: rewards that are kept of a prompt.
      least: rewards from which a prompt has statistics of its own.
      epsilon: added to the deviation.
    """
    if least > window:
        raise ValueError(f"zscore_by_prompt: least={least}: must be at most window={window}")

    def apply(r: types.Rollout, state, key):
        rewards, seen = state
        index = ops.given(r.index, "zscore_by_prompt: the rollout has no index")
        reward, once = trajectories.total(r), trajectories.once(r)
        order = jnp.argsort(index, stable=True)
        before = jnp.cumsum(once[order]) - once[order]  # a reward's number among those of its prompt, from 0
        before -= jax.ops.segment_min(before, index[order], num_segments=prompts)[index[order]]
        number = jnp.zeros_like(before).at[order].set(before).astype(jnp.int32)
        new = jax.ops.segment_sum(once, index, num_segments=prompts).astype(jnp.int32)
        kept = (once > 0) & (number >= (new - window)[index])
        place = jnp.where(kept, (seen[index] + number) % window, window)  # the last one is none
        rewards, seen = rewards.at[index, place].set(reward.astype(rewards.dtype), mode="drop"), seen + new
        last, enough = rewards[index], (seen >= least)[index]
        filled = jax.vmap(lambda count: jnp.where(jnp.arange(window) < count, 1.0, 0.0))(seen[index])
        mean, std = (
            jnp.where(enough, jax.vmap(of)(last, filled), of(reward, once))[:, None]
            for of in (ops.masked_mean, ops.masked_std)
        )
        out = normalise.scaled(normalise.current(r) - mean, std, epsilon)
        return ops.with_advantage(r, out), (rewards, seen)

    def init():
        return jnp.zeros((prompts, window)), jnp.zeros(prompts, jnp.int32)

    return types.RolloutTransform(apply=apply, init=init)


@define.advantage
def standardise_rows(r, epsilon: types.NonNegative = 1e-6, ddof: int = 1) -> types.Array:
    """Standardize the rows' mean advantages over the batch: (mean_t A - mean) / (std + epsilon) on a row's tokens.

    Source: SPO (arXiv 2509.13232). Unlike ``whiten`` it counts rows with a trained token.
    """
    row, weight = ops.row_mean(normalise.current(r), r.mask), jnp.max(ops.trained_tokens(r), axis=1, keepdims=True)
    return normalise.over(row - ops.masked_mean(row, weight), ops.masked_std(row, weight, ddof) + epsilon)


@define.advantage(needs=normalise.SIBLINGS)
def scale_by_group_mean(r, epsilon: types.NonNegative = 0.0) -> types.Array:
    """Divide by the group's mean reward: A / (mean + epsilon), 0 where mean <= 0. MaxRL (arXiv 2602.02710)."""
    mean = normalise.moments(r)[0]
    return jnp.where(mean > 0, normalise.over(normalise.current(r), mean + epsilon), 0.0)


@define.advantage(needs=types.Needs(siblings=True, domains=True))
def scale_by_task(r, epsilon: types.NonNegative = 1e-6) -> types.Array:
    """Divide by a domain's spread: A / (s + epsilon), s^2 its groups' mean variance (ddof 1). GoLongRL (2025)."""
    domain, valid = ops.given(r.domain, "scale_by_task: the rollout has no domain"), ops.valid_rows(r)
    unit = trajectories.once(r)
    variance = ops.segment_std(trajectories.total(r), r.group, unit, 1) ** 2
    once = ops.segment_first(r.group, jnp.where(ops.segment_total(unit, r.group) > 1, valid, 0.0))
    return normalise.scaled(normalise.current(r), jnp.sqrt(ops.segment_mean(variance, domain, once))[:, None], epsilon)


@define.advantage(needs=normalise.SIBLINGS)
def scale_by_informative_share(r, floor: types.Fraction = 0.5) -> types.Array:
    """Divide by the share of groups that have spread: A / max(share, floor). GPG (arXiv 2504.02546)."""
    once = ops.segment_first(r.group, ops.valid_rows(r))
    share = ops.masked_mean(jnp.where(trajectories.flat(r), 0.0, jnp.ones_like(once)), once)
    return normalise.over(normalise.current(r), jnp.maximum(share, floor))


@define.advantage
def drop_outliers(r, sigmas: types.NonNegative = 3.0) -> types.Array:
    """Set outliers of the batch to 0: |A - mean| > sigmas std over tokens. R1-Reward (arXiv 2505.02835)."""
    mean, std = normalise.moments(r, "batch", "token")
    return jnp.where(jnp.abs(normalise.current(r) - mean) > sigmas * std, 0.0, normalise.current(r))


@define.advantage
def clamp(r, limit: types.Positive) -> types.Array:
    """Clamp the advantage to [-limit, limit] (MARS, 2025)."""
    return jnp.clip(normalise.current(r), -limit, limit)


@define.advantage
def boltzmann(r, beta: types.Positive = 1.0) -> types.Array:
    """Weigh by the exponential of the advantage, mean 1 over the rows that count: N softmax(A / beta).

    Source: AWAC (arXiv 2006.09359, eq. 13), normalized over the batch as in its release. A row's advantage is the mean
    over its tokens.
    """
    counts = (ops.valid_rows(r) > 0) & jnp.any(r.mask > 0, axis=1)
    a = jnp.where(counts, ops.row_mean(normalise.current(r), r.mask)[:, 0] / beta, -jnp.inf)
    a = a - jnp.max(jnp.where(counts, a, -1e30))
    weight = jnp.where(counts, jnp.exp(a), 0.0)
    return (weight * jnp.sum(counts, dtype=weight.dtype) / jnp.maximum(jnp.sum(weight), 1e-30))[:, None] * r.mask


@define.advantage(needs=credit.TURNS)
def discount_in_turn(r, gamma: types.Fraction = 0.99) -> types.Array:
    """Discount by the tokens of the turn that follow: A_t <- gamma^n A_t, n trained tokens behind t in its turn.

    With a position for each denoising step the turn is the action: the second discount of diffusion policy policy
    optimization (arXiv 2409.00588), by which steps that are far from the action count less.
    """
    return normalise.current(r) * gamma ** credit.behind_in_turn(r)
