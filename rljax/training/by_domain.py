"""Metrics of a step split by the domain of the rows."""

import jax.numpy as jnp

from rljax import environments, transforms, types
from rljax.transforms import ops, trajectories

_MOST = 32  # domains; more would fill a page of metrics


def names(task: environments.Task) -> tuple[str, ...]:
    """Return the names of a task's domains, their numbers if it gives none; () if there is one, or more than 32."""
    count = getattr(task, "domains", 1)
    if not 1 < count <= _MOST:
        return ()
    return tuple(getattr(task, "domain_names", None) or map(str, range(count)))


def metrics(rollout: types.Rollout, names: tuple[str, ...]) -> dict[str, types.Array]:
    """Return reward, accuracy and share of the rows of each domain; 0 where a step has none of them."""
    if rollout.domain is None:
        return {}
    once, reward = trajectories.once(rollout), trajectories.uncharged(rollout)
    correct = (rollout.outcome == types.Outcome.CORRECT) * 1.0
    on_policy = jnp.where(transforms.PREDICATES["on_policy"](rollout)[:, 0], once, 0.0)
    out = {}
    for number, name in enumerate(names):
        here = (rollout.domain == number) * 1.0
        out[f"reward/domain/{name}"] = ops.masked_mean(reward, once * here)
        out[f"accuracy/domain/{name}"] = ops.masked_mean(correct, on_policy * here)
        out[f"share/domain/{name}"] = ops.masked_mean(here, once)
    return out
