"""Rewards of learned models: scores of rows, and of tokens, by modules of the config."""

from typing import Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories

Combine = Literal["mean", "worst", "uncertainty"]


def _names(piece: str, module: str | tuple[str, ...]) -> tuple[str, ...]:
    names = (module,) if isinstance(module, str) else module
    if not names or len({*names}) != len(names):
        raise ValueError(f"{piece}: module={names} must be at least one name, each once")
    return names


def _combined(scores, combine: Combine, coefficient):
    """Return the combined score of each row, [B], from those of M models, [M, B]."""
    if combine == "worst":
        return jnp.min(scores, axis=0)
    mean = jnp.mean(scores, axis=0)
    return mean - coefficient * jnp.var(scores, axis=0) if combine == "uncertainty" else mean


def _implicit_needs(a) -> types.Needs:
    return modules.needs(*_names("implicit", a["module"]), field="logp") | types.Needs(reference=True)


def _implied(r: types.Rollout, module: str, beta):
    reference = ops.given(r.ref_logp, "reward: the rollout has no ref_logp")
    return beta * jnp.where(r.mask > 0, modules.score(r, module, "logp") - reference, 0.0)


def _paid(r: types.Rollout, reward, usable):
    """Return the rows with a reward; those without a usable score are invalid."""
    r = trajectories.replaced(r, jnp.where(usable, reward, 0.0))
    return r.replace(valid=jnp.where(usable, ops.valid_rows(r), 0.0))


@define.reward(needs=_implicit_needs)
def implicit(
    r,
    module: str | tuple[str, ...] = "prm",
    beta: types.Positive = 1.0,
    combine: Combine = "mean",
    coefficient: types.NonNegative = 1.0,
    verified: types.Number = 0.0,
):
    """Pay R = beta sum_t (log pi_module - log ref) in place of the verifier's reward: verified r + R.

    The reward that preferences imply in DPO (arXiv 2305.18290, eq. 5, from memory), whose reference is that of this
    phase. ``surrogate.implicit_bradley_terry`` and ``implicit_outcome`` train the module. Differs from
    ``implicit_steps`` by paying the row, and from ``learned`` by reading a language model. The R of
    several modules are combined as there. A row is invalid if one of them is not finite.

    Args:
      module: name of ``config.module``, a language model, or a tuple of names.
      beta: scale of the log-ratio.
      combine: how the R of several modules become one.
      coefficient: of the variance.
      verified: factor of the verifier's reward.
    """
    names = _names("implicit", module)
    scores = jnp.stack([trajectories.summed(r, jnp.sum(_implied(r, name, beta), axis=1)) for name in names])
    finite = jnp.all(jnp.isfinite(scores), axis=0)
    reward = _combined(jnp.where(finite, scores, 0.0), combine, coefficient)
    return _paid(r, verified * trajectories.uncharged(r) + reward, finite)


@define.reward(needs=_implicit_needs)
def implicit_steps(r, module: str = "prm", beta: types.Positive = 0.05):
    """Pay each token beta (log pi_module - log ref), the reward that an outcome model implies for it.

    Source: implicit process rewards (arXiv 2412.01981); PRIME (arXiv 2502.01456). The row's reward stays, and the
    metrics of rewards count it alone. ``surrogate.implicit_outcome`` trains the module.

    Args:
      module: name of ``config.module``, a language model.
      beta: scale of the log-ratio.
    """
    step = _implied(r, module, beta)
    paid = jnp.zeros_like(step) if r.token_reward is None else r.token_reward
    return r.replace(token_reward=paid + step, extra={"paid": paid, **r.extra})


def _needs(a) -> types.Needs:
    return modules.needs(*_names("learned", a["module"]), field="reward")


@define.reward(needs=_needs)
def learned(
    r,
    module: tuple[str, ...] = ("reward",),
    scale: types.Number = 1.0,
    bias: types.Number = 0.0,
    low: types.Bound = float("-inf"),
    high: types.Bound = float("inf"),
    combine: Combine = "mean",
    coefficient: types.NonNegative = 1.0,
    verified: types.Number = 0.0,
):
    """Pay the score of a reward model in place of the verifier's reward: verified r + scale (R + bias).

    R of several modules is their mean, their minimum ("worst"), or their mean minus coefficient times their variance
    ("uncertainty"), as in the conservative ensembles of Coste et al. (arXiv 2310.02743). A row of which a score is not
    finite, or outside of [low, high], is invalid: it counts nowhere. A source that selects or draws by rewards runs
    before the reward pieces, on the verifier's.

    Args:
      module: names of ``config.module``.
      scale: factor of R.
      bias: added to R before the factor.
      low: the least score that the models may give.
      high: the largest.
      combine: how several scores become one.
      coefficient: of the variance.
      verified: factor of the verifier's reward.
    """
    scores = jnp.stack([modules.score(r, name, "reward") for name in module])
    inside = jnp.all(jnp.isfinite(scores) & (scores >= low) & (scores <= high), axis=0)
    reward = _combined(jnp.where(inside, scores, 0.0), combine, coefficient)
    paid = verified * trajectories.uncharged(r) + scale * (reward + bias)
    return _paid(r, paid, inside)
