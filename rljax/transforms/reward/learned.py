"""Rewards of learned models: scores of rows, and of tokens, by modules of the config."""

from typing import Annotated, Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories

Combine = Literal["mean", "worst", "uncertainty"]


def _combined(scores, combine: Combine, coefficient):
    """Return the combined score of each row, [B], from the scores of M models, [M, B]."""
    if combine == "worst":
        return jnp.min(scores, axis=0)
    mean = jnp.mean(scores, axis=0)
    return mean - coefficient * jnp.var(scores, axis=0) if combine == "uncertainty" else mean


def _implicit_needs(a) -> types.Needs:
    return modules.needs(*modules.named("implicit", a["module"]), field="logp") | types.Needs(reference=True)


def _implied(r: types.Rollout, module: str, beta):
    reference = ops.given(r.ref_logp, "reward: the rollout has no ref_logp")
    return beta * jnp.where(r.mask > 0, modules.score(r, module, "logp") - reference, 0.0)


@define.reward(needs=_implicit_needs)
def implicit(
    r,
    module: str | tuple[str, ...] = "prm",
    beta: types.Positive = 1.0,
    combine: Combine = "mean",
    coefficient: types.NonNegative = 1.0,
    verified: types.Number = 0.0,
) -> types.Rollout:
    """Pay R = beta sum_t (log pi_module - log ref) in place of the verifier's reward: verified r + R.

    The reward that preferences imply in DPO (arXiv 2305.18290, eq. 5, from memory), whose reference is the reference of
    this phase. ``surrogate.implicit_bradley_terry`` and ``implicit_outcome`` train the module. Differs from
    ``implicit_steps`` by paying the row, and from ``learned`` by reading a language model. The R of several modules are
    combined as there. A row is invalid if one of them is not finite.

    Args:
      module: name of ``config.module``, a language model, or a tuple of names.
      beta: scale of the log-ratio.
      combine: how the R of several modules become one.
      coefficient: of the variance.
      verified: factor of the verifier's reward.
    """
    names = modules.named("implicit", module)
    scores = jnp.stack([trajectories.summed(r, jnp.sum(_implied(r, name, beta), axis=1)) for name in names])
    finite = jnp.all(jnp.isfinite(scores), axis=0)
    reward = _combined(jnp.where(finite, scores, 0.0), combine, coefficient)
    return trajectories.scored(r, verified * trajectories.uncharged(r) + reward, finite)


@define.reward(needs=_implicit_needs)
def implicit_steps(r, module: str = "prm", beta: types.Positive = 0.05) -> types.Rollout:
    """Pay each token beta (log pi_module - log ref), the reward that an outcome model implies for it.

    Source: implicit process rewards (arXiv 2412.01981); PRIME (arXiv 2502.01456). The row's reward stays, and the
    metrics of rewards count it alone. ``surrogate.implicit_outcome`` trains the module.

    Args:
      module: name of ``config.module``, a language model.
      beta: scale of the log-ratio.
    """
    step = _implied(r, module, beta)
    before = jnp.zeros_like(step) if r.token_reward is None else r.token_reward
    return r.replace(token_reward=before + step, extra={"paid": before, **r.extra})


@define.reward(needs=lambda a: modules.needs(*modules.named("learned", a["module"]), field="reward"))
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
) -> types.Rollout:
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
    return trajectories.scored(r, paid, inside)


@define.constructor("reward")
def judged(
    module: tuple[str, ...] = ("judge",),
    samples: Annotated[int, types.Range(0, 1000)] = 0,
    verified: types.Number = 0.0,
) -> types.RolloutTransform:
    """Pay the probability that a judge says yes, sigmoid(R), or the share of yes among verdicts drawn from it.

    R is the reward of a module with two ``words``: log p(yes) - log p(no) behind the text ``after``, as of generative
    verifiers (arXiv 2408.15240); several judges are averaged. ``reward_classifier`` and ``bradley_terry`` train one. A
    judge that writes a chain of thought before its verdict is not supported. A row is invalid if a score is not finite.

    Args:
      module: names of ``config.module`` that have ``words``.
      samples: verdicts of each judge that are averaged; 0: the probability itself.
      verified: factor of the verifier's reward.
    """
    needs = modules.needs(*modules.named("judged", module), field="reward")

    def apply(r: types.Rollout, state, key):
        scores = jnp.stack([modules.score(r, name, "reward") for name in module])
        finite = jnp.all(jnp.isfinite(scores), axis=0)
        says = jax.nn.sigmoid(jnp.where(finite, scores, 0.0))
        if samples:
            drawn = jax.random.uniform(key, (samples, *says.shape)) < says[None]
            says = jnp.mean(drawn, axis=0, dtype=says.dtype)
        return trajectories.scored(r, verified * trajectories.uncharged(r) + jnp.mean(says, axis=0), finite), state

    return types.RolloutTransform(apply=apply, needs=needs)


def _by_spread(r: types.Rollout, logp, there):
    """Return sum_t w_t logp_t, [B], w_t ~ the deviation of logp_t over the group; w is uniform without any."""
    place = jnp.argsort(there <= 0, axis=1, stable=True)  # the solution's tokens first: they begin behind each row
    logp, there = (jnp.take_along_axis(x, place, axis=1) for x in (logp, there))
    finite = jnp.isfinite(logp)
    counts, known = there * finite * ops.valid_rows(r)[:, None], jnp.where(finite, logp, 0.0)
    spread = jax.vmap(lambda x, w: ops.segment_std(x, r.group, w), in_axes=1, out_axes=1)(known, counts) * there
    spread = jnp.where(jnp.sum(spread, axis=1, keepdims=True) > 0, spread, there)
    return jnp.sum(spread * logp, axis=1) / jnp.maximum(jnp.sum(spread, axis=1), 1e-30)


@define.reward(needs=lambda a: modules.needs(a["module"], field="after_logp"))
def likelihood(
    r,
    module: str = "scorer",
    form: Literal["product", "mean_probability", "mean_log", "spread"] = "product",
    verified: types.Number = 0.0,
) -> types.Rollout:
    """Pay a thought by how likely a module finds the task's solution behind it: no verifier is asked.

    prod_t p_t ("product": VeriFree, arXiv 2505.21493), mean p_t ("mean_probability": RLPR, arXiv 2506.18254, from
    memory, without its baseline), mean log p_t, or sum_t w_t log p_t, over the tokens of the solution. The w_t of
    "spread" are in proportion to the standard deviation of log p_t over the group's thoughts, so that a token counts as
    far as thoughts decide it: the reasoning reflection reward of DRO (arXiv 2506.13351, from summaries; the paper takes
    off what a masked thought gets, which all rows of a group share, so that the group's mean removes it). The module
    has "{solution}" in ``after``, and ``cut`` where a completion ends in an answer of its own. VeriFree also fits the
    solution, see ``verifree``. A row without a solution is invalid.

    Args:
      module: name of ``config.module``, a language model.
      form: how the probabilities of tokens become one number.
      verified: factor of the verifier's reward.
    """
    logp, there = (modules.score(r, module, field) for field in ("after_logp", "after_mask"))
    count = jnp.sum(there, axis=1)
    if form == "product":
        paid = jnp.exp(jnp.sum(logp * there, axis=1))
    elif form == "spread":
        paid = _by_spread(r, logp, there)
    else:
        token = logp if form == "mean_log" else jnp.exp(logp)
        paid = jnp.sum(token * there, axis=1) / jnp.maximum(count, 1.0)
    return trajectories.scored(r, verified * trajectories.uncharged(r) + paid, (count > 0) & jnp.isfinite(paid))
