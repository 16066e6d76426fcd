"""Settings that edit a recipe."""

import dataclasses

from rljax.language import settings
from rljax.language.settings import setting


def _seam(what: str) -> str:
    return setting("", f"{what}; '' keeps the pieces of the recipe.")


@dataclasses.dataclass(frozen=True)
class SeamConfig:
    """One field for each seam of a recipe; see ``rljax.transforms``.

    "" keeps the recipe's pieces, ``a() | b()`` replaces them, ``+ a()`` appends, "none" removes.
    """

    source: str = _seam("Where rows come from")
    reward: str = _seam("Reward shaping")
    advantage: str = _seam("Advantages")
    prepare: str = _seam("Masks and statistics of the whole minibatch")
    ratio: str = _seam("Importance ratio")
    surrogate: str = _seam("Policy term")
    weight: str = _seam("Weights of the policy term")
    penalty: str = _seam("Terms added to the loss")
    reduce: str = _seam("Coefficients that turn tokens into a number")
    after: str = _seam("What follows the update")

    __post_init__ = settings.check
