"""Trajectories of a control world as a file that the source ``recorded`` reads (``data.stored_steps``)."""

import dataclasses
import io
import os
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import storage, stored_steps
from rljax.environments import traits
from rljax.host import backends
from rljax.language import parse
from rljax.models.actors import Drawn, distributions
from rljax.run.data import subjects
from rljax.sampling import acting

Policy = Literal["run", "random", "expert"]
_EPISODES = 128  # played at a time


@dataclasses.dataclass(frozen=True)
class _Uniform:
    """An actor without parameters, whose actions are uniform; an expert's are stored as they are."""

    actions: Any
    scored = (True,)
    kind = "uniform"

    def stored(self, action: types.Array, keys: types.Key) -> types.Array:
        return action

    def draw(self, params: Any, observation: types.Array, keys: types.Key, *_: Any) -> Drawn:
        count, size = getattr(self.actions, "count", 0), getattr(self.actions, "size", 0)
        if count:
            taken = jax.vmap(lambda key: jax.random.randint(key, (), 0, count))(keys)
        else:
            taken = jax.vmap(lambda key: jax.random.uniform(key, (size,), minval=-1.0))(keys)
        logp = jnp.full(keys.shape, -np.log(count) if count else -size * np.log(2.0))
        return Drawn(taken, taken, logp, -logp)


def record(
    task: Any,
    steps: int,
    file: storage.Path,
    actor: Any = None,
    params: types.Tree = None,
    *,
    expert: bool = False,
    temperature: float = 1.0,
    seed: int = 0,
) -> dict[str, np.ndarray]:
    """Write steps of whole episodes to a file, the last one cut; return its arrays.

    Log-probs are written where actions are categorical, uniform or tanh(u); those that are clipped have no density.

    Args:
      task: a control world.
      steps: N.
      file: a new .npz file.
      actor: the policy's; None: actions are uniform.
      params: the policy's parameters.
      expert: whether the rules' expert acts.
      temperature: of the actions; 0: the most probable ones.
      seed: of the problems, which are of the training split, and of the actions.

    Raises:
      ValueError: the file has another ending or is there, or the rules have no expert.
    """
    if not os.fspath(file).endswith(".npz"):
        raise ValueError(f"{file}: must end with .npz")
    if storage.exists(storage.path(file)):
        raise ValueError(f"{file}: is there already")
    if traits.traits(task).actions is None:
        raise ValueError(f"task {task.name!r} is no control world")
    if expert and not hasattr(task.rules, "expert"):
        raise ValueError(f"the rules of task {task.name!r} have no expert")
    rules, network = task.rules, actor or _Uniform(task.actions)
    squash = getattr(getattr(network, "architecture", None), "squash", False)
    play = _player(rules, network, params, temperature, expert, squash)
    of = stored_steps
    names = (of.SEEN, of.TAKEN, of.PAID, of.ENDS, of.CUTS, of.NEXT, of.LOGP)
    names = (*names, of.LEGAL, of.LATER) if hasattr(rules, "legal") else names
    parts: list[Any] = []
    key, count, number = jax.random.key(seed), 0, 0
    first = int(jax.random.randint(key, (), 0, task.size("train")))
    while count < steps:
        index = (first + number * _EPISODES + np.arange(_EPISODES)) % task.size("train")
        keys = jax.random.split(jax.random.fold_in(key, number), _EPISODES)
        sound, arrays = jax.device_get(play(jnp.asarray(index, jnp.int32), keys))
        if not sound.any():
            raise ValueError(f"task {task.name!r}: every episode crashed")
        parts.append([x[sound > 0] for x in arrays if x is not None])
        count, number = count + int(sound.sum()), number + 1
    out = {name: np.concatenate(x)[:steps] for name, x in zip(names, zip(*parts, strict=True), strict=True)}
    out[stored_steps.CUTS][-1] |= ~out[stored_steps.ENDS][-1]
    if expert or temperature <= 0 or not (squash or network.kind in ("categorical", "uniform")):
        del out[stored_steps.LOGP]
    content = io.BytesIO()
    np.savez_compressed(content, **out, **{stored_steps.WORLD: np.array(task.name)})
    storage.write(storage.path(file), content.getvalue())
    return out


def _player(rules: Any, network: Any, params: types.Tree, temperature: float, expert: bool, squash: bool) -> Any:
    """Return compiled (index, keys) -> (1 on sound steps, the arrays of files), ``[B, T, ...]`` each."""
    n = len(network.scored)

    @jax.jit
    def play(index: types.Array, keys: types.Key) -> Any:
        begun = acting.begun(rules, index, "train")
        given = begun, keys, rules.horizon, temperature
        episodes, trace = acting.unroll(network, rules, params, *given, expert=expert)
        assert trace is not None
        each = jax.tree.map(lambda x: x.reshape(-1, n, *x.shape[1:])[:, -1], trace)  # the last position of each step
        whole = jax.tree.map(lambda x: jnp.sum(x.reshape(-1, n, *x.shape[1:]), axis=1), (trace.reward, trace.logp))
        now = acting.seen(rules, episodes.system)
        after, legal = (
            None if x is None or y is None else jnp.concatenate([x[1:], y[None]])
            for x, y in zip((each.observation, each.legal), now, strict=True)
        )
        taken = each.taken
        if network.kind in ("gaussian", "denoiser"):
            taken = distributions.acted(network.kind, squash, taken)
        last = each.time + 1 == episodes.time[None]
        stop = last & (episodes.finish == types.Finish.STOP)[None]
        sound = each.mask * (episodes.outcome != types.Outcome.CRASHED)[None]
        arrays = each.observation, taken, whole[0], stop, last & ~stop, after, whole[1], each.legal, legal
        return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), (sound, arrays))

    return play


def command(subject: str, file: str, steps: int, policy: Policy, step: int | None, **options: Any) -> str:
    """Record steps; return a line about them.

    Args:
      subject: the work directory of a run, whose policy acts and whose task it is; else a config or a task.
      file: to write.
      steps: N.
      policy: who acts.
      step: of the run's checkpoint; None: the newest.
      **options: ``temperature``, ``seed``, and ``changes`` of a config.
    """
    from rljax.run.evaluation import loading

    backends.start()
    changes, given = options.pop("changes"), {}
    if subjects.is_task(subject) or not storage.is_dir(storage.path(subject)):
        if policy == "run":
            raise ValueError(f"{subject}: no work directory of a run; --policy may be random or expert")
        if subjects.is_task(subject):
            task = parse.one(subject, parse.Registry("task", environments.TASKS), "data record")
        else:
            task = subjects.load(subject, changes).task
    else:
        program, params, step = loading.load(subject, step=step)
        setup = program.setups[program.number(step - 1)]
        task = setup.task
        given = {"actor": setup.networks["policy"], "params": params} if policy == "run" else {}
    out = record(task, steps, file, **given, expert=policy == "expert", **options)
    ends = out[stored_steps.ENDS] | out[stored_steps.CUTS]
    mean = out[stored_steps.PAID].sum() / max(1, ends.sum())
    return f"{file}: {len(ends):,} steps of {ends.sum():,} episodes of {task.name}, mean return {mean:.4g}"
