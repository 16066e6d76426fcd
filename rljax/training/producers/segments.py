"""Rows in flight: each step continues unfinished rows by a segment and starts new ones in place of finished groups."""

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.training.producers import completions, episodes, turns
from rljax.transforms import ops
from rljax.transforms.frame import extras


class Flying(flax.struct.PyTreeNode):
    """The B rows of a step that are continued, and the rows that start over in place of finished ones."""

    drawn: rows_lib.Drawn  # the prompts of both
    pending: types.Rollout  # the rows so far
    free: types.Array  # [B] bool, the rows that start over
    started: types.Array  # [B] int32, the step in which each row was started
    version: types.Array  # [B, T] int32, of the policy that writes each token
    keys: types.Key  # [B], of the rows


def in_place(
    setup: phases.Setup, state: types.TrainState, key: types.Key
) -> tuple[rows_lib.Drawn, types.Rollout, types.Array]:
    """Return the prompts of a step, in place of finished groups new ones; the pool's rows in flight; which start over.

    Args:
      setup: the phase on devices.
      state: the train state; of its pool's rows in flight, "rows" has B rows, and "free" ``[B]`` is True where a row is
        finished.
      key: the run's root key.
    """
    pool = setup.algorithm.source.in_flight(state.pool)
    pending, free = pool["rows"], pool["free"]
    first = slice(None, None, setup.samples)  # the rows of a group are free together
    new = free[first]
    rank = jnp.maximum(jnp.cumsum(new) - 1, 0)  # new groups take the next prompts in order
    fresh = jax.tree.map(lambda x: x[rank], rows_lib.next_prompts(setup, state, key))
    drawn = rows_lib.Drawn(
        position=jnp.where(new, fresh.position, pending.group[first]),
        index=jnp.where(new, fresh.index, pending.index[first]),
        repeat=jnp.where(new, fresh.repeat, pending.extra["repeat"][first]),
    )
    return drawn, pending, free


def freed(setup: phases.Setup, state: types.TrainState) -> types.Array:
    """Return the number of finished groups, whose places new prompts take."""
    return jnp.sum(setup.algorithm.source.in_flight(state.pool)["free"]) // setup.samples


def flying(setup: phases.Setup, state: types.TrainState, key: types.Key) -> Flying:
    """Return the rows in flight of a step, as ``in_place``.

    A row's key folds in the step in which the row was started, which is the version of its first token.
    """
    drawn, pending, free = in_place(setup, state, key)
    assert pending.version is not None and pending.action is not None and pending.action.length is not None
    started = jnp.where(free, state.step, pending.version[:, 0])
    earlier = (jnp.arange(pending.mask.shape[1])[None, :] < pending.action.length[:, None]) & ~free[:, None]
    version = jnp.where(earlier, pending.version, state.step)
    return Flying(drawn, pending, free, started, version, rows_lib.keys(setup, started, drawn, key))


@dataclasses.dataclass(frozen=True)
class Segments:
    """Rows of a producer, cut into segments; the source has ``segment`` (``types.Source``)."""

    whole: completions.Completions | episodes.Episodes | turns.Turns
    most: int  # tokens that a step adds to a row

    @property
    def traced(self) -> bool:
        """Whether the compiled program computes the rows."""
        return self.whole.traced

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Continue the unfinished rows of the pool and start new prompts in place of finished groups.

        Args:
          state: the train state, see ``flying``.
          key: the run's root key.

        Returns:
          B rows, continued by one segment; rewards are 0, except of worlds.
        """
        assert not isinstance(self.whole, turns.Turns)  # whose rows the host continues
        setup, now = self.whole.setup, flying(self.whole.setup, state, key)
        prompts, talk = self.whole.begin(state, now.drawn, key)
        rows = rows_lib.unsampled(setup, now.drawn, prompts)
        rows = extras.put(rows, {"repeat": ops.repeat(now.drawn.repeat, setup.samples)})
        params, sampled = state.params["policy"], rows_lib.sampled(now.pending)
        settings = setup.settings.sampler, setup.ends
        given = rows, talk, now.version, params, prompts, now.keys, sampled, now.free, *settings
        return self.whole.resume(*given, segment=self.most)

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the share of rows that the next step continues, and the rows that failed."""
        return {"carried": jnp.mean((rows.finish == types.Finish.UNFINISHED) * 1.0), **rows_lib.failed(rows)}

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        return self._numbered(self.whole.example(state, key))

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes."""
        return self._numbered(self.whole.check(key))

    def _numbered(self, rows: types.Rollout) -> types.Rollout:
        return extras.put(rows, {"repeat": jnp.zeros_like(rows.group)})
