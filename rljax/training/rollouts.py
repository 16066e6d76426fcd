"""Rollouts: the choice of prompts, sampled or demonstrated completions, and their verdicts."""

import functools

import jax
import jax.numpy as jnp

from rljax import environments, sampling, types
from rljax.data import shuffle
from rljax.environments import worlds
from rljax.sampling import conversation, dialogue
from rljax.training import phases, play
from rljax.training import rows as rows_lib
from rljax.transforms import ops


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
    epochs = jax.vmap(lambda e: jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, rows_lib.ORDER), e)))
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
    rows = rows_lib.unsampled(setup, position, prompts)
    out = sampling.generate(
        setup.decoder,
        params,
        prompts,
        rows_lib.keys(setup, step, rows, key),
        setup.settings.sampler,
        setup.ends,
        samples=setup.samples,
        length=setup.task.completion_length,
    )
    return rows_lib.filled(rows, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))


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
    rows = rows_lib.unsampled(setup, position, prompts)
    sampled = rows_lib.sampled(pending)
    common = (
        prompts,
        rows_lib.keys(setup, jnp.where(free, state.step, pending.version[:, 0]), rows, key),
        sampled,
        free,
        setup.settings.sampler,
        setup.ends,
    )
    params, segment = state.params["policy"], setup.algorithm.source.segment
    earlier = (jnp.arange(pending.mask.shape[1])[None, :] < sampled.length[:, None]) & ~free[:, None]
    version = jnp.where(earlier, pending.version, state.step)
    if setup.world is None or talk is None:
        return rows_lib.filled(rows, sampling.resume(setup.decoder, params, *common, segment=segment), version)
    out, talk = conversation.resume(setup.decoder, params, setup.world, talk, *common, segment=segment)
    return play.conversed(setup, rows, out, talk, version)


def _continued(
    setup: phases.Setup, state: types.TrainState, index: types.Array, key: types.Key
) -> tuple[types.Prompts, dialogue.Talk | None]:
    """Return the prompts of pending and new rows, ``[P, L]``, and the episodes of a world, ``[B, ...]``."""
    if setup.world is None:
        return setup.task.prompts(index, "train"), None
    pending, free = state.pool["rows"], state.pool["free"]
    states = play.begin(
        setup.world,
        index,
        "train",
        state.step,
        jax.random.fold_in(key, rows_lib.PROBLEMS),
        setup.settings.batch.samples,
    )
    views = play.views(setup.world, states, setup.settings.batch.samples)
    each = free.size // index.size

    def pick(new: types.Array, old: types.Array) -> types.Array:
        return jnp.where(free.reshape((-1,) + (1,) * (old.ndim - 1)), new, old)

    talk = jax.tree.map(pick, dialogue.begin(setup.world, states, setup.ends), pending.action.state)
    first = slice(None, None, each)
    old = free[first, None]
    token = jnp.where(old, views.token, pending.context.token[first])
    mask = jnp.where(old, views.mask, pending.context.mask[first])
    return types.Prompts(token=token, mask=mask, index=index), talk


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
    key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DEMONSTRATIONS), step)
    if setup.world is not None:
        return play.shown(setup.world, functools.partial(rows_lib.blank, setup), position, prompts.index, key)
    token, mask = setup.task.demonstrations(prompts.index, "train", key)
    rows = rows_lib.blank(setup, position, prompts.index, jnp.asarray(prompts.token), jnp.asarray(prompts.mask))
    mask = jnp.asarray(mask, jnp.float32)
    if worlds.on_host(setup.task):
        rows = play.host_turns(rows, jnp.asarray(token, jnp.int32), mask, setup.task.stop)
    return rows.replace(
        mask=mask,
        action=types.Action(token=jnp.asarray(token, jnp.int32), length=rows.action and rows.action.length),
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
    key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DEMONSTRATIONS), step)
    index = ops.repeat(jnp.asarray(prompts.index), setup.samples)
    token, mask = setup.task.demonstrations(index, "train", key)
    mask = jnp.asarray(mask, jnp.float32)
    sample = jnp.arange(rollout.reward.shape[0]) % setup.samples
    replace = sample >= setup.samples - setup.algorithm.source.demonstrated
    kept = None if rollout.action is None or rollout.action.kept is None else jnp.uint32(sampling.EVERY_TOKEN)
    certain = jnp.zeros_like(rollout.mask)
    demonstrations = rollout.replace(
        mask=mask,
        action=types.Action(jnp.asarray(token, jnp.int32), kept, jnp.sum(mask > 0, axis=1, dtype=jnp.int32)),
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
        return rows_lib.blank(setup, index, index, prompts.token, prompts.mask)
    if setup.world is not None:
        return play.played(setup, state, index, index, key)
    rows = sample(setup, state.params["policy"], state.step, index, prompts, key)
    if not environments.scored_on_device(setup.task) or rows.action is None:
        return rows
    verdict = jax.eval_shape(lambda r: setup.verify(r.index, "train", r.action.token, r.mask), rows)
    return rows if verdict.token_reward is None else rows.replace(token_reward=jnp.zeros_like(rows.mask))
