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
from rljax.transforms import ops, trajectories
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

    brought: Any = {"statistics": statistics} if statistics else {}
    return kind(apply=apply, needs=needs, **brought)


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


def _piece(
    function: Function | None = None,
    *,
    seam: str,
    records: int,
    apply: Function,
    needs: Needs = _NOTHING,
    statistics: Statistics = (),
) -> Any:
    """Make a function a piece; ``apply`` takes it as a function of the records, then its arguments, and the records."""
    if function is None:  # the decorator was called with options
        options = {"seam": seam, "records": records, "apply": apply, "needs": needs, "statistics": statistics}
        return functools.partial(_piece, **options)
    signature = inspect.signature(function)
    arguments = [*signature.parameters.values()][records:]
    signature = signature.replace(parameters=arguments, return_annotation=_BUILT[seam])

    @functools.wraps(function)
    def build(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        named = needs(given) if callable(needs) else needs
        named |= transforms.predicate_needs(given.get("only"), given.get("predicate")) | idle.needs(function, given)
        applied = functools.partial(apply, functools.partial(shapes.returned, seam, function, given), given)
        return stateless(_BUILT[seam], applied, named, statistics(given) if callable(statistics) else statistics)

    build.__signature__ = signature  # type: ignore[attr-defined]
    return _recorded(build, seam)


def _pair(out: Any, other: Any) -> tuple[Any, Any]:
    return out if isinstance(out, tuple) else (out, other)


# --- one decorator for each seam, and before it how what a function returns is applied ----------


def _pay(function: Function, _: Arguments, rollout: types.Rollout) -> types.Rollout:
    out = function(rollout)
    if isinstance(out, types.Rollout):
        return out
    paid = out.astype(rollout.reward.dtype)
    return rollout.replace(reward=paid) if paid.ndim == 1 else trajectories.repaid(rollout, paid)


reward = functools.partial(_piece, seam="reward", records=1, apply=_pay)


def _credit(function: Function, _: Arguments, rollout: types.Rollout) -> types.Rollout:
    out = function(rollout)
    if isinstance(out, types.Rollout):
        return out
    value, returns = _pair(out, None)
    rollout = ops.with_advantage(rollout, value)
    return rollout if returns is None else rollout.replace(returns=returns * rollout.mask)


advantage = functools.partial(_piece, seam="advantage", records=1, apply=_credit)


def _keep(function: Function, _: Arguments, rollout: types.Rollout, scores: types.Scores) -> types.Rollout:
    out = function(rollout, scores)
    if isinstance(out, types.Rollout):
        return out
    rollout, stays = out if isinstance(out, tuple) else (rollout, out)
    return rollout.replace(mask=jnp.where(stays, rollout.mask, 0.0))


prepare = functools.partial(_piece, seam="prepare", records=2, apply=_keep)


def _compare(
    function: Function, _: Arguments, loss: types.Loss, rollout: types.Rollout, scores: types.Scores
) -> types.Loss:
    log_ratio, proximal = _pair(function(loss, rollout, scores), loss.proximal_logp)
    log_ratio = log_ratio * jnp.ones_like(rollout.mask)  # a row's ratio applies to each of its tokens
    log_ratio = jnp.where(rollout.mask > 0, log_ratio, 0.0)
    fixed = jax.lax.stop_gradient(log_ratio)
    metrics = {"ratio": jnp.exp(fixed), "proximal_kl": jnp.expm1(fixed) - fixed}
    return loss.replace(log_ratio=log_ratio, proximal_logp=proximal, metrics={**loss.metrics, **metrics})


ratio = functools.partial(_piece, seam="ratio", records=3, apply=_compare)


def _added(loss: types.Loss, term: str, value: types.Array, metrics: types.Metrics) -> types.Loss:
    value = loss.terms[term] + value if term in loss.terms else value
    metrics = {**loss.metrics, **jax.lax.stop_gradient(metrics)}
    return loss.replace(terms={**loss.terms, term: value}, metrics=metrics)


def surrogate(function: Function | None = None, *, term: str = "policy", **options: Any) -> Any:
    """Define a surrogate piece, which adds to ``term``; see the module."""

    def apply(function: Function, _: Arguments, loss: types.Loss, *records: Any) -> types.Loss:
        return _added(loss, term, *_pair(function(loss, *records), {}))

    return _piece(function, seam="surrogate", records=3, apply=apply, **options)


def _weigh(
    function: Function, _: Arguments, loss: types.Loss, rollout: types.Rollout, scores: types.Scores
) -> types.Loss:
    value = jax.lax.stop_gradient(function(loss, rollout, scores)) * jnp.ones_like(rollout.mask)
    terms = {name: term * value for name, term in loss.terms.items()}
    return loss.replace(terms=terms, metrics={**loss.metrics, "weight": value})


weight = functools.partial(_piece, seam="weight", records=3, apply=_weigh)


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

    def term(a: Arguments) -> str:
        return name if a.get("reduce") is None else f"{name}/{a['reduce'].spec}"

    def apply(function: Function, a: Arguments, loss: types.Loss, rollout: types.Rollout, scores: types.Scores) -> Any:
        out = function(loss, rollout, scores)
        charged, metric = _pair(out, out)
        if a.get("only") is not None:
            charged = jnp.where(transforms.PREDICATES[a["only"]](rollout), charged, 0.0)
        return _added(loss, term(a), a.get("coefficient", 1.0) * charged, {name: metric})

    def brings(a: Arguments) -> tuple[types.PrepareTransform, ...]:
        reducing = () if a.get("reduce") is None else (_reducing(term(a), a["reduce"]),)
        return (*(statistics(a) if callable(statistics) else statistics), *reducing)

    return _piece(function, seam="penalty", records=3, apply=apply, needs=needs, statistics=brings)


def _reducing(term: str, reduction: types.PrepareTransform) -> types.PrepareTransform:
    """Return ``reduction`` writing the coefficient of one term instead of the common one."""

    def apply(rollout, scores, state, key):
        out, state = reduction.apply(rollout, scores, state, key)
        return rollout.replace(coefficient={**rollout.coefficient, term: out.coefficient["common"]}), state

    return dataclasses.replace(reduction, apply=apply)


def _spread(function: Function, _: Arguments, rollout: types.Rollout, scores: types.Scores | None) -> types.Rollout:
    mask = rollout.mask * ops.valid_rows(rollout)[:, None]
    return rollout.replace(coefficient={**rollout.coefficient, "common": function(rollout, mask)})


reduce = functools.partial(_piece, seam="reduce", records=2, apply=_spread)
after = functools.partial(_piece, seam="after", records=3, apply=lambda function, _, *records: function(*records))
source = constructor("source")
schedule = functools.partial(_recorded, seam="")  # a number that moves belongs to no seam
