"""A number with its exact gradient: forward differentiation in float64, apart from any library under test."""

import math

import numpy as np


class Dual:
    """A value and its derivatives in every variable, ``gradient`` [n]; plain numbers have none."""

    def __init__(self, value, gradient):
        """Hold ``value`` (float) and ``gradient`` (array [n])."""
        self.value, self.gradient = float(value), gradient

    def __add__(self, other):
        return Dual(self.value + value(other), self.gradient + gradient(other, self))

    def __sub__(self, other):
        return Dual(self.value - value(other), self.gradient - gradient(other, self))

    def __rsub__(self, other):
        return Dual(other - self.value, -self.gradient)

    def __mul__(self, other):
        return Dual(self.value * value(other), self.gradient * value(other) + self.value * gradient(other, self))

    def __truediv__(self, other):
        return self * other**-1.0

    def __rtruediv__(self, other):
        return other * self**-1.0

    def __pow__(self, power):
        return Dual(self.value**power, power * self.value ** (power - 1) * self.gradient)

    def __neg__(self):
        return Dual(-self.value, -self.gradient)

    def __abs__(self):
        return -self if self.value < 0 else self

    def __lt__(self, other):
        return self.value < value(other)

    def __le__(self, other):
        return self.value <= value(other)

    def __gt__(self, other):
        return self.value > value(other)

    def __ge__(self, other):
        return self.value >= value(other)

    __radd__, __rmul__ = __add__, __mul__


def value(x):
    """Return the plain number; this is stop-gradient."""
    return x.value if isinstance(x, Dual) else float(x)


def gradient(x, like):
    """Return the derivatives of ``x``, zeros for a plain number."""
    return x.gradient if isinstance(x, Dual) else np.zeros_like(like.gradient)


def exp(x):
    """Return e to the x."""
    if isinstance(x, Dual):
        return Dual(math.exp(x.value), math.exp(x.value) * x.gradient)
    return math.exp(x)


def log(x):
    """Return the natural logarithm."""
    if isinstance(x, Dual):
        return Dual(math.log(x.value), x.gradient / x.value)
    return math.log(x)


def sigmoid(x):
    """Return 1 / (1 + exp(-x))."""
    return 1.0 / (1.0 + exp(-x))


def clip(x, low, high):
    """Hold x between two plain numbers; outside, the gradient is zero."""
    return min(max(x, low), high) if low <= value(x) <= high else 0.0 * x + min(max(value(x), low), high)


def variables(*arrays):
    """Return object arrays of Duals, one independent variable for each entry of each array."""
    total, start, out = sum(a.size for a in arrays), 0, []
    for a in arrays:
        unit = np.eye(a.size, total, start)
        out.append(np.array([Dual(x, unit[k]) for k, x in enumerate(a.ravel())], dtype=object).reshape(a.shape))
        start += a.size
    return out
