"""The train state: its value at the start of a phase, and its sharding over a mesh."""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import interpreter
from rljax.language import errors
from rljax.models import adapters
from rljax.training import phases, producers, sharding
from rljax.training import problems as problems_lib
from rljax.training.learning import optimizers
from rljax.transforms import modules

_INIT = 4  # stream of the root key


def _params(
    setup: phases.Setup, previous: types.TrainState | None, key: types.Key, initial: Mapping[str, types.Tree]
) -> dict[str, types.Tree]:
    """Return every module's parameters: from the previous phase, else from ``initial``, else new."""
    known = {**initial, **({} if previous is None else {**previous.frozen, **previous.params})}
    params: dict[str, types.Tree] = {}

    def add(module: str) -> None:
        if module in params:
            return
        if module in known:
            params[module] = known[module]
            return
        if module == "policy":
            params[module] = setup.networks[module].init(key)
            return
        start = setup.phase.of(module)
        for base in (start.trunk, start.follows or start.like):
            if base in setup.networks:
                add(base)
        params[module] = _new(setup, module, {**known, **params}, jax.random.fold_in(key, zlib.crc32(module.encode())))

    for module in ("policy", *setup.networks):
        add(module)
    return params


def _new(setup: phases.Setup, module: str, known: Mapping[str, types.Tree], key: types.Key) -> types.Tree:
    """Return a new module's parameters.

    It starts as a copy of the module that it follows, or from the parameters of the module that it is like, where
    shapes are equal, with a newly initialized head.
    """
    start, fresh = setup.phase.of(module), setup.held(module, setup.networks[module].init(key))
    if start.follows:
        source = setup.whole(known, start.follows)
        return jax.tree.map(lambda x, y: jnp.array(y, x.dtype), fresh, {name: source[name] for name in fresh})
    if start.trunk:
        return jax.tree.map(functools.partial(_drawn, key), fresh) if start.weights else fresh
    like = setup.whole(known, start.like) if start.like in known and start.weights != "random" else {}
    if "scalar" in like and "scalar" in fresh and not _alike(like["scalar"], fresh["scalar"]):
        like = {k: v for k, v in like.items() if k != "scalar"}  # a head over bins, or over others
    alike = {k: v for k, v in like.items() if k in fresh and _alike(v, fresh[k])}
    if {*alike} == {k for k in fresh if k in like}:  # every part that both have, or none
        fresh |= {k: jax.tree.map(jnp.copy, v) for k, v in alike.items()}
    return fresh


def _drawn(key: types.Key, x: types.Array) -> types.Array:
    """Return the matrix of a head [..., D] with entries from N(0, 1 / D), so that equal heads on one trunk differ."""
    return jax.random.normal(key, x.shape, x.dtype) * x.shape[-1] ** -0.5


@dataclasses.dataclass(frozen=True)
class Carried:
    """What a phase carries over from the previous one in addition to parameters, counters and cursors."""

    optimizer: tuple[int | None, ...] = ()  # by objective: whose state of the previous phase goes on, None: no one's
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
      The optimizer state of each module is carried over if the phase requests it, the previous phase trained the module
      and the tree is unchanged, the reference if the phase requests it, unfinished rows if task, lengths, source and
      shapes are unchanged.
    """
    if previous is None or state is None:
        return Carried()
    fresh = jax.eval_shape(functools.partial(begin, setup, Carried()), state, jax.random.key(0))
    start, optimizer, notes = setup.phase.start, (), ()
    if not start.reset_optimizer:
        optimizer, reset = _kept(setup, previous, fresh.opt_state, state.opt_state)
        notes = tuple(
            f"phase {setup.phase.name!r}: the optimizer state of {module!r} is reset although reset_optimizer=False: "
            f"phase {previous.phase.name!r} {reason}."
            for module, reason in reset.items()
        )
    pool = setup.continues(previous) and _alike(fresh.pool, state.pool)
    snapshot = (setup.snapshot, setup.precedent) == (previous.snapshot, previous.precedent)  # it has one use in both
    return Carried(optimizer, start.reference == "keep", pool, snapshot, notes)


def _kept(
    setup: phases.Setup, previous: phases.Setup, fresh: types.Tree, states: types.Tree
) -> tuple[tuple[int | None, ...], dict[str, str]]:
    """Return ``Carried.optimizer``, and by module why its state is reset."""

    def modules(of: phases.Setup) -> dict[tuple[str, ...], int]:
        return {tuple(of.algorithm.objectives[n].module for n in joint): joint[0] for joint in of.phase.joint}

    kept: list[int | None] = [None] * len(fresh)
    before, reset = modules(previous), {}
    for names, number in modules(setup).items():
        earlier = before.get(names)
        if earlier is None:
            reset |= dict.fromkeys(names, "did not train it" if len(names) == 1 else f"did not train {names} together")
        elif _alike(fresh[number], states[earlier]):
            kept[number] = earlier
        else:
            reset |= dict.fromkeys(names, "has another tree of it")
    return tuple(kept), reset


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
      initial: parameters of modules that ``previous`` lacks; other modules get new ones.

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
    with errors.inside(f"optimizer of phase {setup.phase.name!r}: init"):
        opt_state = _of_steps(setup, lambda tx, joint: tx.init(setup.part(params, joint)))
    if previous is not None and carried.optimizer:
        whose = zip(opt_state, carried.optimizer, strict=True)
        opt_state = tuple(new if number is None else previous.opt_state[number] for new, number in whose)
    earlier = setup.snapshot or setup.precedent
    snapshot = previous.snapshot if previous is not None and earlier and carried.snapshot else None
    if earlier and snapshot is None:
        policy = adapters.trained(params["policy"])
        count = setup.settings.world.snapshots if setup.snapshot else 1
        copies = tuple(jax.tree.map(jnp.copy, policy) for _ in range(count))
        snapshot = copies if count > 1 else copies[0]
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
        return state.replace(pool=source.renew(previous.pool))
    shape = jax.eval_shape(producers.make(setup).example, state, key)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return state.replace(pool=source.init(blank, problems_lib.of(setup, key)))


def sampled(setup: phases.Setup, state: types.TrainState) -> types.TrainState:
    """Return the part of a state, or of its shardings, that a rollout reads: players, pool and counters."""
    source = setup.algorithm.source
    reads = source.choose or source.head or source.again or source.segment
    pool, snapshot = state.pool if reads else (), state.snapshot if setup.snapshot else None
    read = {"policy", *setup.phase.writers}
    params, frozen = ({m: x for m, x in trees.items() if m in read} for trees in (state.params, state.frozen))
    state = state.replace(params=params, frozen=frozen, pool=pool, snapshot=snapshot)
    return state.replace(opt_state=(), algorithm=(), reference=None, ahead=())


def _of_steps(setup: phases.Setup, function: Callable[[Any, tuple[int, ...]], types.Tree]) -> tuple[types.Tree, ...]:
    """Return ``function(optimizer, objectives)`` for each objective; () for those that another one's steps train."""
    leads = {joint[0]: joint for joint in setup.phase.joint}
    return tuple(function(tx, leads[n]) if n in leads else () for n, tx in enumerate(setup.phase.optimizers))


def layout(setup: phases.Setup, state: types.TrainState) -> types.TrainState:
    """Return the sharding of each leaf of a state.

    Parameters, reference and optimizer state are sharded by the table of rules, pools by row where the rows divide
    evenly; the rest is replicated. Offloaded optimizer state is placed in host memory.
    """
    mesh = setup.mesh
    whole: Any = sharding.replicated(mesh)

    def placed(modules: Mapping[str, types.Tree]) -> dict[str, types.Tree]:
        axes = {m: setup.held(m, setup.networks[m].axes) for m in modules}
        return {m: sharding.param_sharding(mesh, axes[m], tree) for m, tree in modules.items()}

    params = placed(state.params)
    policy = adapters.trained(params["policy"])

    def of_optimizer(tx: Any, joint: tuple[int, ...]) -> types.Tree:
        return optimizers.shardings(tx, setup.part(state.params, joint), setup.part(params, joint), whole)

    opt_state = _of_steps(setup, of_optimizer)
    if setup.learner.offload:
        opt_state = jax.tree.map(lambda s: s.with_memory_kind(optimizers.HOST), opt_state)

    snapshot = state.snapshot  # a tuple of several
    if snapshot is not None:
        snapshot = (policy,) * len(snapshot) if isinstance(snapshot, tuple) else policy

    def pooled(x: types.Array) -> Any:
        used, available = sharding.spread(mesh, x.shape[0]) if x.ndim else (0, 1)
        return sharding.batch_sharding(mesh) if used == available else whole

    return types.TrainState(
        step=whole,
        cursor=whole,
        params=params,
        opt_state=opt_state,
        algorithm=jax.tree.map(lambda _: whole, state.algorithm),
        reference=None if state.reference is None else policy,
        pool=jax.tree.map(pooled, state.pool),
        skipped=whole,
        skipped_total=whole,
        snapshot=snapshot,
        frozen=placed(state.frozen),
    )
