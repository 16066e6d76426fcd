"""Rollouts: what is drawn next, sampled or demonstrated, and judged."""

import functools

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.data import shuffle
from rljax.training import phases
from rljax.transforms import ops

# streams of the root key; a row's own key is folded from (step, prompt, sample) by sampling.row_keys
_ROWS, _ORDER, _DEMONSTRATIONS = 0, 1, 2
# what a record takes over from the sampler under its own name
_REPORTED = ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob", "finish")


def next_prompts(setup: phases.Setup, cursor: types.Array, key: types.Key) -> tuple[types.Array, types.Array]:
    """Return what is drawn next: (position [P] in the run, index [P] in the training split).

    Each epoch is a shuffle of its own; a batch may straddle two.
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
    """Sample the policy; rows of a prompt stand together. The reward is still 0 everywhere."""
    rows = _blank(setup, position, prompts)
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
    return _filled(rows, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))


def resumed(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Continue the rows in flight (``types.Source``), free places being drawn anew; the reward is still 0 everywhere.

    A row's key is that of its first step, which is the version of its first token.
    """
    before, free = state.pool["rows"], state.pool["free"]
    first = slice(None, None, setup.samples)  # a group's rows are free together
    anew = free[first]
    place = jnp.maximum(jnp.cumsum(anew) - 1, 0)  # the next prompts, one for each free place
    position, index = (x[place] for x in next_prompts(setup, state.cursor[setup.cursor], key))
    position = jnp.where(anew, position, before.group[first])
    prompts = setup.task.prompts(jnp.where(anew, index, before.index[first]), "train")
    rows = _blank(setup, position, prompts)
    out = sampling.resume(
        setup.decoder,
        state.params["policy"],
        prompts,
        _keys(setup, jnp.where(free, state.step, before.version[:, 0]), rows, key),
        _sampled(before),
        free,
        setup.settings.sampler,
        setup.ends,
        segment=setup.algorithm.source.segment,
    )
    theirs = (before.mask > 0) & ~free[:, None]
    return _filled(rows, out, jnp.where(theirs, before.version, state.step))


def _blank(setup: phases.Setup, position: types.Array, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts at ``position`` [P], nothing sampled yet; those of a prompt stand together."""
    per_row = functools.partial(ops.repeat, count=setup.samples)
    return blank(setup, *map(per_row, (position, prompts.index, prompts.token, prompts.mask)))


def _keys(setup: phases.Setup, step: types.Array, rows: types.Rollout, key: types.Key) -> types.Key:
    """Return the key of each row; ``step`` (a number, or [B]) is the one in which it was started."""
    assert rows.index is not None
    sample = jnp.arange(rows.index.size, dtype=jnp.int32) % setup.samples
    return sampling.row_keys(jax.random.fold_in(key, _ROWS), step, rows.index, sample)


def _filled(rows: types.Rollout, out: sampling.Sample, version: types.Array) -> types.Rollout:
    """Write what was sampled into blank rows."""
    return rows.replace(
        action=types.Action(token=out.token, kept=out.kept),
        version=version,
        on_policy=jnp.ones_like(rows.reward),
        extra={"slots": jnp.full_like(rows.reward, out.slots / out.mask.shape[0])},
        **{name: getattr(out, name) for name in _REPORTED},
    )


def _sampled(rows: types.Rollout) -> sampling.Sample:
    """Return the sample that ``_filled`` was given, its counts 0."""
    assert rows.action is not None
    zero, reported = jnp.zeros((), jnp.int32), {name: getattr(rows, name) for name in _REPORTED}
    return sampling.Sample(token=rows.action.token, kept=rows.action.kept, steps=zero, slots=zero, **reported)


def blank(
    setup: phases.Setup, position: types.Array, index: types.Array, token: types.Array, mask: types.Array
) -> types.Rollout:
    """Return rows of which only the prompt is known: ``position``, ``index`` [B], prompt ``token``, ``mask`` [B, L]."""
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
    setup: phases.Setup, step: types.Array, position, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Take the task's demonstrations as rows: no verifier has seen them, somebody else wrote them."""
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    token, mask = setup.task.demonstrations(prompts.index, "train", key)
    rows = blank(setup, position, prompts.index, jnp.asarray(prompts.token), jnp.asarray(prompts.mask))
    mask = jnp.asarray(mask, jnp.float32)
    return rows.replace(
        mask=mask,
        action=types.Action(token=jnp.asarray(token, jnp.int32)),
        reward=jnp.ones_like(rows.reward),  # what a demonstration is taken for
        on_policy=jnp.zeros_like(rows.reward),
    )


def guided(
    setup: phases.Setup, rollout: types.Rollout, step: types.Array, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Put demonstrations in place of the last samples of each prompt, as many as the source asks for."""
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    index = ops.repeat(jnp.asarray(prompts.index), setup.samples)
    token, mask = setup.task.demonstrations(index, "train", key)
    sample = jnp.arange(rollout.reward.shape[0]) % setup.samples
    theirs = sample >= setup.samples - setup.algorithm.source.demonstrated
    kept = None if rollout.action is None or rollout.action.kept is None else jnp.uint32(sampling.EVERY_TOKEN)
    certain = jnp.zeros_like(rollout.mask)
    there = rollout.replace(
        mask=jnp.asarray(mask, jnp.float32),
        action=types.Action(jnp.asarray(token, jnp.int32), kept),
        behaviour_logp=certain,
        raw_logp=certain,
        entropy=certain,
        square_prob=jnp.ones_like(certain),
        finish=jnp.full(theirs.shape, int(types.Finish.STOP), jnp.int32),
        on_policy=jnp.zeros_like(rollout.reward),
    )

    def pick(other: types.Array, own: types.Array) -> types.Array:
        return jnp.where(theirs.reshape((-1,) + (1,) * (own.ndim - 1)), jnp.broadcast_to(other, own.shape), own)

    return jax.tree.map(pick, there, rollout)


def example(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Stand for a rollout in shape: what the source's pool is made for."""
    count, length = setup.prompts * setup.algorithm.source.oversample, setup.task.prompt_length
    index = jnp.zeros((count,), jnp.int32)
    prompts = types.Prompts(token=jnp.zeros((count, length), jnp.int32), mask=jnp.ones((count, length)), index=index)
    if setup.algorithm.source.origin == "demonstrations":
        return blank(setup, index, index, prompts.token, prompts.mask)
    return sample(setup, state.params["policy"], state.step, index, prompts, key)
