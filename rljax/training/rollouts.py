"""Rollouts: the choice of prompts, sampled or demonstrated completions, and their verdicts."""

import functools

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.data import shuffle
from rljax.training import phases
from rljax.transforms import ops

# Streams of the root key; sampling.row_keys folds (step, prompt, sample) into that of the rows.
_ROWS, _ORDER, _DEMONSTRATIONS = 0, 1, 2
# Fields of a rollout that are copied from the sampler under the same name.
_REPORTED = ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob", "finish")


def next_prompts(setup: phases.Setup, cursor: types.Array, key: types.Key) -> tuple[types.Array, types.Array]:
    """Return the prompts of the next step. Each epoch is shuffled separately; a batch may span two epochs.

    Args:
      setup: the phase on devices.
      cursor: the run's position in the training prompts, int32 scalar.
      key: the run's root key.

    Returns:
      (position in the run, index in the training split), each ``[P]`` int32, with P = prompts * oversample.
    """
    position = cursor + jnp.arange(setup.prompts * setup.algorithm.source.oversample, dtype=jnp.int32)
    size = setup.task.size("train")
    epochs = jax.vmap(lambda e: jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, _ORDER), e)))
    return position, shuffle.permute(position % size, size, epochs(position // size))


def sample(
    setup: phases.Setup,
    params: types.Tree,
    step: types.Array,
    position: types.Array,
    prompts: types.Prompts,
    key: types.Key,
) -> types.Rollout:
    """Sample completions from the policy.

    Args:
      setup: the phase on devices.
      params: the policy's parameters.
      step: updates before this rollout, int32 scalar.
      position: ``[P]`` int32 position of each prompt in the run, which becomes the rows' group.
      prompts: P prompts of L tokens.
      key: the run's root key.

    Returns:
      B = P * samples rows, those of a prompt adjacent; rewards are 0.
    """
    rows = unsampled(setup, position, prompts)
    out = sampling.generate(
        setup.decoder,
        params,
        prompts,
        _keys(setup, step, rows, key),
        setup.settings.sampler,
        setup.ends,
        samples=setup.samples,
        length=setup.task.completion_length,
    )
    return filled(rows, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))


def resumed(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Continue the unfinished rows of ``state.pool`` and start new prompts in place of finished groups.

    A row's key folds in the step in which the row was started, which is the version of its first token.

    Args:
      setup: the phase on devices; its source has segments (``types.Source``).
      state: the train state; ``pool["rows"]`` has B rows, ``pool["free"]`` ``[B]`` is True where a row is finished.
      key: the run's root key.

    Returns:
      B rows, continued by one segment; rewards are 0.
    """
    pending, free = state.pool["rows"], state.pool["free"]
    first = slice(None, None, setup.samples)  # the rows of a group are free together
    new = free[first]
    rank = jnp.maximum(jnp.cumsum(new) - 1, 0)  # new groups take the next prompts in order
    position, index = (x[rank] for x in next_prompts(setup, state.cursor[setup.cursor], key))
    position = jnp.where(new, position, pending.group[first])
    prompts = setup.task.prompts(jnp.where(new, index, pending.index[first]), "train")
    rows = unsampled(setup, position, prompts)
    out = sampling.resume(
        setup.decoder,
        state.params["policy"],
        prompts,
        _keys(setup, jnp.where(free, state.step, pending.version[:, 0]), rows, key),
        _sampled(pending),
        free,
        setup.settings.sampler,
        setup.ends,
        segment=setup.algorithm.source.segment,
    )
    earlier = (pending.mask > 0) & ~free[:, None]
    return filled(rows, out, jnp.where(earlier, pending.version, state.step))


def unsampled(setup: phases.Setup, position: types.Array, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts at ``position`` [P] before sampling, those of a prompt adjacent."""
    per_row = functools.partial(ops.repeat, count=setup.samples)
    return blank(setup, *map(per_row, (position, prompts.index, prompts.token, prompts.mask)))


def _keys(setup: phases.Setup, step: types.Array, rows: types.Rollout, key: types.Key) -> types.Key:
    """Return the key of each row; ``step`` (scalar or [B]) is the step in which the row was started."""
    assert rows.index is not None
    sample = jnp.arange(rows.index.size, dtype=jnp.int32) % setup.samples
    return sampling.row_keys(jax.random.fold_in(key, _ROWS), step, rows.index, sample)


def filled(rows: types.Rollout, out: sampling.Sample, version: types.Array) -> types.Rollout:
    """Write a sample into blank rows."""
    return rows.replace(
        action=types.Action(token=out.token, kept=out.kept),
        version=version,
        on_policy=jnp.ones_like(rows.reward),
        extra={"slots": jnp.full_like(rows.reward, out.slots / out.mask.shape[0])},
        **{name: getattr(out, name) for name in _REPORTED},
    )


def _sampled(rows: types.Rollout) -> sampling.Sample:
    """Return the sample that ``filled`` wrote into ``rows``; its counts are 0."""
    assert rows.action is not None
    zero, reported = jnp.zeros((), jnp.int32), {name: getattr(rows, name) for name in _REPORTED}
    return sampling.Sample(token=rows.action.token, kept=rows.action.kept, steps=zero, slots=zero, **reported)


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


def judged(rollout: types.Rollout, verdict: types.Verdict) -> types.Rollout:
    """Write a verdict into a rollout; rows whose verifier crashed or timed out become invalid."""
    broken = (verdict.outcome == types.Outcome.CRASHED) | (verdict.outcome == types.Outcome.TIMED_OUT)
    return rollout.replace(
        reward=jnp.where(broken, 0.0, verdict.reward),
        outcome=verdict.outcome,
        parts=verdict.parts,
        valid=jnp.ones_like(verdict.reward) * ~broken,
    )


def demonstrate(
    setup: phases.Setup, step: types.Array, position: types.Array, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Return the task's demonstrations as off-policy rows, which no verifier scores.

    Args:
      setup: the phase on devices.
      step: updates before this rollout, int32 scalar.
      position: ``[P]`` int32 position of each prompt in the run, which becomes the row's group.
      prompts: P prompts of L tokens.
      key: the run's root key.

    Returns:
      P rows with reward 1.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    token, mask = setup.task.demonstrations(prompts.index, "train", key)
    rows = blank(setup, position, prompts.index, jnp.asarray(prompts.token), jnp.asarray(prompts.mask))
    mask = jnp.asarray(mask, jnp.float32)
    return rows.replace(
        mask=mask,
        action=types.Action(token=jnp.asarray(token, jnp.int32)),
        reward=jnp.ones_like(rows.reward),  # demonstrations are assumed to be correct
        on_policy=jnp.zeros_like(rows.reward),
    )


def guided(
    setup: phases.Setup, rollout: types.Rollout, step: types.Array, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Replace the last ``source.demonstrated`` samples of each prompt by demonstrations.

    Args:
      setup: the phase on devices.
      rollout: B = P * samples sampled rows, those of a prompt adjacent.
      step: updates before this rollout, int32 scalar.
      prompts: the P prompts.
      key: the run's root key.

    Returns:
      B rows; demonstrations are off-policy, with log-probs 0.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    index = ops.repeat(jnp.asarray(prompts.index), setup.samples)
    token, mask = setup.task.demonstrations(index, "train", key)
    sample = jnp.arange(rollout.reward.shape[0]) % setup.samples
    replace = sample >= setup.samples - setup.algorithm.source.demonstrated
    kept = None if rollout.action is None or rollout.action.kept is None else jnp.uint32(sampling.EVERY_TOKEN)
    certain = jnp.zeros_like(rollout.mask)
    demonstrations = rollout.replace(
        mask=jnp.asarray(mask, jnp.float32),
        action=types.Action(jnp.asarray(token, jnp.int32), kept),
        behaviour_logp=certain,
        raw_logp=certain,
        entropy=certain,
        square_prob=jnp.ones_like(certain),
        finish=jnp.full(replace.shape, int(types.Finish.STOP), jnp.int32),
        on_policy=jnp.zeros_like(rollout.reward),
    )

    def pick(demonstrated: types.Array, sampled: types.Array) -> types.Array:
        rows = replace.reshape((-1,) + (1,) * (sampled.ndim - 1))
        return jnp.where(rows, jnp.broadcast_to(demonstrated, sampled.shape), sampled)

    return jax.tree.map(pick, demonstrations, rollout)


def example(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Return a rollout of placeholder prompts, for its shapes: ``Source.init`` builds the pool from them.

    Args:
      setup: the phase on devices.
      state: the train state.
      key: any key.

    Returns:
      A rollout with the shapes and dtypes of those of the phase.
    """
    count, length = setup.prompts * setup.algorithm.source.oversample, setup.task.prompt_length
    index = jnp.zeros((count,), jnp.int32)
    prompts = types.Prompts(token=jnp.zeros((count, length), jnp.int32), mask=jnp.ones((count, length)), index=index)
    if setup.algorithm.source.origin == "demonstrations":
        return blank(setup, index, index, prompts.token, prompts.mask)
    return sample(setup, state.params["policy"], state.step, index, prompts, key)
