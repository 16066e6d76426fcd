"""An update whose rows arrive in parts: gradients of a micro-batch are computed while the next ones are sampled.

The policy is fixed until the last part, and part j is micro-batch j: the step is the one without ``run.overlap``.
Coefficients are of the whole minibatch, which has not arrived: those of part j are computed as if the later rows were
invalid, and the gradient so far is multiplied by the factor of the earlier coefficients,

    G_j = r_j G_(j-1) + g_j        r_j = sum of c_j / sum of c_(j-1), over the rows before part j.

So G of the last part is the gradient of the minibatch, up to rounding, where later rows change nothing else: advantages
read their group alone, and all coefficients of a loss share one factor. Each part compares what it prepares with what
the part before had prepared; where they differ, the gradient is NaN, and the update is skipped.

Source: Periodic Asynchrony (arXiv 2511.18871; method from memory).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import interpreter
from rljax.training import phases, sharding
from rljax.training.learning import gradients, updates

_OPAQUE = dict.fromkeys(("context", "action"))  # fields that no coefficient changes


class Arrived(flax.struct.PyTreeNode):
    """The parts of a step that have arrived.

    Attributes:
      rows: ``[B]``, complete; 0 where no part has arrived.
      prepared: the same as each objective has prepared them, without prompts and actions.
      totals: by objective, ((loss, metrics), gradient) of these rows.
      same: by field, whether later parts have left what earlier parts prepared.
    """

    rows: types.Rollout
    prepared: dict[int, types.Rollout]
    totals: dict[int, Any]
    same: dict[str, types.Array]


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The compiled functions of a step in parts; ``accumulate`` donates what has arrived, and ``finish`` the state.

    ``arrived`` is abstract, with shardings.
    """

    arrived: Arrived
    start: Callable[[], Arrived]
    accumulate: Callable[[types.TrainState, Arrived, types.Rollout, Any, types.Key], Arrived]
    finish: Callable[[types.TrainState, Arrived, types.Key], tuple[types.TrainState, dict[str, types.Array]]]


def compiled(setup: phases.Setup, state: types.TrainState, layout: types.TrainState, rows: types.Rollout) -> Compiled:
    """Return the functions of a step.

    Args:
      setup: the phase on devices.
      state: abstract.
      layout: the shardings of the state.
      rows: the rows of a step as they arrive, abstract.
    """
    one, by_rows = sharding.replicated(setup.mesh), sharding.batch_sharding(setup.mesh)

    def blank(state: types.TrainState, rows: types.Rollout) -> Arrived:
        rows = updates.complete(setup, state, rows)
        minibatches, total = _prepared(setup, state, rows, jnp.zeros((), jnp.int32), jax.random.key(0))
        same = dict.fromkeys(_changes(rows, rows, jnp.ones(rows.mask.shape[:1], bool)), jnp.array(True))
        return Arrived(rows, minibatches, total, same)

    shapes = jax.eval_shape(blank, state, rows)
    gradients_of = {
        joint[0]: ((one, jax.tree.map(lambda x: one, shapes.totals[joint[0]][0][1])), setup.part(layout.params, joint))
        for joint in setup.phase.joint
    }
    places = Arrived(
        jax.tree.map(lambda x: by_rows, shapes.rows),
        jax.tree.map(lambda x: by_rows, shapes.prepared),
        gradients_of,
        jax.tree.map(lambda x: one, shapes.same),
    )

    def start() -> Arrived:
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        return zeros.replace(same=jax.tree.map(jnp.ones_like, zeros.same))

    out = (layout, one)
    return Compiled(
        jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, places),
        jax.jit(start, out_shardings=places),
        jax.jit(functools.partial(accumulate, setup), donate_argnums=1, out_shardings=places),
        jax.jit(functools.partial(finish, setup), donate_argnums=0, out_shardings=out),
    )


def accumulate(
    setup: phases.Setup, state: types.TrainState, arrived: Arrived, rows: types.Rollout, number: Any, key: types.Key
) -> Arrived:
    """Add the rows of a micro-batch.

    Args:
      setup: the phase on devices.
      state: the state before the update.
      arrived: the micro-batches before.
      rows: whole groups, as the sampler returns them.
      number: of the micro-batch, from 0.
      key: the run's root key.

    Returns:
      What has arrived.
    """
    first = number * rows.mask.shape[0]
    rows = sharding.constrain(rows.replace(episode=rows.episode + first), setup.mesh)
    rows = updates.complete(setup, state, rows, whole=False)
    whole = jax.tree.map(
        lambda x, new: jax.lax.dynamic_update_slice_in_dim(x, new.astype(x.dtype), first, 0), arrived.rows, rows
    )
    earlier, same = jnp.arange(whole.mask.shape[0]) < first, arrived.same
    prepared, totals = _prepared(setup, state, whole, number, key)
    for lead, total in totals.items():
        factors = _factors(arrived.prepared[lead], prepared[lead], earlier)
        agree = _changes(_scaled(arrived.prepared[lead], factors), prepared[lead], earlier)
        same = {name: same[name] & agree[name] for name in same}
        totals[lead] = _sum(arrived.totals[lead], factors, total)
    return Arrived(whole, prepared, totals, same)


def finish(
    setup: phases.Setup, state: types.TrainState, arrived: Arrived, key: types.Key
) -> tuple[types.TrainState, dict[str, types.Array]]:
    """Return the state after the update, and its metrics; ``separable`` is 0 if the rows of a part changed later."""
    separable = functools.reduce(jnp.logical_and, arrived.same.values())
    scale = jnp.where(separable, 1.0, jnp.nan)
    totals = {
        lead: (values, jax.tree.map(lambda x: x * scale, gradient))
        for lead, (values, gradient) in arrived.totals.items()
    }
    state, metrics = updates.update(setup, state, arrived.rows, key, totals)
    return state, metrics | {"separable": separable.astype(jnp.float32)}


def check(setup: phases.Setup, arrived: Arrived) -> None:
    """Raise ValueError if the rows of a part changed when later parts arrived; waits for the devices."""
    changed = [name for name, same in jax.device_get(arrived.same).items() if not same]
    if changed:
        what = "coefficients of terms" if "coefficient" in changed else changed[0]
        raise ValueError(
            f"config.run.overlap=True (phase {setup.phase.name!r}): the {what} of a row depend on rows of other groups "
            f"in {setup.algorithm.spec}, and these arrive later. Set it to False, or use pieces that read a group "
            "alone, and one reduction for all terms."
        )


def _prepared(
    setup: phases.Setup, state: types.TrainState, rows: types.Rollout, number: types.Array, key: types.Key
) -> tuple[dict[int, types.Rollout], dict[int, Any]]:
    """Return the rows up to a micro-batch as each objective prepares them, and ((loss, metrics), gradient) of it."""
    count, parts = rows.mask.shape[0], setup.learner.microbatches
    row = jnp.arange(count, dtype=jnp.int32)
    there = (row < (number + 1) * (count // parts)).astype(rows.mask.dtype)
    group = jnp.where(there > 0, rows.group, -1 - row // setup.samples)
    valid = there if rows.valid is None else rows.valid * there
    rows = rows.replace(mask=rows.mask * there[:, None], valid=valid, group=group)
    key = updates.step_key(key, state)
    first = jax.random.fold_in(key, updates.TRANSFORMS)
    rows = interpreter.transform(setup.algorithm, rows, state.algorithm, first)[0]
    rows, prepared, totals = updates.placed(rows, state), {}, {}
    for joint in setup.phase.joint:
        lead, part = joint[0], setup.part(state.params, joint)
        key_of_step = jax.random.fold_in(jax.random.fold_in(key, updates.OBJECTIVES + lead), 0)
        inner = [state.algorithm["objectives"][lead]]
        minibatch = gradients.prepare(setup, joint, part, state, rows, inner, key_of_step)
        mine = jax.tree.map(lambda x: x[number], gradients.split(minibatch.rows, parts, setup.mesh))
        prepared[lead], totals[lead] = minibatch.rows[0].replace(**_OPAQUE), minibatch.gradient(part, mine, number)
    return prepared, totals


def _factors(before: types.Rollout, now: types.Rollout, earlier: types.Array) -> dict[str, types.Array]:
    """Return by what the coefficients of the earlier rows have changed, by name."""

    def factor(old: types.Array, new: types.Array) -> types.Array:
        total = jnp.sum(old)
        return jnp.sum(jnp.where(earlier[:, None], new, 0.0)) / jnp.where(total == 0, 1.0, total)

    return {name: factor(before.coefficient[name], now.coefficient[name]) for name in now.coefficient}


def _scaled(rows: types.Rollout, factors: dict[str, types.Array]) -> types.Rollout:
    """Return rows whose coefficients have changed by these factors; the common one is that of every term."""
    scale = {name: factors[name if name == "metric" else "common"] for name in factors}
    return rows.replace(coefficient={name: x * scale[name] for name, x in rows.coefficient.items()})


def _changes(before: types.Rollout, now: types.Rollout, earlier: types.Array) -> dict[str, types.Array]:
    """Return whether the earlier rows are as they were, up to rounding, by field."""

    def equal(old: types.Array, new: types.Array) -> types.Array:
        close = jnp.isclose(old, new, rtol=1e-4, atol=1e-6, equal_nan=True)
        return jnp.all(close | ~earlier.reshape((-1,) + (1,) * (old.ndim - 1)))

    def same(name: str) -> types.Array:
        pairs = zip(*(jax.tree.leaves(getattr(rows, name)) for rows in (before, now)), strict=True)
        return functools.reduce(jnp.logical_and, (equal(*pair) for pair in pairs), jnp.array(True))

    names = [field.name for field in dataclasses.fields(types.Rollout) if field.name not in _OPAQUE]
    return {name: same(name) for name in names}


def _sum(total: Any, factors: dict[str, types.Array], new: Any) -> Any:
    """Return the totals of all rows up to a micro-batch: earlier totals, rescaled, plus the new ones."""
    (loss, metrics), gradient = total
    common = factors["common"]

    def scaled(name: str, x: types.Array) -> types.Array:
        if name == "log_ratio":  # of logged rows, without a coefficient
            return x
        return x * (common if name.partition("/")[0] == "loss" else factors["metric"])

    metrics = [{name: scaled(name, x) for name, x in each.items()} for each in metrics]
    return jax.tree.map(jnp.add, ((loss * common, metrics), jax.tree.map(lambda x: x * common, gradient)), new)
