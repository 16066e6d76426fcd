"""Completions of prompts: sampled from the policy, and judged; or in two passes.

The prompts of the second pass are those that the source edits once the completions of the first are judged.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import sampling, types
from rljax.language import errors
from rljax.training import passes, phases, sharding
from rljax.training import problems as problems_lib
from rljax.training import rows as rows_lib
from rljax.transforms import ops
from rljax.transforms.frame import extras, shapes
from rljax.transforms.source import groups


@dataclasses.dataclass(frozen=True)
class Completions:
    """Rows of a task of one turn inside the program; they are not judged if the task is verified on the host."""

    setup: phases.Setup

    @property
    def traced(self) -> bool:
        """Whether prompts and verifier are part of the program."""
        return not self.setup.task.host

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step; ``key`` is the run's root key."""
        return self.sample(state.params["policy"], state.pool, state.step, *self.asked(state, key), key)

    def asked(
        self, state: types.TrainState, key: types.Key
    ) -> tuple[rows_lib.Drawn, types.Prompts, types.Action | None]:
        """Return the prompts of the next step, and ``shown`` of ``sample``."""
        setup = self.setup
        drawn = rows_lib.next_prompts(setup, state, key)
        prompts = setup.task.prompts(drawn.index, "train")
        index = ops.repeat(drawn.index, setup.solutions) if setup.solutions else None
        return drawn, prompts, None if index is None else solutions(setup, state.step, index, key)

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the rows on which the program's verifier failed."""
        return rows_lib.failed(rows) if self.traced else {}

    def sample(
        self,
        params: types.Tree,
        pool: types.Tree,
        step: types.Array,
        drawn: rows_lib.Drawn,
        prompts: types.Prompts,
        shown: types.Action | None,
        key: types.Key,
    ) -> types.Rollout:
        """Return the rows of prompts.

        Args:
          params: the policy's parameters.
          pool: the source's.
          step: updates before this rollout, int32 scalar.
          drawn: the P prompts of the step, or some of them.
          prompts: the same, of L tokens.
          shown: demonstrations of each prompt, ``Setup.solutions`` of them, if the source reads them.
          key: the run's root key.

        Returns:
          B rows, with their verdicts if the program has the verifier; rows of a prompt are adjacent.
        """
        setup, source = self.setup, self.setup.algorithm.source
        prompts = sharding.constrain(prompts, setup.mesh)
        each = None if shown is None else rows_lib.one_of_each(shown, drawn.index.size)
        rows = sample(setup, params, pool, step, drawn, prompts, each, key)
        if source.demonstrated and shown is not None:
            rows = guided(setup, rows, shown)
        return self.judge(rows)

    def judge(self, rows: types.Rollout) -> types.Rollout:
        """Return rows with the verdicts of the program's verifier."""
        if rows.action is None or rows.index is None or not self.traced:
            return rows
        verdict = self.setup.verify(rows.index, "train", rows.action.token, rows_lib.written(rows))
        return rows_lib.judged(rows, verdict)

    def begin(self, state: types.TrainState, drawn: rows_lib.Drawn, key: types.Key) -> tuple[types.Prompts, types.Tree]:
        """Return the prompts of rows in flight and of new ones, ``[P, L]``, and the episodes of a world, ``[B, ...]``.

        Args:
          state: the train state; the pool has the rows in flight.
          drawn: the P prompts.
          key: the run's root key.
        """
        return self.setup.task.prompts(drawn.index, "train"), None

    def resume(
        self,
        rows: types.Rollout,
        talk: types.Tree,
        version: types.Array,
        params: types.Tree,
        prompts: types.Prompts,
        *flying: Any,
        segment: int,
    ) -> types.Rollout:
        """Continue rows in flight by one segment.

        Args:
          rows: B rows without completions.
          talk: the episodes of a world, from ``begin``.
          version: ``[B, T]`` int32, of the policy that writes each token.
          params: the policy's parameters.
          prompts: from ``begin``.
          *flying: row keys, samples, which rows start over, the sampler's settings and the ends, as
            ``sampling.resume`` reads them.
          segment: the most tokens that a row gets.

        Returns:
          The rows, with verdicts.
        """
        source = self.setup.algorithm.source
        enough = prompts.index.size // source.early if source.early else None
        out = sampling.resume(self.setup.decoder, params, prompts, *flying, segment=segment, enough=enough)
        return self.judge(rows_lib.filled(rows, out, version))

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        setup, source = self.setup, self.setup.algorithm.source
        rows = unread(setup, state, key)
        if source.head is not None:
            rows = extras.put(rows, {"head": jnp.zeros_like(rows.mask)})
        rows = rows.replace(parts=dict.fromkeys(setup.task.parts, jnp.zeros_like(rows.reward)))
        if not self.traced or rows.action is None:
            return rows
        verdict = jax.eval_shape(lambda r: setup.verify(r.index, "train", r.action.token, r.mask), rows)
        return rows if verdict.token_reward is None else rows.replace(token_reward=jnp.zeros_like(rows.mask))

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes; the task's prompts, verdict and demonstrations are checked."""
        setup, source = self.setup, self.setup.algorithm.source
        rows = rows_lib.from_shapes(setup, prompts(setup))
        if setup.solutions:
            self._check_solutions(key)
        if source.head is not None:
            rows = extras.put(rows, {"head": rows.mask})
        return rows_lib.judged(rows, self._verdict(rows))

    def _verdict(self, rows: types.Rollout) -> types.Verdict:
        """Return the verdict of the task's rows, checked."""
        task = self.setup.task
        if not self.traced or rows.index is None or rows.action is None:
            parts = {name: jnp.zeros_like(rows.reward) for name in task.parts}
            return types.Verdict(reward=rows.reward, outcome=jnp.zeros_like(rows.group), parts=parts)
        with errors.inside(f"task {task.name!r}: verify"):
            verdict = self.setup.verify(rows.index, "train", rows.action.token, rows.mask)
            shapes.array("Verdict.reward", verdict.reward, (("B",),), rows.mask)
            shapes.array("Verdict.outcome", verdict.outcome, (("B",),), rows.mask, int)
            for name, x in verdict.parts.items():
                shapes.array(f"Verdict.parts[{name!r}]", x, (("B",),), rows.mask)
            if verdict.token_reward is not None:
                shapes.array("Verdict.token_reward", verdict.token_reward, (("B", "T"),), rows.mask)
            if verdict.domain is not None:
                shapes.array("Verdict.domain", verdict.domain, (("B",),), rows.mask, int)
            for name, x in (("token_reward", verdict.token_reward), ("domains", verdict.domain)):
                if x is None and name in getattr(task, "supplies", ()):
                    raise ValueError(
                        f"Verdict.{name.rstrip('s')} is None: expected an array, as Task.supplies has {name!r}"
                    )
            if {*verdict.parts} != {*task.parts}:
                raise ValueError(
                    f"Verdict.parts has {sorted(verdict.parts)}: expected {sorted(task.parts)}, as Task.parts"
                )
        return verdict

    def _check_solutions(self, key: types.Key) -> None:
        """Check that the task has the demonstrations that the source reads."""
        setup = self.setup
        if not hasattr(setup.task, "demonstrations"):
            raise ValueError(
                f"config.algorithm: {setup.algorithm.source.spec} reads demonstrations, and task {setup.task.name!r} "
                "has no function demonstrations."
            )
        count = setup.drawn
        index: Any = np.zeros(1, np.int32) if setup.task.host else jnp.zeros((count,), jnp.int32)
        with errors.inside(f"task {setup.task.name!r}: demonstrations"):
            solutions(setup, jnp.zeros((), jnp.int32), index, key)


def prompts(setup: phases.Setup) -> types.Prompts:
    """Return the prompts of a step of a task, checked; of a host task, prompts of their shape."""
    task, blank = setup.task, rows_lib.placeholders(setup)
    if task.host:
        return blank
    with errors.inside(f"task {task.name!r}: prompts"):
        asked, token = task.prompts(blank.index, "train"), blank.mask
        shapes.array("Prompts.token", asked.token, (("B", "T"),), token, int)
        shapes.array("Prompts.mask", asked.mask, (("B", "T"),), token, float)
        shapes.array("Prompts.index", asked.index, (("B",),), token, int)
        drawn, expected = (None if x is None else (x.shape, x.dtype) for x in (asked.image, blank.image))
        if drawn != expected:
            raise ValueError(f"Prompts.image: has {drawn}: expected {expected}, as Task.pictures")
    return asked


def sample(
    setup: phases.Setup,
    params: types.Tree,
    pool: types.Tree,
    step: types.Array,
    drawn: rows_lib.Drawn,
    prompts: types.Prompts,
    shown: types.Action | None,
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
      shown: a demonstration of each prompt ``[P, T]``, if the source reads them.
      key: the run's root key.

    Returns:
      B rows; rows of a prompt are adjacent, rewards are 0.
    """
    rows, source = rows_lib.unsampled(setup, drawn, prompts), setup.algorithm.source
    keys = rows_lib.keys(setup, step, drawn, key)
    if source.head is not None:
        assert shown is not None
        of, _ = drawn.rows(setup)
        heads_key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.HEADS), step)
        heads = source.head(pool, problems_lib.of(setup, key), rows, jax.tree.map(lambda x: x[of], shown), heads_key)
        prompts = groups.take(prompts, of)
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


def unread(setup: phases.Setup, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Return the rows of a step of placeholder prompts, sampled without the source's own choices, which read a pool."""
    source = setup.algorithm.source
    plain = dataclasses.replace(setup.algorithm, source=dataclasses.replace(source, head=None))
    plain = dataclasses.replace(setup, phase=dataclasses.replace(setup.phase, algorithm=plain))
    asked = rows_lib.placeholders(setup)
    index = asked.index
    drawn = rows_lib.Drawn(index, index, index, jnp.zeros_like(index) if source.uneven else None)
    return sample(plain, state.params["policy"], (), state.step, drawn, asked, None, key)


def solutions(setup: phases.Setup, step: types.Array, index: types.Array, key: types.Key) -> types.Action:
    """Return a demonstration of each prompt ``index`` ``[n]`` of a task, ``[n, T]``."""
    key = jax.random.fold_in(jax.random.fold_in(key, rows_lib.DEMONSTRATIONS), step)
    token, mask = setup.task.demonstrations(index, "train", key)
    mask = jnp.asarray(mask)
    return types.Action(token=jnp.asarray(token, jnp.int32), length=jnp.sum(mask > 0, axis=1, dtype=jnp.int32))


def guided(setup: phases.Setup, rollout: types.Rollout, shown: types.Action) -> types.Rollout:
    """Replace the last ``source.demonstrated`` samples of each prompt by demonstrations.

    Args:
      setup: the phase on devices.
      rollout: B = P * samples sampled rows; rows of a prompt are adjacent.
      shown: a demonstration for each row, ``[B, T]``.

    Returns:
      B rows; demonstrations are off-policy, with log-probs 0.
    """
    sample = jnp.arange(rollout.reward.shape[0]) % setup.samples
    replace = sample >= setup.samples - setup.algorithm.source.demonstrated
    return groups.put(replace, rows_lib.demonstrated(rollout, shown), rollout)


@dataclasses.dataclass(frozen=True)
class Twice:
    """Rows of a producer, and rows of a second pass; the source has ``again`` (``types.Source``)."""

    first: Completions

    @property
    def setup(self) -> phases.Setup:
        """The phase on devices."""
        return self.first.setup

    @property
    def traced(self) -> bool:
        """Whether prompts and verifier are part of the program."""
        return self.first.traced

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step, merged from both passes; ``key`` is the run's root key."""
        drawn, prompts, shown = self.first.asked(state, key)
        rows = self.sample(state.params["policy"], state.pool, state.step, drawn, prompts, shown, key)
        each = None if shown is None else rows_lib.one_of_each(shown, drawn.index.size)
        edited, second = self.edit(state, rows, each, key)
        return self.merge(rows, second, edited)

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the rows on which the program's verifier failed."""
        return self.first.metrics(rows)

    def sample(self, *given: Any) -> types.Rollout:
        """Return the rows of the first pass; see ``Completions.sample``."""
        return passes.first(self.setup, self.first.sample(*given))

    def edit(
        self, state: types.TrainState, rows: types.Rollout, shown: types.Action | None, key: types.Key
    ) -> tuple[types.Edit, types.Rollout]:
        """Return the edited prompts of the second pass, and its rows.

        Args:
          state: the train state.
          rows: the judged rows of the first pass.
          shown: a demonstration of each prompt ``[P, T]``, if the source reads them.
          key: the run's root key.
        """
        of = rows.group - state.cursor[self.setup.cursor]  # the number of each row's prompt in the step
        each = jax.tree.map(lambda x: x[of], shown)
        edit = passes.edited(self.setup, state.pool, state.step, rows, each, key, state.params["policy"])
        params = self.setup.params(state, passes.of(self.setup).module)
        second = passes.second(self.setup, params, state.step, rows, edit, key)
        return edit, self.first.judge(sharding.constrain(second, self.setup.mesh))

    def merge(self, rows: types.Rollout, second: types.Rollout, edit: types.Edit) -> types.Rollout:
        """Return the rows of a step from the judged rows of both passes."""
        return passes.merged(self.setup, rows, second, edit)

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        return passes.shaped(self.setup, self.first.example(state, key))

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes."""
        return passes.shaped(self.setup, self.first.check(key))
