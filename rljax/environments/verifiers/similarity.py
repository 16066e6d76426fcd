"""How similar two pictures are, in [0, 1] and 1 for equal ones: pixels, SSIM, structure. For NumPy's arrays and JAX's.

Pictures are ``[..., H, W, 3]`` with values 0 to 255; the leading axes are those of a batch.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

_WINDOW, _SIGMA, _K1, _K2 = 11, 1.5, 0.01, 0.03  # of Wang et al.
_EDGE = 0.005  # added on each side of a box, so that a line has an area


class Element(NamedTuple):
    """What a drawing has: its kind, its colour, and its box from 0 to 1, left, top, right, bottom."""

    kind: str
    colour: tuple[float, float, float]
    box: tuple[float, float, float, float]


def pixels(x: Any, y: Any) -> Any:
    """Return 1 - mean |x - y| / 255: ``[...]``."""
    xp = x.__array_namespace__()
    return 1 - xp.mean(xp.abs(_unit(x) - _unit(y)), axis=(-3, -2, -1))


def ssim(x: Any, y: Any) -> Any:
    """Return the mean structural similarity over windows of 11 x 11 pixels and the three colours: ``[...]``.

    SSIM = (2 m_x m_y + C1) (2 s_xy + C2) / ((m_x^2 + m_y^2 + C1) (s_x^2 + s_y^2 + C2)), of a window weighed by a
    Gaussian of 1.5 pixels, C1 = 0.01^2, C2 = 0.03^2; negative means count as 0. Wang et al. (IEEE TIP 13(4), 2004),
    who compare the brightness only. In smaller pictures the window is as large as the picture.
    """
    xp = x.__array_namespace__()
    x, y = _unit(x), _unit(y)

    def mean(z: Any) -> Any:  # over each window inside the picture
        for axis in (-3, -2):
            z = xp.moveaxis(z, axis, 0)
            weights = _gaussian(min(_WINDOW, len(z)))
            count = len(z) - len(weights) + 1
            z = sum(float(weight) * z[i : i + count] for i, weight in enumerate(weights))
            z = xp.moveaxis(z, 0, axis)
        return z

    mx, my = mean(x), mean(y)
    vx, vy, vxy = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    c1, c2 = _K1**2, _K2**2
    each = (2 * mx * my + c1) * (2 * vxy + c2) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return xp.maximum(xp.mean(each, axis=(-3, -2, -1)), 0.0)


def pairs(kind: Any, colour: Any, box: Any, other_kind: Any, other_colour: Any, other_box: Any) -> Any:
    """Return how similar elements are: the mean of same kind (0 or 1), closeness of colours, and IoU of boxes.

    Args:
      kind: ``[..., n]`` int.
      colour: ``[..., n, 3]``, 0 to 255.
      box: ``[..., n, 4]``, 0 to 1.
      other_kind: ``[..., m]``.
      other_colour: ``[..., m, 3]``.
      other_box: ``[..., m, 4]``.

    Returns:
      ``[..., n, m]``.
    """
    xp = box.__array_namespace__()
    near = 1 - xp.mean(xp.abs(colour[..., :, None, :] - other_colour[..., None, :, :]), axis=-1) / 255
    one, two = box[..., :, None, :], other_box[..., None, :, :]

    def area(low: Any, high: Any) -> Any:
        return xp.prod(xp.maximum(high - low + 2 * _EDGE, 0.0), axis=-1)

    common = area(xp.maximum(one[..., :2], two[..., :2]), xp.minimum(one[..., 2:], two[..., 2:]))
    union = area(one[..., :2], one[..., 2:]) + area(two[..., :2], two[..., 2:]) - common
    return ((kind[..., :, None] == other_kind[..., None, :]) + near + common / union) / 3


def structure(similar: Any, count: Any, other: Any) -> Any:
    """Return 2 sum of the best one-to-one matching / (n + m), n and m the elements: ``[...]``. 0 without any.

    Args:
      similar: ``[..., N, M]``, from ``pairs``; N and M are small, because all matchings are compared.
      count: ``[...]``, how many of the N elements there are, the first ones.
      other: ``[...]``, likewise of M.
    """
    xp = similar.__array_namespace__()
    size = max(similar.shape[-2:])
    one, two = (xp.ones_like(similar[..., 0], dtype=bool), xp.ones_like(similar[..., 0, :], dtype=bool))
    one, two = (xp.cumsum(x, axis=-1) <= n[..., None] for x, n in ((one, count), (two, other)))
    present = one[..., :, None] & two[..., None, :]
    padding = [(0, 0)] * (similar.ndim - 2) + [(0, size - side) for side in similar.shape[-2:]]
    similar = xp.pad(xp.where(present, similar, 0.0), padding)
    orders = np.array([*itertools.permutations(range(size))])
    total = xp.max(xp.sum(similar[..., np.arange(size), orders], axis=-1), axis=-1)
    return 2 * total / xp.maximum(count + other, 1)


def of_elements(drawn: Sequence[Element], target: Sequence[Element]) -> float:
    """Return the structure of any number of elements, by the Hungarian algorithm; 1 if both have none."""
    from scipy import optimize

    if not drawn or not target:
        return float(len(drawn) == len(target))
    number = {kind: i for i, kind in enumerate(dict.fromkeys(e.kind for e in (*drawn, *target)))}

    def arrays(elements: Sequence[Element]) -> Any:
        return tuple(
            np.array([x(e) for e in elements]) for x in (lambda e: number[e.kind], lambda e: e[1], lambda e: e[2])
        )

    similar = pairs(*arrays(drawn), *arrays(target))
    return float(2 * similar[optimize.linear_sum_assignment(similar, maximize=True)].sum() / sum(similar.shape))


def _unit(x: Any) -> Any:
    """Return pixels from 0 to 1, in float64 if they are NumPy's."""
    xp = x.__array_namespace__()
    return xp.asarray(x, dtype=np.float64 if xp is np else np.float32) / 255


def _gaussian(size: int) -> np.ndarray:
    """Return the weights of a window along one axis, ``[size]``, whose sum is 1."""
    weight = np.exp(-(((np.arange(size) - (size - 1) / 2) / _SIGMA) ** 2) / 2)
    return weight / weight.sum()
