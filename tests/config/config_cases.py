"""What the tests of config share."""

from rljax.algorithms import seams
from rljax.config import resolve
from tests.support import tiny


def resolved(**fields):
    return resolve.phases(tiny.phases(**fields))


def main(**fields):
    """Return the algorithm of the main phase."""
    return resolved(**fields)[-1].algorithm


def loss_of(**fields):
    return [p.spec for p in main(**fields).objectives[0].loss]


def edited(seam, text):
    (piece,) = seams.pieces(seam, text, "test")
    return piece
