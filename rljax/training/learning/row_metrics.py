"""Metrics of the rows that a step trains on."""

import jax.numpy as jnp

from rljax import environments, types
from rljax.training.learning import diagnostics
from rljax.transforms import ops, trajectories
from rljax.transforms.source import groups

_MOST = 32  # domains; more would fill a page of metrics


def domains(task: environments.Task) -> tuple[str, ...]:
    """Return the names of a task's domains, their numbers if it gives none; () if there is one, or more than 32."""
    count = getattr(task, "domains", 1)
    if not 1 < count <= _MOST:
        return ()
    return tuple(getattr(task, "domain_names", None) or map(str, range(count)))


def metrics(
    rollout: types.Rollout, judged: bool, turns: bool = False, domains: tuple[str, ...] = (), positions: bool = False
) -> dict[str, types.Array]:
    """Return metrics of the rows a step trains on; an agent's rows of an episode count once.

    Args:
      rollout: the rows.
      judged: whether a verifier has judged them; else there are no metrics of rewards.
      turns: whether the rows are of a world; else there are no metrics of turns.
      domains: names of the domains that the metrics are split by.
      positions: whether entropy is also given for each third of the rows.

    Returns:
      Scalars by name. Lengths are in tokens that the policy wrote.
    """
    valid, once = ops.valid_rows(rollout), trajectories.once(rollout)
    length = trajectories.summed(rollout, jnp.sum(rollout.mask, axis=1))
    metrics = {"length": ops.masked_mean(length, once), "valid_rows": jnp.sum(valid)}
    metrics["trained_tokens"] = jnp.sum(ops.trained_tokens(rollout))
    if turns:
        metrics["turns"] = trajectories.turns(rollout)
    if judged:
        reward = trajectories.total(rollout)
        correct, measures = _judged(rollout)
        metrics |= {
            "reward": ops.masked_mean(trajectories.uncharged(rollout), once),
            "reward_std": ops.masked_std(reward, once),
            "flat_groups": ops.masked_mean((ops.segment_std(reward, rollout.group, once) <= 0) * 1.0, once),
            "accuracy": ops.masked_mean(correct, measures),
        }
        every = trajectories.once(rollout, jnp.ones_like(valid))  # rows whose world or verifier failed too
        metrics |= {
            f"outcome/{o.name.lower()}": ops.masked_mean((rollout.outcome == o) * 1.0, every) for o in types.Outcome
        }
        parts = {name: part for name, part in rollout.parts.items() if name != "answer"}  # a number that names a text
        metrics |= {f"reward/{name}": ops.masked_mean(part, once) for name, part in parts.items()}
        metrics |= of_domains(rollout, domains)
    if rollout.finish is not None and rollout.motion is None:  # windows of trajectories are cut always
        metrics["truncated"] = ops.masked_mean((rollout.finish == types.Finish.LENGTH) * 1.0, once)
    if "head" in rollout.extra:
        metrics["head"] = ops.masked_mean(jnp.sum(rollout.extra["head"], axis=1), once)
    if rollout.version is not None:
        counted = rollout.mask * valid[:, None]
        metrics["age"] = ops.masked_mean(rollout.extra["now"][:, None] - rollout.version, counted)
    drawn = trajectories.drawn(rollout)
    if rollout.entropy is not None:
        metrics["entropy"] = ops.masked_mean(rollout.entropy, drawn)
        for name, here in diagnostics.thirds(drawn) if positions else ():
            metrics[f"entropy_{name}"] = ops.masked_mean(rollout.entropy, here)
    if rollout.ref_logp is not None and rollout.raw_logp is not None:
        # of the sampling policy; overwritten by the metric of a KL penalty, which is of the current policy
        d = jnp.where(rollout.mask > 0, rollout.raw_logp - rollout.ref_logp, 0.0)
        counted = drawn
        if rollout.context is not None and rollout.context.train_token is not None and rollout.on_policy is not None:
            counted = counted * (rollout.on_policy[:, None] > 0)  # the others were sampled under another prompt
        metrics["kl"] = ops.masked_mean(ops.kl_estimate("k3", d), counted)
    if rollout.advantage is not None:
        metrics["advantage_abs"] = ops.masked_mean(jnp.abs(rollout.advantage), rollout.mask)
    if rollout.value is not None and rollout.returns is not None:
        metrics |= of_critic(rollout.value, rollout.returns, ops.trained_tokens(rollout))
    return metrics


def _judged(rollout: types.Rollout) -> tuple[types.Array, types.Array]:
    """Return [B], whether rows are correct, and which of them measure the policy: those of a first pass."""
    outcome = rollout.extra.get("first_outcome", rollout.outcome)
    return (outcome == types.Outcome.CORRECT) * 1.0, groups.measured(rollout)[0]


def of_critic(value: types.Array, returns: types.Array, mask: types.Array) -> dict[str, types.Array]:
    """Return how well values predict the critic's targets, before the critic is trained on them.

    explained_variance = 1 - Var(R - V) / Var(R), 0 where the targets are equal; bias = mean of V - R over the tokens in
    each third of their row, by their number among the row's tokens that count.

    Args:
      value: V, ``[B, T]``.
      returns: R, ``[B, T]``.
      mask: ``[B, T]``, 1 on tokens that count.

    Returns:
      Scalars by name.
    """
    error = value - returns
    variance = ops.masked_std(returns, mask) ** 2
    share = 1.0 - ops.masked_std(error, mask) ** 2 / jnp.where(variance > 0, variance, 1.0)
    metrics = {"value/explained_variance": jnp.where(variance > 0, share, 0.0)}
    for name, here in diagnostics.thirds(mask):
        metrics[f"value/bias_{name}"] = ops.masked_mean(error, here)
    return metrics


def of_domains(rollout: types.Rollout, names: tuple[str, ...]) -> dict[str, types.Array]:
    """Return reward, accuracy of the rows that measure the policy, and share of each domain; 0 without rows."""
    if rollout.domain is None:
        return {}
    once, reward = trajectories.once(rollout), trajectories.uncharged(rollout)
    correct, measures = _judged(rollout)
    out = {}
    for number, name in enumerate(names):
        here = (rollout.domain == number) * 1.0
        out[f"reward/domain/{name}"] = ops.masked_mean(reward, once * here)
        out[f"accuracy/domain/{name}"] = ops.masked_mean(correct, measures * here)
        out[f"share/domain/{name}"] = ops.masked_mean(here, once)
    return out
