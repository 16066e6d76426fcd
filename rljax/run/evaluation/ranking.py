"""How well reward models judge completions of held-out prompts: accuracy on pairs and on steps, and calibration."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rljax import environments, sampling, types
from rljax.algorithms import interpreter
from rljax.models import adapters
from rljax.run.evaluation import passk
from rljax.training import steps
from rljax.training.producers import stored
from rljax.transforms import ops

_KEY = 7  # stream of the root key
_BINS = 10

Floats = npt.NDArray[np.float64]


def models(step: steps.Step) -> tuple[str, ...]:
    """Return the reward models of rows that a phase trains or reads, those that are implied by a language model too.

    There are none if nothing says which completions are better: if the task is a world or is scored on the host. Of a
    phase on stored rows, the file says it, of the groups that are held out; the policy is implied as well, if the
    phase reads the reference.
    """
    setup = step.setup
    names = {*_scalars(step, "reward"), *setup.phase.implicit}
    if setup.stored is None:
        return tuple(sorted(names)) if environments.scored_on_device(setup.task) else ()
    names |= {"policy"} if setup.phase.implies else set()
    return tuple(sorted(names)) if setup.stored.heldout is not None else ()


def of_steps(step: steps.Step) -> tuple[str, ...]:
    """Return the process reward models that a phase trains or reads, where its task says which steps are right."""
    task = step.setup.task
    supplied = "token_reward" in getattr(task, "supplies", ())
    return _scalars(step, "process") if supplied and environments.scored_on_device(task) else ()


def _scalars(step: steps.Step, field: str) -> tuple[str, ...]:
    trained = {o.module for o in step.setup.algorithm.objectives if getattr(interpreter.objective_needs(o), field)}
    read = {name for name, needs in step.setup.phase.read.items() if getattr(needs, field)}
    return tuple(sorted(trained | read))


def sampled(step: steps.Step, params: types.Tree, key: types.Key, prompts: int, samples: int) -> types.Rollout:
    """Sample completions of the first held-out prompts and verify them.

    Args:
      step: of a phase on a device task.
      params: the policy's.
      key: the run's root key.
      prompts: P, the number of prompts.
      samples: G, completions of each.

    Returns:
      P * G rows with mask, reward, token rewards if there are any, group, context and action; rows of a prompt are
      adjacent.
    """
    setup = step.setup
    index = jnp.arange(min(prompts, setup.task.size("heldout")), dtype=jnp.int32)
    asked = setup.task.prompts(index, "heldout")
    of, number = jnp.repeat(index, samples), jnp.tile(jnp.arange(samples, dtype=jnp.int32), index.size)
    keys = sampling.row_keys(jax.random.fold_in(key, _KEY), jnp.int32(0), of, number)
    out = step.generate(params, asked, keys, samples, setup.settings.sampler)
    verdict = step.verify(of, "heldout", out.token, out.mask)
    context = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), asked.context)
    rows = types.Rollout(out.mask, verdict.reward, of, context, token_reward=verdict.token_reward)
    return rows.replace(action=types.Action(token=out.token, length=out.length), index=of)


def heldout(step: steps.Step, most: int) -> types.Rollout:
    """Return the rows of held-out groups of the file of a phase on stored rows, at most so many rows."""
    groups = step.setup.stored and step.setup.stored.heldout
    assert groups is not None
    index = np.arange(min(max(1, most // step.setup.samples), len(groups)), dtype=np.int32)
    return stored.Stored(step.setup, groups).of(index, index)


def scored(
    step: steps.Step, state: types.TrainState, key: types.Key, prompts: int, samples: int, module: str
) -> tuple[Floats, Floats]:
    """Score completions of the first held-out prompts with a reward model.

    They are sampled and verified; a phase on stored rows has them from its file, at most as many rows.

    Args:
      step: of a phase that trains or reads the module.
      state: its state.
      key: the run's root key.
      prompts: P, the number of prompts.
      samples: G, completions of each that are sampled.
      module: the reward model.

    Returns:
      The rewards of the verifier or of the file and the learned ones, ``[P, G]`` each; a model that is implied has its
      log-ratios to the reference for a reward, summed over the row.
    """
    if step.setup.stored is None:
        rows, each = sampled(step, state.params["policy"], key, prompts, samples), samples
    else:
        rows, each = heldout(step, prompts * samples), step.setup.samples
    shape = (-1, each)
    if module == "policy" or module in step.setup.phase.implicit:
        learned = implied(step, state, rows, module)
    else:
        learned = step.score(module, step.setup.params(state, module), rows, types.Needs(reward=True)).reward
    return np.asarray(rows.reward, np.float64).reshape(shape), np.asarray(learned, np.float64).reshape(shape)


def implied(step: steps.Step, state: types.TrainState, rows: types.Rollout, module: str) -> types.Array:
    """Return the log-ratio of a module to the reference, summed over the tokens of each row, ``[B]`` in nats."""
    reference = adapters.joined(state.reference, state.params["policy"])
    scores = step.score(module, step.setup.params(state, module), rows, types.Needs())
    plain = step.score("policy", reference, rows, types.Needs())
    return jnp.sum(ops.live_logp(rows, scores) - ops.live_logp(rows, plain), axis=1)


def labelled(
    step: steps.Step, state: types.TrainState, key: types.Key, prompts: int, samples: int, module: str
) -> tuple[Floats, Floats]:
    """Sample completions as ``scored`` does and score their steps with a process reward model.

    Args:
      step: of a phase that trains or reads the module.
      state: its state.
      key: the run's root key.
      prompts: P, the number of prompts.
      samples: G, completions of each.
      module: the process reward model.

    Returns:
      Labels, above 0 where a step ends right, below where wrong, else 0; and logits. ``[P, G T]`` each.
    """
    rows = sampled(step, state.params["policy"], key, prompts, samples)
    logit = step.score(module, step.setup.params(state, module), rows, types.Needs(process=True)).process
    label = ops.given(rows.token_reward, "the task pays no steps") * rows.mask
    shape = (-1, samples * rows.mask.shape[1])
    return np.asarray(label, np.float64).reshape(shape), np.asarray(logit, np.float64).reshape(shape)


def records(
    step: steps.Step, state: types.TrainState, key: types.Key, evaluated: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Return how well the modules of a phase rank completions of held-out prompts.

    Args:
      step: of the phase.
      state: its state.
      key: the run's root key.
      evaluated: the record of an evaluation, whose prompts and samples these have too.

    Returns:
      "ranking", what ``report`` returns by reward model; "process", what ``steps_report`` returns by process reward
      model; each if the phase has any.
    """
    given, out = (step, state, key, evaluated["prompts"], max(2, evaluated["samples"])), {}
    if names := models(step):
        out["ranking"] = {name: report(*scored(*given, name)) for name in names}
    if names := of_steps(step):
        out["process"] = {name: steps_report(*labelled(*given, name)) for name in names}
    return out


def report(reward: npt.ArrayLike, learned: npt.ArrayLike) -> dict[str, Any]:
    """Return how learned rewards rank completions of one prompt that the verifier pays differently.

    Args:
      reward: ``[P, G]``, the verifier's rewards.
      learned: ``[P, G]``, the rewards of the model.

    Returns:
      "pairs", their number; "accuracy", [mean, low, high], the share that is ranked right, ties as one half, averaged
      over prompts that have a pair, with a 95 % bootstrap interval over these prompts; "calibration_error", the
      expected calibration error of sigmoid(difference) in ten bins of equal width, averaged over pairs; "best_of_k",
      {k: [mean, low, high]} for powers of two k, how often the one of k that the model prefers is paid more than 0.
    """
    r, x = np.asarray(reward, np.float64), np.asarray(learned, np.float64)
    ks = passk.powers_of_two(r.shape[1])
    best = dict(zip(map(str, ks), passk.means(passk.best_of_k(x, r > 0, ks)), strict=True))
    out: dict[str, Any] = {"pairs": 0, "accuracy": None, "calibration_error": None, "best_of_k": best}
    better = r[:, :, None] > r[:, None, :]
    gap = x[:, :, None] - x[:, None, :]
    right = np.where(gap == 0, 0.5, gap > 0)
    counts = better.sum(axis=(1, 2))
    share = (right * better).sum(axis=(1, 2))[counts > 0] / counts[counts > 0]
    if not share.size:
        return out
    # each pair counts with the probability of the completion that the model prefers, at least one half
    sure = 1 / (1 + np.exp(-np.abs(gap[better])))
    place = np.minimum(((sure - 0.5) * 2 * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for number in np.unique(place):
        inside = place == number
        error += inside.mean() * abs(right[better][inside].mean() - sure[inside].mean())
    return out | {"pairs": int(counts.sum()), "accuracy": passk.means(share)[0], "calibration_error": float(error)}


def steps_report(label: npt.ArrayLike, logit: npt.ArrayLike) -> dict[str, Any]:
    """Return how well a process reward model judges steps.

    Args:
      label: ``[P, N]``, above 0 where a step ends that is right, below 0 where one ends that is wrong, else 0.
      logit: ``[P, N]``, above 0 where the model says right.

    Returns:
      "steps", their number; "right", the share of them that is right; "accuracy", [mean, low, high], the share that
      the model judges as labelled, averaged over prompts, with a 95 % bootstrap interval over these; "accuracy_right"
      and "accuracy_wrong", the accuracy on right and on wrong steps, None without any.
    """
    y, x = np.asarray(label, np.float64), np.asarray(logit, np.float64)
    agree, counts = (y > 0) == (x > 0), (y != 0).sum(axis=1)
    share = (agree & (y != 0)).sum(axis=1)[counts > 0] / counts[counts > 0]
    if not share.size:
        return {"steps": 0, "right": None, "accuracy": None, "accuracy_right": None, "accuracy_wrong": None}
    of = {name: agree[at] for name, at in (("accuracy_right", y > 0), ("accuracy_wrong", y < 0))}
    return {
        "steps": int(counts.sum()),
        "right": float((y > 0).sum() / counts.sum()),
        "accuracy": passk.means(share)[0],
        **{name: float(x.mean()) if x.size else None for name, x in of.items()},
    }
