"""Floating-point operations of a traced function, from shapes: every loop body as often as it turns.

Counted are products of matrices, 2 for each multiplication and addition: dot_general, ragged_dot and convolutions. What
is elementwise is not; it moves bytes and is counted there. Of a conditional the dearest branch counts. The backward
pass and what it makes again are in the traced function and count like the rest.
"""

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
from jax.extend import core

_Known = dict[Any, int]  # scalars whose value is a constant


def count(function: Callable[..., Any], *arguments: Any) -> float:
    """Return the operations of ``function(*arguments)``; the arguments may be abstract."""
    return of_jaxpr(jax.make_jaxpr(function)(*arguments))


class Assumed(NamedTuple):
    """What shapes do not say."""

    turns: float = 1  # of a loop that no constant bounds
    experts: int = 0  # that share the tokens evenly; where fewer stand in a product, the rest of its rows is skipped


NOTHING = Assumed()


def of_jaxpr(closed: core.ClosedJaxpr, assumed: Assumed = NOTHING) -> float:
    """Return the operations of a traced function."""
    return _count(closed.jaxpr, {}, assumed)


def largest(closed: core.ClosedJaxpr, number: int = 8) -> list[tuple[str, int, str]]:
    """Return the largest arrays a traced function makes: (shape, bytes on all devices together, source line)."""
    found: dict[str, tuple[str, int, str]] = {}
    for equation in _equations(closed.jaxpr):
        for out in equation.outvars:
            aval = out.aval
            if hasattr(aval, "shape") and hasattr(aval, "dtype") and hasattr(aval.dtype, "itemsize"):
                name = f"{aval.dtype}[{','.join(map(str, aval.shape))}]"
                where = _line(equation)
                found.setdefault(name, (name, math.prod(aval.shape) * aval.dtype.itemsize, where))
    return sorted(found.values(), key=lambda f: -f[1])[:number]


def _line(equation: Any) -> str:
    """Return the line of this package that an equation stands for."""
    traceback = equation.source_info.traceback
    frames = [] if traceback is None else traceback.frames
    own = next((f for f in frames if "/rljax/" in f.file_name), None)
    return "" if own is None else f"rljax/{own.file_name.rpartition('/rljax/')[2]}:{own.line_num}"


def _equations(jaxpr: Any) -> Iterable[Any]:
    for equation in jaxpr.eqns:
        yield equation
        for inner in _inside(equation):
            yield from _equations(inner)


def _inside(equation: Any) -> list[Any]:
    """Return the jaxprs among the parameters of an equation."""
    found = []
    for value in equation.params.values():
        for inner in value if isinstance(value, tuple | list) else (value,):
            inner = getattr(inner, "jaxpr", inner)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


def _value(variable: Any, known: _Known) -> int | None:
    if isinstance(variable, core.Literal):
        value = variable.val
        whole = getattr(value, "ndim", 0) == 0 and getattr(getattr(value, "dtype", None), "kind", "i") in "iu"
        return int(value) if whole and not isinstance(value, bool | float) else None
    return known.get(variable)


def _fold(equation: Any, known: _Known) -> None:
    """Remember a scalar that is made of constants."""
    found = [_value(v, known) for v in equation.invars]
    values = [v for v in found if v is not None]
    if len(equation.outvars) != 1 or equation.outvars[0].aval.shape or len(values) < len(found) or not values:
        return
    name = equation.primitive.name
    if name in ("add", "sub", "mul"):
        a, b = values
        known[equation.outvars[0]] = {"add": a + b, "sub": a - b, "mul": a * b}[name]
    elif name in ("convert_element_type", "broadcast_in_dim", "copy", "copy_p"):
        known[equation.outvars[0]] = values[0]


def _enter(jaxpr: Any, invars: Iterable[Any], known: _Known) -> _Known:
    """Return the constants that a function's parameters are called with."""
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
            constants = _enter(body, equation.invars[: params["num_consts"]], known)
            total += params["length"] * _count(body, constants, assumed)
        elif name == "while":
            total += _while(equation, known, assumed)
        elif name == "cond":
            total += max(
                _count(b.jaxpr, _enter(b.jaxpr, equation.invars[1:], known), assumed) for b in params["branches"]
            )
        elif name == "pallas_call":
            total += math.prod(params["grid_mapping"].grid) * _count(params["jaxpr"], {}, assumed)
        elif name == "shard_map":  # written for one device
            manual = next(axes for key, axes in params.items() if key.endswith("manual_axes"))  # its name has changed
            total += math.prod(params["mesh"].shape[a] for a in manual) * _count(params["jaxpr"], {}, assumed)
        else:
            inner = _inside(equation)
            for one in inner:
                within = _enter(one, equation.invars, known)
                total += _count(one, within, assumed)
                _leave(equation, one, within, known)
            if not inner:
                _fold(equation, known)
    return total


def _leave(equation: Any, inner: Any, within: _Known, known: _Known) -> None:
    """Remember which results of a call are constants; ``within`` has been filled by counting it."""
    for outer, own in zip(equation.outvars, inner.outvars, strict=False):
        value = _value(own, within)
        if value is not None:
            known[outer] = value


def _while(equation: Any, known: _Known, assumed: Assumed) -> float:
    """Return the operations of a loop: its body as often as its condition allows at most."""
    params, invars = equation.params, equation.invars
    cond, body = params["cond_jaxpr"].jaxpr, params["body_jaxpr"].jaxpr
    cut = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    start = invars[cut[1] :]
    within = _enter(cond, [*invars[: cut[0]], *start], known)
    carried = {v: i for i, v in enumerate(cond.invars[cut[0] :])}
    turns = []
    for inner in cond.eqns:
        if inner.primitive.name == "lt" and not inner.outvars[0].aval.shape:
            counter, bound = inner.invars
            end = _value(bound, {v: k for v, k in within.items() if v not in carried})
            if end is not None and counter in carried:
                first = _value(start[carried[counter]], known) or 0
                turns.append(max(0, end - first))
    once = _count(body, _enter(body, invars[cut[0] : cut[1]], known), assumed)
    return min(turns, default=assumed.turns) * once


# --- products of matrices -----------------------------------------------------------------------


def _dot(equation: Any) -> int:
    (contracted, _), _ = equation.params["dimension_numbers"]
    left = equation.invars[0].aval.shape
    return 2 * math.prod(equation.outvars[0].aval.shape) * math.prod(left[d] for d in contracted)


def _ragged_dot(equation: Any) -> int:
    """Each row of the left operand meets one group's matrix."""
    numbers = equation.params.get("ragged_dot_dimension_numbers")
    left, right = (v.aval.shape for v in equation.invars[:2])
    if numbers is None:
        return 2 * math.prod(left) * right[-1]
    (contracted, of_right), (batched, _) = numbers.dot_dimension_numbers
    ragged = numbers.lhs_ragged_dimensions
    free = [d for i, d in enumerate(right) if i not in (*of_right, *numbers.rhs_group_dimensions)]
    if set(ragged) & set(contracted):  # the groups' own products: rows are summed over once
        mine = math.prod(d for i, d in enumerate(left) if i not in batched)
        return 2 * math.prod(left[i] for i in batched) * mine * math.prod(free)
    return 2 * math.prod(left) * math.prod(free)


def _share(equation: Any, assumed: Assumed) -> float:
    """Return the part of the rows that belongs to the groups of a ragged product."""
    groups = equation.invars[2].aval.shape[-1]
    return min(1.0, groups / assumed.experts) if assumed.experts else 1


def _convolution(equation: Any) -> int:
    """Each output number sums over the kernel's window and its input features."""
    numbers, kernel = equation.params["dimension_numbers"], equation.invars[1].aval.shape
    window = math.prod(kernel[d] for d in numbers.rhs_spec[1:])
    return 2 * math.prod(equation.outvars[0].aval.shape) * window


_PRODUCTS: dict[str, Callable[[Any], int]] = {
    "dot_general": _dot,
    "ragged_dot": _ragged_dot,
    "ragged_dot_general": _ragged_dot,
    "conv_general_dilated": _convolution,
}
