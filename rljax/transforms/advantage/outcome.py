"""Advantages computed from outcomes: returns, signs, pass@k, and the judgement of a teacher."""

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.advantage import normalise


@define.advantage
def returns(r, gamma: types.Fraction = 1.0) -> types.Array:
    """Use the return itself: A_t = sum over s >= t of gamma^(s-t) r_s (Williams 1992). Masked tokens are skipped."""
    return trajectories.reward_to_go(r, gamma)


@define.advantage
def sign_weighted(r, positive: types.Number = 1.0, negative: types.Number = 1.0) -> types.Array:
    """Weigh right and wrong rows by constants: A = positive 1[r = 1] - negative 1[r = 0].

    Source: The Surprising Effectiveness of Negative Reinforcement (arXiv 2506.01347, section 3): PSR is (1, 0),
    NSR (0, 1), W-REINFORCE (0.1, 1). No group statistics; rewards other than exactly 0 and 1 get 0.
    """
    reward = trajectories.uncharged(r)
    return jnp.where(reward == 1.0, positive, 0.0) - jnp.where(reward == 0.0, negative, 0.0)


@define.advantage(needs=normalise.SIBLINGS)
def zero_variance(r, alpha: types.NonNegative = 0.1) -> types.Array:
    """Give groups without spread alpha H_t where right (r > 0), -alpha (max_t H - H_t) where wrong.

    H at sampling, nats. Source: RL-ZVP (arXiv 2509.21880). Groups with spread are unchanged.
    """
    entropy = ops.given(r.entropy, "zero_variance: the rollout has no entropy")
    most = jnp.max(jnp.where(r.mask > 0, entropy, 0.0), axis=1, keepdims=True)
    worth = alpha * jnp.where(trajectories.uncharged(r)[:, None] > 0, entropy, entropy - most)
    return jnp.where(trajectories.flat(r)[:, None], worth, normalise.current(r))


def _choices(n, m, k):
    """Return C(n, k) / C(m, k), the product over i < k of (n - i) / (m - i)."""
    i = jnp.arange(k, dtype=n.dtype)[None]
    return jnp.prod(jnp.maximum(n[:, None] - i, 0.0) / jnp.maximum(m[:, None] - i, 1.0), axis=1)


@define.advantage(needs=normalise.SIBLINGS)
def pass_at_k(r, k: types.Count) -> types.Array:
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


@define.advantage(needs=types.Needs(reference=True))
def charge_kl(r, estimator: types.Estimator = "k1", coefficient: types.NonNegative = 0.05) -> types.Array:
    """Subtract the divergence still to come: A_t -= coefficient sum over s >= t of k(log pi - log ref).

    At sampling, unfiltered. Source: OpenRLHF, AReaL. Unlike ``reward.kl`` no group statistic sees it.
    """
    d = jnp.where(r.mask > 0, trajectories.to_reference(r, "charge_kl"), 0.0)
    cost = ops.kl_estimate(estimator, d)
    return normalise.current(r) - coefficient * trajectories.reward_to_go(r, paid=cost)


def _teachers(a) -> types.Needs:
    return modules.needs(*a["teachers"], field="logp") if a["teachers"] else types.Needs(reference=True)


@define.advantage(needs=_teachers)
def distillation(r, teachers: tuple[str, ...] = ()) -> types.Array:
    """Let a teacher say what to write: A_t = log teacher - log pi at sampling, unfiltered. MOPD (arXiv 2601.02780).

    The teacher's probability is the mean over ``teachers``, modules of the config; without one it is the reference's.

    Args:
      teachers: names of ``config.module``; none: the reference.
    """
    if not teachers:
        return -trajectories.to_reference(r, "distillation")
    mean = modules.mixture([modules.score(r, name, "logp") for name in teachers])
    return -trajectories.to_reference(r, "distillation", mean)
