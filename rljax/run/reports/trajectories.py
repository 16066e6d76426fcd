"""Trajectories of control worlds in records: actions as texts, and observations as a picture over time."""

from collections.abc import Callable

import numpy as np
import PIL.Image
import PIL.ImageDraw

from rljax.models import actors

_SIZE = 256, 96  # of a picture, pixels
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_MOST = 8  # observations that are drawn, and numbers of an action that are written
_AXES = np.array([[(0.0, 0.5), (1.0, 0.5)], [(0.5, 0.0), (0.5, 1.0)]])

Plan = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]


def actions(motion: actors.Motion, row: int, steps: np.ndarray) -> list[str]:
    """Return the action of each of some steps of a row as text: its number, or its numbers as the policy drew them."""
    taken = np.asarray(motion.taken[row])[steps]
    if taken.ndim == 1:
        return [f"{action} " for action in taken]
    taken = taken[:, -1] if taken.ndim == 3 else taken  # the last state of a chain
    return [f"{','.join(f'{x:+.2f}' for x in action[:_MOST])} " for action in taken]


def picture(motion: actors.Motion, row: int, steps: np.ndarray, plan: Plan | None = None) -> np.ndarray:
    """Return a picture of a row over some steps, [H, W, 3] uint8.

    It is the way over the map if there is a plan (``control.rules``). Else the first observations and the state behind
    them are a line each, all with one scale, whose 0 is grey. Where nothing changes, it is the path of the one action
    of two numbers that a chain of denoising ends in, in the square [-2, 2]^2, whose axes are grey.
    """
    seen = np.asarray(motion.observation[row], float)[np.append(steps, steps[-1] + 1)]
    if plan is not None:
        return _plane(*plan(seen))
    seen = seen[:, :_MOST]
    taken = np.asarray(motion.taken[row], float)[steps]
    if taken.ndim == 3 and taken.shape[-1] == 2 and np.ptp(seen, axis=0).max() == 0:
        states = np.concatenate([taken[0], taken[1:, -1]])
        return _plane(_AXES, (states * (1, -1) + 2) / 4)
    width, height = _SIZE
    low, high = min(0.0, float(seen.min())), max(0.0, float(seen.max()))
    x = np.linspace(2, width - 3, len(seen))
    y = 2 + (high - seen) / max(high - low, 1e-9) * (height - 5)
    zero = 2 + high / max(high - low, 1e-9) * (height - 5)
    image = PIL.Image.new("RGB", _SIZE, "white")
    draw = PIL.ImageDraw.Draw(image)
    draw.line([(0, zero), (width, zero)], fill="#dddddd")
    for column, colour in zip(y.T, _COLOURS, strict=False):
        draw.line([*zip(x.tolist(), column.tolist(), strict=True)], fill=colour)
    return np.asarray(image)


def _plane(lines: np.ndarray, path: np.ndarray, goal: np.ndarray | None = None) -> np.ndarray:
    """Return the picture of a path ``[n, 2]`` in the unit square over grey lines; its end is a disc, a goal a ring."""
    side = _SIZE[1]
    image = PIL.Image.new("RGB", (side, side), "white")
    draw = PIL.ImageDraw.Draw(image)

    def place(point: np.ndarray) -> tuple[float, float]:
        return tuple(np.minimum(point * side, side - 1).tolist())

    for line in lines:
        draw.line([*map(place, line)], fill="#999999")
    draw.line([*map(place, path)], fill=_COLOURS[0])
    x, y = place(path[-1])
    draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_COLOURS[1])
    if goal is not None:
        x, y = place(goal)
        draw.ellipse((x - 4, y - 4, x + 4, y + 4), outline=_COLOURS[2])
    return np.asarray(image)
