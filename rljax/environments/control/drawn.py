"""Rules whose problems are drawn at random, as a function of split and index."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.environments import Split
from rljax.language import settings

SIZES: dict[Split, int] = {"train": 2**20, "heldout": 2**16}


def key(seed: int, index: types.Array, split: Split) -> types.Key:
    """Return the key that a problem is drawn with; ``seed`` is part of a world, not of a run."""
    return jax.random.fold_in(jax.random.fold_in(jax.random.key(seed), split == "heldout"), index)


class Drawn:
    """What such ``Rules`` have in common; a world defines ``begin``, ``observe``, ``step`` and ``solved``."""

    parts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        settings.check(self)

    @property
    def observed(self) -> int:
        """O, how many numbers are observed."""
        return _first.eval_shape(self, jnp.int32(0), "train").shape[0]

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return SIZES[split]

    def text(self, index: int, split: Split) -> str:
        """Return what is observed at the start of problem ``index``."""
        return " ".join(f"{number:.3g}" for number in np.asarray(_first(self, jnp.int32(index), split)))


@functools.partial(jax.jit, static_argnums=(0, 2))
def _first(rules: Any, index: types.Array, split: Split) -> types.Array:
    return rules.observe(rules.begin(index, split))
