"""Advantages computed from outcomes: returns, signs, pass@k, ranks, and the worth of rows and parts of rows."""

from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import normalise


@define.advantage
def returns(r, gamma: types.Fraction = 1.0):
    """Use the return itself: A_t = sum over s >= t of gamma^(s-t) r_s (Williams 1992). Masked tokens are skipped."""
    return trajectories.reward_to_go(r, gamma)


@define.advantage
def sign_weighted(r, positive: types.Number = 1.0, negative: types.Number = 1.0):
    """Weigh right and wrong rows by constants: A = positive 1[r = 1] - negative 1[r = 0].

    Source: The Surprising Effectiveness of Negative Reinforcement (arXiv 2506.01347, section 3): PSR is (1, 0),
    NSR (0, 1), W-REINFORCE (0.1, 1). No group statistics; rewards other than exactly 0 and 1 get 0.
    """
    reward = trajectories.total(r)
    return jnp.where(reward == 1.0, positive, 0.0) - jnp.where(reward == 0.0, negative, 0.0)


@define.advantage(needs=normalise.SIBLINGS)
def zero_variance(r, alpha: types.NonNegative = 0.1):
    """Give groups without spread alpha H_t where right (r > 0), -alpha (max_t H - H_t) where wrong.

    H at sampling, nats. Source: RL-ZVP (arXiv 2509.21880). Groups with spread are unchanged.
    """
    entropy = ops.given(r.entropy, "zero_variance: the rollout has no entropy")
    most = jnp.max(jnp.where(r.mask > 0, entropy, 0.0), axis=1, keepdims=True)
    worth = alpha * jnp.where(trajectories.uncharged(r)[:, None] > 0, entropy, entropy - most)
    return jnp.where(normalise.flat(r)[:, None], worth, normalise.current(r))


def _choices(n, m, k):
    """Return C(n, k) / C(m, k), the product over i < k of (n - i) / (m - i)."""
    i = jnp.arange(k, dtype=n.dtype)[None]
    return jnp.prod(jnp.maximum(n[:, None] - i, 0.0) / jnp.maximum(m[:, None] - i, 1.0), axis=1)


@define.advantage(needs=normalise.SIBLINGS)
def pass_at_k(r, k: types.Count):
    """Reward the group for the best of ``k``, in closed form. N rows, c of them right (r > 0).

    R = 1 - C(N-c, k) / C(N, k); A is 1 - R where right, 1 - R - C(N-c-1, k-1) / C(N-1, k-1) where wrong, both divided
    by sqrt(R (1 - R)) + 1e-6. Source: Pass@k Training (arXiv 2508.10751). k = 1 is ``zscore_by_group`` with ddof 0.
    """
    valid = trajectories.once(r)
    success = trajectories.uncharged(r) > 0
    rows = ops.segment_total(valid, r.group)
    wrong = rows - ops.segment_total(jnp.where(success, valid, 0.0), r.group)
    fails = _choices(wrong, rows, k)
    a = jnp.where(success, fails, fails - _choices(wrong - 1.0, rows - 1.0, k - 1))
    return a / (jnp.sqrt(fails * (1.0 - fails)) + 1e-6)


@define.advantage(needs=normalise.SIBLINGS)
def best_minus_second(r, scale: bool = False, epsilon: types.NonNegative = 1e-6):
    """Pay a group's best row its lead over the second; ``scale`` divides it by std + epsilon (arXiv 2503.19595)."""
    reward, valid = trajectories.total(r), trajectories.once(r)
    best, second, leads = ops.segment_top(reward, r.group, valid)
    leads = trajectories.summed(r, leads)
    lead = jnp.where((leads > 0) & jnp.isfinite(second), best - second, 0.0)
    return normalise.over(lead, ops.segment_std(reward, r.group, valid, 1) + epsilon) if scale else lead


@define.advantage(needs=define.reads("beats_reference", siblings=True))
def pairwise_reference(r, limit: types.Positive = 0.6):
    """Let A be the part "beats_reference" (1, -1 or 0); groups with |mean| > limit get 0. BRPO, Writing-Zero (2025)."""
    beats = ops.part(r, "beats_reference")
    mean = ops.segment_mean(beats, r.group, ops.valid_rows(r))
    return jnp.where(jnp.abs(mean) > limit, 0.0, beats)


@define.advantage(needs=define.reads(extra=("reference_answer",)))
def reward_on_reference_answer(r):
    """Set A to the row's reward where extra["reference_answer"] is 1. VeriFree (arXiv 2505.21493)."""
    return jnp.where(ops.extra(r, "reference_answer") > 0, r.reward[:, None], normalise.current(r))


@define.advantage(needs=types.Needs(reference=True))
def charge_kl(r, estimator: types.Estimator = "k1", coefficient: types.NonNegative = 0.05):
    """Subtract the divergence still to come: A_t -= coefficient sum over s >= t of k(log pi - log ref).

    At sampling, unfiltered. Source: OpenRLHF, AReaL. Unlike ``reward.kl`` no group statistic sees it.
    """
    cost = ops.kl_estimate(estimator, trajectories.to_reference(r, "charge_kl") * r.mask)
    return normalise.current(r) - coefficient * trajectories.reward_to_go(r, paid=cost)


def _teachers(a) -> types.Needs:
    return modules.needs(*a["teachers"], field="logp") if a["teachers"] else types.Needs(reference=True)


@define.advantage(needs=_teachers)
def distillation(r, teachers: tuple[str, ...] = ()):
    """Let a teacher say what to write: A_t = log teacher - log pi at sampling, unfiltered. MOPD (arXiv 2601.02780).

    The teacher's probability is the mean over ``teachers``, modules of the config; without one it is the reference's.

    Args:
      teachers: names of ``config.module``; none: the reference.
    """
    if not teachers:
        return -trajectories.to_reference(r, "distillation")
    mean = modules.mixture([modules.score(r, name, "logp") for name in teachers])
    return -trajectories.to_reference(r, "distillation", mean)


@define.advantage(needs=define.reads(extra=("segment", "cut_reward"), siblings=True))
def budget_relative(r, budgets: Literal["uniform", "linear", "last"] = "uniform"):
    """Credit segment s of a thought with the rewards at the S budgets still ahead, against row and group.

    F_s = sum over j >= s of P_j r_j; A_s = F_s - (s/S) prev_s sum over j >= s of P_j - ((S-s)/S) mean_group F_s, where
    prev_s is the mean of r_j, j < s, weighed by 2^j. extra["cut_reward"] [B, S] holds r, extra["segment"] [B, T] holds
    s from 0; where it is S the token is of a summary, with the advantage extra["summary"] [B]. Source: BRPO of
    AnytimeReasoner (arXiv 2505.13438). S = 1 is ``center_by_group``.

    Args:
      budgets: P, equal, in proportion to the budget, or 1 for the last one.
    """
    cut, segment = ops.extra(r, "cut_reward"), ops.extra(r, "segment")
    count = cut.shape[1]
    s = np.arange(count)
    weight = {"uniform": np.ones(count), "linear": s + 1.0, "last": (s == count - 1) * 1.0}[budgets]
    weight = jnp.asarray(weight / weight.sum(), cut.dtype)[None]
    rest = jnp.cumsum(weight[:, ::-1], axis=1)[:, ::-1]
    ahead = jnp.cumsum((weight * cut)[:, ::-1], axis=1)[:, ::-1]
    earlier = np.tril(np.broadcast_to(2.0**s, (count, count)), -1) / np.maximum(2.0 ** s[:, None] - 1.0, 1.0)
    before = jnp.sum(cut[:, None] * jnp.asarray(earlier, cut.dtype)[None], axis=2)
    done, left = (jnp.asarray(x / count, cut.dtype)[None] for x in (s, count - s))
    mean = jax.vmap(ops.segment_mean, in_axes=(1, None, None), out_axes=1)(ahead, r.group, ops.valid_rows(r))
    stretch = ahead - done * before * rest - left * mean
    if "summary" in r.extra:
        stretch = jnp.concatenate([stretch, r.extra["summary"][:, None]], axis=1)
    return jnp.take_along_axis(stretch, jnp.clip(segment, 0, stretch.shape[1] - 1), axis=1)
