"""Checks of a phase before anything compiles: its task and its pieces, run on shapes and types alone."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.algorithms import inputs, interpreter
from rljax.environments import traits
from rljax.language import errors
from rljax.models import actors
from rljax.models.scores import head
from rljax.training import passes, phases, producers
from rljax.training import problems as problems_lib
from rljax.training.learning import row_metrics
from rljax.transforms import modules
from rljax.transforms.frame import extras, shapes
from rljax.transforms.source import groups

Shape = jax.ShapeDtypeStruct
# traced once for phases whose rows have the same fields
_row_metrics = jax.jit(row_metrics.metrics, static_argnames=("judged", "turns", "domains"))
_KEY = Shape((), jax.eval_shape(lambda: jax.random.key(0)).dtype)


def check(setup: phases.Setup, trains: bool = True) -> None:
    """Run the task and the algorithm of a phase on abstract arrays, as its step will on real ones.

    Args:
      setup: the phase on devices. No device is used, and no model is traced.
      trains: whether the phase trains; else the task alone is run.

    Raises:
      CodeError: an exception inside the task or a piece, or a result of another shape or dtype.
      ValueError: the pieces do not fit each other: a coefficient for a term that no piece writes; or the noise of a
        gradient cannot be estimated, or turns cannot be played again.
    """
    where = f"phase {setup.phase.name!r}, {setup.algorithm.spec}" if trains else f"phase {setup.phase.name!r}"
    if trains:
        _noise(setup)
        _stops(setup)
        asked = [interpreter.needs(setup.algorithm), *setup.phase.read.values()]
        head.check([name for needs in asked for name in needs.requested if not types.SCORES[name].at])
        given = [(o.module, interpreter.objective_needs(o)) for o in setup.algorithm.objectives]
        for module, needs in (*given, *setup.phase.read.items()):
            network: Any = setup.networks.get(module)
            for name, named, _ in map(modules.parts, sorted(needs.divergence)):
                critics = [n for n in named if getattr(setup.networks.get(n), "reads_action", False)]
                if critics and name != modules.LEAST:
                    raise ValueError(f"{where}: {name} from {critics[0]!r}, a critic of actions, not a distribution")
            if isinstance(network, actors.Actor):
                try:
                    network.check(needs)
                except ValueError as error:
                    raise ValueError(f"{where}: {module!r} {error}") from None
    with errors.within(where):
        rows = jax.eval_shape(producers.make(setup).check, _KEY)
        if not trains:
            return
        jax.eval_shape(lambda rows, key: _algorithm(setup, rows, key), rows, _KEY)


def _noise(setup: phases.Setup) -> None:
    """Raise ValueError if the noise of gradients is asked for and gradient steps are not of several whole prompts."""
    if "noise" not in setup.settings.log.diagnostics:
        return
    where, source = f"config.log.diagnostics (phase {setup.phase.name!r}): 'noise'", setup.algorithm.source
    if source.uneven or not source.grouped:
        raise ValueError(
            f"{where} compares equal numbers of prompts, and {source.spec} splits rows otherwise. Remove it."
        )
    for _, minibatches in (setup.learner.of(o) for o in setup.algorithm.objectives if o.module == "policy"):
        if setup.prompts % minibatches or setup.prompts == minibatches:
            raise ValueError(
                f"{where} compares the prompts of a gradient step, and {setup.prompts} prompts are split into "
                f"{minibatches} minibatches. Remove it, or give each minibatch an equal number of prompts, at least 2."
            )


def _stops(setup: phases.Setup) -> None:
    """Raise ValueError if rows of turns are given other goals and a turn ends otherwise than by end-of-sequence."""
    source, ends = setup.algorithm.source, setup.ends
    if source.relabel is not None and (len(ends.stop) > 1 or ends.strings is not None):
        raise ValueError(
            f"config.sampler.stop (phase {setup.phase.name!r}): {source.spec} plays turns again, which must end by "
            f"end-of-sequence alone; here {len(ends.stop)} tokens{' and texts' if ends.strings else ''} end them. Use "
            "another source, or a tokenizer with one such token."
        )


# --- the algorithm -----------------------------------------------------------------------------


def _scores(rows: types.Rollout, needs: types.Needs, network: Any) -> types.Scores:
    """Return the scores that a model computes for ``needs``."""
    fields: dict[str, Any] = {name: jnp.zeros(shape) for name, shape in shapes.requested(needs, rows.mask).items()}
    logp = None if getattr(network, "reads_action", False) else rows.mask
    return types.Scores(logp=logp, divergence=dict.fromkeys(needs.divergence, rows.mask), **fields)


def _read(setup: phases.Setup, module: str, rows: types.Rollout) -> types.Scores:
    """Return the scores that a module computes for the pieces that read it."""
    asked = setup.phase.read[module]
    top = max(asked.top, default=0)
    if top and top > (vocabulary := setup.networks[module].architecture.vocabulary):
        raise ValueError(f"config.module.{module}: top={top} exceeds the {vocabulary} tokens of its vocabulary.")
    scores, reading = _scores(rows, asked, setup.networks.get(module)), setup.reads.get(module)
    answered = reading is not None and None in reading.after
    behind = jnp.pad(rows.mask, ((0, 0), (0, 1)))  # as wide as no array of the row
    return scores.replace(after_logp=behind, after_mask=behind) if answered else scores


def _chosen(setup: phases.Setup, pool: types.Tree, key: types.Key) -> None:
    """Run the choice of prompts."""
    source, index = setup.algorithm.source, jnp.zeros((setup.drawn,), jnp.int32)
    if source.choose is not None:
        choice = source.choose(pool, problems_lib.of(setup, key), index, key)
        unlike = source.uneven or choice.samples is not None
        shapes.check_same("the choice", types.Choice(index, index if unlike else None), choice)
        if unlike and (reason := producers.refused(setup.task).get("uneven")):
            raise ValueError(f"{reason}, which plays equal numbers of episodes of a prompt")


def _sourced(setup: phases.Setup, pool: types.Tree, rows: types.Rollout, key: types.Key) -> types.Rollout:
    """Run what the source does between the choice and the selection, and return rows of both passes."""
    source, problems = setup.algorithm.source, problems_lib.of(setup, key)
    if rows.action is None:  # of a control world, whose sources read no tokens
        return rows
    solutions = types.Action(rows.action.token, length=rows.group)
    if source.head is not None:
        shapes.check_same("the head", solutions, source.head(pool, problems, rows, solutions, key))
    if source.again is None:
        return rows
    edit = passes.edited(setup, pool, jnp.zeros((), jnp.int32), rows, solutions, key)
    second = groups.take(rows, jnp.repeat(edit.row, passes.samples(setup)))
    merged = source.again.merge(rows, second, edit)
    added = {name for name in merged.extra if name in source.supplies}
    before = {name: x for name, x in merged.extra.items() if name not in added or name in rows.extra}
    shapes.check_same("the merged rows", rows, merged.replace(extra=before))
    return passes.merged(setup, rows, second, edit)


def _selected(setup: phases.Setup, pool: types.Tree, rows: types.Rollout, key: types.Key) -> types.Rollout:
    """Return the rows that the source selects, checked."""
    rows, new = setup.algorithm.source.select(rows, pool, setup.rows, key)
    shapes.check_rollout(rows)
    shapes.check_same("the pool", pool, new)
    return rows


def _algorithm(setup: phases.Setup, rows: types.Rollout, key: types.Key) -> None:
    """Run every piece as ``updates.update`` does."""
    algorithm, source = setup.algorithm, setup.algorithm.source
    needs, state = interpreter.needs(algorithm), interpreter.init(algorithm)
    with errors.called(f"source {source.spec}"):  # may refuse the size of the task
        pool = source.init(rows, problems_lib.of(setup, key))
        _chosen(setup, pool, key)
    with errors.inside(f"source {source.spec}"):
        rows = _sourced(setup, pool, rows, key)
        rows = _selected(setup, pool, rows, key) if source.grouped else rows
    named = {"ref_logp": needs.reference, "proximal_logp": needs.proximal or needs.fixed_proximal, "value": needs.value}
    rows = rows.replace(**{name: rows.mask for name, needed in named.items() if needed})
    rows = rows.replace(scores={module: _read(setup, module, rows) for module in setup.phase.read})
    if setup.precedent:
        rows = extras.put(rows, {inputs.PRECEDENT: rows.mask})
    rows, state = interpreter.transform(algorithm, rows, state, key)
    if not source.grouped:
        with errors.inside(f"source {source.spec}"):
            rows = _selected(setup, pool, rows, key)
    rows = extras.put(rows, {"now": rows.group})
    turns, domains = "turns" in traits.traits(setup.task).supplies, row_metrics.domains(setup.task)
    metrics = _row_metrics(rows, judged=source.origin == "policy", turns=turns, domains=domains)
    metrics |= dict.fromkeys(("loss", "gradient_norm", "skipped", "sampler_gap"), jnp.zeros(()))
    for o, inner in zip(algorithm.objectives, state["objectives"], strict=True):
        _, minibatches = setup.learner.of(o)
        batch = jax.tree.map(lambda x, n=minibatches: x[: x.shape[0] // n], rows)
        requested, network = interpreter.objective_needs(o), setup.networks.get(o.module)
        live = _scores(batch, requested, network) if requested.live else None
        batch, inner = interpreter.prepare_minibatch(o, batch, live, inner, key)
        part = jax.tree.map(lambda x: x[: x.shape[0] // setup.learner.microbatches], batch)
        _, terms = interpreter.loss(o, part, _scores(part, requested, network), inner, key)
        metrics |= terms if o.module == "policy" else {f"{o.module}/{name}": x for name, x in terms.items()}
    params = {"weights": rows.mask}  # a stand-in: pieces after the update treat all parameters alike
    reference = params if modules.reads_reference(needs) else None
    _, state = interpreter.after(algorithm, reference, params, metrics, state, key)
    interpreter.observe(algorithm, state, metrics)
    with errors.inside(f"source {source.spec}"):
        shapes.check_same("the pool", pool, source.observe(pool, metrics))
