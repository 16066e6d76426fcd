"""How well a reward model ranks completions of held-out prompts: accuracy on pairs, and calibration."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from rljax import environments, sampling, types
from rljax.algorithms import interpreter
from rljax.run import passk
from rljax.training import steps

_KEY = 7  # stream of the root key
_BINS = 10

Floats = npt.NDArray[np.float64]


def models(step: steps.Step) -> tuple[str, ...]:
    """Return the reward models that a phase trains or reads; none if its task is a world or is scored on the host."""
    task, algorithm = step.setup.task, step.setup.algorithm
    if environments.is_world(task) or not environments.scored_on_device(task):
        return ()
    trained = {o.module for o in algorithm.objectives if interpreter.objective_needs(o).reward}
    return tuple(sorted(trained | {name for name, needs in step.setup.phase.read.items() if needs.reward}))


def sampled(step: steps.Step, params: types.Tree, key: types.Key, prompts: int, samples: int) -> types.Rollout:
    """Sample completions of the first held-out prompts and verify them.

    Args:
      step: of a phase on a device task.
      params: the policy's.
      key: the run's root key.
      prompts: P, the number of prompts.
      samples: G, completions of each.

    Returns:
      P * G rows with mask, reward, group, context and action; rows of a prompt are adjacent.
    """
    setup = step.setup
    index = jnp.arange(min(prompts, setup.task.size("heldout")), dtype=jnp.int32)
    asked = setup.task.prompts(index, "heldout")
    of, number = jnp.repeat(index, samples), jnp.tile(jnp.arange(samples, dtype=jnp.int32), index.size)
    keys = sampling.row_keys(jax.random.fold_in(key, _KEY), jnp.int32(0), of, number)
    out = step.generate(params, asked, keys, samples, setup.settings.sampler)
    verdict = step.verify(of, out.token, out.mask)
    context = types.Context(*(jnp.repeat(x, samples, axis=0) for x in (asked.token, asked.mask)))
    rows = types.Rollout(mask=out.mask, reward=verdict.reward, group=of, context=context)
    return rows.replace(action=types.Action(token=out.token, length=out.length), index=of)


def scored(
    step: steps.Step, state: types.TrainState, key: types.Key, prompts: int, samples: int, module: str
) -> tuple[Floats, Floats]:
    """Sample completions of the first held-out prompts, verify them and score them with a reward model.

    Args:
      step: of a phase that trains or reads the module.
      state: its state.
      key: the run's root key.
      prompts: P, the number of prompts.
      samples: G, completions of each.
      module: the reward model.

    Returns:
      The verifier's rewards and the learned ones, ``[P, G]`` each.
    """
    rows = sampled(step, state.params["policy"], key, prompts, samples)
    learned = step.score(module, step.setup.params(state, module), rows, types.Needs(reward=True)).reward
    shape = (-1, samples)
    return np.asarray(rows.reward, np.float64).reshape(shape), np.asarray(learned, np.float64).reshape(shape)


def report(reward: npt.ArrayLike, learned: npt.ArrayLike) -> dict[str, Any]:
    """Return how learned rewards rank completions of one prompt that the verifier pays differently.

    Args:
      reward: ``[P, G]``, the verifier's rewards.
      learned: ``[P, G]``, those of the model.

    Returns:
      "pairs", their number; "accuracy", [mean, low, high], the share that is ranked right, ties as one half, averaged
      over prompts that have a pair, with a 95 % bootstrap interval over these prompts; "calibration_error", the
      expected calibration error of sigmoid(difference) in ten bins of equal width, averaged over pairs.
    """
    r, x = np.asarray(reward, np.float64), np.asarray(learned, np.float64)
    better = r[:, :, None] > r[:, None, :]
    gap = x[:, :, None] - x[:, None, :]
    right = np.where(gap == 0, 0.5, gap > 0)
    counts = better.sum(axis=(1, 2))
    share = (right * better).sum(axis=(1, 2))[counts > 0] / counts[counts > 0]
    if not share.size:
        return {"pairs": 0, "accuracy": None, "calibration_error": None}
    low, high = passk.bootstrap(share)
    # each pair counts with a probability of at least one half: that of the completion which the model prefers
    sure = 1 / (1 + np.exp(-np.abs(gap[better])))
    place = np.minimum(((sure - 0.5) * 2 * _BINS).astype(int), _BINS - 1)
    error = 0.0
    for number in np.unique(place):
        inside = place == number
        error += inside.mean() * abs(right[better][inside].mean() - sure[inside].mean())
    return {
        "pairs": int(counts.sum()),
        "accuracy": [float(share.mean()), float(low[0]), float(high[0])],
        "calibration_error": float(error),
    }
