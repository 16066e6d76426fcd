"""Rewards of process reward models, which give a probability that each step is right; and labels of steps to train one.

Where a step ends is read from the token rewards of the task, which are not 0 there; ``verified`` alone reads more.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.reward import steps

PAID = types.Needs(token_reward=True)


def _needs(a) -> types.Needs:
    return PAID | modules.needs(a["module"], field="process")


def _read(r: types.Rollout, module: str):
    """Return (where a step ends [B, T], the logit that it is right [B, T], whether all logits of a row are finite)."""
    ends, logit = steps.ends(r), modules.score(r, module, "process")
    return ends, logit, jnp.all(jnp.isfinite(logit) | ~ends, axis=1)


@define.reward(needs=_needs)
def process(
    r, module: str = "prm", combine: Literal["product", "minimum", "last"] = "product", verified: types.Number = 0.0
) -> types.Rollout:
    """Pay the steps' probabilities to be right, made one number, in place of the verifier's reward: verified r + R.

    R is the product of the row's steps (Let's verify step by step, arXiv 2305.20050), their minimum (Math-Shepherd,
    arXiv 2312.08935), or the probability of the last step, an outcome model's (Uesato et al., arXiv 2211.14275); 0
    without a step. Differs from ``process_steps`` by paying the row. A row is invalid if a logit is not finite.

    Args:
      module: name of ``config.module``, a process reward model.
      combine: how the probabilities become one number.
      verified: factor of the verifier's reward, the rewards of steps included.
    """
    ends, logit, finite = _read(r, module)
    logp = jnp.where(ends, jax.nn.log_sigmoid(logit), 0.0)
    if combine == "last":
        logp = jnp.where(ops.last_token(ends.astype(r.mask.dtype)) > 0, logp, 0.0)
    total = jnp.min(logp, axis=1) if combine == "minimum" else jnp.sum(logp, axis=1)
    reward = jnp.where(jnp.any(ends, axis=1), jnp.exp(total), 0.0)
    return trajectories.scored(r, verified * trajectories.uncharged(r) + reward, finite)


@define.reward(needs=_needs)
def process_steps(r, module: str = "prm", verified: types.Number = 0.0) -> types.Rollout:
    """Pay each step its probability to be right, at its last token; the row is paid verified r.

    The rewards of step-by-step PPO in Math-Shepherd (arXiv 2312.08935). More steps are paid more: ``clip_process`` and
    ``delta_process`` may follow (arXiv 2410.15115). A row is invalid if a logit is not finite.

    Args:
      module: name of ``config.module``, a process reward model.
      verified: factor of the verifier's reward, the rewards of steps included.
    """
    ends, logit, finite = _read(r, module)
    step = jnp.where(ends & finite[:, None], jax.nn.sigmoid(logit), 0.0)
    return trajectories.repaid(trajectories.scored(r, verified * trajectories.uncharged(r), finite), step)


@define.reward(needs=PAID | types.Needs(siblings=True))
def continuations(r, threshold: types.Fraction = 0.0) -> types.Array:
    """Label a step by the samples that continue it: 1 if more than ``threshold`` of them are right, else -1.

    The hard estimation of Math-Shepherd (arXiv 2312.08935, eq. 3, from memory), which samples continuations of each
    step; here the rows of the group that begin with the same tokens continue it, the row itself among them. Sources
    that cut rows and sample continuations into their group, such as ``cure``, give more of them.

    Args:
      threshold: the share of right continuations that a right step exceeds.
    """
    share = trajectories.prefixes(r, trajectories.correct(r).astype(r.mask.dtype))[0]
    return jnp.where(steps.ends(r), jnp.where(share > threshold, r.mask, -r.mask), 0.0)
