"""The update: complete the rows, compute advantages, optimize every objective, update reference and schedules.

All functions are pure; epochs, minibatches and micro-batches are scans.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import inputs, interpreter
from rljax.environments.worlds import supplies
from rljax.models import adapters, packing
from rljax.training import optimizers, phases, row_metrics, sharding
from rljax.transforms import modules

_PIECES = 3  # stream of the root key
_ROUNDING = 1_000_000  # stream of an objective's key, beyond any number of repeats


def _split(tree: types.Tree, parts: int, mesh: jax.sharding.Mesh) -> types.Tree:
    """Reshape arrays [B, ...] to [parts, B / parts, ...]; adjacent rows stay together."""
    split = jax.tree.map(lambda x: x.reshape((parts, x.shape[0] // parts, *x.shape[1:])), tree)
    return sharding.constrain(split, mesh, leading=1) if parts > 1 else split


def _map_rows(function: Callable[[types.Rollout], Any], rollout: types.Rollout, setup: phases.Setup) -> Any:
    """Apply ``function`` to the rows, one micro-batch at a time."""
    if setup.learner.microbatches == 1:
        return function(rollout)
    out = jax.lax.map(function, _split(rollout, setup.learner.microbatches, setup.mesh))
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), out)


def _complete(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout) -> types.Rollout:
    """Compute the fields that the algorithm reads and the sampler does not write: log-probs, values, scores."""
    needs = interpreter.needs(setup.algorithm)
    repeats = max(_repeats(setup, o) for o in setup.algorithm.objectives)

    def fill(rows: types.Rollout) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        if needs.reference:
            reference = adapters.joined(state.reference, state.params["policy"])
            plain = phases.score(setup, "policy", reference, rows, types.Needs(), kept=False)
            fields["ref_logp"] = plain.logp
        if needs.fixed_proximal or (needs.proximal and repeats > 1):
            fields["proximal_logp"] = phases.score(setup, "policy", state.params["policy"], rows, types.Needs()).logp
        if needs.value:
            fields["value"] = phases.score(
                setup, "value", setup.params(state, "value"), rows, types.Needs(value=True)
            ).value
        if setup.phase.read:
            fields["scores"] = {
                module: phases.score(setup, module, setup.params(state, module), rows, asked, kept=False)
                for module, asked in setup.phase.read.items()
            }
        if setup.precedent:
            earlier = adapters.joined(state.snapshot, state.params["policy"])
            plain = phases.score(setup, "policy", earlier, rows, types.Needs(), kept=False)
            fields["extra"] = {**rows.extra, inputs.PRECEDENT: plain.logp}
        return fields

    return rollout.replace(**_map_rows(fill, rollout, setup))


def _repeats(setup: phases.Setup, o: types.Objective) -> int:
    """Return the number of gradient steps of an objective on one rollout."""
    return (o.epochs or setup.learner.epochs) * (o.minibatches or setup.learner.minibatches)


def _minibatch_gradient(
    setup: phases.Setup,
    o: types.Objective,
    part: types.Tree,
    state: types.TrainState,
    rollout: types.Rollout,
    inner: types.State,
    key: types.Key,
):
    """Return (loss, metrics, gradient, objective's state) of one minibatch, summed over micro-batches.

    ``part`` is the current value of the module's trained parameters, ``state`` the state before the update. The
    gradient is with respect to ``part``, in float32.
    """
    needs = interpreter.objective_needs(o)
    compared, reference = modules.compared(needs), None
    if modules.REFERENCE in compared:
        reference = adapters.joined(state.reference, state.params["policy"])
    teachers = {name: setup.params(state, name) for name in sorted(compared - {modules.REFERENCE})}

    def score(part: types.Tree, rows: types.Rollout, places: packing.Places | None = None) -> types.Scores:
        params = adapters.joined(part, state.params[o.module])
        others: dict[str, Any] = {"reference": reference, "teachers": teachers}
        return phases.score(setup, o.module, params, rows, needs, **others, places=places)

    live = _map_rows(lambda rows: score(part, rows), rollout, setup) if needs.live else None
    rollout, inner = interpreter.prepare_minibatch(o, rollout, live, inner, key)

    def loss(part: types.Tree, rows: types.Rollout, key: types.Key, places: packing.Places | None = None):
        scores = score(part, rows, places)
        value, metrics = interpreter.loss(o, rows, scores, inner, key)
        # logp is normalized over the kept support if raw_logp is there, else over the whole vocabulary
        sampled = rows.raw_logp if scores.raw_logp is None else rows.behaviour_logp
        if scores.logp is not None and sampled is not None:
            gap = jnp.abs(jax.lax.stop_gradient(scores.logp) - sampled)
            drawn = (rows.mask > 0) & (sampled < 0)  # demonstrations have log-prob 0
            if rows.context is not None and rows.context.train_token is not None and rows.on_policy is not None:
                drawn &= rows.on_policy[:, None] > 0  # the others were sampled under another prompt
            metrics["sampler_gap"] = jnp.sum(jnp.where(drawn, gap, 0.0) * rows.coefficient["metric"])
        if o.module == "policy" and setup.logged and scores.logp is not None:
            metrics["log_ratio"] = _log_ratio(setup.logged, rows, jax.lax.stop_gradient(scores.logp))
        return value, metrics

    def gradient(*arguments: Any) -> Any:
        value_metrics, grads = jax.value_and_grad(loss, has_aux=True)(*arguments)
        return value_metrics, optimizers.wide(grads)  # micro-batches are accumulated in float32

    if setup.learner.lanes and setup.shared(rollout.mask.shape[0]) and o.module not in setup.reads:
        return *_packed(setup, gradient, part, rollout, key), inner
    if setup.learner.microbatches == 1:
        (value, metrics), grads = gradient(part, rollout, key)
        return value, metrics, grads, inner

    def add(total, item):
        i, rows = item
        return jax.tree.map(jnp.add, total, gradient(part, rows, jax.random.fold_in(key, i))), None

    parts = _split(rollout, setup.learner.microbatches, setup.mesh)
    zero = _zeros(gradient, part, jax.tree.map(lambda x: x[0], parts), key)
    ((value, metrics), grads), _ = jax.lax.scan(add, zero, (jnp.arange(setup.learner.microbatches), parts))
    return value, metrics, grads, inner


def _log_ratio(count: int, rows: types.Rollout, logp: types.Array) -> types.Array:
    """Return logp - behaviour_logp of the logged rows, [count, T]; 0 for rows that are not among ``rows``.

    Sums over micro-batches and minibatches complete it. Demonstrations have behaviour_logp 0.
    """
    ratio = jnp.where(rows.mask > 0, logp if rows.behaviour_logp is None else logp - rows.behaviour_logp, 0.0)
    return jnp.zeros((count, ratio.shape[1])).at[rows.extra["place"]].add(ratio, mode="drop")


def _zeros(function: Callable[..., Any], *arguments: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *arguments))


def _packed(
    setup: phases.Setup, gradient: Callable[..., Any], params: types.Tree, rollout: types.Rollout, key: types.Key
):
    """Return (loss, metrics, gradient) of packed rows, in as many micro-batches as their tokens need.

    A unit is ``setup.learner.lanes`` packed rows of one prompt; a prompt with long completions needs several units.
    """
    count, width = rollout.mask.shape
    prompts, samples = count // setup.samples, setup.samples
    length = jnp.sum(packing.written(rollout.mask), axis=1, dtype=jnp.int32).reshape(prompts, samples)
    lane, offset = packing.first_fit(length, width)
    ends = jnp.cumsum(jnp.max(lane, axis=1) // setup.learner.lanes + 1)  # cumulative number of units
    each = max(1, prompts // setup.learner.microbatches)

    def part(number: types.Array) -> tuple[types.Rollout, packing.Places]:
        unit = number * each + jnp.arange(each, dtype=jnp.int32)
        prompt = jnp.minimum(jnp.searchsorted(ends, unit, side="right"), prompts - 1).astype(jnp.int32)
        first = setup.learner.lanes * (unit - jnp.where(prompt > 0, ends[prompt - 1], 0))
        local = lane[prompt] - first[:, None]  # lane within the unit
        present = (local >= 0) & (local < setup.learner.lanes) & (unit < ends[-1])[:, None]
        places = packing.Places(
            jnp.where(present, local, setup.learner.lanes).reshape(-1),
            offset[prompt].reshape(-1),
            setup.learner.lanes,
            samples,
            width,
        )
        index = (prompt[:, None] * samples + jnp.arange(samples, dtype=jnp.int32)[None, :]).reshape(-1)
        rows = jax.tree.map(lambda x: x[index], rollout)
        weight = present.reshape(-1, 1).astype(rows.mask.dtype)
        coefficient = {name: x * weight for name, x in rows.coefficient.items()}
        rows = rows.replace(mask=rows.mask * weight, coefficient=coefficient)
        return sharding.constrain(rows, setup.mesh), places

    def add(carry):
        number, total = carry
        rows, places = part(number)
        added = gradient(params, rows, jax.random.fold_in(key, number), places)
        return number + 1, jax.tree.map(jnp.add, total, added)

    start = jnp.zeros((), jnp.int32)
    total = _zeros(lambda rows, places: gradient(params, rows, key, places), *jax.eval_shape(part, start))
    _, ((value, metrics), grads) = jax.lax.while_loop(lambda c: c[0] * each < ends[-1], add, (start, total))
    return value, metrics, grads


def _optimize(setup: phases.Setup, number: int, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    """Run the epochs and minibatches of one objective; return (state, metrics)."""
    o, tx = setup.algorithm.objectives[number], setup.phase.optimizers[number]
    minibatches = o.minibatches or setup.learner.minibatches
    batches = _split(rollout, minibatches, setup.mesh)
    rounding = jax.random.fold_in(key, _ROUNDING) if setup.learner.rounding == "stochastic" else None

    def gradient_step(carry, i: types.Array):
        part, opt_state, inner = carry
        rows = jax.tree.map(lambda x: x[i % minibatches], batches)
        value, metrics, grads, inner = _minibatch_gradient(
            setup, o, part, state, rows, inner, jax.random.fold_in(key, i)
        )
        if setup.learner.offload:  # on the device during the optimizer's step only
            opt_state = jax.device_put(opt_state, jax.memory.Space.Device)
        rounding_key = None if rounding is None else jax.random.fold_in(rounding, i)
        part, opt_state, norm, finite = optimizers.apply(tx, grads, value, part, opt_state, rounding_key)
        if setup.learner.offload:
            opt_state = jax.device_put(opt_state, jax.memory.Space.Host)
        metrics |= {"loss": value, "gradient_norm": norm, "skipped": 1.0 - finite}
        return (part, opt_state, inner), metrics

    inner = state.algorithm["objectives"][number]
    carry = (adapters.trained(state.params[o.module]), state.opt_state[number], inner)
    repeats = _repeats(setup, o)
    if repeats == 1:
        carry, metrics = gradient_step(carry, jnp.zeros((), jnp.int32))
        stacked = jax.tree.map(lambda x: x[None], metrics)
    else:
        carry, stacked = jax.lax.scan(gradient_step, carry, jnp.arange(repeats))
    metrics = {name: jnp.mean(x) for name, x in stacked.items()}
    metrics["skipped"] = jnp.sum(stacked["skipped"])
    if "sampler_gap" in stacked:  # only the first minibatch is scored by the policy that sampled
        metrics["sampler_gap"] = stacked["sampler_gap"][0]
    if "log_ratio" in stacked:  # each row is in one minibatch of the last epoch
        metrics["log_ratio"] = jnp.sum(stacked["log_ratio"][-minibatches:], axis=0)
    part, opt_state, inner = carry

    def put(items: tuple, item: Any) -> tuple:
        return (*items[:number], item, *items[number + 1 :])

    state = state.replace(
        params={**state.params, o.module: adapters.joined(part, state.params[o.module])},
        opt_state=put(state.opt_state, opt_state),
        algorithm={**state.algorithm, "objectives": put(state.algorithm["objectives"], inner)},
    )
    return state, metrics


def _experts(setup: phases.Setup, params: types.Tree, rollout: types.Rollout) -> dict[str, types.Array]:
    """Return metrics of expert balance on one micro-batch, empty for a policy without experts."""
    model = setup.networks["policy"]
    if not model.architecture.experts or rollout.context is None or rollout.action is None:
        return {}
    rows = jax.tree.map(lambda x: x[: x.shape[0] // setup.learner.microbatches], rollout)
    prompt, seen = rows.context.training
    token = jnp.concatenate([prompt, rows.action.token], axis=1)
    mask = jnp.concatenate([seen, packing.written(rows.mask).astype(seen.dtype)], axis=1)
    return {f"experts/{name}": x for name, x in model.balance(params, token, mask).items()}


def update(
    setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, key: types.Key
) -> tuple[types.TrainState, dict[str, Any]]:
    """Update the state from a rollout.

    Args:
      setup: the phase on devices.
      state: the state before the update.
      rollout: prompts * oversample * samples rows with rewards, those of a prompt adjacent.
      key: the run's root key.

    Returns:
      (state, metrics): float32 scalars by name, and if ``log.rollout_rows`` is above 0, as "rows", the first groups
      of rows that the step trained on; extra["log_ratio"] is that of their last gradient step.
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _PIECES), state.step)
    algorithm, source, previous = setup.algorithm, setup.algorithm.source, state
    decoded, metrics = rollout.extra.get("slots"), {}
    if decoded is not None:
        written = rollout.mask if rollout.version is None else rollout.mask * (rollout.version == state.step)
        metrics["slot_utilisation"] = jnp.sum(written) / jnp.sum(decoded)
    if source.segment:
        metrics["carried"] = jnp.mean((rollout.finish == types.Finish.UNFINISHED) * 1.0)
    free = jnp.sum(source.in_flight(state.pool)["free"]) // setup.samples if source.segment else None
    drawn = setup.prompts * source.oversample if free is None else free
    rollout, pool, inner = _selected(setup, state, rollout, key)
    place = jnp.arange(rollout.group.size, dtype=jnp.int32)
    rollout = rollout.replace(extra={**rollout.extra, "now": jnp.full_like(place, state.step), "place": place})
    state = state.replace(algorithm=inner, pool=pool)
    turns, domains = "turns" in supplies.supplies(setup.task), row_metrics.domains(setup.task)
    metrics |= row_metrics.metrics(rollout, judged=source.origin == "policy", turns=turns, domains=domains)
    metrics |= _experts(setup, state.params["policy"], rollout)
    skipped, logged = jnp.zeros(()), jax.tree.map(lambda x: x[: setup.logged], rollout)
    for number, o in enumerate(algorithm.objectives):
        state, terms = _when_due(setup, number, state, rollout, jax.random.fold_in(key, 2 + number))
        skipped += terms["skipped"]
        if "log_ratio" in terms:
            logged = logged.replace(extra={**logged.extra, "log_ratio": terms.pop("log_ratio")})
        metrics |= terms if o.module == "policy" else {f"{o.module}/{name}": x for name, x in terms.items()}
    state = _finish(setup, previous, state, metrics, skipped, jax.random.fold_in(key, 1000))
    metrics["skipped_in_row"] = state.skipped
    if setup.logged:
        metrics["rows"] = logged
    return state.replace(cursor=state.cursor.at[setup.cursor].add(drawn)), metrics


def _selected(
    setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, key: types.Key
) -> tuple[types.Rollout, types.Tree, types.State]:
    """Return the rows to train on with their advantages, the pool, and the states of the rollout transforms.

    A source that selects single rows does it after the advantages, whose baselines are those of whole groups.
    """
    source = setup.algorithm.source

    def select(rollout: types.Rollout) -> tuple[types.Rollout, types.Tree]:
        return source.select(rollout, state.pool, setup.rows, jax.random.fold_in(key, 0))

    pool = state.pool
    if source.grouped:
        rollout, pool = select(rollout)
    rollout = _complete(setup, state, sharding.constrain(rollout, setup.mesh))
    rollout, inner = interpreter.transform(setup.algorithm, rollout, state.algorithm, jax.random.fold_in(key, 1))
    if not source.grouped:
        rollout, pool = select(rollout)
        # stored rows have the log-probs of earlier parameters
        rollout = _complete(setup, state, rollout) if source.off_policy else rollout
    return sharding.constrain(rollout, setup.mesh), pool, inner


def _when_due(setup: phases.Setup, number: int, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    """Run an objective on every ``every``-th step; on other steps its metrics are 0."""
    every = setup.algorithm.objectives[number].every
    run = functools.partial(_optimize, setup, number)
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
    """Update reference, schedules and counters; only the counters if an update was skipped."""
    finite = skipped == 0
    reference, inner = interpreter.after(
        setup.algorithm, state.reference, adapters.trained(state.params["policy"]), metrics, state.algorithm, key
    )
    inner = interpreter.observe(setup.algorithm, inner, metrics)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    if setup.precedent:
        state = state.replace(snapshot=keep(adapters.trained(previous.params["policy"]), state.snapshot))
    elif state.snapshot is not None:
        due = (state.step + 1) % setup.settings.world.refresh == 0
        policy = adapters.trained(state.params["policy"])
        state = state.replace(snapshot=jax.tree.map(lambda n, o: jnp.where(due, n, o), policy, state.snapshot))
    return state.replace(
        step=state.step + 1,
        reference=keep(reference, previous.reference),
        algorithm=keep(inner, previous.algorithm),
        pool=setup.algorithm.source.observe(state.pool, metrics),
        skipped=jnp.where(finite, 0, state.skipped + 1),
        skipped_total=state.skipped_total + skipped.astype(jnp.int32),
    )
