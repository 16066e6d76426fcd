"""How often the source of a step acts."""

import jax.numpy as jnp

from rljax import types
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.transforms import ops, trajectories


def fired(setup: phases.Setup, sampled: types.Rollout, rows: types.Rollout, key: types.Key) -> types.Array | None:
    """Return the share of a step on which the source acted.

    It is the largest of these shares: of rows whose prompt is not the shuffle's, or has another number of
    samples; of rows with a head, of a second pass, paid by it, or cut for it; of rows that the policy did not sample,
    or that are in the place of others.

    Args:
      setup: the phase on devices.
      sampled: the rows of the step, before the source selects among them.
      rows: the rows that the step trains on.
      key: the run's root key.

    Returns:
      A number in [0, 1]; None of a source that only takes the next prompts, or rows of the task or of a file.
    """
    source, shares = setup.algorithm.source, []
    if source.origin != "policy":
        return None
    if source.choose is not None and sampled.index is not None and not source.segment:
        shares.append(sampled.index != rows_lib.in_order(setup, sampled.group, key))
    if source.uneven:
        valid = ops.valid_rows(sampled)
        shares.append((valid > 0) & (ops.segment_total(valid, sampled.group) != setup.samples))
    if source.head is not None:
        shares.append(jnp.any(sampled.extra["head"] > 0, axis=1))
    if source.again is not None:
        paid = trajectories.total(sampled) != sampled.extra["first_reward"]
        shares.append((sampled.extra["pass"] > 0) | paid)
    if "segment" in source.supplies:
        shares.append(jnp.any(sampled.extra["segment"] > 0, axis=1))
    if (source.off_policy or source.demonstrated) and rows.on_policy is not None:
        shares.append(rows.on_policy <= 0)
    if source.select is not types.Source.select and not (source.segment and sampled.motion is not None):
        shares.append(_replaced(sampled, rows))
    return jnp.max(jnp.stack([jnp.mean(x.astype(jnp.float32)) for x in shares])) if shares else None


def unreached(setup: phases.Setup) -> tuple[str, ...]:
    """Return a sentence if the source is a memory by prompt and the phase is shorter than an epoch of its task."""
    source, phase = setup.algorithm.source, setup.phase
    steps = phase.last - phase.first
    prompts = steps * setup.drawn
    if not source.by_prompt or source.choose is not None or prompts > setup.size:
        return ()
    return (
        f"phase {phase.name!r}: the source {source.spec} acts on prompts that come again; {steps} steps draw "
        f"{prompts:,} prompts of {setup.size:,} problems, each once. More steps, or a task with fewer problems.",
    )


def _replaced(sampled: types.Rollout, rows: types.Rollout) -> types.Array:
    """Return which rows are not the first sampled ones in their order, ``[B]`` bool."""
    before, after = (jnp.where(x.mask > 0, 0 if x.action is None else x.action.token, -1) for x in (sampled, rows))
    count = min(len(before), len(after))
    valid = ops.valid_rows(sampled)[:count] != ops.valid_rows(rows)[:count]
    return jnp.any(before[:count] != after[:count], axis=1) | valid
