"""Rows of stored groups, which the host passes to the compiled update."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.algorithms import interpreter
from rljax.data import stored_groups
from rljax.training import phases


def groups(setup: phases.Setup) -> stored_groups.Groups:
    """Return the stored groups of a phase."""
    assert setup.stored is not None
    return setup.stored


def wants_behaviour(setup: phases.Setup) -> bool:
    """Return whether the algorithm reads behaviour log-probs that the file does not have."""
    needed = interpreter.needs(setup.algorithm).behaviour
    return setup.stored is not None and needed and setup.stored.behaviour_logp is None


def rows(
    setup: phases.Setup, position: np.ndarray, index: np.ndarray, place: np.ndarray | None = None
) -> types.Rollout:
    """Return stored rows as a rollout of NumPy arrays.

    Args:
      setup: the phase on devices.
      position: ``[P]`` int32 position of each group in the run, which becomes the rows' group.
      index: ``[P]`` int32 number of each group in the file.
      place: ``[n]`` int, which of the P * G rows; None: all.

    Returns:
      n rows, off-policy; a row's outcome is correct at reward 1, wrong at 0, else unjudged.
    """
    stored = groups(setup)
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
        "on_policy": np.zeros(place.shape, np.float32),
        "episode": place.astype(np.int32),
        "agent": zero,
        "domain": zero,
        "index": of.astype(np.int32),
        "parts": {name: taken(x) for name, x in stored.parts.items()},
    }
    if stored.behaviour_logp is not None:
        fields["behaviour_logp"] = taken(stored.behaviour_logp)
    elif wants_behaviour(setup):
        raise ValueError(f"{setup.algorithm.source.spec}: behaviour log-probs are read before they are computed")
    return types.Rollout(**fields)


def _any(x: np.ndarray) -> Any:
    return x


def example(setup: phases.Setup, count: int) -> types.Rollout:
    """Return the rows of ``count`` groups for their shapes; behaviour log-probs that are missing are 0."""
    stored = groups(setup)
    each, width = stored.length.shape[1], stored.token.shape[2]
    rows_of, number = count * each, np.zeros((count * each,), np.float32)
    tokens, ids = np.zeros((rows_of, width), np.float32), np.zeros((rows_of,), np.int32)
    prompt = np.zeros((rows_of, setup.task.prompt_length), np.int32)
    fields: dict[str, Any] = dict.fromkeys(("group", "outcome", "finish", "episode", "agent", "domain", "index"), ids)
    fields |= dict.fromkeys(("reward", "valid", "on_policy"), number)
    if stored.behaviour_logp is not None or wants_behaviour(setup):
        fields["behaviour_logp"] = tokens
    blank = types.Rollout(
        mask=_any(tokens),
        context=types.Context(token=_any(prompt), mask=_any(prompt.astype(np.float32))),
        action=types.Action(token=_any(tokens.astype(np.int32)), length=_any(ids)),
        turn=_any(tokens.astype(np.int32)),
        parts={name: _any(number) for name in stored.parts},
        **fields,
    )
    return jax.tree.map(jnp.asarray, blank)
