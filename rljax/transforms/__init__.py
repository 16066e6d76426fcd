"""The kinds of transform, and the two ways to combine pieces.

Every objective is a composition of small pure pieces, each at its seam:

    seam        kind      apply(...)                                        sees
    source      source    see types.Source                                  where rows come from
    reward      rollout   (rollout, state, key) -> (rollout, state)         the whole batch, no gradient
    advantage   rollout   the same                                          the whole batch, no gradient
    prepare     prepare   (rollout, scores, state, key) -> (rollout, state) the whole minibatch, no gradient
    ratio       loss      (loss, rollout, scores, state, key) -> loss       any micro-batch, differentiable
    surrogate   loss      the same: writes the policy term
    weight      loss      the same: multiplies the terms so far, hence the policy term only
    penalty     loss      the same: adds further terms (KL, entropy)
    reduce      prepare   writes the constant coefficient of every token
    after       after     (reference, params, metrics, state, key) -> (reference, state)

The loss is the sum over terms and tokens of term * coefficient, where the coefficients were computed
on the whole minibatch before it was split: micro-batches and devices only add.

``define`` has one decorator for each seam, with which pieces are written. ``chain`` runs pieces of one kind in order,
``where`` branches. Whenever a chain runs or is traced, ``contracts`` checks shapes and types of what its pieces return.
A ``Controller`` (a schedule, an adaptive coefficient) may be used wherever a piece takes a number.
"""

import dataclasses
import functools
import importlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax import core

from rljax import types
from rljax.language import tables
from rljax.transforms import ops, trajectories
from rljax.transforms.frame import contracts

SEAMS = ("source", "reward", "advantage", "prepare", "ratio", "surrogate", "weight", "penalty", "reduce", "after")
LOSS_SEAMS = ("ratio", "surrogate", "weight", "penalty")

_MODULES = ("define", "ops", "schedule", *SEAMS)

T = TypeVar("T", bound=types.Transform)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rljax.transforms.{name}")
    raise AttributeError(f"module 'rljax.transforms' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})


def describe(value: Any) -> str:
    """Return an argument as a config would write it: pieces and controllers by their call."""
    spec = getattr(value, "spec", None)
    if isinstance(spec, str) and spec:
        return spec
    if isinstance(value, tuple):
        return f"({', '.join(map(describe, value))}{',' * (len(value) == 1)})"
    if isinstance(value, jax.Array) and value.ndim == 0 and not isinstance(value, core.Tracer):
        value = value.item()
    return repr(value)


def call(name: str, arguments: Mapping[str, Any]) -> str:
    """Return a call with its arguments by keyword, as the config's parser reads it."""
    return f"{name}({', '.join(f'{k}={describe(v)}' for k, v in arguments.items())})"


def chain(*pieces: T, kind: type[T] | None = None) -> T:
    """Run pieces of one kind in order. Their states are a tuple, their keys folded from the chain's."""
    kinds = {type(p) for p in pieces}
    if len(kinds) > 1:
        raise ValueError(f"chain: pieces of one kind only, got {', '.join(sorted(k.__name__ for k in kinds))}")
    of = kind or next(iter(kinds), None)
    if of is None:
        raise ValueError("chain: at least one piece, or the kind")

    def apply(*args: Any) -> Any:
        first, *rest, states, key = args
        new_states = []
        for i, (p, state) in enumerate(zip(pieces, states, strict=True)):
            out = contracts.apply(p, first, *rest, state, jax.random.fold_in(key, i))
            first, state = (out, state) if of is types.LossTransform else out
            new_states.append(state)
        return first if of is types.LossTransform else (first, tuple(new_states))

    built = of(
        apply=apply,
        init=lambda: tuple(p.init() for p in pieces),
        observe=lambda states, metrics: tuple(
            contracts.observe(p, s, metrics) for p, s in zip(pieces, states, strict=True)
        ),
        needs=functools.reduce(lambda a, b: a | b, (p.needs for p in pieces), types.Needs()),
        # a chain that holds a surrogate is one, whatever else it holds
        seam="surrogate" if any(p.seam == "surrogate" for p in pieces) else pieces[0].seam if pieces else "",
        spec=f"chain({', '.join(p.spec for p in pieces)})",
    )
    if isinstance(built, types.LossTransform):
        built = dataclasses.replace(built, statistics=tuple(q for p in pieces for q in getattr(p, "statistics", ())))
    return built


def _on_policy(r: types.Rollout) -> jax.Array:
    return trajectories.on_policy(r)[:, None] > 0


def _advantage(r: types.Rollout) -> jax.Array:
    return jnp.zeros_like(r.mask) if r.advantage is None else r.advantage


PREDICATES: dict[types.Predicate, Callable[[types.Rollout], jax.Array]] = {
    "on_policy": _on_policy,
    "off_policy": lambda r: ~_on_policy(r),
    "correct": lambda r: trajectories.uncharged(r)[:, None] > 0,  # the sign of the total reward
    "wrong": lambda r: trajectories.uncharged(r)[:, None] <= 0,
    "positive": lambda r: _advantage(r) > 0,  # the sign of the advantage
    "negative": lambda r: _advantage(r) < 0,
    "nonzero": lambda r: _advantage(r) != 0,
    "kept": lambda r: ops.part(r, "kept")[:, None] > 0,
    "first_turn": lambda r: ops.given(r.turn, "first_turn: the rollout has no turn") == 0,
}
"""By name, a function of the rollout: bool [B, 1] or [B, T], where a row or a token satisfies the predicate."""


def predicate_needs(*names: types.Predicate | None) -> types.Needs:
    """Return the needs of predicates: the part "kept", or a source of rows that the policy did not sample."""
    parts = frozenset({"kept"} & set(names))
    off_policy = bool({"on_policy", "off_policy"} & set(names))
    return types.Needs(parts=parts, off_policy=off_policy, turns="first_turn" in names)


def where(
    predicate: types.Predicate, then: types.LossTransform, otherwise: types.LossTransform | None = None
) -> types.LossTransform:
    """Give tokens that satisfy ``predicate`` the terms of ``then``, the others the terms of ``otherwise``, or none.

    Predicates: "on_policy" (the policy sampled the row) and "off_policy", "correct" and "wrong" (the total reward
    of the row and its episode > 0 or not), "positive", "negative" and "nonzero" (the advantage), "kept" (the part of
    that name), "first_turn".
    Reward and advantage signs differ: with a group baseline, a row of middling reward in a good group is correct
    and negative.

    Args:
      predicate: which rows or tokens.
      then: the pieces of what satisfies it, a chain of loss transforms.
      otherwise: the pieces of the rest; None: no term.

    Returns:
      A loss transform.
    """
    choose = PREDICATES[predicate]
    rest = chain(kind=types.LossTransform) if otherwise is None else otherwise
    both = chain(then, rest)

    def apply(loss, rollout, scores, state, key):
        a = then.apply(loss, rollout, scores, state[0], jax.random.fold_in(key, 0))
        b = rest.apply(loss, rollout, scores, state[1], jax.random.fold_in(key, 1))
        mask = choose(rollout)

        def pick(x, y, default=None):
            default = jnp.zeros_like(rollout.mask) if default is None else default
            return jnp.where(mask, default if x is None else x, default if y is None else y)

        proximal = loss.proximal_logp
        if a.proximal_logp is not None or b.proximal_logp is not None:
            proximal = pick(a.proximal_logp, b.proximal_logp, ops.proximal_logp(rollout, scores))
        return types.Loss(
            log_ratio=None if a.log_ratio is None and b.log_ratio is None else pick(a.log_ratio, b.log_ratio),
            proximal_logp=proximal,
            terms={k: pick(a.terms.get(k), b.terms.get(k)) for k in sorted({*a.terms, *b.terms})},
            metrics={k: pick(a.metrics.get(k), b.metrics.get(k)) for k in sorted({*a.metrics, *b.metrics})},
        )

    spec = f"where({predicate!r}, {then.spec}{'' if otherwise is None else f', {otherwise.spec}'})"
    return dataclasses.replace(both, apply=apply, spec=spec, needs=both.needs | predicate_needs(predicate))


@functools.cache
def pieces(*seams: str, **combinators: Callable[..., Any]) -> tables.Table:
    """Return the constructors of pieces by name, and further functions.

    Args:
      *seams: any of ``SEAMS``, or "schedule": numbers that move. Each is a room here, and has one of the same name in
        the collection ``rljax.methods``, which is imported when a name is not here, or when all are asked for.
      **combinators: functions that may stand where a piece may.

    Returns:
      The table. A name that two seams have denotes the piece of the first one.
    """
    core, collection = ([f"rljax.{place}.{seam}" for seam in reversed(seams)] for place in ("transforms", "methods"))
    return tables.Table("piece", core, collection, **combinators)


def piece(seam: str, name: str) -> Callable[..., Any]:
    """Return a piece that is no attribute of the module of its seam: for the ``__getattr__`` of these modules.

    Raises:
      AttributeError: ``rljax.methods`` has no such piece either.
    """
    if name.startswith("_") or name not in pieces(seam).collection:
        raise AttributeError(f"module 'rljax.transforms.{seam}' has no attribute {name!r}")
    return pieces(seam).collection[name]
