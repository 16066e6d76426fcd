"""Rows of a rollout: blank, filled by the sampler, judged by a verifier."""

import functools

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.training import phases
from rljax.transforms import ops

# Streams of the root key; sampling.row_keys folds (step, prompt, sample) into that of the rows.
ROWS, ORDER, DEMONSTRATIONS, PROBLEMS = 0, 1, 2, 4  # 3 is that of the pieces
# Fields of a rollout that are copied from the sampler under the same name.
_REPORTED = ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob", "finish")


def blank(
    setup: phases.Setup, position: types.Array, index: types.Array, token: types.Array, mask: types.Array
) -> types.Rollout:
    """Return rows that have a prompt and no completion.

    Args:
      setup: the phase on devices.
      position: ``[B]`` int32 position of the prompt in the run, which becomes the row's group.
      index: ``[B]`` int32 index of the prompt in its split.
      token: ``[B, L]`` int32 prompt tokens, left-padded.
      mask: ``[B, L]`` float32, 1 on prompt tokens.

    Returns:
      B rows; completion mask and rewards are 0, all rows are valid.
    """
    rows, width = position.shape[0], setup.task.completion_length
    zero = jnp.zeros((rows,), jnp.int32)
    return types.Rollout(
        mask=jnp.zeros((rows, width)),
        reward=jnp.zeros((rows,)),
        group=position,
        context=types.Context(token=token, mask=mask),
        turn=jnp.zeros((rows, width), jnp.int32),
        valid=jnp.ones((rows,)),
        outcome=zero,
        episode=jnp.arange(rows, dtype=jnp.int32),
        agent=zero,
        domain=zero,
        index=index,
    )


def unsampled(setup: phases.Setup, position: types.Array, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts at ``position`` [P] before sampling, those of a prompt adjacent."""
    per_row = functools.partial(ops.repeat, count=setup.samples)
    return blank(setup, *map(per_row, (position, prompts.index, prompts.token, prompts.mask)))


def keys(setup: phases.Setup, step: types.Array, rows: types.Rollout, key: types.Key) -> types.Key:
    """Return the key of each row; ``step`` (scalar or [B]) is the step in which the row was started.

    Every row is an episode.
    """
    assert rows.index is not None
    sample = jnp.arange(rows.index.size, dtype=jnp.int32) % setup.samples
    return sampling.row_keys(jax.random.fold_in(key, ROWS), step, rows.index, sample)


def filled(rows: types.Rollout, out: sampling.Sample, version: types.Array) -> types.Rollout:
    """Write a sample into blank rows."""
    return rows.replace(
        action=types.Action(token=out.token, kept=out.kept, length=out.length),
        version=version,
        on_policy=jnp.ones_like(rows.reward),
        extra={"slots": jnp.full_like(rows.reward, out.slots / out.mask.shape[0])},
        **{name: getattr(out, name) for name in _REPORTED},
    )


def sampled(rows: types.Rollout) -> sampling.Sample:
    """Return the sample that ``filled`` wrote into ``rows``; its counts are 0."""
    assert rows.action is not None and rows.action.length is not None
    zero, reported = jnp.zeros((), jnp.int32), {name: getattr(rows, name) for name in _REPORTED}
    kept, length = rows.action.kept, rows.action.length
    turn = None if rows.action.state is None else rows.turn  # of conversations only
    return sampling.Sample(
        token=rows.action.token, kept=kept, length=length, turn=turn, steps=zero, slots=zero, **reported
    )


def judged(rollout: types.Rollout, verdict: types.Verdict) -> types.Rollout:
    """Write a verdict into a rollout; rows whose verifier crashed or timed out become invalid and are paid nothing."""
    broken = (verdict.outcome == types.Outcome.CRASHED) | (verdict.outcome == types.Outcome.TIMED_OUT)
    if verdict.token_reward is not None:
        paid = jnp.where((rollout.mask > 0) & ~broken[:, None], verdict.token_reward, 0.0)
        rollout = rollout.replace(token_reward=paid)
    return rollout.replace(
        reward=jnp.where(broken, 0.0, verdict.reward),
        outcome=verdict.outcome,
        parts=verdict.parts,
        domain=rollout.domain if verdict.domain is None else verdict.domain,
        valid=jnp.ones_like(verdict.reward) * ~broken,
    )
