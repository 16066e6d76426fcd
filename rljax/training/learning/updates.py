"""The update: complete the rows, compute advantages, optimize every objective, update reference and schedules.

All functions are pure; epochs, minibatches and micro-batches are scans.
"""

import collections
import functools
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.algorithms import inputs, interpreter
from rljax.environments import traits
from rljax.models import adapters
from rljax.training import phases, producers, sharding, sources
from rljax.training.learning import diagnostics, gradients, optimizers, row_metrics
from rljax.transforms import modules, ops
from rljax.transforms.frame import extras

_PIECES = 3  # stream of the root key
TRANSFORMS, OBJECTIVES = 1, 2  # streams of the key of a step; objective n has OBJECTIVES + n
_NOISE = 999  # stream of the noise of reparameterised actions
_GOALS = 998  # stream of the goals of relabelled rows
_NOTHING = types.Needs()
_ROUNDING = 1_000_000  # stream of an objective's key, beyond any number of repeats


def complete(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, whole: bool = True) -> types.Rollout:
    """Compute the fields that the algorithm reads and the sampler does not write: log-probs, values, scores.

    Args:
      setup: the phase on devices.
      state: the state before the update.
      rollout: the rows.
      whole: whether they are the rows of a step, which are scored by micro-batches; else of one micro-batch.

    Returns:
      The rows with these fields.
    """
    needs = interpreter.needs(setup.algorithm)
    steps = collections.Counter[str]()  # of each module; of joint objectives the first takes them
    for o in (setup.algorithm.objectives[first] for first, *_ in setup.phase.joint):
        steps[o.module] += math.prod(setup.learner.of(o))
    repeats = max(steps.values())

    def fill(rows: types.Rollout) -> dict[str, Any]:
        def scores(module: str, asked: types.Needs) -> types.Scores:
            params, teachers = setup.params(state, module), gradients.teachers(setup, state, asked)
            return phases.score(setup, module, params, rows, asked, kept=False, teachers=teachers)

        def earlier(part: types.Tree) -> Any:
            policy = adapters.joined(part, state.params["policy"])
            return phases.score(setup, "policy", policy, rows, _NOTHING, kept=False).logp

        fields: dict[str, Any] = {"ref_logp": earlier(state.reference)} if needs.reference else {}
        source = setup.algorithm.source
        acted = rows.motion is not None and source.origin == "policy" and not source.off_policy
        if acted:  # the policy has just done so, from its whole distribution
            fields["proximal_logp"] = rows.behaviour_logp
        elif needs.fixed_proximal or (needs.proximal and repeats > 1):
            fields["proximal_logp"] = _proximal(setup, state, rows)
        if needs.value:
            fields["value"] = scores("value", types.Needs(value=True)).value
        if setup.phase.read:
            fields["scores"] = {module: scores(module, asked) for module, asked in setup.phase.read.items()}
        if setup.precedent:
            fields["extra"] = {**rows.extra, inputs.PRECEDENT: earlier(state.snapshot)}
        return fields

    return rollout.replace(**(gradients.map_rows(fill, rollout, setup) if whole else fill(rollout)))


def _proximal(setup: phases.Setup, state: types.TrainState, rows: types.Rollout) -> Any:
    """Return the log-probs of the policy; in rows of another player that learns, of that player."""
    logp: Any = phases.score(setup, "policy", state.params["policy"], rows, _NOTHING).logp
    for module in setup.settings.world.trained if "player" in rows.extra else ():
        other: Any = phases.score(setup, module, setup.params(state, module), rows, _NOTHING).logp
        number = setup.players.index(module)
        logp = jnp.where((ops.extra(rows, "player") == number)[:, None], other, logp)
    return logp


def _optimize(
    setup: phases.Setup,
    joint: tuple[int, ...],
    total: Any,
    state: types.TrainState,
    rollout: types.Rollout,
    key: types.Key,
):
    """Run the epochs and minibatches of objectives that step together; return (state, metrics of each)."""
    lead = joint[0]
    o, tx = setup.algorithm.objectives[lead], setup.phase.optimizers[lead]
    epochs, minibatches = setup.learner.of(o)
    batches = gradients.split(rollout, minibatches, setup.mesh)
    rounding = jax.random.fold_in(key, _ROUNDING) if setup.learner.rounding == "stochastic" else None

    def gradient_step(carry, i: types.Array):
        part, opt_state, inner = carry
        rows = jax.tree.map(lambda x: x[i % minibatches], batches)
        minibatch = gradients.prepare(setup, joint, part, state, rows, inner, jax.random.fold_in(key, i))
        value, metrics, grads = gradients.of_minibatch(minibatch, part, total)
        if setup.learner.offload:  # on the device during the optimizer's step only
            opt_state = jax.device_put(opt_state, jax.memory.Space.Device)
        rounding_key = None if rounding is None else jax.random.fold_in(rounding, i)
        part, opt_state, norm, finite = optimizers.apply(tx, grads, value, part, opt_state, rounding_key)
        if setup.learner.offload:
            opt_state = jax.device_put(opt_state, jax.memory.Space.Host)
        metrics[0] |= {"gradient_norm": norm, "skipped": 1.0 - finite}
        return (part, opt_state, minibatch.inner), metrics

    inner = [state.algorithm["objectives"][number] for number in joint]
    carry = (setup.part(state.params, joint), state.opt_state[lead], inner)
    repeats = epochs * minibatches
    if repeats == 1:
        carry, metrics = gradient_step(carry, jnp.zeros((), jnp.int32))
        stacked = jax.tree.map(lambda x: x[None], metrics)
    else:
        carry, stacked = jax.lax.scan(gradient_step, carry, jnp.arange(repeats))
    part, opt_state, inner = carry
    trained = part if len(joint) > 1 else {o.module: part}
    states = dict(zip(joint, inner, strict=True))
    state = state.replace(
        params=state.params | {m: adapters.joined(x, state.params[m]) for m, x in trained.items()},
        opt_state=_put(state.opt_state, {lead: opt_state}),
        algorithm={**state.algorithm, "objectives": _put(state.algorithm["objectives"], states)},
    )
    return state, [_of_update(metrics, minibatches) for metrics in stacked]


def _put(items: tuple, new: dict[int, Any]) -> tuple:
    return tuple(new.get(number, item) for number, item in enumerate(items))


def _of_update(stacked: dict[str, types.Array], minibatches: int) -> dict[str, types.Array]:
    """Return the metrics of an update from the metrics of its gradient steps."""
    metrics = {name: jnp.mean(x) for name, x in stacked.items()}
    if "skipped" in stacked:
        metrics["skipped"] = jnp.sum(stacked["skipped"])
    if "sampler_gap" in stacked:  # only the first minibatch is scored by the policy that sampled
        metrics["sampler_gap"] = stacked["sampler_gap"][0]
    if "log_ratio" in stacked:  # each row is in one minibatch of the last epoch
        metrics["log_ratio"] = jnp.sum(stacked["log_ratio"][-minibatches:], axis=0)
    return diagnostics.of_gradient_steps(metrics)


def _logp(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, needs: types.Needs = _NOTHING) -> Any:
    """Return the policy's unfiltered log-probs of the rows, and exact divergences from the reference if needed."""
    reference = adapters.joined(state.reference, state.params["policy"]) if needs.divergence else None

    def score(rows: types.Rollout) -> Any:
        scores = phases.score(setup, "policy", state.params["policy"], rows, needs, kept=False, reference=reference)
        return scores.logp, scores.divergence

    return gradients.map_rows(score, rollout, setup)


def _before(
    setup: phases.Setup, state: types.TrainState, rollout: types.Rollout
) -> tuple[types.Array | None, dict[str, types.Array]]:
    """Return the policy's log-probs of the rows if a diagnostic reads them, and its KL to the reference if asked."""
    asked, needs = setup.settings.log.diagnostics, _NOTHING
    if "kl" in asked and modules.reads_reference(interpreter.needs(setup.algorithm)):
        needs = types.Needs(divergence=frozenset({"reverse_kl"}))
    if not needs.divergence and "moved" not in asked:
        return None, {}
    logp, divergence = _logp(setup, state, rollout, needs)
    if not needs.divergence:
        return logp, {}
    reference = rollout.ref_logp
    if reference is None:
        policy = state.params | {"policy": adapters.joined(state.reference, state.params["policy"])}
        reference = _logp(setup, state.replace(params=policy), rollout)[0]
    counted = jnp.where(transforms.PREDICATES["on_policy"](rollout), rollout.mask, 0.0)
    estimate = ops.kl_estimate("k3", jnp.where(counted > 0, logp - reference, 0.0))
    return logp, {
        "kl_k3": ops.masked_mean(estimate, counted),
        "kl_exact": ops.masked_mean(divergence["reverse_kl"], counted),
    }


def update(
    setup: phases.Setup,
    state: types.TrainState,
    rollout: types.Rollout,
    key: types.Key,
    totals: Mapping[int, Any] | None = None,
) -> tuple[types.TrainState, dict[str, Any]]:
    """Update the state from a rollout.

    Args:
      setup: the phase on devices.
      state: the state before the update.
      rollout: prompts * oversample * samples rows with rewards; rows of a prompt are adjacent.
      key: the run's root key.
      totals: of ``overlapped.accumulate``, by objective; the rows are then complete.

    Returns:
      (state, metrics): scalars by name, and if ``log.rollout_rows`` is above 0, as "rows", the first groups of rows
      that the step trained on; extra["log_ratio"] is of their last gradient step.
    """
    root, key = key, step_key(key, state)
    algorithm, source, previous = setup.algorithm, setup.algorithm.source, state
    decoded, metrics = rollout.extra.get("slots"), {}
    if decoded is not None:
        lag, first = setup.settings.run.lag, setup.phase.first
        newest = jnp.maximum(state.step - lag, first) if lag else state.step
        held = rollout.mask
        if rollout.action is not None:  # replies are decoded too
            held = jnp.arange(held.shape[1])[None, :] < rollout.action.length[:, None]
        held = held if rollout.version is None else held * (rollout.version == newest)
        metrics["slot_utilisation"] = jnp.sum(held) / jnp.sum(decoded)
    producer, sampled = producers.make(setup), rollout
    metrics |= producer.metrics(rollout)
    taken = producers.taken(setup, state)
    rollout, pool, inner = _selected(setup, state, rollout, key, totals is None)
    if (fired := sources.fired(setup, sampled, rollout, root)) is not None:
        metrics["fired"] = fired
    rollout = placed(rollout, state)
    state = state.replace(algorithm=inner, pool=pool)
    turns, domains = "turns" in traits.traits(setup.task).supplies, row_metrics.domains(setup.task)
    asked, judged = setup.settings.log.diagnostics, source.origin == "policy"
    metrics |= row_metrics.metrics(rollout, judged, turns, domains, positions="entropy" in asked)
    metrics |= diagnostics.experts(setup, state.params["policy"], rollout)
    of_policy = setup.written("policy", rollout)
    before, divergences = _before(setup, state, of_policy)
    metrics |= divergences
    skipped, logged = jnp.zeros(()), jax.tree.map(lambda x: x[: setup.logged], rollout)
    rollout = _looked(setup, state, rollout)
    for joint in setup.phase.joint:
        total = None if totals is None else totals[joint[0]]
        state, of_each = _when_due(setup, joint, total, state, rollout, jax.random.fold_in(key, OBJECTIVES + joint[0]))
        skipped += of_each[0]["skipped"]
        for module, terms in zip((algorithm.objectives[n].module for n in joint), of_each, strict=True):
            if "log_ratio" in terms:
                logged = extras.put(logged, {"log_ratio": terms.pop("log_ratio")})
            metrics |= terms if module == "policy" else {f"{module}/{name}": x for name, x in terms.items()}
    if before is not None and "moved" in asked:
        metrics |= diagnostics.moved(before, _logp(setup, state, of_policy)[0], of_policy.mask)
    state = _finish(setup, previous, _observed(setup, state, rollout), metrics, skipped, jax.random.fold_in(key, 1000))
    metrics["skipped_in_row"] = state.skipped
    if setup.logged:
        metrics["rows"] = logged
    return state.replace(cursor=state.cursor.at[setup.cursor].add(taken)), metrics


def _looked(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout) -> types.Rollout:
    """Return the rows with the features of their pictures, if one tower reads them all and no gradient changes it."""
    model, context = setup.networks["policy"], rollout.context
    if context is None or context.image is None or model.architecture.vision.trained or len(setup.networks) > 1:
        return rollout

    def features(rows: types.Rollout) -> types.Array:
        assert rows.context is not None and rows.context.image is not None
        each = max(1, setup.shared(rows.mask.shape[0]))  # rows of a prompt, whose pictures are equal
        return ops.repeat(model.features(state.params["policy"], rows.context.image[::each]), each)

    return rollout.replace(context=context.replace(image=gradients.map_rows(features, rollout, setup)))


def step_key(key: types.Key, state: types.TrainState) -> types.Key:
    """Return the key of the pieces of a step; ``key`` is the run's root key."""
    return jax.random.fold_in(jax.random.fold_in(key, _PIECES), state.step)


def placed(rollout: types.Rollout, state: types.TrainState) -> types.Rollout:
    """Return the rows of a step with its number and their places."""
    place = jnp.arange(rollout.group.size, dtype=jnp.int32)
    return extras.put(rollout, {"now": jnp.full_like(place, state.step), "place": place})


def _selected(
    setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, key: types.Key, incomplete: bool
) -> tuple[types.Rollout, types.Tree, types.State]:
    """Return the rows to train on with their advantages, the pool, and the states of the rollout transforms.

    A source that selects single rows does it after the advantages, whose baselines need whole groups.
    """
    source = setup.algorithm.source

    def select(rollout: types.Rollout) -> tuple[types.Rollout, types.Tree]:
        rollout, pool = source.select(rollout, state.pool, setup.rows, jax.random.fold_in(key, 0))
        if source.relabel is not None:
            rollout = source.relabel(rollout, setup.task, jax.random.fold_in(key, _GOALS))
        return rollout, pool

    pool = state.pool
    if source.grouped:
        rollout, pool = select(rollout)
    rollout = sharding.constrain(rollout, setup.mesh)
    rollout = gradients.noised(setup, rollout, jax.random.fold_in(key, _NOISE))
    rollout = complete(setup, state, rollout) if incomplete else rollout
    rollout, inner = interpreter.transform(
        setup.algorithm, rollout, state.algorithm, jax.random.fold_in(key, TRANSFORMS)
    )
    if not source.grouped:
        rollout, pool = select(rollout)
        # stored rows have the log-probs of earlier parameters
        rollout = complete(setup, state, rollout) if source.off_policy else rollout
    return sharding.constrain(rollout, setup.mesh), pool, inner


def _when_due(
    setup: phases.Setup,
    joint: tuple[int, ...],
    total: Any,
    state: types.TrainState,
    rollout: types.Rollout,
    key: types.Key,
):
    """Run objectives on every ``every``-th step; on other steps their metrics are 0."""
    every = setup.algorithm.objectives[joint[0]].every
    run = functools.partial(_optimize, setup, joint, total)
    if every == 1:
        return run(state, rollout, key)
    shapes = jax.eval_shape(run, state, rollout, key)[1]
    idle = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.cond(state.step % every == 0, run, lambda s, *_: (s, idle), state, rollout, key)


def _finish(
    setup: phases.Setup,
    previous: types.TrainState,
    state: types.TrainState,
    metrics: types.Metrics,
    skipped: types.Array,
    key: types.Key,
) -> types.TrainState:
    """Update reference, followers, schedules and counters; only the counters if an update was skipped."""
    finite = skipped == 0
    reference, inner = interpreter.after(
        setup.algorithm, state.reference, adapters.trained(state.params["policy"]), metrics, state.algorithm, key
    )
    inner = interpreter.observe(setup.algorithm, inner, metrics)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    moved = _followed(setup, state)
    state = state.replace(frozen=state.frozen | keep(moved, {name: previous.frozen[name] for name in moved}))
    if setup.precedent:
        state = state.replace(snapshot=keep(adapters.trained(previous.params["policy"]), state.snapshot))
    elif state.snapshot is not None:
        due = (state.step + 1) % setup.settings.world.refresh == 0
        new = adapters.trained(state.params["policy"])
        if isinstance(state.snapshot, tuple):
            new = (new, *state.snapshot[:-1])  # the newest first
        state = state.replace(snapshot=jax.tree.map(lambda n, o: jnp.where(due, n, o), new, state.snapshot))
    return state.replace(
        step=state.step + 1,
        reference=keep(reference, previous.reference),
        algorithm=keep(inner, previous.algorithm),
        pool=keep(setup.algorithm.source.observe(state.pool, metrics), state.pool),
        skipped=jnp.where(finite, 0, state.skipped + 1),
        skipped_total=state.skipped_total + skipped.astype(jnp.int32),
    )


def _observed(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout) -> types.TrainState:
    """Return the state whose actors have statistics of the step's observations too, which their inputs are scaled by.

    They change between updates only, so that an update scores rows as the sampler did.
    """
    if rollout.motion is None:
        return state
    networks: Mapping[str, Any] = setup.networks
    return state.replace(params={m: networks[m].observed(tree, rollout) for m, tree in state.params.items()})


def _followed(setup: phases.Setup, state: types.TrainState) -> dict[str, types.Tree]:
    """Return the modules that follow another, moved towards what it is after the update."""
    moved = {}
    for name, tree in state.frozen.items():
        start = setup.phase.of(name)
        if start.follows:
            source = setup.params(state, start.follows)
            moved[name] = toward(tree, {key: source[key] for key in tree}, start.rate)
    return moved


def toward(target: types.Tree, source: types.Tree, rate: float) -> types.Tree:
    """Return (1 - rate) target + rate source: one step of Polyak averaging; equal trees stay equal to the last bit."""
    return jax.tree.map(lambda x, y: x + rate * (y - x), target, source)
