"""A look at what a function was traced to."""

import jax
from jax.extend import core


def equations(jaxpr):
    """Yield every equation of a jaxpr, those of the jaxprs inside it too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)


def reads(function, **arrays):
    """Return the names of the arrays that ``function(**arrays)`` reads, or returns as they are; and what it returns."""
    closed, shapes = jax.make_jaxpr(lambda arrays: function(**arrays), return_shape=True)(arrays)
    jaxpr = closed.jaxpr
    read = {v for e in jaxpr.eqns for v in e.invars if not isinstance(v, core.Literal)} | {
        v for v in jaxpr.outvars if not isinstance(v, core.Literal)
    }
    return {name for name, v in zip(sorted(arrays), jaxpr.invars, strict=True) if v in read}, shapes
