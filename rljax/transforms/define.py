"""How a piece is written: one decorator for each seam.

    from rljax.transforms import define

    @define.surrogate
    def unclipped(loss, rollout, scores, scale: types.Number = 1.0):
        '''Weigh by the plain ratio: -scale A rho.'''
        return -scale * rollout.advantage * jnp.exp(loss.log_ratio)

The function takes the records that its seam sees, then the piece's arguments. The piece takes the arguments alone, and
the function's signature is its schema: ``unclipped(scale=0.5)``. What the function returns is what the seam writes:

    seam        records                      returns
    reward      rollout                      the rows' reward [B], the token rewards [B, T], or a new rollout
    advantage   rollout                      the advantage, [B] or [B, T]; a pair of it and the critic's target [B, T];
                                             or a new rollout
    prepare     rollout, scores              where the mask stays, bool; a new rollout; or a pair (rollout, where)
    ratio       loss, rollout, scores        log rho [B, T]; or a pair of it and the proximal policy's log-probs
    surrogate   loss, rollout, scores        the term [B, T]; or a pair of it and a dict of metrics, [B, T] each
    weight      loss, rollout, scores        the weight, [B, T] or [B, 1]; no gradient flows through it
    penalty     loss, rollout, scores        the term [B, T], which the argument ``coefficient``, if any, multiplies; or
                                             a pair of it and its metric [B, T]
    reduce      rollout, mask                the coefficient of every token [B, T]; mask is 1 on what counts
    after       reference, params, metrics   the new reference
    source                                   a types.Source
    schedule                                 a types.Controller

A decorator may say what the piece ``needs`` of the machinery (types.Needs), and which ``statistics`` of the whole
minibatch it reads (prepare transforms); both may be functions of the arguments. ``idle.until`` declares what has no
effect. Arguments ``only`` and ``predicate`` name ``transforms.PREDICATES``, whose needs are added.

A piece with a state, random numbers, or pieces for arguments is a function under ``@define.constructor(seam)``.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.language import dotted, errors
from rljax.transforms import ops
from rljax.transforms.frame import idle, shapes, steered

T = TypeVar("T", bound=types.Transform)
Function = Callable[..., Any]
Arguments = Mapping[str, Any]
Needs = types.Needs | Callable[[Arguments], types.Needs]
Statistics = tuple[types.PrepareTransform, ...] | Callable[[Arguments], tuple[types.PrepareTransform, ...]]

_NOTHING = types.Needs()
_BUILT = {  # by seam, what a piece builds
    **dict.fromkeys(("reward", "advantage"), types.RolloutTransform),
    **dict.fromkeys(("prepare", "reduce"), types.PrepareTransform),
    **dict.fromkeys(transforms.LOSS_SEAMS, types.LossTransform),
    "after": types.AfterTransform,
    "source": types.Source,
    "": types.Controller,
}


def reads(*parts: str, extra: tuple[str, ...] = (), siblings: bool = False) -> types.Needs:
    """Return the needs of a piece that reads these parts and extras of the rollout."""
    return types.Needs(parts=frozenset(parts), extra=frozenset(extra), siblings=siblings)


# --- the escape hatch ---------------------------------------------------------------------------


def constructor(seam: str) -> Callable[[Function], Function]:
    """Return a decorator for a function of the arguments that returns a transform of ``seam``.

    It records the call with every default filled in, and accepts a ``types.Controller`` wherever the function takes a
    number. What the function returns is checked: its type, and of a source the signatures of its functions.

    Raises:
      ValueError: an unknown seam.
    """
    if seam not in transforms.SEAMS:
        raise ValueError(f"seam {seam!r}: choose one of {', '.join(transforms.SEAMS)}")
    return functools.partial(_recorded, seam=seam)


def _recorded(function: Function, seam: str) -> Function:
    signature, kind = inspect.signature(function), _BUILT[seam]

    @functools.wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        moving = any(map(steered.moves, arguments.values()))
        built: Any = steered.build(function, arguments) if moving else function(*bound.args, **bound.kwargs)
        if not isinstance(built, kind):
            place = f"{function.__name__} ({errors.place(inspect.unwrap(function))})"
            raise ValueError(f"{place} returned a value of type {type(built).__name__}: expected types.{kind.__name__}")
        if isinstance(built, types.Source):
            again = built.again and shapes.source(built.again)
            built = dataclasses.replace(shapes.source(built), again=again)
        spec = transforms.call(function.__name__, arguments)
        if seam == "ratio" and not built.needs.moves:
            built = dataclasses.replace(built, needs=built.needs | idle.UNDECLARED)
        return dataclasses.replace(built, spec=spec, **({"seam": seam} if seam else {}))

    build.seam = seam  # type: ignore[attr-defined]
    return dotted.mark(build, "piece")


# --- what the decorators share ------------------------------------------------------------------


def stateless(
    kind: type[T],
    function: Function,
    needs: types.Needs = _NOTHING,
    statistics: tuple[types.PrepareTransform, ...] = (),
) -> T:
    """Build a transform without state or key.

    Args:
      kind: the kind of transform.
      function: from the records of the kind to what ``apply`` returns besides the state.
      needs: what it reads.
      statistics: of a loss transform, the prepare transforms it brings.

    Returns:
      The transform, without seam and spec.
    """

    def apply(*args: Any) -> Any:
        *records, state, key = args
        del key
        out = function(*records)
        return out if kind is types.LossTransform else (out, state)

    built = kind(apply=apply, needs=needs)
    return dataclasses.replace(built, statistics=statistics) if isinstance(built, types.LossTransform) else built


def statistic(
    name: str,
    function: Callable[[types.Rollout, types.Scores], types.Array],
    needs: types.Needs = _NOTHING,
    shared: bool = False,
) -> types.PrepareTransform:
    """Build a prepare transform that writes ``extra[name]`` on the whole minibatch.

    Args:
      name: the array's name.
      function: from (rollout, scores) to the array, ``[B, ...]``.
      needs: what it reads.
      shared: several pieces may write the name, since all of them write the same.

    Returns:
      The transform, for the ``statistics`` of a piece.
    """

    def write(rollout: types.Rollout, scores: types.Scores) -> types.Rollout:
        if name in rollout.extra and not shared:
            raise ValueError(f"two pieces of one objective write extra[{name!r}]; keep one of them")
        return rollout.replace(extra={**rollout.extra, name: function(rollout, scores)})

    return stateless(types.PrepareTransform, write, needs)


def _piece(function: Function | None, seam: str, records: int, lift: Callable[[Function, Arguments], Any]) -> Any:
    """Make ``function(*records, *arguments)`` a piece; ``lift(function of the records, arguments)`` builds it."""
    if function is None:  # the decorator was called with options
        return functools.partial(_piece, seam=seam, records=records, lift=lift)
    signature = inspect.signature(function)
    arguments = [*signature.parameters.values()][records:]
    signature = signature.replace(parameters=arguments, return_annotation=_BUILT[seam])

    @functools.wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        built = lift(functools.partial(shapes.returned, seam, function, given := bound.arguments), given)
        return dataclasses.replace(built, needs=built.needs | idle.needs(function, given))

    build.__signature__ = signature  # type: ignore[attr-defined]
    return _recorded(build, seam)


def _all_needs(needs: Needs, arguments: Arguments) -> types.Needs:
    named = needs(arguments) if callable(needs) else needs
    return named | transforms.predicate_needs(arguments.get("only"), arguments.get("predicate"))


def _loss(apply: Function, needs: Needs, brings: Statistics, arguments: Arguments) -> types.LossTransform:
    statistics = brings(arguments) if callable(brings) else brings
    return stateless(types.LossTransform, apply, _all_needs(needs, arguments), statistics)


def _pair(out: Any, other: Any) -> tuple[Any, Any]:
    return out if isinstance(out, tuple) else (out, other)


# --- one decorator for each seam ----------------------------------------------------------------


def reward(function: Function | None = None, *, needs: Needs = _NOTHING) -> Any:
    """Define a reward piece; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.RolloutTransform:
        def apply(rollout: types.Rollout) -> types.Rollout:
            out = function(rollout)
            if isinstance(out, types.Rollout):
                return out
            paid = out.astype(rollout.reward.dtype)
            return rollout.replace(reward=paid) if paid.ndim == 1 else rollout.replace(token_reward=paid)

        return stateless(types.RolloutTransform, apply, _all_needs(needs, arguments))

    return _piece(function, "reward", 1, lift)


def advantage(function: Function | None = None, *, needs: Needs = _NOTHING) -> Any:
    """Define an advantage piece; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.RolloutTransform:
        def apply(rollout: types.Rollout) -> types.Rollout:
            out = function(rollout)
            if isinstance(out, types.Rollout):
                return out
            value, returns = _pair(out, None)
            rollout = ops.with_advantage(rollout, value)
            return rollout if returns is None else rollout.replace(returns=returns * rollout.mask)

        return stateless(types.RolloutTransform, apply, _all_needs(needs, arguments))

    return _piece(function, "advantage", 1, lift)


def prepare(function: Function | None = None, *, needs: Needs = _NOTHING) -> Any:
    """Define a prepare piece; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.PrepareTransform:
        def apply(rollout: types.Rollout, scores: types.Scores) -> types.Rollout:
            out = function(rollout, scores)
            if isinstance(out, types.Rollout):
                return out
            rollout, stays = out if isinstance(out, tuple) else (rollout, out)
            return rollout.replace(mask=jnp.where(stays, rollout.mask, 0.0))

        return stateless(types.PrepareTransform, apply, _all_needs(needs, arguments))

    return _piece(function, "prepare", 2, lift)


def ratio(function: Function | None = None, *, needs: Needs = _NOTHING, statistics: Statistics = ()) -> Any:
    """Define a ratio piece; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.LossTransform:
        def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
            log_ratio, proximal = _pair(function(loss, rollout, scores), loss.proximal_logp)
            log_ratio = log_ratio * jnp.ones_like(rollout.mask)  # a row's ratio applies to each of its tokens
            log_ratio = jnp.where(rollout.mask > 0, log_ratio, 0.0)
            fixed = jax.lax.stop_gradient(log_ratio)
            metrics = {"ratio": jnp.exp(fixed), "proximal_kl": jnp.expm1(fixed) - fixed}
            return loss.replace(log_ratio=log_ratio, proximal_logp=proximal, metrics={**loss.metrics, **metrics})

        return _loss(apply, needs, statistics, arguments)

    return _piece(function, "ratio", 3, lift)


def surrogate(
    function: Function | None = None, *, needs: Needs = _NOTHING, statistics: Statistics = (), term: str = "policy"
) -> Any:
    """Define a surrogate piece, which adds to ``term``; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.LossTransform:
        def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
            value, metrics = _pair(function(loss, rollout, scores), {})
            value = loss.terms[term] + value if term in loss.terms else value
            metrics = {**loss.metrics, **jax.lax.stop_gradient(metrics)}
            return loss.replace(terms={**loss.terms, term: value}, metrics=metrics)

        return _loss(apply, needs, statistics, arguments)

    return _piece(function, "surrogate", 3, lift)


def weight(function: Function | None = None, *, needs: Needs = _NOTHING, statistics: Statistics = ()) -> Any:
    """Define a weight piece, which multiplies all terms so far; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.LossTransform:
        return _loss(functools.partial(weighed, function), needs, statistics, arguments)

    return _piece(function, "weight", 3, lift)


def weighed(function: Function, loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
    """Multiply all terms by ``function(loss, rollout, scores)``.

    Args:
      function: returns the weight, ``[B, T]`` or ``[B, 1]``.
      loss: the terms so far.
      rollout: the rows.
      scores: what the model gives for them.

    Returns:
      The loss with its terms multiplied, and the metric ``weight``.
    """
    value = jax.lax.stop_gradient(function(loss, rollout, scores)) * jnp.ones_like(rollout.mask)
    terms = {name: term * value for name, term in loss.terms.items()}
    return loss.replace(terms=terms, metrics={**loss.metrics, "weight": value})


def penalty(
    function: Function | None = None, *, name: str = "", needs: Needs = _NOTHING, statistics: Statistics = ()
) -> Any:
    """Define a penalty piece; see the module.

    Those of its arguments named ``coefficient``, ``only`` (which rows or tokens are charged) or ``reduce`` apply here.
    Penalties with one ``name`` (by default the function's) and one reduction add up.
    """
    if function is None:
        return functools.partial(penalty, name=name, needs=needs, statistics=statistics)
    name = name or function.__name__

    def lift(function: Function, a: Arguments) -> types.LossTransform:
        term = name if (reduction := a.get("reduce")) is None else f"{name}/{reduction.spec}"

        def apply(loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> types.Loss:
            out = function(loss, rollout, scores)
            charged, metric = _pair(out, out)
            if a.get("only") is not None:
                charged = jnp.where(transforms.PREDICATES[a["only"]](rollout), charged, 0.0)
            charged = a.get("coefficient", 1.0) * charged
            value = loss.terms[term] + charged if term in loss.terms else charged
            metrics = {**loss.metrics, name: jax.lax.stop_gradient(metric)}
            return loss.replace(terms={**loss.terms, term: value}, metrics=metrics)

        built = _loss(apply, needs, statistics, a)
        reducing = () if reduction is None else (_reducing(term, reduction),)
        return dataclasses.replace(built, statistics=(*built.statistics, *reducing))

    return _piece(function, "penalty", 3, lift)


def _reducing(term: str, reduction: types.PrepareTransform) -> types.PrepareTransform:
    """Return ``reduction`` writing the coefficient of one term instead of the common one."""

    def apply(rollout, scores, state, key):
        out, state = reduction.apply(rollout, scores, state, key)
        return rollout.replace(coefficient={**rollout.coefficient, term: out.coefficient["common"]}), state

    return dataclasses.replace(reduction, apply=apply)


def reduce(function: Function | None = None, *, needs: Needs = _NOTHING) -> Any:
    """Define a reduction; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.PrepareTransform:
        def apply(rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
            mask = rollout.mask * ops.valid_rows(rollout)[:, None]
            return rollout.replace(coefficient={**rollout.coefficient, "common": function(rollout, mask)})

        return stateless(types.PrepareTransform, apply, _all_needs(needs, arguments))

    return _piece(function, "reduce", 2, lift)


def after(function: Function | None = None, *, needs: Needs = _NOTHING) -> Any:
    """Define an after-update piece; see the module."""

    def lift(function: Function, arguments: Arguments) -> types.AfterTransform:
        return stateless(types.AfterTransform, function, _all_needs(needs, arguments))

    return _piece(function, "after", 3, lift)


source = constructor("source")
schedule = functools.partial(_recorded, seam="")  # a number that moves belongs to no seam
