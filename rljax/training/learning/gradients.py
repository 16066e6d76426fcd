"""The gradient of a minibatch: objectives on one network are scored together, and micro-batches add up.

A head whose gradient enters its trunk is read in the forward pass of the trunk, and their losses are one sum
(``Phase.joint``). Everything else is a list of one objective.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from rljax import transforms, types
from rljax.algorithms import interpreter
from rljax.models import adapters
from rljax.models.scores import packing
from rljax.training import phases, sharding
from rljax.training.learning import diagnostics, optimizers
from rljax.transforms import modules
from rljax.transforms.frame import extras

_NOISE = 3_000_000
_HEADS = 2_000_000  # stream of an objective's key, beyond any number of repeats and micro-batches

Rows = Sequence[types.Rollout]  # the same rows, prepared by each objective


def split(tree: types.Tree, parts: int, mesh: jax.sharding.Mesh) -> types.Tree:
    """Reshape arrays [B, ...] to [parts, B / parts, ...]; adjacent rows stay together."""
    out = jax.tree.map(lambda x: x.reshape((parts, x.shape[0] // parts, *x.shape[1:])), tree)
    return sharding.constrain(out, mesh, leading=1) if parts > 1 else out


def map_rows(function: Callable[[types.Rollout], Any], rollout: types.Rollout, setup: phases.Setup) -> Any:
    """Apply ``function`` to the rows, one micro-batch at a time."""
    if setup.learner.microbatches == 1:
        return function(rollout)
    out = jax.lax.map(function, split(rollout, setup.learner.microbatches, setup.mesh))
    return jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), out)


def noised(setup: phases.Setup, rows: types.Rollout, key: types.Key) -> types.Rollout:
    """Return rows with the noise of drawn actions, if a piece reads their expected Q, or the integral over all."""
    if rows.motion is None or getattr(setup.networks["policy"], "kind", "") != "gaussian":
        return rows
    needs, shape = interpreter.needs(setup.algorithm), rows.motion.taken.shape
    if modules.critics(needs):
        rows = extras.put(rows, {"noise": jax.random.normal(key, shape)})
    if count := modules.draws(needs):
        wide, (one, two) = (*shape[:-1], count, shape[-1]), jax.random.split(jax.random.fold_in(key, 1))
        drawn = jax.random.uniform(one, wide, minval=-1.0), jax.random.normal(two, wide)
        rows = extras.put(rows, {"candidates": jnp.concatenate(drawn, axis=-2)})
    return rows


@dataclasses.dataclass(frozen=True)
class Minibatch:
    """A minibatch that each objective of a gradient step has prepared.

    Attributes:
      setup: the phase on devices.
      joint: the numbers of the objectives: one, or a trunk's and then the numbers of its heads.
      state: the state before the update.
      rows: the rows, prepared by each objective.
      inner: the states of the objectives.
      keys: of the gradient step, for each objective.
    """

    setup: phases.Setup
    joint: tuple[int, ...]
    state: types.TrainState
    rows: Rows
    inner: Sequence[types.State]
    keys: Sequence[types.Key]

    @property
    def objectives(self) -> list[types.Objective]:
        """The objectives, as ``rows``."""
        return [self.setup.algorithm.objectives[number] for number in self.joint]

    @property
    def asked(self) -> tuple[str, ...]:
        """The diagnostics of the gradient step."""
        return self.setup.settings.log.diagnostics if self.objectives[0].module == "policy" else ()

    def loss(self, part: types.Tree, rows: Rows, number: types.Array | None, places: packing.Places | None = None):
        """Return the loss and the metrics of each objective on rows of the minibatch; both add up over rows.

        Args:
          part: the current value of the trained parameters, see ``phases.Setup.part``.
          rows: some of ``Minibatch.rows``.
          number: of the micro-batch; None: there is one.
          places: of packed rows.
        """
        setup, objectives, values, metrics = self.setup, self.objectives, [], []
        weights = [1.0, *(setup.phase.of(o.module).trunk_weight for o in objectives[1:])]
        scored = _scores(setup, objectives, self.state, part, _union(rows), places)
        for o, r, scores, i, k in zip(objectives, rows, scored, self.inner, self.keys, strict=True):
            value, terms = interpreter.loss(o, r, scores, i, _folded(k, number))
            values.append(value)
            metrics.append({**terms, **_gaps(setup, o, r, scores), "loss": value})
            if "clip" in self.asked and "clipped" in terms and o.module == "policy":
                metrics[-1] |= diagnostics.of_clip(r, interpreter.loss_terms(o, r, scores, i, _folded(k, number)))
        rest = [w * value for w, value in zip(weights[1:], values[1:], strict=True)]
        return sum(rest, values[0]), metrics

    def gradient(self, *arguments: Any) -> Any:
        """Return ((loss, metrics), gradient in float32) for the arguments of ``loss``."""
        value_metrics, grads = jax.value_and_grad(self.loss, has_aux=True)(*arguments)
        return value_metrics, optimizers.wide(grads)  # micro-batches are accumulated in float32

    def halves(self, part: types.Tree, rows: Rows, number: types.Array | None, places: packing.Places | None = None):
        """Return the policy term's gradients of tokens with positive and with negative advantage."""

        def policy(part: types.Tree) -> types.Array:
            scores = _scores(self.setup, self.objectives, self.state, part, _union(rows), places)[0]
            key = _folded(self.keys[0], number)
            built = interpreter.loss_terms(self.objectives[0], rows[0], scores, self.inner[0], key)
            return diagnostics.by_sign(rows[0], built)

        pull = jax.vjp(policy, part)[1]
        return [optimizers.wide(pull(half)[0]) for half in jnp.eye(2)]


def prepare(
    setup: phases.Setup,
    joint: tuple[int, ...],
    part: types.Tree,
    state: types.TrainState,
    rollout: types.Rollout,
    inner: Sequence[types.State],
    key: types.Key,
) -> Minibatch:
    """Return a minibatch with its masks and coefficients.

    Args:
      setup: the phase on devices.
      joint: the numbers of the objectives: one, or a trunk's and then the numbers of its heads.
      part: the current value of the trained parameters, see ``phases.Setup.part``.
      state: the state before the update.
      rollout: the rows of the minibatch.
      inner: the states of the objectives.
      key: of this gradient step.
    """
    rollout = noised(setup, rollout, jax.random.fold_in(key, _NOISE))
    objectives = [setup.algorithm.objectives[number] for number in joint]
    keys = [key, *(jax.random.fold_in(key, _HEADS + number) for number in joint[1:])]
    live: Sequence[Any] = [None] * len(joint)
    if any(interpreter.objective_needs(o).live for o in objectives):
        live = map_rows(functools.partial(_scores, setup, objectives, state, part), rollout, setup)
    prepared = [
        interpreter.prepare_minibatch(o, setup.written(o.module, rollout), scores, i, k)
        for o, scores, i, k in zip(objectives, live, inner, keys, strict=True)
    ]
    return Minibatch(setup, joint, state, [r for r, _ in prepared], [i for _, i in prepared], keys)


def of_minibatch(minibatch: Minibatch, part: types.Tree, total: Any = None):
    """Return the loss, metrics and gradient of a gradient step.

    Args:
      minibatch: the prepared rows.
      part: the current value of the trained parameters, see ``phases.Setup.part``.
      total: ((loss, metrics), gradient) summed over micro-batches, if it is known.

    Returns:
      (loss, metrics of each objective, gradient in ``part`` in float32), summed over micro-batches.
    """
    setup, rows, asked = minibatch.setup, minibatch.rows, minibatch.asked
    read = any(objective.module in setup.reads for objective in minibatch.objectives)
    (value, metrics), grads = _summed(setup, minibatch.gradient, part, rows, read) if total is None else total
    metrics = [diagnostics.completed(m) for m in metrics]
    if "noise" in asked:
        metrics[0] |= _noise(setup, minibatch.gradient, part, rows, grads)
    if "signs" in asked and "loss/policy" in metrics[0] and rows[0].advantage is not None:
        metrics[0] |= diagnostics.of_signs(*_summed(setup, minibatch.halves, part, rows, read))
    return value, metrics, grads


def _folded(key: types.Key, number: types.Array | None) -> types.Key:
    return key if number is None else jax.random.fold_in(key, number)


def _summed(setup: phases.Setup, function: Callable[..., Any], part: types.Tree, rows: Rows, read: bool) -> Any:
    """Return ``function`` of the trained parameters and the rows, a tree that is added over micro-batches."""
    if setup.learner.lanes and setup.shared(rows[0].mask.shape[0]) and not read:
        return _packed(setup, function, part, rows)
    if setup.learner.microbatches == 1:
        return function(part, rows, None)
    return _added(setup, function, part, rows)


def _noise(
    setup: phases.Setup, gradient: Callable[..., Any], part: types.Tree, rows: Rows, whole: types.Tree
) -> dict[str, types.Array]:
    """Return the noise of the minibatch's gradient ``whole``, from the gradients of equal parts of its prompts."""
    prompts = rows[0].mask.shape[0] // setup.samples
    count = diagnostics.parts(prompts, setup.learner.microbatches)

    def add(total: types.Array, item: Any) -> tuple[types.Array, None]:
        number, rows = item
        return total + optax.tree.norm(gradient(part, rows, number)[1], squared=True), None

    items = jnp.arange(count), split(rows, count, setup.mesh)
    squares = jax.lax.scan(add, jnp.zeros(()), items)[0]
    # the coefficients are of the whole minibatch, so that the mean gradient of a part is count times as large
    large = optax.tree.norm(whole, squared=True)
    square, trace = diagnostics.noise(count * squares, large, prompts / count, prompts)
    return {"noise_square": square, "noise_trace": trace}


def _scores(
    setup: phases.Setup,
    objectives: Sequence[types.Objective],
    state: types.TrainState,
    part: types.Tree,
    rows: types.Rollout,
    places: packing.Places | None = None,
) -> list[types.Scores]:
    """Return the scores that each objective reads, with the module's trained parameters ``part``."""
    o, *heads = objectives
    trained = part if heads else {o.module: part}
    params = {**state.params, **{m: adapters.joined(x, state.params[m]) for m, x in trained.items()}}
    needs, asked = interpreter.objective_needs(o), dict[str, types.Needs]()
    for h in heads:
        asked[h.module] = asked.get(h.module, types.Needs()) | interpreter.objective_needs(h)
    reference = None
    if modules.REFERENCE in modules.compared(needs):
        reference = adapters.joined(state.reference, state.params["policy"])
    scores = phases.score(
        setup,
        o.module,
        setup.params(state.replace(params=params), o.module),
        rows,
        needs,
        reference=reference,
        teachers=teachers(setup, state, needs),
        heads={module: (params[module], wanted) for module, wanted in asked.items()},
        places=places,
    )
    return [scores, *(scores.heads[h.module] for h in heads)]


def teachers(setup: phases.Setup, state: types.TrainState, needs: types.Needs) -> dict[str, types.Tree]:
    """Return the parameters of the modules that scores for ``needs`` are compared with, by name."""
    return {name: setup.params(state, name) for name in sorted(modules.compared(needs) - {modules.REFERENCE})}


def _union(rows: Rows) -> types.Rollout:
    """Return the rows with every token that one of the objectives counts: what is scored."""
    return rows[0].replace(mask=functools.reduce(jnp.maximum, (r.mask for r in rows)))


def _gaps(setup: phases.Setup, o: types.Objective, rows: types.Rollout, scores: types.Scores) -> dict[str, types.Array]:
    """Return metrics that compare the log-probs of the rows with those at sampling."""
    metrics: dict[str, types.Array] = {}
    # logp is normalized over the kept support if raw_logp is there, else over the whole vocabulary
    sampled = rows.raw_logp if scores.raw_logp is None else rows.behaviour_logp
    if o.module == "policy" and scores.logp is not None and sampled is not None:
        gap = jnp.abs(jax.lax.stop_gradient(scores.logp) - sampled)
        drawn = (rows.mask > 0) & (sampled < 0)  # demonstrations have log-prob 0
        if rows.context is not None and rows.context.train_token is not None and rows.on_policy is not None:
            drawn &= rows.on_policy[:, None] > 0  # the others were sampled under another prompt
        metrics["sampler_gap"] = jnp.sum(jnp.where(drawn, gap, 0.0) * rows.coefficient["metric"])
        if "weights" in setup.settings.log.diagnostics:
            written = jnp.where(transforms.PREDICATES["on_policy"](rows), rows.mask, 0.0)
            metrics |= diagnostics.moments(jax.lax.stop_gradient(scores.logp) - sampled, written)
    if o.module == "policy" and setup.logged and scores.logp is not None:
        metrics["log_ratio"] = _log_ratio(setup.logged, rows, jax.lax.stop_gradient(scores.logp))
    return metrics


def _log_ratio(count: int, rows: types.Rollout, logp: types.Array) -> types.Array:
    """Return logp - behaviour_logp of the logged rows, [count, T]; 0 for rows that are not among ``rows``.

    Sums over micro-batches and minibatches complete it. Demonstrations have behaviour_logp 0.
    """
    ratio = jnp.where(rows.mask > 0, logp if rows.behaviour_logp is None else logp - rows.behaviour_logp, 0.0)
    return jnp.zeros((count, ratio.shape[1])).at[rows.extra["place"]].add(ratio, mode="drop")


def _zeros(function: Callable[..., Any], *arguments: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(function, *arguments))


def _added(setup: phases.Setup, gradient: Callable[..., Any], part: types.Tree, rows: Rows):
    """Return ((loss, metrics), gradient), summed over equal micro-batches."""

    def add(total, item):
        number, rows = item
        return jax.tree.map(jnp.add, total, gradient(part, rows, number)), None

    parts = split(rows, setup.learner.microbatches, setup.mesh)
    first = jax.tree.map(lambda x: x[0], parts)
    numbers = jnp.arange(setup.learner.microbatches)
    return jax.lax.scan(add, _zeros(gradient, part, first, numbers[0]), (numbers, parts))[0]


def _packed(setup: phases.Setup, gradient: Callable[..., Any], params: types.Tree, rows: Rows):
    """Return ((loss, metrics), gradient) of packed rows, in as many micro-batches as their tokens need.

    A unit is ``setup.learner.lanes`` packed rows of one prompt; a prompt with long completions needs several units.
    """
    mask = _union(rows).mask
    count, width = mask.shape
    prompts, samples = count // setup.samples, setup.samples
    length = jnp.sum(packing.written(mask), axis=1, dtype=jnp.int32).reshape(prompts, samples)
    lane, offset = packing.first_fit(length, width)
    ends = jnp.cumsum(jnp.max(lane, axis=1) // setup.learner.lanes + 1)  # cumulative number of units
    each = max(1, prompts // setup.learner.microbatches)

    def part(number: types.Array) -> tuple[Rows, packing.Places]:
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
        weight = present.reshape(-1, 1).astype(mask.dtype)

        def taken(whole: types.Rollout) -> types.Rollout:
            r = jax.tree.map(lambda x: x[index], whole)
            coefficient = {name: x * weight for name, x in r.coefficient.items()}
            return r.replace(mask=r.mask * weight, coefficient=coefficient)

        return sharding.constrain([taken(r) for r in rows], setup.mesh), places

    def add(carry):
        number, total = carry
        chosen, places = part(number)
        return number + 1, jax.tree.map(jnp.add, total, gradient(params, chosen, number, places))

    start = jnp.zeros((), jnp.int32)
    total = _zeros(lambda rows, places: gradient(params, rows, start, places), *jax.eval_shape(part, start))
    return jax.lax.while_loop(lambda c: c[0] * each < ends[-1], add, (start, total))[1]
