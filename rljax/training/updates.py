"""The update: complete the rows, compute advantages, run every objective, move what follows.

Everything is a pure function; micro-batches, minibatches and epochs are scans.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.algorithms import interpreter
from rljax.models import adapters, packing
from rljax.training import optimizers, phases, sharding
from rljax.transforms import ops

_PIECES = 3  # stream of the root key
_ROUNDING = 1_000_000  # stream of an objective's key, beyond any number of repeats


def _split(tree: types.Tree, parts: int, mesh: jax.sharding.Mesh) -> types.Tree:
    """Cut row-leading arrays [B, ...] into [parts, B / parts, ...], rows of a block staying together."""
    split = jax.tree.map(lambda x: x.reshape((parts, x.shape[0] // parts, *x.shape[1:])), tree)
    return sharding.constrain(split, mesh, leading=1) if parts > 1 else split


def _map_rows(function: Callable[[types.Rollout], Any], rollout: types.Rollout, setup: phases.Setup) -> Any:
    """Apply ``function`` to the rows, a micro-batch at a time."""
    if setup.learner.microbatches == 1:
        return function(rollout)
    out = jax.lax.map(function, _split(rollout, setup.learner.microbatches, setup.mesh))
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), out)


def _complete(setup: phases.Setup, state: types.TrainState, rollout: types.Rollout) -> types.Rollout:
    """Fill what the algorithm reads beyond the sample: reference, proximal policy and critic."""
    needs = interpreter.needs(setup.algorithm)
    inner = max(_repeats(setup, o) for o in setup.algorithm.objectives)

    def fill(rows: types.Rollout) -> dict[str, types.Array]:
        found = {}
        if needs.reference:
            reference = adapters.joined(state.reference, state.params["policy"])
            plain = phases.score(setup, "policy", reference, rows, types.Needs(), kept=False)
            found["ref_logp"] = plain.logp
        if needs.fixed_proximal or (needs.proximal and inner > 1):
            found["proximal_logp"] = phases.score(setup, "policy", state.params["policy"], rows, types.Needs()).logp
        if needs.value:
            found["value"] = phases.score(
                setup, "value", state.params[setup.owner("value")], rows, types.Needs(value=True)
            ).value
        return found

    return rollout.replace(**_map_rows(fill, rollout, setup))


def _repeats(setup: phases.Setup, o: types.Objective) -> int:
    """Count the gradient steps an objective takes on one rollout."""
    return (o.epochs or setup.learner.epochs) * (o.minibatches or setup.learner.minibatches)


def _minibatch_gradient(
    setup: phases.Setup,
    o: types.Objective,
    part: types.Tree,
    state: types.TrainState,
    rollout: types.Rollout,
    inner,
    key,
):
    """Return (loss, metrics, gradient, state) of one minibatch; micro-batches only add.

    ``part`` is the trained part of the module's parameters as it is now, ``state`` that of the start of the update.
    The gradient is of the part alone, and float32.
    """
    needs = interpreter.objective_needs(o)
    reference = adapters.joined(state.reference, state.params["policy"]) if needs.divergence else None

    def score(part: types.Tree, rows: types.Rollout, places: packing.Places | None = None) -> types.Scores:
        params = adapters.joined(part, state.params[o.module])
        return phases.score(setup, o.module, params, rows, needs, reference=reference, places=places)

    live = _map_rows(lambda rows: score(part, rows), rollout, setup) if needs.live else None
    rollout, inner = interpreter.prepare_minibatch(o, rollout, live, inner, key)

    def loss(part: types.Tree, rows: types.Rollout, key: types.Key, places: packing.Places | None = None):
        scores = score(part, rows, places)
        value, metrics = interpreter.loss(o, rows, scores, inner, key)
        if scores.logp is not None and rows.behaviour_logp is not None:
            gap = jnp.abs(jax.lax.stop_gradient(scores.logp) - rows.behaviour_logp)
            drawn = (rows.mask > 0) & (rows.behaviour_logp < 0)  # demonstrations are taken to be certain
            metrics["sampler_gap"] = jnp.sum(jnp.where(drawn, gap, 0.0) * rows.coefficient["metric"])
        return value, metrics

    def gradient(*arguments: Any) -> Any:
        found, grads = jax.value_and_grad(loss, has_aux=True)(*arguments)
        return found, optimizers.wide(grads)  # micro-batches add in float32

    if setup.learner.lanes and setup.shared(rollout.mask.shape[0]):
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


def _zeros(function: Callable[..., Any], *arguments: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *arguments))


def _packed(
    setup: phases.Setup, gradient: Callable[..., Any], params: types.Tree, rollout: types.Rollout, key: types.Key
):
    """Return (loss, metrics, gradient) of packed rows, as many micro-batches as their tokens take.

    The unit is ``setup.learner.lanes`` packed rows of one prompt; most prompts need one, the longest several.
    """
    rows, width = rollout.mask.shape
    prompts, samples = rows // setup.samples, setup.samples
    length = jnp.sum(packing.written(rollout.mask), axis=1, dtype=jnp.int32).reshape(prompts, samples)
    lane, offset = packing.first_fit(length, width)
    ends = jnp.cumsum(jnp.max(lane, axis=1) // setup.learner.lanes + 1)  # units of the prompts up to each
    each = max(1, prompts // setup.learner.microbatches)

    def part(turn: types.Array) -> tuple[types.Rollout, packing.Places]:
        unit = turn * each + jnp.arange(each, dtype=jnp.int32)
        prompt = jnp.minimum(jnp.searchsorted(ends, unit, side="right"), prompts - 1).astype(jnp.int32)
        first = setup.learner.lanes * (unit - jnp.where(prompt > 0, ends[prompt - 1], 0))
        own = lane[prompt] - first[:, None]
        here = (own >= 0) & (own < setup.learner.lanes) & (unit < ends[-1])[:, None]
        places = packing.Places(
            jnp.where(here, own, setup.learner.lanes).reshape(-1),
            offset[prompt].reshape(-1),
            setup.learner.lanes,
            samples,
            width,
        )
        index = (prompt[:, None] * samples + jnp.arange(samples, dtype=jnp.int32)[None, :]).reshape(-1)
        taken = jax.tree.map(lambda x: x[index], rollout)
        weight = here.reshape(-1, 1).astype(taken.mask.dtype)
        coefficient = {name: x * weight for name, x in taken.coefficient.items()}
        taken = taken.replace(mask=taken.mask * weight, coefficient=coefficient)
        return sharding.constrain(taken, setup.mesh), places

    def add(carry):
        turn, total = carry
        taken, places = part(turn)
        return turn + 1, jax.tree.map(jnp.add, total, gradient(params, taken, jax.random.fold_in(key, turn), places))

    start = jnp.zeros((), jnp.int32)
    total = _zeros(lambda taken, places: gradient(params, taken, key, places), *jax.eval_shape(part, start))
    _, ((value, metrics), grads) = jax.lax.while_loop(lambda c: c[0] * each < ends[-1], add, (start, total))
    return value, metrics, grads


def _optimise(setup: phases.Setup, number: int, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    """Run one objective: every epoch and minibatch. Returns (state, metrics of it)."""
    o, tx = setup.algorithm.objectives[number], setup.phase.optimizers[number]
    minibatches = o.minibatches or setup.learner.minibatches
    batches = _split(rollout, minibatches, setup.mesh)
    rounding = jax.random.fold_in(key, _ROUNDING) if setup.learner.rounding == "stochastic" else None

    def turn(carry, i: types.Array):
        part, opt_state, inner = carry
        rows = jax.tree.map(lambda x: x[i % minibatches], batches)
        value, metrics, grads, inner = _minibatch_gradient(
            setup, o, part, state, rows, inner, jax.random.fold_in(key, i)
        )
        if setup.learner.offload:  # on the device for no longer than it is used
            opt_state = jax.device_put(opt_state, jax.memory.Space.Device)
        own = None if rounding is None else jax.random.fold_in(rounding, i)
        part, opt_state, norm, finite = optimizers.apply(tx, grads, value, part, opt_state, own)
        if setup.learner.offload:
            opt_state = jax.device_put(opt_state, jax.memory.Space.Host)
        metrics |= {"loss": value, "gradient_norm": norm, "skipped": 1.0 - finite}
        return (part, opt_state, inner), metrics

    inner = state.algorithm["objectives"][number]
    carry = (adapters.trained(state.params[o.module]), state.opt_state[number], inner)
    repeats = _repeats(setup, o)
    if repeats == 1:
        carry, metrics = turn(carry, jnp.zeros((), jnp.int32))
        stacked = jax.tree.map(lambda x: x[None], metrics)
    else:
        carry, stacked = jax.lax.scan(turn, carry, jnp.arange(repeats))
    metrics = {name: jnp.mean(x) for name, x in stacked.items()}
    metrics["skipped"] = jnp.sum(stacked["skipped"])
    if "sampler_gap" in stacked:  # later minibatches have moved away from the sampler by design
        metrics["sampler_gap"] = stacked["sampler_gap"][0]
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
    """Describe how evenly a micro-batch of rows uses the experts, where the policy has any."""
    model = setup.networks["policy"]
    if not model.architecture.experts or rollout.context is None or rollout.action is None:
        return {}
    rows = jax.tree.map(lambda x: x[: x.shape[0] // setup.learner.microbatches], rollout)
    prompt, seen = rows.context.training
    token = jnp.concatenate([prompt, rows.action.token], axis=1)
    mask = jnp.concatenate([seen, packing.written(rows.mask).astype(seen.dtype)], axis=1)
    return {f"experts/{name}": x for name, x in model.balance(params, token, mask).items()}


def _rollout_metrics(rollout: types.Rollout, judged: bool) -> dict[str, types.Array]:
    """Describe the rows a step trains on, before the loss; rewards only where a verifier gave them."""
    valid = ops.valid_rows(rollout)
    metrics = {
        "length": ops.masked_mean(jnp.sum(rollout.mask, axis=1), valid),
        "valid_rows": jnp.sum(valid),
    }
    if judged:
        reward = ops.row_reward(rollout)
        own = jnp.where(transforms.PREDICATES["on_policy"](rollout)[:, 0], valid, 0.0)  # not what others wrote
        metrics |= {
            "reward": ops.masked_mean(rollout.reward, valid),
            "reward_std": ops.masked_std(reward, valid),
            "flat_groups": ops.masked_mean((ops.segment_std(reward, rollout.group, valid) <= 0) * 1.0, valid),
            "accuracy": ops.masked_mean((rollout.outcome == types.Outcome.CORRECT) * 1.0, own),
        }
        metrics |= {f"outcome/{o.name.lower()}": jnp.mean((rollout.outcome == o) * 1.0) for o in types.Outcome}
        metrics |= {f"reward/{name}": ops.masked_mean(part, valid) for name, part in rollout.parts.items()}
    if rollout.finish is not None:
        metrics["truncated"] = ops.masked_mean((rollout.finish == types.Finish.LENGTH) * 1.0, valid)
    if rollout.version is not None:
        counted = rollout.mask * valid[:, None]
        metrics["age"] = ops.masked_mean(rollout.extra["now"][:, None] - rollout.version, counted)
    if rollout.entropy is not None:
        metrics["entropy"] = ops.masked_mean(rollout.entropy, rollout.mask)
    if rollout.ref_logp is not None and rollout.raw_logp is not None:
        # of the policy that sampled; a penalty's own, of the live policy, takes its place
        d = jnp.where(rollout.mask > 0, rollout.raw_logp - rollout.ref_logp, 0.0)
        metrics["kl"] = ops.masked_mean(ops.kl_estimate("k3", d), rollout.mask)
    if rollout.advantage is not None:
        metrics["advantage_abs"] = ops.masked_mean(jnp.abs(rollout.advantage), rollout.mask)
    return metrics


def update(
    setup: phases.Setup, state: types.TrainState, rollout: types.Rollout, key: types.Key
) -> tuple[types.TrainState, dict[str, Any]]:
    """Update the state from a scored rollout, [prompts * oversample * samples] rows.

    Returns the state and scalar metrics; with ``log.rollout_rows``, also the first rows as they were trained on
    ("rows").
    """
    key = jax.random.fold_in(jax.random.fold_in(key, _PIECES), state.step)
    algorithm, source, before = setup.algorithm, setup.algorithm.source, state
    decoded = rollout.extra.get("slots")
    metrics = {}
    if decoded is not None:
        written = rollout.mask if rollout.version is None else rollout.mask * (rollout.version == state.step)
        metrics["slot_utilisation"] = jnp.sum(written) / jnp.sum(decoded)
    if source.segment:
        metrics["carried"] = jnp.mean((rollout.finish == types.Finish.UNFINISHED) * 1.0)
    drawn = jnp.sum(state.pool["free"]) // setup.samples if source.segment else setup.prompts * source.oversample
    rollout, pool = source.select(rollout, state.pool, setup.rows, jax.random.fold_in(key, 0))
    rollout = _complete(setup, state, sharding.constrain(rollout, setup.mesh))
    rollout, inner = interpreter.transform(algorithm, rollout, state.algorithm, jax.random.fold_in(key, 1))
    rollout = rollout.replace(extra={**rollout.extra, "now": jnp.full_like(rollout.group, state.step)})
    state = state.replace(algorithm=inner, pool=pool)
    metrics |= _rollout_metrics(rollout, judged=source.origin == "policy")
    metrics |= _experts(setup, state.params["policy"], rollout)
    skipped = jnp.zeros(())
    for number, o in enumerate(algorithm.objectives):
        state, own = _when_due(setup, number, state, rollout, jax.random.fold_in(key, 2 + number))
        skipped += own["skipped"]
        metrics |= own if o.module == "policy" else {f"{o.module}/{name}": x for name, x in own.items()}
    state = _follow(setup, before, state, metrics, skipped, jax.random.fold_in(key, 1000))
    metrics["skipped_in_row"] = state.skipped
    if setup.settings.log.rollout_rows:
        metrics["rows"] = jax.tree.map(lambda x: x[: setup.settings.log.rollout_rows], rollout)
    return state.replace(cursor=state.cursor.at[setup.cursor].add(drawn)), metrics


def _when_due(setup: phases.Setup, number: int, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    """Run an objective on the steps it is meant for; on the others its metrics are 0."""
    every = setup.algorithm.objectives[number].every
    run = functools.partial(_optimise, setup, number)
    if every == 1:
        return run(state, rollout, key)
    shapes = jax.eval_shape(run, state, rollout, key)[1]
    idle = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    return jax.lax.cond(state.step % every == 0, run, lambda s, *_: (s, idle), state, rollout, key)


def _follow(setup: phases.Setup, before, state: types.TrainState, metrics, skipped, key: types.Key) -> types.TrainState:
    """Move reference, schedules and counters. A step with a skipped update moves the counters only."""
    finite = skipped == 0
    reference, inner = interpreter.after(
        setup.algorithm, state.reference, adapters.trained(state.params["policy"]), metrics, state.algorithm, key
    )
    inner = interpreter.observe(setup.algorithm, inner, metrics)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    return state.replace(
        step=state.step + 1,
        reference=keep(reference, before.reference),
        algorithm=keep(inner, before.algorithm),
        skipped=jnp.where(finite, 0, state.skipped + 1),
        skipped_total=state.skipped_total + skipped.astype(jnp.int32),
    )
