"""Completions in two passes: of prompts, and of prompts that the source edits once the first ones are judged."""

import dataclasses
from typing import Any

import jax

from rljax import types
from rljax.training import passes, phases, sharding
from rljax.training import rows as rows_lib
from rljax.training.producers import completions


@dataclasses.dataclass(frozen=True)
class Twice:
    """Rows of a producer, and rows of a second pass; the source has ``again`` (``types.Source``)."""

    first: completions.Completions

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

    def taken(self, state: types.TrainState) -> int:
        """Return the number of prompts that the next step takes from the shuffle."""
        return self.first.taken(state)

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
        edit = passes.edited(self.setup, state.pool, state.step, rows, each, key)
        second = passes.second(self.setup, state.params["policy"], state.step, rows, edit, key)
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
