"""The train state: its value at the start of a phase, and its sharding over a mesh."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import interpreter
from rljax.language import errors
from rljax.models import adapters
from rljax.training import optimizers, phases, rollouts, sharding
from rljax.transforms import modules

_INIT = 4  # stream of the root key


def _params(
    setup: phases.Setup, previous: types.TrainState | None, key: types.Key, initial: Mapping[str, types.Tree]
) -> dict[str, types.Tree]:
    """Return every module's parameters: those of the previous phase, else those of ``initial``, else new ones.

    A new module starts from the parameters of the module that it is like, where shapes are equal, with a newly
    initialized head.
    """
    known = {**initial, **({} if previous is None else {**previous.frozen, **previous.params})}
    params = {"policy": known.get("policy", None)}
    if params["policy"] is None:
        params["policy"] = setup.networks["policy"].init(key)
    for module, model in setup.networks.items():
        if module == "policy":
            continue
        if module in known:
            params[module] = known[module]
            continue
        fresh = model.init(jax.random.fold_in(key, len(params)))
        start = setup.phase.module[module].settings
        like = {} if start.weights == "random" else {**known, **params}.get(start.like, {})
        if "scalar" in like and "scalar" in fresh and not _alike(like["scalar"], fresh["scalar"]):
            like = {k: v for k, v in like.items() if k != "scalar"}  # a head over bins, or over others
        alike = {k: v for k, v in like.items() if k in fresh and _alike(v, fresh[k])}
        if {*alike} == {k for k in fresh if k in like}:  # every part that both have, or none
            fresh |= {k: jax.tree.map(jnp.copy, v) for k, v in alike.items()}
        params[module] = fresh
    return params


@dataclasses.dataclass(frozen=True)
class Carried:
    """What a phase carries over from the previous one in addition to parameters, counters and cursors."""

    optimizer: bool = False
    reference: bool = False
    pool: bool = False  # unfinished rows
    snapshot: bool = False  # an earlier policy
    notes: tuple[str, ...] = ()  # requests that cannot be met, for the log


def carried(setup: phases.Setup, previous: phases.Setup | None, state: types.TrainState | None) -> Carried:
    """Return what a phase carries over from the previous one.

    Args:
      setup: the phase on devices.
      previous: the previous phase on devices; None in the first phase.
      state: the abstract state at the end of the previous phase; None in the first phase.

    Returns:
      The optimizer state is carried over if the phase requests it and its tree is unchanged, the reference if the
      phase requests it, unfinished rows if task, lengths, source and shapes are unchanged.
    """
    if previous is None or state is None:
        return Carried()
    fresh = jax.eval_shape(functools.partial(begin, setup, Carried()), state, jax.random.key(0))
    start, notes = setup.phase.start, ()
    optimizer = not start.reset_optimizer
    if optimizer and not _alike(fresh.opt_state, state.opt_state):
        optimizer = False
        notes = (
            f"phase {setup.phase.name!r}: the optimizer state is reset although reset_optimizer=False: its tree "
            f"differs from that of phase {previous.phase.name!r}.",
        )
    pool = setup.continues(previous) and _alike(fresh.pool, state.pool)
    snapshot = (setup.snapshot, setup.precedent) == (previous.snapshot, previous.precedent)  # it has one use in both
    return Carried(optimizer, start.reference == "keep", pool, snapshot, notes)


def _alike(one: types.Tree, two: types.Tree) -> bool:
    """Return whether two trees have the same structure, shapes and dtypes."""
    if jax.tree.structure(one) != jax.tree.structure(two):
        return False
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True)
    return all((a.shape, a.dtype) == (b.shape, b.dtype) for a, b in pairs)


def begin(
    setup: phases.Setup,
    carried: Carried,
    previous: types.TrainState | None,
    key: types.Key,
    initial: Mapping[str, types.Tree] | None = None,
) -> types.TrainState:
    """Return the state at the start of a phase.

    Optimizer state and reference cover the trained parameters only: frozen parameters are stored once.

    Args:
      setup: the phase on devices.
      carried: what it carries over in addition to parameters, counters and cursors.
      previous: the state at the end of the previous phase; None in the first phase.
      key: the run's root key.
      initial: initial parameters by module; of others, those of ``previous``, or new ones.

    Returns:
      The state.
    """
    needs = interpreter.needs(setup.algorithm)
    params = _params(setup, previous, jax.random.fold_in(key, _INIT), initial or {})
    frozen = {module: params.pop(module) for module in [*params] if module not in setup.trained}
    reference = previous.reference if previous is not None and carried.reference else None
    if not modules.reads_reference(needs):
        reference = None
    elif reference is None:
        reference = jax.tree.map(jnp.copy, adapters.trained(params["policy"]))
    if previous is not None and carried.optimizer:
        opt_state = previous.opt_state
    else:
        with errors.inside(f"optimizer of phase {setup.phase.name!r}: init"):
            opt_state = tuple(
                tx.init(adapters.trained(params[o.module]))
                for tx, o in zip(setup.phase.optimizers, setup.algorithm.objectives, strict=True)
            )
    earlier = setup.snapshot or setup.precedent
    snapshot = previous.snapshot if previous is not None and earlier and carried.snapshot else None
    if earlier and snapshot is None:
        snapshot = jax.tree.map(jnp.copy, adapters.trained(params["policy"]))
    zero = jnp.zeros((), jnp.int32)
    state = types.TrainState(
        step=zero if previous is None else previous.step,
        cursor=jnp.zeros((setup.cursors,), jnp.int32) if previous is None else previous.cursor,
        params=params,
        opt_state=opt_state,
        algorithm=interpreter.init(setup.algorithm),
        reference=reference,
        pool=(),
        skipped=zero,
        skipped_total=zero if previous is None else previous.skipped_total,
        snapshot=snapshot,
        frozen=frozen,
    )
    source = setup.algorithm.source
    if source.init is types.Source.init:  # it keeps nothing, so that no example is traced
        return state
    if previous is not None and carried.pool:
        return state.replace(pool=previous.pool)
    shape = jax.eval_shape(functools.partial(rollouts.example, setup), state, key)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return state.replace(pool=source.init(blank, setup.problems(key)))


def layout(setup: phases.Setup, state: types.TrainState) -> types.TrainState:
    """Return the sharding of each leaf of a state.

    Parameters, reference and optimizer state are sharded by the table of rules, pools by row where the rows divide
    evenly; the rest is replicated. Offloaded optimizer state is placed in host memory.
    """
    mesh = setup.mesh
    whole: Any = sharding.replicated(mesh)

    def placed(modules: Mapping[str, types.Tree]) -> dict[str, types.Tree]:
        return {m: sharding.param_sharding(mesh, setup.networks[m].axes, tree) for m, tree in modules.items()}

    params = placed(state.params)
    trained, shapes = ({m: adapters.trained(x) for m, x in tree.items()} for tree in (params, state.params))
    opt_state = tuple(
        optimizers.shardings(tx, shapes[o.module], trained[o.module], whole)
        for tx, o in zip(setup.phase.optimizers, setup.algorithm.objectives, strict=True)
    )
    if setup.learner.offload:
        opt_state = jax.tree.map(lambda s: s.with_memory_kind(optimizers.HOST), opt_state)

    def pooled(x: types.Array) -> Any:
        used, available = sharding.spread(mesh, x.shape[0]) if x.ndim else (0, 1)
        return sharding.batch_sharding(mesh) if used == available else whole

    return types.TrainState(
        step=whole,
        cursor=whole,
        params=params,
        opt_state=opt_state,
        algorithm=jax.tree.map(lambda _: whole, state.algorithm),
        reference=None if state.reference is None else trained["policy"],
        pool=jax.tree.map(pooled, state.pool),
        skipped=whole,
        skipped_total=whole,
        snapshot=None if state.snapshot is None else trained["policy"],
        frozen=placed(state.frozen),
    )
