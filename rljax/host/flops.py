"""Floating-point operations of a traced function, from shapes, with loop bodies multiplied by their trip counts.

Counted are matrix products (dot_general, ragged_dot and convolutions), 2 operations for each multiply-add.
Elementwise operations are not counted here; their cost is bytes moved (``traffic``). Of a conditional, the most
expensive branch counts. The backward pass and what it recomputes are part of the traced function and are counted.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jax.extend import core

_Known = dict[Any, int]  # integer scalars with a constant value


def count(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the operations of ``function(*arguments)`` on all devices; the arguments may be abstract."""
    return of_jaxpr(jax.make_jaxpr(function)(*arguments))


class Assumed(NamedTuple):
    """Assumptions where shapes do not determine the work.

    Attributes:
      trips: trip count of a loop without a constant bound.
      experts: number of experts, among which tokens are divided evenly; a ragged product over fewer of them counts
        their share of the rows. 0: ragged products count all rows.
    """

    trips: float = 1
    experts: int = 0


NOTHING = Assumed()


def of_jaxpr(closed: core.ClosedJaxpr, assumed: Assumed = NOTHING) -> float:
    """Return the operations of a traced function on all devices."""
    return _count(closed.jaxpr, {}, assumed)


def largest(closed: core.ClosedJaxpr, number: int = 8) -> list[tuple[str, int, str]]:
    """Return the largest intermediate arrays: (shape, bytes on all devices together, source line)."""
    arrays: dict[str, tuple[str, int, str]] = {}
    for equation in _equations(closed.jaxpr):
        for out in equation.outvars:
            aval = out.aval
            if hasattr(aval, "shape") and hasattr(aval, "dtype") and hasattr(aval.dtype, "itemsize"):
                name = f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
                line = _line(equation)
                arrays.setdefault(name, (name, math.prod(aval.shape) * aval.dtype.itemsize, line))
    return sorted(arrays.values(), key=lambda array: -array[1])[:number]


def _line(equation: Any) -> str:
    """Return the innermost line of this package in an equation's traceback, or an empty string."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    frame = next((f for f in frames if "/rljax/" in f.file_name), None)
    return "" if frame is None else f"rljax/{frame.file_name.rpartition('/rljax/')[2]}:{frame.line_num}"


def _equations(jaxpr: Any) -> Iterable[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inside(equation):
            yield from _equations(inner)


def _inside(equation: Any) -> list[Any]:
    """Return the jaxprs among the parameters of an equation."""
    jaxprs = []
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                jaxprs.append(inner)
    return jaxprs


def _value(variable: Any, known: _Known) -> int | None:
    if isinstance(variable, core.Literal):
        value = variable.val
        integer = getattr(value, "ndim", 0) == 0 and getattr(getattr(value, "dtype", None), "kind", "i") in "iu"
        return int(value) if integer and not isinstance(value, bool | float) else None
    return known.get(variable)


def _record_constant(equation: Any, known: _Known) -> None:
    """Record the value of a scalar computed from constants."""
    operands = [_value(v, known) for v in equation.invars]
    values = [v for v in operands if v is not None]
    if len(equation.outvars) != 1 or equation.outvars[0].aval.shape or len(values) < len(operands) or not values:
        return
    name = equation.primitive.name
    if name in ("add", "sub", "mul"):
        a, b = values
        known[equation.outvars[0]] = {"add": a + b, "sub": a - b, "mul": a * b}[name]
    elif name in ("convert_element_type", "broadcast_in_dim", "copy", "copy_p"):
        known[equation.outvars[0]] = values[0]


def _constant_arguments(jaxpr: Any, invars: Iterable[Any], known: _Known) -> _Known:
    """Return the parameters of a function that are called with constants, and their values."""
    values = [_value(v, known) for v in invars]
    return {p: v for p, v in zip(jaxpr.invars, values, strict=False) if v is not None}


def _count(jaxpr: Any, known: _Known, assumed: Assumed) -> float:
    total: float = 0
    for equation in jaxpr.eqns:
        name, params = equation.primitive.name, equation.params
        if name in _PRODUCTS:
            total += _PRODUCTS[name](equation) * (_share(equation, assumed) if name.startswith("ragged_dot") else 1)
        elif name == "scan":
            body = params["jaxpr"].jaxpr
            constants = _constant_arguments(body, equation.invars[: _invariants(equation, body)], known)
            total += params["length"] * _count(body, constants, assumed)
        elif name == "while":
            total += _while(equation, known, assumed)
        elif name == "cond":
            total += max(
                _count(b.jaxpr, _constant_arguments(b.jaxpr, equation.invars[1:], known), assumed)
                for b in params["branches"]
            )
        elif name == "pallas_call":
            total += math.prod(params["grid_mapping"].grid) * _count(params["jaxpr"], {}, assumed)
        elif name == "shard_map":  # its body is the program of one device
            manual = next(axes for key, axes in params.items() if key.endswith("manual_axes"))  # depends on jax
            total += math.prod(params["mesh"].shape[a] for a in manual) * _count(params["jaxpr"], {}, assumed)
        else:
            inner = _inside(equation)
            for body in inner:
                constants = _constant_arguments(body, equation.invars, known)
                total += _count(body, constants, assumed)
                _record_results(equation, body, constants, known)
            if not inner:
                _record_constant(equation, known)
    return total


def _invariants(equation: Any, body: Any) -> int:
    """Return how many operands of a scan are the same in every iteration: not the carry, not the slices.

    Slices and stacked results have one dimension less inside the body. The names of a scan's parameters depend on jax.
    """

    def unsliced(outside: Any, inside: Any) -> int:
        pairs = zip(outside, inside, strict=True)
        return sum(len(a.aval.shape) == len(b.aval.shape) for a, b in pairs)

    return unsliced(equation.invars, body.invars) - unsliced(equation.outvars, body.outvars)


def _record_results(equation: Any, body: Any, constants: _Known, known: _Known) -> None:
    """Record which results of a call are constants; ``constants`` are its body's after ``_count``."""
    for outer, inner in zip(equation.outvars, body.outvars, strict=False):
        value = _value(inner, constants)
        if value is not None:
            known[outer] = value


def _while(equation: Any, known: _Known, assumed: Assumed) -> float:
    """Return the operations of a while loop: its body times the largest trip count that its condition allows."""
    params, invars = equation.params, equation.invars
    cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    cut = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    start = invars[cut[1] :]
    constants = _constant_arguments(cond, [*invars[: cut[0]], *start], known)
    carried = {v: i for i, v in enumerate(cond.invars[cut[0] :])}
    trips = []
    for inner in cond.eqns:
        if inner.primitive.name == "lt" and not inner.outvars[0].aval.shape:
            counter, bound = inner.invars
            end = _value(bound, {v: k for v, k in constants.items() if v not in carried})
            if end is not None and counter in carried:
                first = _value(start[carried[counter]], known) or 0
                trips.append(max(0, end - first))
    once = _count(body, _constant_arguments(body, invars[cut[0] : cut[1]], known), assumed)
    return min(trips, default=assumed.trips) * once


# --- products of matrices -----------------------------------------------------------------------


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _ragged_dot(equation: Any) -> int:
    """Count a ragged product: each row of the left operand is multiplied with one group's matrix."""
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    left, right = (v.aval.shape for v in equation.invars[:2])
    if numbers is None:
        return 2 * math.prod(left) * right[-1]
    (contracted, of_right), (batched, _) = numbers.dot_dimension_numbers
    ragged = numbers.lhs_ragged_dimensions
    free = [d for i, d in enumerate(right) if i not in (*of_right, *numbers.rhs_group_dimensions)]
    if set(ragged) & set(contracted):  # each group sums over its rows: every row counts once
        summed = math.prod(d for i, d in enumerate(left) if i not in batched)
        return 2 * math.prod(left[i] for i in batched) * summed * math.prod(free)
    return 2 * math.prod(left) * math.prod(free)


def _share(equation: Any, assumed: Assumed) -> float:
    """Return the fraction of the rows that belongs to the groups of a ragged product."""
    groups = equation.invars[2].aval.shape[-1]
    return min(1.0, groups / assumed.experts) if assumed.experts else 1


def _convolution(equation: Any) -> int:
    """Count a convolution: each output element sums over the kernel's window and input features."""
    numbers, kernel = equation.params["dimension_numbers"], equation.invars[1].aval.shape
    window = math.prod(kernel[d] for d in numbers.rhs_spec[1:])
    return 2 * math.prod(equation.outvars[0].aval.shape) * window


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "ragged_dot": _ragged_dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
}
