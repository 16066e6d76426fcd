"""Trajectories of control worlds in records: actions as texts, and observations as a picture over time."""

import numpy as np
import PIL.Image
import PIL.ImageDraw

from rljax.models import actors

_SIZE = 256, 96  # of a picture, pixels
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#999999")
_MOST = 8  # observations that are drawn, and numbers of an action that are written


def actions(motion: actors.Motion, row: int, steps: np.ndarray) -> list[str]:
    """Return the action of each of some steps of a row as text: its number, or its numbers as the policy drew them."""
    taken = np.asarray(motion.taken[row])[steps]
    if taken.ndim == 1:
        return [f"{action} " for action in taken]
    taken = taken[:, -1] if taken.ndim == 3 else taken  # the last state of a chain
    return [f"{','.join(f'{x:+.2f}' for x in action[:_MOST])} " for action in taken]


def picture(motion: actors.Motion, row: int, steps: np.ndarray) -> np.ndarray:
    """Return the first observations of a row over some steps and the state behind them, each a line: [H, W, 3] uint8.

    All lines have one scale, whose 0 is grey. Where nothing changes, the one action of two numbers that a chain of
    denoising ends in, its path in the square [-2, 2]^2 is drawn, whose axes are grey.
    """
    seen = np.asarray(motion.observation[row], float)
    seen = seen[np.append(steps, steps[-1] + 1), :_MOST]
    taken = np.asarray(motion.taken[row], float)[steps]
    if taken.ndim == 3 and taken.shape[-1] == 2 and np.ptp(seen, axis=0).max() == 0:
        return _path(np.concatenate([taken[0], taken[1:, -1]]))
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


def _path(states: np.ndarray) -> np.ndarray:
    """Return the picture of a path in the plane, ``[n, 2]``; its end is a disc."""
    side = _SIZE[1]
    image = PIL.Image.new("RGB", (side, side), "white")
    draw = PIL.ImageDraw.Draw(image)
    for axis in ([(0, side / 2), (side, side / 2)], [(side / 2, 0), (side / 2, side)]):
        draw.line(axis, fill="#dddddd")
    places = [((x + 2.0) / 4.0 * side, (2.0 - y) / 4.0 * side) for x, y in states.tolist()]
    draw.line(places, fill=_COLOURS[0])
    x, y = places[-1]
    draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=_COLOURS[1])
    return np.asarray(image)
