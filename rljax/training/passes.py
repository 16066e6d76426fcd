"""Completions that begin with given tokens, and the second pass of a step."""

import dataclasses
import functools

import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.sampling import segments
from rljax.training import phases
from rljax.training import problems as problems_lib
from rljax.training import rows as rows_lib
from rljax.training.learning import gradients
from rljax.transforms import ops, trajectories
from rljax.transforms.frame import extras
from rljax.transforms.source import groups

Array = types.Array


def of(setup: phases.Setup) -> types.Again:
    """Return the second pass of a phase whose source has one."""
    again = setup.algorithm.source.again
    assert again is not None
    return again


def edits(setup: phases.Setup) -> int:
    """Return the number of edited prompts of a second pass."""
    again, source = of(setup), setup.algorithm.source
    rows = setup.rows if source.uneven else setup.rows * source.oversample
    whole = rows if again.by == "row" else setup.prompts * source.oversample
    return max(1, round(again.share * whole))


def longer(setup: phases.Setup) -> int:
    """Return the most tokens that a second pass adds to a prompt."""
    problems = problems_lib.of(setup, jax.random.key(0))  # the permutation is not read
    return of(setup).longer(problems, setup.task.prompt_length, setup.task.completion_length)


def samples(setup: phases.Setup) -> int:
    """Return the rows of each edited prompt."""
    return of(setup).samples or setup.settings.batch.samples


def continued(
    setup: phases.Setup,
    params: types.Tree,
    step: Array,
    rows: types.Rollout,
    prompts: types.Prompts,
    keys: types.Key,
    heads: types.Action,
    writer: str = "policy",
) -> types.Rollout:
    """Sample completions that begin with given tokens; no loss touches these.

    Args:
      setup: the phase on devices.
      params: the writer's parameters.
      step: updates before this rollout, int32 scalar.
      rows: n rows without a completion.
      prompts: their prompts, ``[n, L]``.
      keys: ``[n]`` typed keys.
      heads: ``[n, T]`` tokens and ``[n]`` int32 lengths, at most T - 1.
      writer: the module that samples.

    Returns:
      The rows; extra["head"] ``[n, T]`` is 1 on the tokens of the head, where the mask is 0.
    """
    assert heads.length is not None
    width, pad = setup.task.completion_length, setup.ends.pad
    model, config = setup.writer(writer), setup.settings.sampler
    sample = segments.blank(rows.reward.size, width, model.architecture.vocabulary, config, pad)
    length = jnp.clip(heads.length, 0, width - 1)
    given = jnp.arange(width)[None, :] < length[:, None]
    sample = dataclasses.replace(
        sample,
        turn=None,
        token=jnp.where(given, heads.token, pad),
        length=length,
        finish=jnp.full_like(sample.finish, int(types.Finish.UNFINISHED)),
    )
    fresh = jnp.zeros(length.shape, bool)
    out = sampling.resume(model, params, prompts, keys, sample, fresh, config, setup.ends, segment=width)
    rows = extras.put(rows, {"head": given.astype(jnp.float32)})
    return rows_lib.filled(rows, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))


def first(setup: phases.Setup, rows: types.Rollout) -> types.Rollout:
    """Return the rows of a first pass with the fields and widths of the rows of a second pass."""
    assert rows.context is not None
    context, more = rows.context, longer(setup)
    wide = context.replace(
        token=jnp.pad(context.token, ((0, 0), (more, 0)), constant_values=setup.ends.pad),
        mask=jnp.pad(context.mask, ((0, 0), (more, 0))),
    )
    if of(setup).plain:
        wide = wide.replace(train_token=context.token, train_mask=context.mask)
    head = rows.extra.get("head", jnp.zeros_like(rows.mask))
    return extras.put(rows.replace(context=wide), {"pass": jnp.zeros_like(rows.reward), "head": head})


def attended(setup: phases.Setup, params: types.Tree | None, rows: types.Rollout, key: types.Key) -> types.Rollout:
    """Return rows with what ``look`` of ``types.Again`` says of the policy's attention, which only ``edit`` reads.

    ``look`` is given a function ``attention(step, apart)`` of the step of each token ``[B, T]``, from 1, 0 for none,
    that returns what ``models.Model.attended`` does of at most T steps, ``[B, T]``; without ``params`` zeros.
    """
    look = of(setup).look
    if look is None:
        return rows
    problems, network, width = problems_lib.of(setup, key), setup.networks["policy"], rows.mask.shape[1]

    def measured(rows: types.Rollout) -> Array:
        context, action = rows.context, rows.action
        assert context is not None and action is not None

        def attention(step: Array, apart: int) -> Array:
            if params is None:
                return jnp.zeros_like(rows.mask)
            token = jnp.concatenate([context.token, action.token], axis=1)
            mask = jnp.concatenate([context.mask, (step > 0).astype(context.mask.dtype)], axis=1)
            of_all = jnp.concatenate([jnp.zeros_like(context.token), step], axis=1)
            return network.attended(params, token, mask, of_all, width, apart, context.image)

        return look(problems, rows, attention)

    return extras.put(rows, {"attention": gradients.map_rows(measured, rows, setup)})


def shaped(setup: phases.Setup, rows: types.Rollout) -> types.Rollout:
    """Return rows with the fields and widths of merged passes, as if both were the same."""
    rows = first(setup, rows)
    return extras.put(rows, {"first_reward": rows.reward, "first_outcome": rows.group})


def merged(setup: phases.Setup, rows: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
    """Return the rows of a step, with the first pass's total reward and outcome at each place.

    What is said of the policy is said of the first pass: rows under an edited prompt do not measure it.

    Args:
      setup: the phase on devices; its source has a second pass.
      rows: the scored rows of the first pass, ``[B]``.
      second: the scored rows of the second pass.
      edit: the prompts of the second.

    Returns:
      B rows; each is an episode.
    """
    assert rows.outcome is not None
    out = of(setup).merge(rows, second, edit)
    outcome = jnp.where(ops.valid_rows(rows) > 0, rows.outcome, int(types.Outcome.CRASHED))
    seen = {"first_reward": trajectories.total(rows), "first_outcome": outcome}
    return extras.put(out.replace(episode=rows.episode), seen)


def edited(
    setup: phases.Setup,
    pool: types.Tree,
    step: Array,
    rows: types.Rollout,
    solutions: types.Action | None,
    key: types.Key,
    params: types.Tree | None = None,
) -> types.Edit:
    """Return the prompts of the second pass.

    Args:
      setup: the phase on devices; its source has a second pass.
      pool: the source's.
      step: updates before this rollout, int32 scalar.
      rows: the scored rows of the first pass, ``[B]``, as ``first`` returns them.
      solutions: a demonstration for each row ``[B, T]``, if the source reads them.
      key: the run's root key.
      params: the policy's, which a source may look at; None: of rows from shapes.

    Returns:
      n edited prompts.

    Raises:
      ValueError: they are not n prompts of the width of the rows' prompts.
    """
    assert rows.context is not None
    count, rows = edits(setup), attended(setup, params, rows, key)
    edit_key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.EDITS), step)
    edit = of(setup).edit(pool, problems_lib.of(setup, key), rows, solutions, count, edit_key)
    want = (count, rows.context.token.shape[1])
    for name, shape in (("token", edit.token.shape), ("mask", edit.mask.shape), ("row", (*edit.row.shape, want[1]))):
        if shape != want:
            raise ValueError(f"Edit.{name}: shape {shape}: expected {want}, the edits of a step and L + Again.longer")
    return edit


def second(
    setup: phases.Setup, params: types.Tree, step: Array, rows: types.Rollout, edit: types.Edit, key: types.Key
) -> types.Rollout:
    """Sample the rows of a second pass.

    Args:
      setup: the phase on devices.
      params: of ``Again.module``.
      step: updates before this rollout, int32 scalar.
      rows: the rows of the first pass, ``[B]``.
      edit: n edited prompts.
      key: the run's root key.

    Returns:
      n * ``Again.samples`` rows, not verified; rows of a prompt are adjacent. Rows that another
      module sampled, or that train under another prompt than they were sampled under, are off-policy. Those of prompts
      not ``used`` have mask 0 and ``valid`` 0.
    """
    again, task, count = of(setup), setup.task, samples(setup)
    assert rows.context is not None and rows.index is not None
    row = jnp.repeat(edit.row, count)
    number = jnp.arange(row.size, dtype=jnp.int32)
    edited = types.Prompts(edit.token, edit.mask, rows.index[edit.row], groups.take(rows.context.image, edit.row))
    context, head = jax.tree.map(lambda x: jnp.repeat(x, count, axis=0), (edited.context, edit.head))
    if again.plain:
        assert rows.context.train_token is not None and rows.context.train_mask is not None
        context = context.replace(train_token=rows.context.train_token[row], train_mask=rows.context.train_mask[row])
    index = rows.index[row]
    blank = rows_lib.blank(setup, rows.group[row], index, context)
    marks = {"pass": jnp.ones(row.shape), "head": jnp.zeros_like(blank.mask)}
    blank = extras.put(blank, marks)
    keys = sampling.row_keys(
        jax.random.fold_in(key, rows_lib.ROWS),
        step,
        index,
        number % count + (count * groups.sample(rows)[row] if again.by == "row" else 0),
        _occurrence(rows, edit, again.by)[number // count],
    )
    if not again.sampled:
        out = _given(setup, params, groups.take(rows, row), head)
    elif head is None:
        model, config, length = setup.writer(again.module), setup.settings.sampler, task.completion_length
        out = sampling.generate(model, params, edited, keys, config, setup.ends, samples=count, length=length)
        out = rows_lib.filled(blank, out, jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32))
    else:
        prompts = types.Prompts(context.token, context.mask, index, context.image)
        out = continued(setup, params, step, blank, prompts, keys, head, again.module)
    used = jnp.repeat(edit.used, count).astype(jnp.float32)
    on_policy = jnp.full_like(used, not again.plain and again.module == "policy")
    return out.replace(mask=out.mask * used[:, None], valid=used, on_policy=on_policy)


def _given(setup: phases.Setup, params: types.Tree, rows: types.Rollout, heads: types.Action) -> types.Rollout:
    """Return rows of the first pass with whole completions ``[n, T]`` in place of theirs, as the policy scores them."""
    rows = rows_lib.demonstrated(rows, heads)
    score = functools.partial(phases.score, setup, "policy", params, needs=types.Needs(), kept=False, samples=0)
    logp = gradients.map_rows(lambda rows: score(rows=rows).logp, rows, setup)
    return extras.put(rows.replace(behaviour_logp=logp, raw_logp=logp), {"pass": jnp.ones_like(rows.reward)})


def _occurrence(rows: types.Rollout, edit: types.Edit, by: str) -> Array:
    """Return the number of each edit of a prompt in the step's second pass, for its keys, ``[n]`` int32.

    It counts how often the step drew the prompt before its group, and in units of ``rows_lib.PASS`` how many edits of
    the same group or row come before.
    """
    index, group = rows.index, rows.group
    assert index is not None
    mine = edit.row
    before = (index[None, :] == index[mine][:, None]) & (group[None, :] < group[mine][:, None])
    drawn = jnp.sum(before & groups.starts(rows)[None, :], axis=1, dtype=jnp.int32)
    of = mine if by == "row" else group[mine]
    alike = jnp.tril((of[:, None] == of[None, :]) & edit.used[None, :], k=-1)
    return rows_lib.PASS * (1 + jnp.sum(alike, axis=1, dtype=jnp.int32)) + drawn
