"""Rows of a rollout: blank, filled by the sampler, judged by a verifier."""

import flax.struct
import jax
import jax.numpy as jnp

from rljax import sampling, types
from rljax.data import shuffle
from rljax.environments import traits
from rljax.language import limits
from rljax.training import phases
from rljax.training import problems as problems_lib
from rljax.transforms import ops
from rljax.transforms.frame import extras
from rljax.transforms.source import groups

# Streams of the root key; sampling.row_keys folds (step, prompt, sample) into the stream of the rows.
ROWS, ORDER, DEMONSTRATIONS, PROBLEMS, DRAWS, HEADS, EDITS = 0, 1, 2, 4, 5, 6, 7  # 3 is the stream of the pieces
PASS = 1 << 20  # added to ``Drawn.repeat`` in a second pass
# Fields of a rollout that are copied from the sampler under the same name.
_REPORTED = ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob", "finish")


def blank(
    setup: phases.Setup, position: types.Array, index: types.Array, context: types.Context | None
) -> types.Rollout:
    """Return rows that have a prompt and no completion.

    Args:
      setup: the phase on devices.
      position: ``[B]`` int32 position of the prompt in the run, which becomes the row's group.
      index: ``[B]`` int32 index of the prompt in its split.
      context: the prompts; None: of a control world, which has none.

    Returns:
      B rows; completion mask and rewards are 0, all rows are valid; the domain is the task's, if it reports any.
    """
    rows, width, domain = position.shape[0], setup.task.completion_length, getattr(setup.task, "domain", None)
    zero = jnp.zeros((rows,), jnp.int32)
    return types.Rollout(
        mask=jnp.zeros((rows, width)),
        reward=jnp.zeros((rows,)),
        group=position,
        context=context,
        turn=jnp.zeros((rows, width), jnp.int32),
        valid=jnp.ones((rows,)),
        outcome=zero,
        episode=jnp.arange(rows, dtype=jnp.int32),
        agent=zero,
        domain=zero if domain is None else domain(index, "train").astype(jnp.int32),
        index=index,
    )


class Drawn(flax.struct.PyTreeNode):
    """The prompts of a step."""

    position: types.Array  # [P] int32, position in the run, which becomes the rows' group
    index: types.Array  # [P] int32, index in the training split
    repeat: types.Array  # [P] int32, how often the step had drawn the prompt before
    samples: types.Array | None = None  # [P] int32, rows of each; None: equal numbers

    def rows(self, setup: phases.Setup) -> tuple[types.Array, types.Array]:
        """Return the number of each row's prompt, ``[B]`` int32, and the row's number among its samples."""
        if self.samples is None:
            row = jnp.arange(self.index.size * setup.samples, dtype=jnp.int32)
            return row // setup.samples, row % setup.samples
        count = setup.rows if setup.algorithm.source.uneven else self.index.size * setup.samples
        row, ends = jnp.arange(count, dtype=jnp.int32), jnp.cumsum(self.samples)
        of = jnp.minimum(jnp.searchsorted(ends, row, side="right"), self.index.size - 1).astype(jnp.int32)
        return of, row - (ends - self.samples)[of]


def one_of_each(solutions: types.Action, prompts: int) -> types.Action:
    """Return the first demonstration of each prompt, ``[P]``, of equal numbers of each."""
    return jax.tree.map(lambda x: x[:: x.shape[0] // prompts], solutions)


def each_once(index: jax.typing.ArrayLike) -> Drawn:
    """Return different prompts ``[P]`` as drawn, at positions equal to their indices."""
    place = jnp.asarray(index)
    return Drawn(place, place, jnp.zeros_like(place))


def in_order(setup: phases.Setup, position: types.Array, key: types.Key) -> types.Array:
    """Return the prompts at positions of the run, ``[P]`` int32 each, in the order of the shuffle.

    Each epoch is shuffled separately; a batch may span two epochs. ``key`` is the run's root key.
    """
    epochs = jax.vmap(lambda e: jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, ORDER), e)))
    return shuffle.permute(position % setup.size, setup.size, epochs(position // setup.size))


def repeats(index: types.Array) -> types.Array:
    """Return how often each prompt of ``index`` ``[P]`` is there before its place, ``[P]`` int32."""
    earlier = jnp.tril(index[:, None] == index[None, :], k=-1)
    return jnp.sum(earlier, axis=1, dtype=jnp.int32)


def unsampled(setup: phases.Setup, drawn: Drawn, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts before sampling; rows of a prompt are adjacent."""
    each = drawn.position, prompts.index, prompts.context
    if drawn.samples is None:
        return blank(setup, *jax.tree.map(lambda x: ops.repeat(x, setup.samples), each))
    of, sample = drawn.rows(setup)
    rows = blank(setup, *groups.take(each, of))
    return rows.replace(valid=(sample < drawn.samples[of]) * 1.0)  # rows beyond the last sample are not used


def next_prompts(setup: phases.Setup, state: types.TrainState, key: types.Key) -> Drawn:
    """Return the prompts of the next step, from the shuffle unless the source chooses.

    Args:
      setup: the phase on devices.
      state: the train state.
      key: the run's root key.

    Returns:
      P = prompts * oversample prompts.
    """
    source = setup.algorithm.source
    position = state.cursor[setup.cursor] + jnp.arange(setup.drawn, dtype=jnp.int32)
    choice = types.Choice(in_order(setup, position, key))
    if source.choose is not None:
        step_key = jax.random.fold_in(jax.random.fold_in(key, DRAWS), state.step)
        choice = source.choose(state.pool, problems_lib.of(setup, key), choice.index, step_key)
    return Drawn(position, choice.index, repeats(choice.index), choice.samples)


def placeholders(setup: phases.Setup) -> types.Prompts:
    """Return prompts with the shapes and dtypes of the prompts of a step."""
    count, length = setup.drawn, setup.task.prompt_length
    token, mask = jnp.zeros((count, length), jnp.int32), jnp.ones((count, length))
    pictures, image = traits.traits(setup.task).pictures, None
    if pictures is not None:
        image = jnp.zeros((count, pictures.count, pictures.height, pictures.width, 3), jnp.uint8)
    return types.Prompts(token=token, mask=mask, index=jnp.zeros((count,), jnp.int32), image=image)


def from_shapes(setup: phases.Setup, prompts: types.Prompts) -> types.Rollout:
    """Return the rows of prompts with the fields that the sampler writes, computed without a model."""
    drawn = each_once(prompts.index)
    rows = unsampled(setup, drawn.replace(samples=prompts.index) if setup.algorithm.source.uneven else drawn, prompts)
    number, whole, zero = rows.mask, jnp.zeros(rows.mask.shape, jnp.int32), jnp.zeros((), jnp.int32)
    out = sampling.Sample(whole, number, number, number, number, number, rows.group, rows.group, zero, zero)
    return filled(rows, out, whole)


def keys(setup: phases.Setup, step: types.Array, drawn: Drawn, key: types.Key, alike: bool = False) -> types.Key:
    """Return the key of each row; ``step`` (scalar or [B]) is the step in which the row was started.

    Every row is an episode. With ``alike`` all samples of a prompt have the key of the first one.
    """
    of, sample = drawn.rows(setup)
    sample = jnp.zeros_like(sample) if alike else sample
    return sampling.row_keys(jax.random.fold_in(key, ROWS), step, drawn.index[of], sample, drawn.repeat[of])


def filled(rows: types.Rollout, out: sampling.Sample, version: types.Array) -> types.Rollout:
    """Write a sample into blank rows."""
    rows = rows.replace(
        action=types.Action(token=out.token, kept=out.kept, length=out.length),
        version=version,
        on_policy=jnp.ones_like(rows.reward),
        **{name: getattr(out, name) for name in _REPORTED},
    )
    return extras.put(rows, {"slots": jnp.full_like(rows.reward, out.slots / out.mask.shape[0])})


def sampled(rows: types.Rollout) -> sampling.Sample:
    """Return the sample that ``filled`` wrote into ``rows``; its counts are 0."""
    assert rows.action is not None and rows.action.length is not None
    zero, reported = jnp.zeros((), jnp.int32), {name: getattr(rows, name) for name in _REPORTED}
    kept, length = rows.action.kept, rows.action.length
    turn = None if rows.action.state is None else rows.turn  # of conversations only
    return sampling.Sample(
        token=rows.action.token, kept=kept, length=length, turn=turn, steps=zero, slots=zero, **reported
    )


def demonstrated(rows: types.Rollout, solutions: types.Action) -> types.Rollout:
    """Return the rows with demonstrations ``[B, T]`` for completions: off-policy, with log-probs 0."""
    assert solutions.length is not None
    before = None if rows.action is None else rows.action.kept
    kept = None if before is None else jnp.full_like(before, sampling.EVERY_TOKEN)
    certain = jnp.zeros_like(rows.mask)
    extra = {**rows.extra, "head": certain} if "head" in rows.extra else rows.extra
    return rows.replace(
        extra=extra,
        mask=(jnp.arange(rows.mask.shape[1])[None, :] < solutions.length[:, None]).astype(jnp.float32),
        action=types.Action(solutions.token, kept, solutions.length),
        behaviour_logp=certain,
        raw_logp=certain,
        entropy=certain,
        square_prob=jnp.ones_like(certain),
        finish=jnp.full(rows.reward.shape, int(types.Finish.STOP), jnp.int32),
        on_policy=jnp.zeros_like(rows.reward),
    )


def written(rows: types.Rollout) -> types.Array:
    """Return 1 on the tokens of each completion, ``[B, T]``, the tokens of its head included."""
    return rows.mask + rows.extra["head"] if "head" in rows.extra else rows.mask


def judged(rollout: types.Rollout, verdict: types.Verdict) -> types.Rollout:
    """Write a verdict into a rollout; rows whose verifier crashed or timed out become invalid and are paid nothing.

    A verdict with a number that is not finite or above ``limits.LARGEST`` in size, or an outcome that is no
    ``types.Outcome``, is a crash.
    """
    sound = (verdict.outcome >= 0) & (verdict.outcome < len(types.Outcome))
    for x in (verdict.reward, *verdict.parts.values()):
        sound &= jnp.abs(x) <= limits.LARGEST
    if verdict.token_reward is not None:
        small = jnp.abs(verdict.token_reward) <= limits.LARGEST
        sound &= jnp.all(small | (rollout.mask <= 0), axis=1)
    outcome = jnp.where(sound, verdict.outcome, int(types.Outcome.CRASHED))
    broken = (outcome == types.Outcome.CRASHED) | (outcome == types.Outcome.TIMED_OUT)
    if verdict.token_reward is not None:
        paid = jnp.where((rollout.mask > 0) & ~broken[:, None], verdict.token_reward, 0.0)
        rollout = rollout.replace(token_reward=paid)
    return rollout.replace(
        reward=jnp.where(broken, 0.0, verdict.reward),
        outcome=outcome,
        parts={name: jnp.where(sound, x, 0.0) for name, x in verdict.parts.items()},
        domain=rollout.domain if verdict.domain is None else verdict.domain,
        valid=ops.valid_rows(rollout) * ~broken,
    )


def failed(rollout: types.Rollout) -> dict[str, types.Array]:
    """Return the number of rows whose outcome is a crash, and of the first of them row and problem: int32 scalars."""
    crashed = (rollout.outcome == types.Outcome.CRASHED) & jnp.any(rollout.mask > 0, axis=1)
    first = jnp.argmax(crashed).astype(jnp.int32)
    problem = rollout.group if rollout.index is None else rollout.index
    return {"failed": jnp.sum(crashed, dtype=jnp.int32), "failed_row": first, "failed_problem": problem[first]}
