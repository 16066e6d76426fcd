"""What the tests of arrays share."""

import numpy as np

import rljax
from rljax.algorithms import seams

MASK = np.array([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])

REWARD, GROUP = [1, 0, 0, 1], [7, 7, 3, 3]


def build(call):
    return seams.algorithm(call, "algorithm")


def rollout(**fields):
    return rljax.rollout_from_arrays(mask=MASK, reward=REWARD, group=GROUP, **fields)
