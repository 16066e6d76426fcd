"""Losses and advantages of arrays in hand: no model, no config; for notebooks, tests and other libraries.

    rollout = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, behaviour_logp=logp)
    loss, metrics = rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=logp))
    gradient = jax.grad(lambda x: rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=x))[0])(logp)

    rows = rljax.transform("dapo()", rollout)  # rows.reward, rows.advantage, rows.returns
    terms = rljax.penalty_terms("kl('k3', 0.1) | entropy(0.01)", rollout, scores)  # {"kl": [B, T], ...}

Rows that already have an advantage are used as they are: ``objective`` then skips the algorithm's reward and advantage
pieces, so that ``objective(a, transform(a, rollout), scores)`` is ``objective(a, rollout, scores)``.
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.algorithms import interpreter, records, seams
from rljax.language import parse
from rljax.transforms import reduce
from rljax.transforms.frame import shapes

rollout_from_arrays = records.rollout_from_arrays

_ROLLOUT_SEAMS = ("reward", "advantage")
_OBJECTIVE_SEAMS = tuple(seam for seam in transforms.SEAMS if seam not in ("source", "after"))


def _algorithm(
    algorithm: types.Algorithm | str, seam: Mapping[str, str] | None, valid: tuple[str, ...]
) -> types.Algorithm:
    """Build the algorithm and edit its seams; ``valid`` are the seams that the calling function reads."""
    built = seams.algorithm(algorithm, "algorithm") if isinstance(algorithm, str) else algorithm
    if not seam:
        return built
    for name in seam:
        if name not in valid:
            raise ValueError(f"seam[{name!r}] has no effect here.{parse.nearest(name, valid)}")
    return seams.edited(built, {**dict.fromkeys(transforms.SEAMS, ""), **seam}, prefix="seam.")


def _transformed(
    algorithm: types.Algorithm, rollout: types.Rollout, state: types.State, key: types.Key | None
) -> tuple[types.Rollout, types.State]:
    state = interpreter.init(algorithm) if state is None else state
    return interpreter.transform(algorithm, rollout, state, jax.random.key(0) if key is None else key)


def transform(
    algorithm: types.Algorithm | str,
    rollout: types.Rollout,
    *,
    seam: Mapping[str, str] | None = None,
    state: types.State = None,
    key: types.Key | None = None,
) -> types.Rollout:
    """Return the rows with the rewards, advantages and returns an algorithm gives them.

    Args:
      algorithm: an algorithm, or the config's string such as ``"dapo(high=0.28)"``.
      rollout: the rows, without an advantage.
      seam: edits of the seams reward and advantage, as in ``config.seam``: ``{"advantage": "+ whiten()"}``.
      state: states of the algorithm's pieces; None: the states of its first step.
      key: for the few pieces that draw random numbers.

    Returns:
      The rollout with ``reward`` and ``token_reward`` shaped, and with ``advantage`` ``[B, T]`` and ``returns``
      ``[B, T]`` where the algorithm has pieces that write them.

    Raises:
      ValueError: an unknown name, an advantage that is there already, or an input that a piece reads and the rollout
        lacks.
    """
    built = _algorithm(algorithm, seam, _ROLLOUT_SEAMS)
    shapes.check_rollout(rollout)
    if rollout.advantage is not None:
        raise ValueError(
            "the rollout already has an advantage, which rljax.objective uses as it is; "
            "to compute another one, call this with rollout.replace(advantage=None)"
        )
    return _transformed(built, rollout, state, key)[0]


def advantages(
    algorithm: types.Algorithm | str,
    rollout: types.Rollout,
    *,
    seam: Mapping[str, str] | None = None,
    state: types.State = None,
    key: types.Key | None = None,
) -> jax.Array:
    """Return the advantages an algorithm gives the rows.

    Args:
      algorithm: an algorithm, or the config's string such as ``"dapo(high=0.28)"``.
      rollout: the rows, without an advantage.
      seam: edits of the seams reward and advantage, as in ``config.seam``.
      state: states of the algorithm's pieces; None: the states of its first step.
      key: for the few pieces that draw random numbers.

    Returns:
      ``[B, T]``, 0 on tokens that do not count.

    Raises:
      ValueError: the algorithm has no advantage piece, or what ``transform`` raises.
    """
    built = _algorithm(algorithm, seam, _ROLLOUT_SEAMS)
    out = transform(built, rollout, state=state, key=key)
    if out.advantage is None:
        raise ValueError(f"{built.spec} has no advantage piece")
    return out.advantage


def _pieces(algorithm: types.Algorithm) -> list[types.Transform]:
    """Return the pieces that ``objective`` runs."""
    parts = [p for o in algorithm.objectives for p in (*o.prepare, *o.loss, o.reduce)]
    statistics = [q for p in parts for q in getattr(p, "statistics", ())]
    return [*algorithm.transforms, *parts, *statistics]


def _with_proximal(algorithm: types.Algorithm, rollout: types.Rollout) -> types.Rollout:
    """Let ``proximal_logp`` default to ``behaviour_logp`` where no piece compares the two."""
    if rollout.behaviour_logp is None or rollout.proximal_logp is not None:
        return rollout
    for p in _pieces(algorithm):
        if p.needs.behaviour and (p.needs.proximal or p.needs.fixed_proximal):
            raise ValueError(
                f"the rollout has behaviour_logp but no proximal_logp, and {p.spec or algorithm.spec} compares them. "
                "Set proximal_logp to the log-probs of the policy at the start of the update."
            )
    return rollout.replace(proximal_logp=rollout.behaviour_logp)


def _skips_transforms(algorithm: types.Algorithm, seam: Mapping[str, str], rollout: types.Rollout) -> bool:
    """Return whether the rows have the advantage that the algorithm's reward and advantage pieces would compute."""
    if rollout.advantage is None or all(p.seam == "reward" for p in algorithm.transforms):
        return False
    unused = [name for name in _ROLLOUT_SEAMS if seam.get(name, "").strip()]
    if unused:
        raise ValueError(
            f"seam[{unused[0]!r}] has no effect: the rollout has an advantage, which is used as it is. "
            "To compute another one, call this with rollout.replace(advantage=None)."
        )
    return True


def objective(
    algorithm: types.Algorithm | str,
    rollout: types.Rollout,
    scores: types.Scores,
    *,
    seam: Mapping[str, str] | None = None,
    state: types.State = None,
    key: types.Key | None = None,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return (loss, metrics) of arrays in hand, as one step computes them; differentiable in ``scores``.

    The whole batch is one minibatch. Objectives of modules that ``scores`` says nothing of are left out: without
    ``scores.value`` the loss of PPO is the loss of its policy.

    A ratio to the proximal policy reads ``rollout.proximal_logp``. Without it, it reads ``behaviour_logp``, unless a
    piece of the algorithm compares the two, which is an error. Without either, the rows count as sampled by the
    current policy, and the ratio is 1.

    Args:
      algorithm: an algorithm, or the config's string such as ``"dapo(high=0.28)"``.
      rollout: the rows; ``rollout_from_arrays`` builds them. An advantage they have is used as it is, and the
        algorithm's reward and advantage pieces are skipped.
      scores: what the model gives for them; ``logp`` ``[B, T]``, and what ``python -m rljax algorithms NAME`` names.
      seam: edits of seams, as in ``config.seam``: ``{"weight": "truncated_importance(2.0)", "penalty": "none"}``.
      state: states of the algorithm's pieces; None: the states of its first step.
      key: for the few pieces that draw random numbers.

    Returns:
      The loss, a scalar, and scalar metrics by name.

    Raises:
      ValueError: an unknown name, a field of another shape or type, or an input that a piece reads and the records
        lack.
    """
    built = _algorithm(algorithm, seam, _OBJECTIVE_SEAMS)
    shapes.check_rollout(rollout)
    shapes.check_scores(scores, rollout)
    state = interpreter.init(built) if state is None else state
    if not _skips_transforms(built, seam or {}, rollout):
        rollout, state = _transformed(built, rollout, state, key)
    rollout = _with_proximal(built, rollout)
    key = jax.random.key(0) if key is None else key
    scored = {row.module for name, row in types.SCORES.items() if getattr(scores, name) is not None}
    values, metrics = [], {}
    for i, o in enumerate(built.objectives):
        if (o.module if o.module in ("policy", "value") else "other") not in scored:
            continue
        objective_key = jax.random.fold_in(key, i)
        rows, inner = interpreter.prepare_minibatch(o, rollout, scores, state["objectives"][i], objective_key)
        value, measured = interpreter.loss(o, rows, scores, inner, objective_key)
        values, metrics = [*values, value], {**metrics, **measured}
    if not values:
        raise ValueError(f"{built.spec}: scores have none of {', '.join(o.module for o in built.objectives)}")
    return sum(values[1:], values[0]), metrics


def penalty_terms(
    penalties: str, rollout: types.Rollout, scores: types.Scores, *, key: types.Key | None = None
) -> dict[str, jax.Array]:
    """Return the terms that penalties add to the loss, per token, before they are reduced; differentiable.

    The whole batch is one minibatch. Penalties of one name add up, as in the loss.

    Args:
      penalties: pieces of the seam penalty, such as ``"kl('k3', 0.1) | entropy(0.01)"``.
      rollout: the rows.
      scores: what the model gives for them.
      key: for pieces that draw random numbers.

    Returns:
      ``[B, T]`` by the term's name, 0 on masked tokens: the coefficient times the estimate, with the sign that it has
      in the loss.

    Raises:
      ValueError: an unknown name, a field of another shape or type, or an input that a penalty reads and the records
        lack.
    """
    shapes.check_rollout(rollout)
    shapes.check_scores(scores, rollout)
    loss = seams.pieces("penalty", penalties, "penalties")
    key = jax.random.key(0) if key is None else key
    o = types.Objective(loss=loss, reduce=reduce.mean_over_tokens())
    state = interpreter.init(types.Algorithm(objectives=(o,)))["objectives"][0]
    rows, state = interpreter.prepare_minibatch(o, rollout, scores, state, key)
    terms = interpreter.loss_terms(o, rows, scores, state, key).terms
    return {name: jnp.where(rows.mask > 0, term, 0.0) for name, term in terms.items()}
