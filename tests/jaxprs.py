"""A look at what a function was traced to."""


def equations(jaxpr):
    """Yield every equation of a jaxpr, those of the jaxprs inside it too."""
    for equation in jaxpr.eqns:
        yield equation
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from equations(inner)
