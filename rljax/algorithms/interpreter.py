"""Run an algorithm on records: advantages, a scalar loss, after-update transforms. No model."""

import dataclasses

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.language import errors, parse
from rljax.transforms import ops, trajectories
from rljax.transforms.frame import extras

chain = transforms.chain


def _rollout(algorithm: types.Algorithm) -> types.RolloutTransform:
    return chain(*algorithm.transforms, kind=types.RolloutTransform)


def _after(algorithm: types.Algorithm) -> types.AfterTransform:
    return chain(*algorithm.after, kind=types.AfterTransform)


def _loss(objective: types.Objective) -> types.LossTransform:
    return chain(*objective.loss, kind=types.LossTransform)


def _prepare(objective: types.Objective) -> types.PrepareTransform:
    """Masks first, then what loss pieces ask for, then reductions, which read the final mask."""
    inner = _loss(objective).statistics
    statistics = tuple(p for p in inner if p.seam != "reduce")
    reductions = tuple(p for p in inner if p.seam == "reduce")
    return chain(*objective.prepare, *statistics, objective.reduce, *reductions, kind=types.PrepareTransform)


def rollout_needs(algorithm: types.Algorithm) -> types.Needs:
    """Return what the rollout and after-update transforms need."""
    return _rollout(algorithm).needs | _after(algorithm).needs


def objective_needs(objective: types.Objective) -> types.Needs:
    """Return what an objective's pieces need."""
    return _loss(objective).needs | _prepare(objective).needs


def needs(algorithm: types.Algorithm) -> types.Needs:
    """Return what the whole algorithm needs; ``value`` is of the module "value"."""
    total = rollout_needs(algorithm)
    for o in algorithm.objectives:
        asked = objective_needs(o)
        total |= asked if o.module in ("policy", "value") else dataclasses.replace(asked, value=False)
    return total


def init(algorithm: types.Algorithm) -> types.State:
    """Return the states of all pieces."""
    return {
        "transforms": _rollout(algorithm).init(),
        "objectives": tuple({"prepare": _prepare(o).init(), "loss": _loss(o).init()} for o in algorithm.objectives),
        "after": _after(algorithm).init(),
    }


def transform(
    algorithm: types.Algorithm, rollout: types.Rollout, state: types.State, key: types.Key
) -> tuple[types.Rollout, types.State]:
    """Apply the rollout transforms: reward shaping and advantages. No gradient.

    Args:
      algorithm: the algorithm.
      rollout: the whole batch.
      state: of ``init``, or of the step before.
      key: for pieces that draw random numbers.

    Returns:
      The rollout with rewards and advantages, and the new state.
    """
    extra = {name: x for name, x in rollout.extra.items() if name not in ("total", "uncharged")}
    rollout = jax.lax.stop_gradient(rollout.replace(extra=extra))
    rollout, inner = _rollout(algorithm).apply(rollout, state["transforms"], key)
    if rollout.token_reward is not None:
        extra = {name: x for name, x in rollout.extra.items() if name != "paid"}
        totals = {"total": trajectories.total(rollout), "uncharged": trajectories.uncharged(rollout)}
        rollout = extras.put(rollout.replace(extra=extra), totals)
    return jax.lax.stop_gradient(rollout), {**state, "transforms": inner}


def prepare_minibatch(
    objective: types.Objective, rollout: types.Rollout, scores: types.Scores | None, state: types.State, key: types.Key
) -> tuple[types.Rollout, types.State]:
    """Apply the prepare transforms to a whole minibatch and write every coefficient. No gradient.

    Args:
      objective: one of the algorithm's.
      rollout: the rows of the minibatch, after ``transform``.
      scores: the model's scores of these rows; None if no piece reads them.
      state: the objective's part of the state.
      key: for pieces that draw random numbers.

    Returns:
      The rollout with its final mask and coefficients, and the new state.
    """
    rollout = jax.lax.stop_gradient(rollout.replace(mask=rollout.mask * ops.valid_rows(rollout)[:, None]))
    prepared, inner = _prepare(objective).apply(rollout, jax.lax.stop_gradient(scores), state["prepare"], key)
    average = prepared.mask / jnp.maximum(jnp.sum(prepared.mask), 1.0)
    prepared = prepared.replace(coefficient={**prepared.coefficient, "metric": average})
    return jax.lax.stop_gradient(prepared), {**state, "prepare": inner}


def loss_terms(
    objective: types.Objective, rollout: types.Rollout, scores: types.Scores, state: types.State, key: types.Key
) -> types.Loss:
    """Return the terms and metrics of the loss pieces, per token.

    Args:
      objective: one of the algorithm's.
      rollout: any rows of the minibatch that ``prepare_minibatch`` returned.
      scores: the model's scores of these rows.
      state: the objective's part of the state.
      key: the key given to ``prepare_minibatch``.

    Returns:
      The loss record, with terms of shape ``[B, T]``.
    """
    # prepare_minibatch has the same key: the random numbers of its pieces must differ from these
    return _loss(objective).apply(types.Loss(), rollout, scores, state["loss"], jax.random.fold_in(key, 1))


def loss(
    objective: types.Objective, rollout: types.Rollout, scores: types.Scores, state: types.State, key: types.Key
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Return the sum of term * coefficient over some rows, and metrics; both add up over micro-batches.

    Args:
      objective: one of the algorithm's.
      rollout: any rows of the minibatch that ``prepare_minibatch`` returned.
      scores: the model's scores of these rows; the loss is differentiable in them.
      state: the objective's part of the state.
      key: the key given to ``prepare_minibatch``.

    Returns:
      The loss, a scalar, and scalar metrics by name.

    Raises:
      CodeError: a coefficient for a term that no piece writes.
    """
    built = loss_terms(objective, rollout, scores, state, key)
    unused = sorted({*rollout.coefficient} - {*built.terms, "common", "metric"})
    if unused:
        raise errors.CodeError(
            f"coefficient[{unused[0]!r}] belongs to no term of the loss, so it has no effect."
            f"{parse.nearest(unused[0], built.terms)}"
        )

    def total(array: jax.Array, coefficient: jax.Array) -> jax.Array:
        # a masked token may hold an infinity: it must not meet its zero coefficient in a product
        return jnp.sum(jnp.where(coefficient != 0, array, 0.0) * coefficient)

    terms = {
        name: total(term, rollout.coefficient.get(name, rollout.coefficient["common"]))
        for name, term in built.terms.items()
    }
    metrics = {name: total(array, rollout.coefficient["metric"]) for name, array in built.metrics.items()}
    metrics |= {f"loss/{name}": value for name, value in terms.items()}
    return sum(terms.values(), jnp.zeros(())), metrics


def observe(algorithm: types.Algorithm, state: types.State, metrics: types.Metrics) -> types.State:
    """Update every piece's state once after a step: schedules count, adaptive coefficients follow their metric.

    Args:
      algorithm: the algorithm.
      state: of the step.
      metrics: scalars by name, averaged over the step.

    Returns:
      The state of the next step.
    """
    return {
        "transforms": _rollout(algorithm).observe(state["transforms"], metrics),
        "objectives": tuple(
            {"prepare": _prepare(o).observe(s["prepare"], metrics), "loss": _loss(o).observe(s["loss"], metrics)}
            for o, s in zip(algorithm.objectives, state["objectives"], strict=True)
        ),
        "after": _after(algorithm).observe(state["after"], metrics),
    }


def after(
    algorithm: types.Algorithm,
    reference: types.Tree,
    params: types.Tree,
    metrics: types.Metrics,
    state: types.State,
    key: types.Key,
) -> tuple[types.Tree, types.State]:
    """Apply the after-update transforms to the reference.

    Args:
      algorithm: the algorithm.
      reference: parameters of the reference policy.
      params: parameters of the policy, updated.
      metrics: scalars by name, averaged over the step.
      state: of the step.
      key: for pieces that draw random numbers.

    Returns:
      The new reference and the new state.
    """
    reference, inner = _after(algorithm).apply(reference, params, metrics, state["after"], key)
    return reference, {**state, "after": inner}
