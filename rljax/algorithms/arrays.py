"""Losses and advantages of arrays in hand: no model, no config; for notebooks, tests and other libraries.

rollout = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, behaviour_logp=logp)
loss, metrics = rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=logp))
gradient = jax.grad(lambda x: rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=x))[0])(logp)
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import interpreter, seams
from rljax.language import parse

_PER_TOKEN = (
    *("behaviour_logp", "raw_logp", "entropy", "square_prob", "version", "turn", "token_reward", "advantage"),
    *("value", "returns", "ref_logp", "proximal_logp"),
)
_PER_ROW = ("outcome", "valid", "episode", "agent", "domain", "on_policy", "finish", "index")
_WHOLE = ("version", "turn", "outcome", "episode", "agent", "domain", "finish", "index")


def rollout_from_arrays(
    *,
    mask: Any,
    reward: Any,
    group: Any,
    token: Any = None,
    parts: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **fields: Any,
) -> types.Rollout:
    """Build a rollout of B rows and T tokens from plain arrays.

    Args:
      mask: [B, T], 1 on tokens the policy emitted, 0 on padding and tool output.
      reward: [B].
      group: [B] integers; rows of one prompt share theirs.
      token: [B, T] token ids, for the pieces that read text.
      parts: named numbers of the verifier, [B] each.
      extra: named arrays that a piece asks for, [B, ...] each.
      **fields: any other field of ``types.Rollout``. Per token, [B, T]: behaviour_logp, raw_logp (by default
        behaviour_logp), entropy, square_prob, version, turn, token_reward, advantage, value, returns, ref_logp,
        proximal_logp. Per row, [B]: outcome, valid, rollout, agent, domain, on_policy, finish, index.

    Raises:
      ValueError: an unknown field, or a shape other than these.
    """
    unknown = sorted(set(fields) - {*_PER_TOKEN, *_PER_ROW})
    if unknown:
        raise ValueError(
            f"{unknown[0]!r} is no field of a rollout.{parse.nearest(unknown[0], [*_PER_TOKEN, *_PER_ROW])}"
        )
    fields.setdefault("raw_logp", fields.get("behaviour_logp"))
    given: dict[str, Any] = {name: _array(x, name in _WHOLE) for name, x in fields.items() if x is not None}
    given |= {"mask": _array(mask), "reward": _array(reward), "group": _array(group, whole=True)}
    ids = None if token is None else _array(token, whole=True)
    named = {name: _array(x) for name, x in (parts or {}).items()}
    more = {name: jnp.asarray(x) for name, x in (extra or {}).items()}
    if given["mask"].ndim != 2:
        raise ValueError(f"mask has shape {given['mask'].shape}: expected [B, T]")
    rows, columns = given["mask"].shape
    for name, x in {**given, "token": ids, **named}.items():
        expected = (rows,) if name in ("reward", "group", *_PER_ROW, *named) else (rows, columns)
        if x is not None and x.shape != expected:
            raise ValueError(f"{name} has shape {x.shape}: expected {expected}, as mask is {(rows, columns)}")
    for name, x in more.items():
        if x.shape[:1] != (rows,):
            raise ValueError(f"extra[{name!r}] has shape {x.shape}: expected {rows} rows")
    action = None if ids is None else types.Action(token=ids)
    return types.Rollout(**given, action=action, parts=named, extra=more)


def _array(x: Any, whole: bool = False) -> jax.Array:
    """Return an array of whole numbers, or of floating-point ones."""
    x = jnp.asarray(x)
    if whole:
        return x.astype(jnp.int32)
    return x if jnp.issubdtype(x.dtype, jnp.floating) else x.astype(jnp.result_type(float))


def _algorithm(algorithm: types.Algorithm | str) -> types.Algorithm:
    return seams.algorithm(algorithm, "algorithm") if isinstance(algorithm, str) else algorithm


def advantages(
    algorithm: types.Algorithm | str, rollout: types.Rollout, *, state: types.State = None, key: types.Key | None = None
) -> jax.Array:
    """Return the advantages [B, T] an algorithm gives the rows; ``state`` None is its first step's.

    Raises:
      ValueError: the algorithm has no advantage, or reads what the rollout lacks.
    """
    algorithm = _algorithm(algorithm)
    out, _ = _transformed(algorithm, rollout, state, key)
    if out.advantage is None:
        raise ValueError(f"{algorithm.spec} has no advantage piece")
    return out.advantage


def _transformed(algorithm: types.Algorithm, rollout: types.Rollout, state: types.State, key: types.Key | None):
    state = interpreter.init(algorithm) if state is None else state
    return interpreter.transform(algorithm, rollout, state, jax.random.key(0) if key is None else key)


def objective(
    algorithm: types.Algorithm | str,
    rollout: types.Rollout,
    scores: types.Scores,
    *,
    state: types.State = None,
    key: types.Key | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return (loss, metrics) of arrays in hand, as one step computes them; differentiable in ``scores``.

    The whole batch is one minibatch. Objectives of modules that ``scores`` says nothing of are left out: without
    ``scores.value`` the loss of PPO is that of its policy.

    Args:
      algorithm: an algorithm, or the config's string such as "dapo(high=0.28)".
      rollout: the rows; ``rollout_from_arrays`` makes them.
      scores: what the model says of them; ``logp`` [B, T], and what ``python -m rljax algorithms NAME`` names.
      state: states of the algorithm's pieces (``losses.init`` by default).
      key: for the few pieces that draw.

    Raises:
      ValueError: a name the table lacks, or an input a piece reads and the records lack.
    """
    algorithm = _algorithm(algorithm)
    rollout, state = _transformed(algorithm, rollout, state, key)
    key = jax.random.key(0) if key is None else key
    told = {"policy": scores.logp, "value": scores.value, "reward": scores.reward}
    values, metrics = [], {}
    for i, o in enumerate(algorithm.objectives):
        if told[o.module] is None:
            continue
        own = jax.random.fold_in(key, i)
        rows, inner = interpreter.prepare_minibatch(o, rollout, scores, state["objectives"][i], own)
        value, found = interpreter.loss(o, rows, scores, inner, own)
        values, metrics = [*values, value], {**metrics, **found}
    if not values:
        raise ValueError(f"{algorithm.spec}: scores have none of {', '.join(o.module for o in algorithm.objectives)}")
    return sum(values[1:], values[0]), metrics
