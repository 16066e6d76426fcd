"""Rows of files, groups of completions or windows of trajectories, which the host passes to the compiled update."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.algorithms import interpreter
from rljax.data import stored_groups, stored_steps
from rljax.environments import traits
from rljax.models import actors
from rljax.sampling import processors
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.transforms.source import files

Rows = stored_groups.Groups | stored_steps.Steps


@dataclasses.dataclass(frozen=True)
class Stored:
    """Groups of a file, in the order of the run."""

    setup: phases.Setup
    groups: Rows

    traced = False

    def rollout(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return the rows of the next step as NumPy arrays; ``key`` is the run's root key."""
        drawn = jax.device_get(rows_lib.next_prompts(self.setup, state, key))
        return self.of(drawn.position, drawn.index)

    def metrics(self, rows: types.Rollout) -> types.Metrics:
        """Return the groups that came too late, where rows arrive; the program judges no row."""
        return {"late": jnp.max(rows.extra["late"])} if "late" in rows.extra else {}

    def example(self, state: types.TrainState, key: types.Key) -> types.Rollout:
        """Return rows with the shapes and dtypes of the rows of a step."""
        return self.check(key)

    def check(self, key: types.Key) -> types.Rollout:
        """Return the rows of a step from shapes."""
        return self._blank(self.setup.drawn)

    @property
    def wants_behaviour(self) -> bool:
        """Whether the algorithm reads behaviour log-probs that the file does not have."""
        needed = interpreter.needs(self.setup.algorithm).behaviour
        return needed and (self.groups.computed or self.groups.behaviour_logp is None)

    @property
    def _unfiltered(self) -> bool:
        """Whether the rows were sampled from the whole vocabulary, by the sampler of the run."""
        return self.groups.version is not None and not processors.active(self.setup.settings.sampler)

    def of(self, position: np.ndarray, index: np.ndarray, place: np.ndarray | None = None) -> types.Rollout:
        """Return stored rows as a rollout of NumPy arrays; windows of trajectories are rows of ``motion``.

        Args:
          position: ``[P]`` int32 position of each group in the run, which becomes the rows' group.
          index: ``[P]`` int32 number of each group in the file.
          place: ``[n]`` int, which of the P * G rows; None: all.

        Returns:
          n rows, off-policy without a version; a row's outcome is correct at reward 1, wrong at 0, else unjudged.
        """
        setup, stored = self.setup, self.groups
        if isinstance(stored, stored_steps.Steps):
            place = np.arange(len(index)) if place is None else place
            return self._moved(stored, np.asarray(position, np.int32)[place], np.asarray(index)[place], place)
        each, width = stored.length.shape[1], stored.token.shape[2]
        place = np.arange(len(index) * each) if place is None else place
        of, which = np.asarray(index)[place // each], place % each

        def taken(x: np.ndarray) -> Any:  # NumPy for jax
            return x[of, which]

        length, reward = taken(stored.length), taken(stored.reward)
        zero, used = np.zeros(place.shape, np.int32), np.arange(width)[None, :] < length[:, None]
        before = np.arange(setup.task.prompt_length)[None, :]
        seen = before >= setup.task.prompt_length - stored.prompt_length[of][:, None]
        judged = np.where(reward == 0, int(types.Outcome.WRONG), int(types.Outcome.UNJUDGED))
        end = np.where(taken(stored.stopped), int(types.Finish.STOP), int(types.Finish.LENGTH))
        fields: dict[str, Any] = {
            "mask": used.astype(np.float32),
            "reward": reward,
            "group": np.asarray(position, np.int32)[place // each],
            "context": types.Context(token=_any(stored.prompt[of]), mask=_any(seen.astype(np.float32))),
            "action": types.Action(token=taken(stored.token), length=length),
            "turn": np.zeros(used.shape, np.int32),
            "valid": np.ones(place.shape, np.float32),
            "outcome": np.where(reward == 1, int(types.Outcome.CORRECT), judged).astype(np.int32),
            "finish": end.astype(np.int32),
            "on_policy": np.full(place.shape, stored.version is not None, np.float32),
            "episode": place.astype(np.int32),
            "agent": zero,
            "domain": zero,
            "index": of.astype(np.int32),
            "parts": {name: taken(x) for name, x in stored.parts.items()},
            **{name: taken(x) for name, x in stored.said.items()},
        }
        if stored.version is not None:
            fields["version"] = np.where(used, taken(stored.version)[:, None], 0)
            fields["extra"] = {"late": np.full(place.shape, stored.late, np.float32)}
        if stored.behaviour_logp is not None:
            fields["behaviour_logp"] = taken(stored.behaviour_logp)
            fields |= {"raw_logp": fields["behaviour_logp"]} if self._unfiltered else {}
        elif self.wants_behaviour:
            raise ValueError(f"{setup.algorithm.source.spec}: behaviour log-probs are read before they are computed")
        return types.Rollout(**fields)

    def _moved(
        self, steps: stored_steps.Steps, position: np.ndarray, of: np.ndarray, place: np.ndarray
    ) -> types.Rollout:
        """Return windows ``of`` as rows: cut ones end with LENGTH, so that the value of the next state follows."""
        x, zero = steps.at(of), np.zeros(of.shape, np.int32)
        logp = None if steps.behaviour_logp is None else steps.behaviour_logp[of, 0]
        if logp is None and self.wants_behaviour:
            raise ValueError(
                f"{self.setup.algorithm.source.spec}: behaviour log-probs are read before they are computed"
            )
        fields: dict[str, Any] = {
            "mask": x["mask"],
            "reward": np.zeros(of.shape, np.float32),
            "token_reward": x["reward"],
            "group": position,
            "motion": actors.Motion(x["observation"], _any(self._taken(x["action"], position)), x["legal"]),
            "behaviour_logp": logp,
            "raw_logp": logp,
            "turn": x["time"],
            "valid": np.ones(of.shape, np.float32),
            "outcome": np.full(of.shape, int(types.Outcome.UNJUDGED), np.int32),
            "finish": np.where(x["stopped"], int(types.Finish.STOP), int(types.Finish.LENGTH)).astype(np.int32),
            "on_policy": np.zeros(of.shape, np.float32),
            "episode": place.astype(np.int32),
            "agent": zero,
            "domain": zero,
            "index": of.astype(np.int32),
        }
        return types.Rollout(**fields)

    def _taken(self, action: np.ndarray, position: np.ndarray) -> np.ndarray:
        """Return actions as the actor stores them; the noise of chains is new at each position of the run."""
        actor: Any = self.setup.networks["policy"]
        if actor.kind == "categorical":
            return action
        return jax.device_get(_stored(actor, action, position))

    def _blank(self, count: int) -> types.Rollout:
        """Return zeros in the shapes of the rows of ``count`` groups, also of log-probs that are not computed yet."""
        groups, index = self.groups, np.zeros((count,), np.int32)
        if self.wants_behaviour and groups.behaviour_logp is None:
            groups = dataclasses.replace(groups, behaviour_logp=np.broadcast_to(np.float32(0), groups.shape))
        return jax.tree.map(jnp.zeros_like, Stored(self.setup, groups).of(index, index))


def _any(x: np.ndarray) -> Any:
    return x


@functools.partial(jax.jit, static_argnums=0)
def _stored(actor: Any, action: types.Array, position: types.Array) -> types.Array:
    key, each = jax.random.fold_in(jax.random.key(0), rows_lib.DEMONSTRATIONS), jnp.arange(action.shape[1])
    keys = jax.vmap(lambda p: jax.vmap(lambda t: jax.random.fold_in(jax.random.fold_in(key, p), t))(each))(position)
    flat = actor.stored(action.reshape(-1, action.shape[-1]), keys.reshape(-1))
    return flat.reshape(*action.shape[:2], *flat.shape[1:])


def reader(source: files.Stored, task: Any, tokenizer: Any, samples: int, newest: int | None) -> Any:
    """Return the reader of a source's files: of completions, or of steps of a control world."""
    if source.kind == "steps":
        given = task.name, task.rules.observed, task.actions
        legal = hasattr(task.rules, "legal")
        return stored_steps.Reader(*given, window=source.window, megabytes=source.megabytes, legal=legal)
    return stored_groups.Reader(
        kind=source.kind,
        tokenizer=tokenizer,
        prompt_length=task.prompt_length,
        completion_length=task.completion_length,
        samples=samples,
        overlong=source.overlong,
        parts=source.parts,
        megabytes=source.megabytes,
        newest=newest,
        turns=not traits.traits(task).whole,
    )
