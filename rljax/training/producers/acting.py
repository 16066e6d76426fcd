"""Trajectories of a control world: episodes whole, or a window of each that goes on in the next step."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import control
from rljax.models import actors
from rljax.sampling import acting
from rljax.sampling.acting import Episodes as Episodes
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.training.producers import segments, world_checks
from rljax.transforms.source import groups


@dataclasses.dataclass(frozen=True)
class Acting:
    """Rows of actions. A row has positions for each step of time, and one for the state behind the last one."""

    setup: phases.Setup
    traced = True

    @property
    def task(self) -> control.ControlTask:
        """The world."""
        task: Any = self.setup.task
        return task

    @property
    def steps(self) -> int:
        """Steps of time of a row."""
        return self.setup.algorithm.source.segment or self.task.rules.horizon

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step; ``key`` is the run's root key."""
        setup, params = self.setup, state.params["policy"]
        if not setup.algorithm.source.segment:
            return self._acted(params, state.step, rows_lib.next_prompts(setup, state, key), key)
        drawn, pending, free = segments.in_place(setup, state, key)
        assert pending.motion is not None
        return self._acted(params, state.step, drawn, key, pending.motion.state, free)

    def _acted(
        self,
        params: types.Tree,
        step: types.Array,
        drawn: rows_lib.Drawn,
        key: types.Key,
        pending: acting.Episodes | None = None,
        free: types.Array | None = None,
    ) -> types.Rollout:
        """Return the rows of problems: of episodes that begin, or that go on where they are not ``free``."""
        setup, rules, segment = self.setup, self.task.rules, self.setup.algorithm.source.segment
        of, _ = drawn.rows(setup)
        index, position = drawn.index[of], drawn.position[of]
        episodes = acting.begun(rules, index, "train")
        if pending is not None and free is not None:
            ended = jnp.where(pending.time > 0, pending.total, jnp.nan)  # of the place; nan before the first step
            episodes = episodes.replace(last=ended)
            episodes = groups.put(free, episodes, pending)
        keys = rows_lib.keys(setup, step, drawn, key)
        actor: Any = setup.networks["policy"]
        expert = setup.algorithm.source.origin == "demonstrations"
        given: dict[str, Any] = {"temperature": setup.settings.sampler.temperature, "expert": expert}
        if actor.denoising.shared:
            given["shared"] = rows_lib.keys(setup, step, drawn, key, alike=True)
        episodes, trace = acting.unroll(actor, rules, params, episodes, keys, self.steps, **given)
        assert trace is not None
        wide = jax.tree.map(lambda x: jnp.pad(jnp.moveaxis(x, 0, 1), [(0, 0), (0, 1)] + [(0, 0)] * (x.ndim - 2)), trace)
        observation, legal = acting.seen(rules, episodes.system)
        return rows_lib.blank(setup, position, index, None).replace(
            mask=wide.mask,
            motion=actors.Motion(
                observation=wide.observation.at[:, -1].set(observation),
                taken=wide.taken,
                legal=None if legal is None else wide.legal.at[:, -1].set(legal),
                state=episodes if segment else None,
            ),
            **({} if expert else {"behaviour_logp": wide.logp, "raw_logp": wide.logp, "entropy": wide.entropy}),
            version=jnp.full(wide.mask.shape, step, jnp.int32),
            turn=wide.time,
            token_reward=wide.reward,
            parts=episodes.parts,
            outcome=episodes.outcome,
            valid=(episodes.outcome != types.Outcome.CRASHED).astype(jnp.float32),
            on_policy=jnp.full(index.shape, 0.0 if expert else 1.0, jnp.float32),
            finish=episodes.finish,
            extra={"repeat": drawn.repeat[of]} if segment else {},
        )

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the rows that failed, and of windows the share that goes on, and returns.

        "return" is the mean over rows of the return of the last episode that ended there, or of the running one.
        """
        failed = rows_lib.failed(rows)
        if not self.setup.algorithm.source.segment or rows.motion is None:
            return failed
        episodes: acting.Episodes = rows.motion.state
        last = jnp.where(episodes.live & jnp.isfinite(episodes.last), episodes.last, episodes.total)
        return {"carried": jnp.mean(episodes.live * 1.0), "return": jnp.mean(last), **failed}

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        drawn = rows_lib.each_once(jnp.zeros(self.setup.drawn, jnp.int32))
        return self._acted(state.params["policy"], state.step, drawn, key)

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes; what the rules return is checked."""
        world_checks.check_rules(self.task, key)
        drawn = rows_lib.each_once(jnp.zeros(self.setup.drawn, jnp.int32))
        return self._acted(self.setup.networks["policy"].init(key), jnp.zeros((), jnp.int32), drawn, key)


def play(
    setup: phases.Setup,
    params: types.Tree,
    index: types.Array,
    keys: types.Key,
    split: environments.Split,
    temperature: float,
) -> acting.Episodes:
    """Return whole episodes of problems ``index`` ``[B]`` at their end, without their steps.

    Args:
      setup: the phase on devices.
      params: the policy's parameters.
      index: ``[B]`` int32.
      keys: ``[B]``, of the rows.
      split: of the problems.
      temperature: of the actions; 0: the most probable ones.
    """
    task: Any = setup.task
    actor: Any = setup.networks["policy"]
    episodes = acting.begun(task.rules, index, split)
    return acting.unroll(actor, task.rules, params, episodes, keys, task.rules.horizon, temperature, traced=False)[0]
