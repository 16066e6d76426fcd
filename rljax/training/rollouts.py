"""Rollouts: the choice of prompts, sampled or demonstrated completions, and their verdicts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from rljax import environments, sampling, types
from rljax.environments import worlds
from rljax.sampling import conversation, dialogue
from rljax.training import passes, phases, play, stored
from rljax.training import rows as rows_lib
from rljax.transforms import ops
from rljax.transforms.source import groups


def next_prompts(setup: phases.Setup, state: types.TrainState, key: types.Key) -> rows_lib.Drawn:
    """Return the prompts of the next step, those of the shuffle unless the source chooses.

    Args:
      setup: the phase on devices.
      state: the train state.
      key: the run's root key.

    Returns:
      P = prompts * oversample prompts.
    """
    source = setup.algorithm.source
    position = state.cursor[setup.cursor] + jnp.arange(setup.prompts * source.oversample, dtype=jnp.int32)
    choice = types.Choice(rows_lib.in_order(setup, position, key))
    if source.choose is not None:
        step_key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DRAWS), state.step)
        choice = source.choose(state.pool, setup.problems(key), choice.index, step_key)
    return rows_lib.Drawn(position, choice.index, rows_lib.repeats(choice.index), choice.samples)


def sample(
    setup: phases.Setup,
    params: types.Tree,
    pool: types.Tree,
    step: types.Array,
    drawn: rows_lib.Drawn,
    prompts: types.Prompts,
    solutions: types.Action | None,
    key: types.Key,
) -> types.Rollout:
    """Sample completions from the policy.

    Args:
      setup: the phase on devices.
      params: the policy's parameters.
      pool: the source's.
      step: updates before this rollout, int32 scalar.
      drawn: the P prompts of the step, or some of them.
      prompts: the same, of L tokens.
      solutions: a demonstration of each prompt ``[P, T]``, if the source reads them.
      key: the run's root key.

    Returns:
      B rows, those of a prompt adjacent; rewards are 0.
    """
    rows, source = rows_lib.unsampled(setup, drawn, prompts), setup.algorithm.source
    keys = rows_lib.keys(setup, step, drawn, key)
    if source.head is not None:
        assert solutions is not None
        of, _ = drawn.rows(setup)
        heads_key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.HEADS), step)
        heads = source.head(pool, setup.problems(key), rows, jax.tree.map(lambda x: x[of], solutions), heads_key)
        prompts = types.Prompts(prompts.token[of], prompts.mask[of], prompts.index[of])
        return passes.continued(setup, params, step, rows, prompts, keys, heads)
    uneven = drawn.samples is not None
    out = sampling.generate(
        setup.decoder,
        params,
        prompts,
        keys,
        setup.settings.sampler,
        setup.ends,
        samples=1 if uneven else setup.samples,
        length=setup.task.completion_length,
        of=drawn.rows(setup)[0] if uneven else None,
        live=ops.valid_rows(rows) > 0 if uneven else None,
    )
    return rows_lib.filled(rows, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))


def resumed(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Continue the unfinished rows of the pool and start new prompts in place of finished groups.

    A row's key folds in the step in which the row was started, which is the version of its first token.

    Args:
      setup: the phase on devices; its source has segments (``types.Source``).
      state: the train state; of its pool's rows in flight, "rows" has B rows, and "free" ``[B]`` is True where a row is
        finished.
      key: the run's root key.

    Returns:
      B rows, continued by one segment; rewards are 0, except those of worlds.
    """
    flying = setup.algorithm.source.in_flight(state.pool)
    pending, free = flying["rows"], flying["free"]
    first = slice(None, None, setup.samples)  # the rows of a group are free together
    new = free[first]
    rank = jnp.maximum(jnp.cumsum(new) - 1, 0)  # new groups take the next prompts in order
    fresh = jax.tree.map(lambda x: x[rank], next_prompts(setup, state, key))
    repeat = pending.extra["repeat"][first]
    drawn = rows_lib.Drawn(
        position=jnp.where(new, fresh.position, pending.group[first]),
        index=jnp.where(new, fresh.index, pending.index[first]),
        repeat=jnp.where(new, fresh.repeat, repeat),
    )
    prompts, talk = _continued(setup, state, drawn.index, drawn.repeat, key)
    rows = rows_lib.unsampled(setup, drawn, prompts)
    rows = rows.replace(extra={"repeat": ops.repeat(drawn.repeat, setup.samples)})
    sampled = rows_lib.sampled(pending)
    common = (
        prompts,
        rows_lib.keys(setup, jnp.where(free, state.step, pending.version[:, 0]), drawn, key),
        sampled,
        free,
        setup.settings.sampler,
        setup.ends,
    )
    params, segment, early = state.params["policy"], setup.algorithm.source.segment, setup.algorithm.source.early
    earlier = (jnp.arange(pending.mask.shape[1])[None, :] < sampled.length[:, None]) & ~free[:, None]
    version = jnp.where(earlier, pending.version, state.step)
    if setup.world is None or talk is None:
        enough = new.size // early if early else None
        out = sampling.resume(setup.decoder, params, *common, segment=segment, enough=enough)
        return rows_lib.filled(rows, out, version)
    out, talk = conversation.resume(setup.decoder, params, setup.world, talk, *common, segment=segment)
    return play.conversed(setup, rows, out, talk, version)


def _continued(
    setup: phases.Setup, state: types.TrainState, index: types.Array, repeat: types.Array, key: types.Key
) -> tuple[types.Prompts, dialogue.Talk | None]:
    """Return the prompts of pending and new rows, ``[P, L]``, and the episodes of a world, ``[B, ...]``."""
    if setup.world is None:
        return setup.task.prompts(index, "train"), None
    flying = setup.algorithm.source.in_flight(state.pool)
    pending, free = flying["rows"], flying["free"]
    states = play.begin(
        setup.world,
        index,
        "train",
        state.step,
        jax.random.fold_in(key, rows_lib.PROBLEMS),
        setup.settings.batch.samples,
        repeat,
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


def solutions(setup: phases.Setup, step: types.Array, index: types.Array, key: types.Key) -> types.Action:
    """Return a demonstration of each prompt ``index`` ``[n]`` of a task, ``[n, T]``."""
    key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DEMONSTRATIONS), step)
    token, mask = setup.task.demonstrations(index, "train", key)
    mask = jnp.asarray(mask)
    return types.Action(token=jnp.asarray(token, jnp.int32), length=jnp.sum(mask > 0, axis=1, dtype=jnp.int32))


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


def guided(setup: phases.Setup, rollout: types.Rollout, solutions: types.Action) -> types.Rollout:
    """Replace the last ``source.demonstrated`` samples of each prompt by demonstrations.

    Args:
      setup: the phase on devices.
      rollout: B = P * samples sampled rows, those of a prompt adjacent.
      solutions: a demonstration for each row, ``[B, T]``.

    Returns:
      B rows; demonstrations are off-policy, with log-probs 0.
    """
    sample = jnp.arange(rollout.reward.shape[0]) % setup.samples
    replace = sample >= setup.samples - setup.algorithm.source.demonstrated
    return groups.put(replace, rows_lib.demonstrated(rollout, solutions), rollout)


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
    index, source = jnp.zeros((count,), jnp.int32), setup.algorithm.source
    if source.origin == "stored":
        return stored.example(setup, count)
    drawn = rows_lib.Drawn(index, index, index)
    prompts = types.Prompts(token=jnp.zeros((count, length), jnp.int32), mask=jnp.ones((count, length)), index=index)
    if source.origin == "demonstrations":
        return rows_lib.blank(setup, index, index, prompts.token, prompts.mask)
    if setup.world is not None:
        rows = play.played(setup, state, drawn, key)
    else:
        rows = _plain(setup, state, drawn, prompts, key)
    if source.segment:
        rows = rows.replace(extra={**rows.extra, "repeat": jnp.zeros_like(rows.group)})
    return rows


def _plain(
    setup: phases.Setup, state: types.TrainState, drawn: rows_lib.Drawn, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Return rows of ``sample`` and the second pass, without the source's own choices, which need a pool."""
    source = setup.algorithm.source
    plain = dataclasses.replace(setup, phase=dataclasses.replace(setup.phase, algorithm=_without(setup.algorithm)))
    if source.uneven:
        drawn = drawn.replace(samples=jnp.zeros_like(drawn.index))
    rows = sample(plain, state.params["policy"], (), state.step, drawn, prompts, None, key)
    if source.head is not None:
        rows = rows.replace(extra={**rows.extra, "head": jnp.zeros_like(rows.mask)})
    if source.again is not None:
        rows = passes.shaped(setup, rows)
    rows = rows.replace(parts=dict.fromkeys(setup.task.parts, jnp.zeros_like(rows.reward)))
    if worlds.on_host(setup.task):  # see play.of_host
        return rows.replace(token_reward=jnp.zeros_like(rows.mask), extra={})
    if not environments.scored_on_device(setup.task) or rows.action is None:
        return rows
    verdict = jax.eval_shape(lambda r: setup.verify(r.index, "train", r.action.token, r.mask), rows)
    return rows if verdict.token_reward is None else rows.replace(token_reward=jnp.zeros_like(rows.mask))


def _without(algorithm: types.Algorithm) -> types.Algorithm:
    return dataclasses.replace(algorithm, source=dataclasses.replace(algorithm.source, head=None, again=None))
