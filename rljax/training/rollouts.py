"""Rollouts: the choice of prompts, sampled or demonstrated completions, and their verdicts."""

import functools

import jax
import jax.numpy as jnp

from rljax import environments, sampling, types
from rljax.data import shuffle
from rljax.sampling import chapters, conversation
from rljax.training import phases, play
from rljax.transforms import ops

# Streams of the root key; sampling.row_keys folds (step, prompt, sample) into that of the rows.
_ROWS, _ORDER, _DEMONSTRATIONS, _PROBLEMS = 0, 1, 2, 4  # 3 is that of the pieces
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
    if setup.world is not None:
        return episodes(setup, params, step, position, prompts.index, "train", key)
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


def episodes(
    setup: phases.Setup,
    params: types.Tree,
    step: types.Array,
    position: types.Array,
    index: types.Array,
    split: environments.Split,
    key: types.Key,
    *,
    samples: int | None = None,
    sampler: sampling.SamplerConfig | None = None,
) -> types.Rollout:
    """Sample episodes of the world from the policy.

    Args:
      setup: the phase on devices; its task is a world.
      params: the policy's parameters.
      step: updates before this rollout, int32 scalar.
      position: ``[P]`` int32 position of each problem in the run, which becomes the rows' group.
      index: ``[P]`` int32 index of each problem in its split.
      split: of the problems.
      key: the run's root key.
      samples: episodes of each problem; None: those of the settings.
      sampler: how tokens are drawn; None: the settings.

    Returns:
      B = P * samples * ``setup.rows_of_episode`` rows, those of a problem adjacent.
    """
    world, sampler = setup.world, sampler or setup.settings.sampler
    assert world is not None
    samples = samples or setup.settings.batch.samples
    states = play.begin(world, index, split, step, jax.random.fold_in(key, _PROBLEMS), samples)
    number = jnp.tile(jnp.arange(samples, dtype=jnp.int32), index.size)
    keys = sampling.row_keys(jax.random.fold_in(key, _ROWS), step, ops.repeat(index, samples), number)
    position, index = (ops.repeat(x, samples * setup.rows_of_episode) for x in (position, index))
    common = sampler, setup.ends
    if world.rows == "chapters":
        book = chapters.write(setup.decoder, params, world, states, keys, *common)
        rows = blank(setup, position, index, book.prompts.token, book.prompts.mask)
        rows = filled(rows, book.sample, jnp.broadcast_to(step, rows.mask.shape).astype(jnp.int32))
        return play.of_chapters(rows, book, world.max_turns, world.seats)
    prompts = play.views(world, states, samples)
    length = setup.task.completion_length
    out, talk = conversation.converse(setup.decoder, params, world, states, prompts, keys, *common, length=length)
    each = position.size // prompts.token.shape[0]
    rows = blank(setup, position, index, ops.repeat(prompts.token, each), ops.repeat(prompts.mask, each))
    return _conversed(setup, rows, out, talk, jnp.broadcast_to(step, rows.mask.shape).astype(jnp.int32))


def _conversed(
    setup: phases.Setup, rows: types.Rollout, out: sampling.Sample, talk: conversation.Talk, version: types.Array
) -> types.Rollout:
    """Write conversations into blank rows; the state of unfinished ones stays with them."""
    assert setup.world is not None
    rows = play.of_conversations(filled(rows, out, version), out, talk, setup.world.seats)
    if not setup.algorithm.source.segment or rows.action is None:
        return rows
    return rows.replace(action=rows.action.replace(state=talk))


def resumed(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Continue the unfinished rows of ``state.pool`` and start new prompts in place of finished groups.

    A row's key folds in the step in which the row was started, which is the version of its first token.

    Args:
      setup: the phase on devices; its source has segments (``types.Source``).
      state: the train state; ``pool["rows"]`` has B rows, ``pool["free"]`` ``[B]`` is True where a row is finished.
      key: the run's root key.

    Returns:
      B rows, continued by one segment; rewards are 0, except those of worlds.
    """
    pending, free = state.pool["rows"], state.pool["free"]
    first = slice(None, None, setup.samples)  # the rows of a group are free together
    new = free[first]
    rank = jnp.maximum(jnp.cumsum(new) - 1, 0)  # new groups take the next prompts in order
    position, index = (x[rank] for x in next_prompts(setup, state.cursor[setup.cursor], key))
    position = jnp.where(new, position, pending.group[first])
    index = jnp.where(new, index, pending.index[first])
    prompts, talk = _continued(setup, state, index, key)
    rows = unsampled(setup, position, prompts)
    sampled = _sampled(pending)
    common = (
        prompts,
        _keys(setup, jnp.where(free, state.step, pending.version[:, 0]), rows, key),
        sampled,
        free,
        setup.settings.sampler,
        setup.ends,
    )
    params, segment = state.params["policy"], setup.algorithm.source.segment
    earlier = (jnp.arange(pending.mask.shape[1])[None, :] < sampled.length[:, None]) & ~free[:, None]
    version = jnp.where(earlier, pending.version, state.step)
    if setup.world is None or talk is None:
        return filled(rows, sampling.resume(setup.decoder, params, *common, segment=segment), version)
    out, talk = conversation.resume(setup.decoder, params, setup.world, talk, *common, segment=segment)
    return _conversed(setup, rows, out, talk, version)


def _continued(
    setup: phases.Setup, state: types.TrainState, index: types.Array, key: types.Key
) -> tuple[types.Prompts, conversation.Talk | None]:
    """Return the prompts of pending and new rows, ``[P, L]``, and the episodes of a world, ``[B, ...]``."""
    if setup.world is None:
        return setup.task.prompts(index, "train"), None
    pending, free = state.pool["rows"], state.pool["free"]
    states = play.begin(
        setup.world, index, "train", state.step, jax.random.fold_in(key, _PROBLEMS), setup.settings.batch.samples
    )
    views = play.views(setup.world, states, setup.settings.batch.samples)
    each = free.size // index.size

    def pick(new: types.Array, old: types.Array) -> types.Array:
        return jnp.where(free.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    talk = jax.tree.map(pick, conversation.begin(setup.world, states, setup.ends), pending.action.state)
    first = slice(None, None, each)
    old = free[first, None]
    token = jnp.where(old, views.token, pending.context.token[first])
    mask = jnp.where(old, views.mask, pending.context.mask[first])
    return types.Prompts(token=token, mask=mask, index=index), talk


def unsampled(setup: phases.Setup, position: types.Array, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts at ``position`` [P] before sampling, those of a prompt adjacent."""
    per_row = functools.partial(ops.repeat, count=setup.samples)
    return blank(setup, *map(per_row, (position, prompts.index, prompts.token, prompts.mask)))


def _keys(setup: phases.Setup, step: types.Array, rows: types.Rollout, key: types.Key) -> types.Key:
    """Return the key of each row; ``step`` (scalar or [B]) is the step in which the row was started.

    Every row is an episode.
    """
    assert rows.index is not None
    sample = jnp.arange(rows.index.size, dtype=jnp.int32) % setup.samples
    return sampling.row_keys(jax.random.fold_in(key, _ROWS), step, rows.index, sample)


def filled(rows: types.Rollout, out: sampling.Sample, version: types.Array) -> types.Rollout:
    """Write a sample into blank rows."""
    return rows.replace(
        action=types.Action(token=out.token, kept=out.kept, length=out.length),
        version=version,
        on_policy=jnp.ones_like(rows.reward),
        extra={"slots": jnp.full_like(rows.reward, out.slots / out.mask.shape[0])},
        **{name: getattr(out, name) for name in _REPORTED},
    )


def _sampled(rows: types.Rollout) -> sampling.Sample:
    """Return the sample that ``filled`` wrote into ``rows``; its counts are 0."""
    assert rows.action is not None and rows.action.length is not None
    zero, reported = jnp.zeros((), jnp.int32), {name: getattr(rows, name) for name in _REPORTED}
    kept, length = rows.action.kept, rows.action.length
    turn = None if rows.token_reward is None else rows.turn  # only worlds pay tokens
    return sampling.Sample(
        token=rows.action.token, kept=kept, length=length, turn=turn, steps=zero, slots=zero, **reported
    )


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
      P rows with reward 1; of a world, P times the rows of an episode.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    if setup.world is not None:
        return play.shown(setup.world, functools.partial(blank, setup), position, prompts.index, key)
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
