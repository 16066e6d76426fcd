"""Pieces with numbers that move: schedules and adaptive coefficients, read from the piece's state at every use."""

import dataclasses
import operator
import typing
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax import core

from rljax import types
from rljax.language import hints

Function = Callable[..., Any]
Arguments = Mapping[str, Any]


def moves(argument: Any) -> bool:
    """Return whether an argument is a ``types.Controller``, or a tuple that contains one."""
    return isinstance(argument, types.Controller) or (isinstance(argument, tuple) and any(map(moves, argument)))


def build(function: Function, arguments: Arguments) -> Any:
    """Build a piece some of whose arguments are controllers.

    Args:
      function: from the arguments to a transform or a source.
      arguments: by name.

    Returns:
      The piece; its state contains the controllers' states.

    Raises:
      ValueError: neither a transform nor a source is built, or a number fixes a shape.
    """
    moving = {k: v for k, v in arguments.items() if moves(v)}

    def start() -> Any:
        return {k: _init(v) for k, v in moving.items()}

    def at(states: Mapping[str, Any]) -> Any:
        return function(**{**arguments, **{k: _value(v, states[k]) for k, v in moving.items()}})

    def update(states: Any, metrics: types.Metrics) -> Any:
        return {k: _update(v, states[k], metrics) for k, v in moving.items()}

    refusal = f"{function.__name__}: {', '.join(moving)} cannot be a schedule; "
    abstract: list[Any] = []
    try:  # traced numbers show which fields of the piece depend on them
        jax.eval_shape(lambda: abstract.append(at(start())))
    except jax.errors.JAXTypeError as error:
        raise ValueError(f"{refusal}it decides what is compiled.") from error
    if isinstance(abstract[0], types.Source):
        for name, hint in typing.get_type_hints(function, include_extras=True).items():
            if name in moving and (allowed := hints.mismatch(moving[name], hint)):
                raise ValueError(f"{refusal}{name} must be {allowed}.")
        return _source(at, start, update, abstract[0], refusal)
    if not isinstance(abstract[0], types.Transform):
        raise ValueError(f"{refusal}only numbers of transforms and sources can")
    return _transform(at, start, update)


def _init(argument: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_init, argument))
    return argument.init() if isinstance(argument, types.Controller) else ()


def _value(argument: Any, state: Any) -> Any:
    if isinstance(argument, tuple):
        return tuple(map(_value, argument, state))
    return argument.value(state) if isinstance(argument, types.Controller) else argument


def _update(argument: Any, state: Any, metrics: types.Metrics) -> Any:
    if isinstance(argument, tuple):
        return tuple(_update(a, s, metrics) for a, s in zip(argument, state, strict=True))
    return argument.update(state, metrics) if isinstance(argument, types.Controller) else state


def _transform(at: Function, start: Function, update: Function) -> types.Transform:
    def steer(part: Callable[[Any], types.Transform]) -> Any:
        template = part(at(start()))

        def observe(state: Any, metrics: types.Metrics) -> Any:
            return update(state[0], metrics), template.observe(state[1], metrics)

        def apply(*args: Any) -> Any:
            *records, (outer, inner), key = args
            out = part(at(outer)).apply(*records, inner, key)
            return out if isinstance(template, types.LossTransform) else (out[0], (outer, out[1]))

        return dataclasses.replace(template, apply=apply, init=lambda: (start(), template.init()), observe=observe)

    steered = steer(lambda p: p)
    if isinstance(steered, types.LossTransform):
        # the statistics read the same numbers, from a separate state
        statistics = tuple(steer(lambda p, i=i: p.statistics[i]) for i in range(len(steered.statistics)))
        steered = dataclasses.replace(steered, statistics=statistics)
    return steered


def _source(at: Function, start: Function, update: Function, abstract: types.Source, refusal: str) -> types.Source:
    """Return the source whose pool is {"numbers": states, "pool": its own}; its functions are rebuilt at every use."""
    template = at(start())
    for record in (abstract, abstract.again):
        for field in dataclasses.fields(record) if record is not None else ():
            if isinstance(getattr(record, field.name), core.Tracer):
                raise ValueError(f"{refusal}it decides {type(record).__name__}.{field.name}, which fixes shapes.")
    for name, part in (("relabel", abstract.relabel), ("Again.look", abstract.again and abstract.again.look)):
        if any(isinstance(cell.cell_contents, core.Tracer) for cell in getattr(part, "__closure__", None) or ()):
            raise ValueError(f"{refusal}{name} reads it, and has no pool.")

    def rebuilt(part: Callable[[types.Source], Any]) -> Any:
        """Return a function ``(pool, ...)`` of the source at the current values, or None."""
        if part(template) is None:
            return None
        return lambda pool, *rest: part(at(pool["numbers"]))(pool["pool"], *rest)

    def fixed(name: str, part: Function) -> Function:
        """Return a function without a pool, which cannot read the numbers."""

        def call(*args: Any) -> Any:
            try:
                return part(*args)
            except (jax.errors.UnexpectedTracerError, jax.errors.JAXTypeError) as error:
                raise ValueError(f"{refusal}{name} reads it, and has no pool.") from error

        return call

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        states = start()
        return {"numbers": states, "pool": at(states).init(rollout, problems)}

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        rollout, inner = at(pool["numbers"]).select(rollout, pool["pool"], count, key)
        return rollout, {**pool, "pool": inner}

    def observe(pool: types.Tree, metrics: types.Metrics) -> types.Tree:
        inner = at(pool["numbers"]).observe(pool["pool"], metrics)
        return {"numbers": update(pool["numbers"], metrics), "pool": inner}

    again = abstract.again  # built with abstract numbers, which nothing may read
    if again is not None:
        functions = {name: fixed(f"Again.{name}", getattr(again, name)) for name in ("merge", "longer")}
        again = dataclasses.replace(again, edit=rebuilt(operator.attrgetter("again.edit")), **functions)
    return dataclasses.replace(
        template,
        init=init,
        choose=rebuilt(lambda s: s.choose),
        head=rebuilt(lambda s: s.head),
        again=again,
        select=select,
        observe=observe,
        in_flight=lambda pool: template.in_flight(pool["pool"]),
        renew=lambda pool: {"numbers": start(), "pool": template.renew(pool["pool"])},
    )
