"""The train state: how a phase begins, and how it is laid out over a mesh."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import interpreter
from rljax.models import adapters
from rljax.training import optimizers, plans, rollouts, sharding

_INIT = 4  # stream of the root key


def _params(
    plan: plans.Plan, before: types.TrainState | None, key: types.Key, policy: types.Tree
) -> dict[str, types.Tree]:
    """Return every module's parameters: those of the phase before, else the given policy's or fresh ones.

    A critic or reward model that is new starts from the policy's trunk, with a head of its own.
    """
    found = {} if before is None else before.params
    policy = found.get("policy", plan.models["policy"].init(key) if policy is None else policy)
    params: dict[str, types.Tree] = {"policy": policy}
    for module, model in plan.models.items():
        if module in found:
            params[module] = found[module]
        elif module != "policy":
            fresh = model.init(jax.random.fold_in(key, len(params)))
            params[module] = {k: jax.tree.map(jnp.copy, policy[k]) if k in policy else v for k, v in fresh.items()}
    return params


def begin(
    plan: plans.Plan,
    before: types.TrainState | None,
    key: types.Key,
    policy: types.Tree = None,
    *,
    carry: bool,
    keep: bool,
) -> types.TrainState:
    """Start a phase: from nothing, from a ``policy``'s parameters, or from the state in which the phase before ended.

    ``carry`` takes over the optimizer state (the phases must have the same optimizers), ``keep`` the reference.
    Optimizer state and reference are of the trained part alone: what is frozen is there once.
    """
    needs = interpreter.needs(plan.algorithm)
    params = _params(plan, before, jax.random.fold_in(key, _INIT), policy)
    reference = before.reference if before is not None and keep else None
    if not needs.reference and not needs.divergence:
        reference = None
    elif reference is None:
        reference = jax.tree.map(jnp.copy, adapters.trained(params["policy"]))
    opt_state = tuple(
        tx.init(adapters.trained(params[o.module]))
        for tx, o in zip(plan.optimizers, plan.algorithm.objectives, strict=True)
    )
    if carry and before is not None:
        if jax.tree.structure(opt_state) != jax.tree.structure(before.opt_state):
            raise ValueError("config.phase: reset_optimizer=False, but the phase before has another optimizer.")
        opt_state = before.opt_state
    zero = jnp.zeros((), jnp.int32)
    state = types.TrainState(
        step=zero if before is None else before.step,
        cursor=zero if before is None else before.cursor,
        params=params,
        opt_state=opt_state,
        algorithm=interpreter.init(plan.algorithm),
        reference=reference,
        pool=(),
        skipped=zero,
        skipped_total=zero if before is None else before.skipped_total,
    )
    shape = jax.eval_shape(functools.partial(rollouts.example, plan), state, key)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return state.replace(pool=plan.algorithm.source.init(blank))


def layout(plan: plans.Plan, state: types.TrainState) -> types.TrainState:
    """Lay parameters, reference and optimizer state out by the table of rules; pools by row; the rest replicated.

    Offloaded optimizer state lies in the host's memory.
    """
    mesh = plan.mesh
    whole: Any = sharding.replicated(mesh)
    params = {m: sharding.param_sharding(mesh, plan.models[m].axes, tree) for m, tree in state.params.items()}
    trained, shapes = ({m: adapters.trained(x) for m, x in tree.items()} for tree in (params, state.params))
    opt_state = tuple(
        optimizers.shardings(tx, shapes[o.module], trained[o.module], whole)
        for tx, o in zip(plan.optimizers, plan.algorithm.objectives, strict=True)
    )
    if plan.offload:
        opt_state = jax.tree.map(lambda s: s.with_memory_kind(optimizers.HOST), opt_state)
    return types.TrainState(
        step=whole,
        cursor=whole,
        params=params,
        opt_state=opt_state,
        algorithm=jax.tree.map(lambda _: whole, state.algorithm),
        reference=None if state.reference is None else trained["policy"],
        pool=jax.tree.map(lambda x: sharding.batch_sharding(mesh) if x.ndim else whole, state.pool),
        skipped=whole,
        skipped_total=whole,
    )
