"""The arrays of ``Rollout.extra`` that rljax writes or reads by name: the shape and the meaning of each, declared once.

Names of a user need no row: a piece's own array, which ``define.statistic`` names, those that ``World.extra`` declares,
and arrays in hand (``rollout_from_arrays``).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from rljax import types


class Extra(NamedTuple):
    """The row of an array."""

    meaning: str
    shape: tuple[Any, ...] = ("B", "T")  # ... is any further size


_ROW = ("B",)

EXTRAS = {
    # of how the rows were made: written by the rollout
    "repeat": Extra("how often the step had drawn the row's prompt before", _ROW),
    "slots": Extra("token slots that decoding has used for each row, on average", _ROW),
    "head": Extra("1 on the tokens of a head, which the source gave and the policy did not sample; their mask is 0"),
    "written": Extra("the mask as sampled: 1 on what a player wrote, whoever it was"),
    # of a second pass
    "pass": Extra("1 in rows of a second pass", _ROW),
    "first_reward": Extra("the total reward of the row that the first pass had in the same place", _ROW),
    "first_outcome": Extra("the outcome of this row, CRASHED if it is invalid", _ROW),
    # of files
    "late": Extra("groups that the step has left out, since their version was too old", _ROW),
    # of the update
    "now": Extra("the number of updates before this one", _ROW),
    "place": Extra("the number of the row in the batch", _ROW),
    "previous_logp": Extra("log-probs of the policy one step earlier, unfiltered, nats"),
    "log_ratio": Extra("logp - behaviour_logp in the last gradient step, of the rows that are logged"),
    # of rewards
    "paid": Extra("token rewards without what a KL has charged"),
    "uncharged": Extra("the total reward without what a KL has charged", _ROW),
    "step_end": Extra("not 0 where a step ends, whatever it is paid"),
    # of sources
    "used": Extra("1 on the tokens of earlier steps, which the policy has been trained on"),
    "probe_logp": Extra("log-probs of what wrote the tokens of a probe, nats"),
    "reference_answer": Extra("1 on the tokens of the answer that the source wrote behind a thought"),
    "cut_reward": Extra("mean reward of the endings behind each token budget", ("B", ...)),
    "segment": Extra("token budgets that are spent before a token"),
    "summary": Extra("reward of the last budget's ending in the row, less the mean of such endings", _ROW),
    # of worlds, on the tokens of a turn
    "match": Extra("1 on turns that match the recorded one"),
    "tag": Extra("the kind of the turn, from 1; 0 for none"),
    # only with arrays in hand
    "node": Extra("the node of the group's tree in which a token is"),
    "token_score": Extra("scores of tokens by a model that is not trained"),
    # of prepare pieces, for losses
    "solve_rate": Extra("share of the group's valid rows that are correct", _ROW),
    "preference": Extra("1 on the better row of a pair, -1 on the worse, 0 on the others", _ROW),
    "margin": Extra("difference of the rewards of the row's pair", _ROW),
    "covariant": Extra("1 on the tokens that are dropped for their covariance"),
}


def put(rollout: types.Rollout, arrays: Mapping[str, types.Array]) -> types.Rollout:
    """Write arrays into ``extra``, beside those that it has.

    Args:
      rollout: the rows.
      arrays: by names of ``EXTRAS``, in the shapes of their rows.

    Returns:
      The rows.

    Raises:
      KeyError: a name has no row.
    """
    for name in arrays:
        EXTRAS[name]
    return rollout.replace(extra={**rollout.extra, **arrays})
