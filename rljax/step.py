"""The step: rollout, score, advantage, update, as pure functions of (state, key).

``make_step`` knows interfaces and no algorithm by name. ``key`` is always the run's root key; what a step
draws is a function of it and of the state, so a step can be replayed from a checkpoint.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rljax import losses, models, ops, optimizer, sampling, sharding, tasks, types
from rljax.data import shuffle
from rljax.models import score as scoring

Batch = tuple[types.Rollout, types.Tree]

# streams of the root key; a row's own key is folded from (step, prompt, sample) by sampling.row_keys
_ROWS, _ORDER, _DEMONSTRATIONS, _PIECES, _INIT = range(5)


@dataclasses.dataclass(frozen=True)
class Plan:
    """Everything a step is made for. Sizes are those of one step."""

    algorithm: types.Algorithm
    optimizers: tuple[optax.GradientTransformation, ...]  # one for each objective
    models: Mapping[str, models.Model]  # by module; "policy" is always there
    task: tasks.Task  # bound to its tokenizer
    stop: tuple[int, ...]
    pad: int
    prompts: int
    samples: int
    processors: sampling.Processors
    mesh: jax.sharding.Mesh
    rescore: bool = False  # renormalise over the support the sampler kept
    epochs: int = 1
    minibatches: int = 1
    microbatches: int = 1
    peek: int = 0  # rows of each step handed out with its metrics

    @property
    def rows(self) -> int:
        """Rows that a step trains on."""
        return self.prompts * self.samples

    @property
    def temperature(self) -> float:
        """Temperature of every log-prob; people's demonstrations have none."""
        return self.processors.temperature if self.algorithm.source.origin == "policy" else 1.0


@dataclasses.dataclass(frozen=True)
class Step:
    """The compiled functions of a plan. ``fused`` and ``update`` consume the state they are given."""

    plan: Plan
    begin: Callable[[types.TrainState | None, types.Key], types.TrainState]
    draw: Callable[[types.TrainState, types.Key], tuple[types.Array, types.Array]]
    rollout: Callable[[types.TrainState, types.Key], types.Rollout]
    sample: Callable[..., types.Rollout]
    update: Callable[[types.TrainState, types.Rollout, types.Key], tuple[types.TrainState, dict[str, types.Array]]]
    fused: Callable[[types.TrainState, types.Key], tuple[types.TrainState, dict[str, types.Array]]] | None
    sharding: types.TrainState  # of each leaf of the state
    shape: types.TrainState  # abstract state, with its shardings: what a checkpoint is restored like


def modules(algorithm: types.Algorithm) -> tuple[str, ...]:
    """Return the modules an algorithm trains or reads: "policy" and, where needed, "value" and "reward"."""
    needs = losses.needs(algorithm)
    trained = {o.module for o in algorithm.objectives}
    return ("policy", *(m for m in ("value", "reward") if m in trained or getattr(needs, m)))


# --- rollout -----------------------------------------------------------------------------------


def _draw(plan: Plan, draw: types.Array, key: types.Key) -> tuple[types.Array, types.Array]:
    """Return what is drawn next: (position [P] in the run, index [P] in the training split).

    Each epoch is a shuffle of its own; a batch may straddle two.
    """
    position = draw + jnp.arange(plan.prompts * plan.algorithm.source.oversample, dtype=jnp.int32)
    size = plan.task.size("train")
    epochs = jax.vmap(lambda e: jax.random.bits(jax.random.fold_in(jax.random.fold_in(key, _ORDER), e)))
    return position, shuffle.permute(position % size, size, epochs(position // size))


def _sample(
    plan: Plan, params: types.Tree, step: types.Array, position: types.Array, prompts: types.Prompts, key: types.Key
) -> types.Rollout:
    """Sample the policy; rows of a prompt stand together. The reward is still 0 everywhere."""
    count, samples = prompts.index.shape[0], plan.samples
    per_row = functools.partial(jnp.repeat, repeats=samples, axis=0, total_repeat_length=count * samples)
    sample = jnp.tile(jnp.arange(samples, dtype=jnp.int32), count)
    keys = sampling.row_keys(jax.random.fold_in(key, _ROWS), step, per_row(prompts.index), sample)
    out = sampling.generate(
        plan.models["policy"],
        params,
        prompts,
        keys,
        samples=samples,
        length=plan.task.completion_length,
        stop=plan.stop,
        pad=plan.pad,
        processors=plan.processors,
        keep_support=plan.rescore,
    )
    rows = _blank(plan, per_row(position), per_row(prompts.index), per_row(prompts.token), per_row(prompts.mask))
    return rows.replace(
        mask=out.mask,
        action=types.Action(token=out.token, kept=out.kept),
        behaviour_logp=out.behaviour_logp,
        raw_logp=out.raw_logp,
        entropy=out.entropy,
        finish=out.finish,
        version=jnp.broadcast_to(step, out.mask.shape).astype(jnp.int32),
        on_policy=jnp.ones_like(rows.reward),
    )


def _blank(plan: Plan, position, index, token, mask) -> types.Rollout:
    rows, width = position.shape[0], plan.task.completion_length
    zero = jnp.zeros((rows,), jnp.int32)
    return types.Rollout(
        mask=jnp.zeros((rows, width)),
        reward=jnp.zeros((rows,)),
        group=position,
        context=types.Context(token=token, mask=mask),
        turn=jnp.zeros((rows, width), jnp.int32),
        valid=jnp.ones((rows,)),
        outcome=zero,
        rollout=jnp.arange(rows, dtype=jnp.int32),
        agent=zero,
        domain=zero,
        index=index,
    )


def judged(rollout: types.Rollout, verdict: types.Verdict) -> types.Rollout:
    """Write a verdict into a rollout; rows whose verifier crashed or timed out become invalid."""
    broken = (verdict.outcome == types.Outcome.CRASHED) | (verdict.outcome == types.Outcome.TIMED_OUT)
    return rollout.replace(
        reward=jnp.where(broken, 0.0, verdict.reward),
        outcome=verdict.outcome,
        parts=verdict.parts,
        valid=jnp.ones_like(verdict.reward) * ~broken,
    )


def _demonstrate(plan: Plan, step: types.Array, position, prompts: types.Prompts, key: types.Key) -> types.Rollout:
    """Take the task's demonstrations as rows: no verifier has seen them, somebody else wrote them."""
    key = jax.random.fold_in(jax.random.fold_in(key, _DEMONSTRATIONS), step)
    token, mask = plan.task.demonstrations(prompts.index, "train", key)
    rows = _blank(plan, position, prompts.index, jnp.asarray(prompts.token), jnp.asarray(prompts.mask))
    mask = jnp.asarray(mask, jnp.float32)
    return rows.replace(
        mask=mask,
        action=types.Action(token=jnp.asarray(token, jnp.int32)),
        reward=jnp.ones_like(rows.reward),  # what a demonstration is taken for
        on_policy=jnp.zeros_like(rows.reward),
    )


# --- update ------------------------------------------------------------------------------------


def _split(tree: types.Tree, parts: int, mesh: jax.sharding.Mesh) -> types.Tree:
    """Cut row-leading arrays [B, ...] into [parts, B / parts, ...], rows of a block staying together."""
    split = jax.tree.map(lambda x: x.reshape((parts, x.shape[0] // parts, *x.shape[1:])), tree)
    return sharding.constrain(split, mesh, leading=1) if parts > 1 else split


def _map_rows(function: Callable[[types.Rollout], Any], rollout: types.Rollout, plan: Plan) -> Any:
    """Apply ``function`` to the rows, a micro-batch at a time."""
    if plan.microbatches == 1:
        return function(rollout)
    out = jax.lax.map(function, _split(rollout, plan.microbatches, plan.mesh))
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), out)


def _complete(plan: Plan, state: types.TrainState, rollout: types.Rollout) -> types.Rollout:
    """Fill what the algorithm reads beyond the sample: reference, proximal policy and critic."""
    needs = losses.needs(plan.algorithm)
    inner = max(_repeats(plan, o) for o in plan.algorithm.objectives)
    policy = functools.partial(_score, plan, "policy", needs=types.Needs())

    def fill(rows: types.Rollout) -> dict[str, types.Array]:
        found = {}
        if needs.reference:
            plain = _score(plan, "policy", state.reference, rows, types.Needs(), kept=False)
            found["ref_logp"] = plain.logp
        if needs.proximal and inner > 1:
            found["proximal_logp"] = policy(state.params["policy"], rows).logp
        if needs.value:
            found["value"] = _score(plan, "value", state.params["value"], rows, types.Needs(value=True)).value
        return found

    return rollout.replace(**_map_rows(fill, rollout, plan))


def _score(
    plan: Plan,
    module: str,
    params: types.Tree,
    rows: types.Rollout,
    needs: types.Needs,
    *,
    kept: bool | None = None,
    reference: types.Tree | None = None,
) -> types.Scores:
    return scoring.score(
        plan.models[module],
        params,
        rows,
        needs,
        temperature=plan.temperature,
        kept=plan.rescore if kept is None else kept,
        reference=reference,
    )


def _repeats(plan: Plan, o: types.Objective) -> int:
    """Count the gradient steps an objective takes on one rollout."""
    return (o.epochs or plan.epochs) * (o.minibatches or plan.minibatches)


def _minibatch_gradient(
    plan: Plan, o: types.Objective, params: types.Tree, reference: types.Tree, rollout: types.Rollout, inner, key
):
    """Return (loss, metrics, gradient, state) of one minibatch; micro-batches only add."""
    needs = losses.objective_needs(o)
    score = functools.partial(_score, plan, o.module, needs=needs, reference=reference if needs.divergence else None)
    live = _map_rows(lambda rows: score(params, rows), rollout, plan) if needs.live else None
    rollout, inner = losses.prepare(o, rollout, live, inner, key)

    def loss(params: types.Tree, rows: types.Rollout, key: types.Key):
        scores = score(params, rows)
        value, metrics = losses.loss(o, rows, scores, inner, key)
        if scores.logp is not None and rows.behaviour_logp is not None:
            gap = jnp.abs(jax.lax.stop_gradient(scores.logp) - rows.behaviour_logp)
            metrics["sampler_gap"] = jnp.sum(jnp.where(rows.mask > 0, gap, 0.0) * rows.coefficient["metric"])
        return value, metrics

    gradient = jax.value_and_grad(loss, has_aux=True)
    if plan.microbatches == 1:
        (value, metrics), grads = gradient(params, rollout, key)
        return value, metrics, grads, inner

    def add(total, part):
        i, rows = part
        return jax.tree.map(jnp.add, total, gradient(params, rows, jax.random.fold_in(key, i))), None

    parts = _split(rollout, plan.microbatches, plan.mesh)
    first = jax.tree.map(lambda x: x[0], parts)
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(gradient, params, first, key))
    ((value, metrics), grads), _ = jax.lax.scan(add, zero, (jnp.arange(plan.microbatches), parts))
    return value, metrics, grads, inner


def _optimise(plan: Plan, number: int, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    """Run one objective: every epoch and minibatch. Returns (state, metrics of it)."""
    o, tx = plan.algorithm.objectives[number], plan.optimizers[number]
    minibatches = o.minibatches or plan.minibatches
    batches = _split(rollout, minibatches, plan.mesh)

    def turn(carry, i: types.Array):
        params, opt_state, inner = carry
        rows = jax.tree.map(lambda x: x[i % minibatches], batches)
        value, metrics, grads, inner = _minibatch_gradient(
            plan, o, params, state.reference, rows, inner, jax.random.fold_in(key, i)
        )
        params, opt_state, norm, finite = optimizer.apply(tx, grads, value, params, opt_state)
        metrics |= {"loss": value, "gradient_norm": norm, "skipped": 1.0 - finite}
        return (params, opt_state, inner), metrics

    inner = state.algorithm["objectives"][number]
    carry = (state.params[o.module], state.opt_state[number], inner)
    repeats = _repeats(plan, o)
    if repeats == 1:
        carry, metrics = turn(carry, jnp.zeros((), jnp.int32))
        stacked = jax.tree.map(lambda x: x[None], metrics)
    else:
        carry, stacked = jax.lax.scan(turn, carry, jnp.arange(repeats))
    metrics = {name: jnp.mean(x) for name, x in stacked.items()}
    metrics["skipped"] = jnp.sum(stacked["skipped"])
    if "sampler_gap" in stacked:  # later minibatches have moved away from the sampler by design
        metrics["sampler_gap"] = stacked["sampler_gap"][0]
    params, opt_state, inner = carry

    def put(items: tuple, item: Any) -> tuple:
        return (*items[:number], item, *items[number + 1 :])

    state = state.replace(
        params={**state.params, o.module: params},
        opt_state=put(state.opt_state, opt_state),
        algorithm={**state.algorithm, "objectives": put(state.algorithm["objectives"], inner)},
    )
    return state, metrics


def _rollout_metrics(rollout: types.Rollout, judged: bool) -> dict[str, types.Array]:
    """Describe the rows a step trains on, before the loss; rewards only where a verifier gave them."""
    valid = ops.valid_rows(rollout)
    metrics = {
        "length": ops.masked_mean(jnp.sum(rollout.mask, axis=1), valid),
        "valid_rows": jnp.sum(valid),
    }
    if judged:
        reward = ops.row_reward(rollout)
        metrics |= {
            "reward": ops.masked_mean(rollout.reward, valid),
            "reward_std": ops.masked_std(reward, valid),
            "flat_groups": ops.masked_mean((ops.group_std(reward, rollout.group, valid) <= 0) * 1.0, valid),
            "accuracy": ops.masked_mean((rollout.outcome == types.Outcome.CORRECT) * 1.0, valid),
        }
        metrics |= {f"outcome/{o.name.lower()}": jnp.mean((rollout.outcome == o) * 1.0) for o in types.Outcome}
        metrics |= {f"reward/{name}": ops.masked_mean(part, valid) for name, part in rollout.parts.items()}
    if rollout.finish is not None:
        metrics["truncated"] = ops.masked_mean((rollout.finish == types.Finish.LENGTH) * 1.0, valid)
    if rollout.entropy is not None:
        metrics["entropy"] = ops.masked_mean(rollout.entropy, rollout.mask)
    if rollout.advantage is not None:
        metrics["advantage_abs"] = ops.masked_mean(jnp.abs(rollout.advantage), rollout.mask)
    return metrics


def _update(plan: Plan, state: types.TrainState, rollout: types.Rollout, key: types.Key):
    key = jax.random.fold_in(jax.random.fold_in(key, _PIECES), state.step)
    source, algorithm = plan.algorithm.source, plan.algorithm
    drawn = plan.prompts * source.oversample
    rollout, pool = source.select(rollout, state.pool, plan.rows, jax.random.fold_in(key, 0))
    rollout = sharding.constrain(rollout, plan.mesh)
    rollout = _complete(plan, state, rollout)
    rollout, inner = losses.transform(algorithm, rollout, state.algorithm, jax.random.fold_in(key, 1))
    metrics = _rollout_metrics(rollout, judged=source.origin == "policy")
    before = state
    state = state.replace(algorithm=inner, pool=pool)
    skipped = jnp.zeros(())
    for number, o in enumerate(algorithm.objectives):
        run = functools.partial(_optimise, plan, number)
        arguments = (state, rollout, jax.random.fold_in(key, 2 + number))
        if o.every == 1:
            state, own = run(*arguments)
        else:
            idle = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, *arguments)[1])
            state, own = jax.lax.cond(state.step % o.every == 0, run, lambda s, *_: (s, idle), *arguments)
        skipped += own["skipped"]
        metrics |= own if o.module == "policy" else {f"{o.module}/{name}": x for name, x in own.items()}
    state = _follow(plan, before, state, metrics, skipped, jax.random.fold_in(key, 1000))
    metrics["skipped_in_row"] = state.skipped
    if plan.peek:
        metrics["rows"] = jax.tree.map(lambda x: x[: plan.peek], rollout)
    return state.replace(draw=state.draw + drawn), metrics


def _follow(plan: Plan, before, state: types.TrainState, metrics, skipped, key: types.Key) -> types.TrainState:
    """Move reference, schedules and counters. A step with a skipped update moves the counters only."""
    finite = skipped == 0
    reference, inner = losses.after(
        plan.algorithm, state.reference, state.params["policy"], metrics, state.algorithm, key
    )
    inner = losses.observe(plan.algorithm, inner, metrics)

    def keep(new: types.Tree, old: types.Tree) -> types.Tree:
        return jax.tree.map(lambda n, o: jnp.where(finite, n, o), new, old)

    return state.replace(
        step=state.step + 1,
        reference=keep(reference, before.reference),
        algorithm=keep(inner, before.algorithm),
        skipped=jnp.where(finite, 0, state.skipped + 1),
        skipped_total=state.skipped_total + skipped.astype(jnp.int32),
    )


# --- state -------------------------------------------------------------------------------------


def _init_params(plan: Plan, key: types.Key) -> dict[str, types.Tree]:
    """Return fresh parameters; another module starts from the policy's trunk with a head of its own."""
    policy = plan.models["policy"].init(key)
    params = {"policy": policy}
    for module, model in plan.models.items():
        if module != "policy":
            params[module] = model.init(jax.random.fold_in(key, len(params)))
    return params


def _begin(plan: Plan, before: types.TrainState | None, key: types.Key, *, carry: bool, keep: bool) -> types.TrainState:
    """Start a phase: from nothing, or from the state in which the phase before ended.

    ``carry`` takes over the optimizer state (the phases must have the same optimizers), ``keep`` the reference.
    """
    fresh = _init_params(plan, jax.random.fold_in(key, _INIT))
    if before is None:
        params, reference, zero = fresh, None, jnp.zeros((), jnp.int32)
        step = draw = total = zero
    else:
        trunk = before.params["policy"]
        grown = {
            m: {k: jax.tree.map(jnp.copy, trunk[k]) if k in trunk else v for k, v in tree.items()}
            for m, tree in fresh.items()
        }
        params = {m: before.params.get(m, grown[m]) for m in fresh}
        reference, step, draw, total = before.reference, before.step, before.draw, before.skipped_total
    if not losses.needs(plan.algorithm).reference and not losses.needs(plan.algorithm).divergence:
        reference = None
    elif reference is None or not keep:
        reference = jax.tree.map(jnp.copy, params["policy"])
    opt_state = tuple(
        tx.init(params[o.module]) for tx, o in zip(plan.optimizers, plan.algorithm.objectives, strict=True)
    )
    if carry and before is not None:
        if jax.tree.structure(opt_state) != jax.tree.structure(before.opt_state):
            raise ValueError("config.phase: reset_optimizer=False, but the phase before has another optimizer.")
        opt_state = before.opt_state
    state = types.TrainState(
        step=step,
        draw=draw,
        params=params,
        opt_state=opt_state,
        algorithm=losses.init(plan.algorithm),
        reference=reference,
        pool=(),
        skipped=jnp.zeros((), jnp.int32),
        skipped_total=total,
    )
    shape = jax.eval_shape(functools.partial(_any_rollout, plan), state, key)
    blank = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
    return state.replace(pool=plan.algorithm.source.init(blank))


def _any_rollout(plan: Plan, state: types.TrainState, key: types.Key) -> types.Rollout:
    """Stand for a rollout in shape: what the source's pool is made for."""
    count, length = plan.prompts * plan.algorithm.source.oversample, plan.task.prompt_length
    index = jnp.zeros((count,), jnp.int32)
    prompts = types.Prompts(token=jnp.zeros((count, length), jnp.int32), mask=jnp.ones((count, length)), index=index)
    if plan.algorithm.source.origin == "demonstrations":
        return _blank(plan, index, index, prompts.token, prompts.mask)
    return _sample(plan, state.params["policy"], state.step, index, prompts, key)


def _state_sharding(plan: Plan, state: types.TrainState) -> types.TrainState:
    """Lay parameters, reference and optimizer state out by the table of rules; pools by row; the rest replicated."""
    mesh = plan.mesh
    whole = sharding.replicated(mesh)
    params = {
        m: sharding.param_sharding(mesh, plan.models[m].axes, tree) for m, tree in state.params.items()
    }
    return types.TrainState(
        step=whole,
        draw=whole,
        params=params,
        opt_state=tuple(
            optimizer.shardings(tx, state.params[o.module], params[o.module], whole)
            for tx, o in zip(plan.optimizers, plan.algorithm.objectives, strict=True)
        ),
        algorithm=jax.tree.map(lambda _: whole, state.algorithm),
        reference=None if state.reference is None else params["policy"],
        pool=jax.tree.map(lambda x: sharding.batch_sharding(mesh) if x.ndim else whole, state.pool),
        skipped=whole,
        skipped_total=whole,
    )


def make_step(
    plan: Plan, *, before: types.TrainState | None = None, carry: bool = False, keep: bool = False
) -> Step:
    """Compile (lazily) the functions of a plan.

    ``before`` is the abstract state in which the phase before ends; None where the run starts.

    Raises:
      ValueError: rows do not divide over the mesh, or a parameter does not.
    """
    sharding.check_rows(plan.mesh, plan.rows, "batch.prompts * config.batch.samples")
    start = functools.partial(_begin, plan, carry=carry, keep=keep)
    shape = jax.eval_shape(start, before, jax.random.key(0))
    layout = _state_sharding(plan, shape)
    device = not plan.task.host
    demonstrated = plan.algorithm.source.origin == "demonstrations"

    def sample(params, step, position, prompts, key):
        prompts = sharding.constrain(prompts, plan.mesh)
        if demonstrated:
            return _demonstrate(plan, step, position, prompts, key)
        rollout = _sample(plan, params, step, position, prompts, key)
        if not device:
            return rollout
        token, index = rollout.action.token, rollout.index
        return judged(rollout, plan.task.verify(index, "train", token, rollout.mask))

    def rollout(state: types.TrainState, key: types.Key) -> types.Rollout:
        position, index = _draw(plan, state.draw, key)
        return sample(state.params["policy"], state.step, position, plan.task.prompts(index, "train"), key)

    def update(state: types.TrainState, rows: types.Rollout, key: types.Key):
        return _update(plan, state, rows, key)

    def fused(state: types.TrainState, key: types.Key):
        return update(state, rollout(state, key), key)

    out = (layout, sharding.replicated(plan.mesh))
    traced = device or not demonstrated  # a host task's demonstrations are read on the host
    return Step(
        plan=plan,
        begin=jax.jit(start, out_shardings=layout),
        draw=jax.jit(lambda state, key: _draw(plan, state.draw, key)),
        rollout=jax.jit(rollout) if device else rollout,
        sample=jax.jit(sample) if traced else sample,
        update=jax.jit(update, donate_argnums=0, out_shardings=out),
        fused=jax.jit(fused, donate_argnums=0, out_shardings=out) if device else None,
        sharding=layout,
        shape=jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shape, layout),
    )
