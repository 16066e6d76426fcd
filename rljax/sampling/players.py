"""Several players in one batch: a policy of the sampler made of the network and the parameters of each player."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.sampling import samples as samples_lib

Array = types.Array


def seats_of(order: Sequence[str], episodes: int, seats: int, samples: int, swap: bool = True) -> np.ndarray:
    """Return the player of each seat, [episodes, seats]: seat s of sample n has player (s + n) % their number.

    Args:
      order: names of the players; one name may come several times.
      episodes: E, adjacent for each problem.
      seats: of an episode.
      samples: episodes of each problem.
      swap: whether players change seats from sample to sample; else n counts as 0.

    Returns:
      int32 ``[E, seats]``, the number of the player among the ``distinct`` ones.
    """
    number = swap * (np.arange(episodes)[:, None] % samples)
    of = np.array([distinct(order).index(name) for name in order], np.int32)
    return of[(np.arange(seats)[None, :] + number) % len(order)]


def distinct(order: Sequence[str]) -> tuple[str, ...]:
    """Return the names of the players, each once."""
    return tuple(dict.fromkeys(order))


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """A ``Policy`` whose rows are written by several players; its parameters are a tuple, one for each player."""

    models: tuple[samples_lib.Policy, ...]  # the network of each player
    player: np.ndarray  # [B] int32, who writes each row

    def _split(self, x: Any) -> list[Any]:
        return [x[np.flatnonzero(self.player == i)] for i in range(len(self.models))]

    def _joined(self, parts: list[Array]) -> Array:
        return jnp.concatenate(parts)[np.argsort(np.argsort(self.player, kind="stable"))]

    def _both(self, parts: list[tuple[Array, Any]]) -> tuple[Array, Any]:
        """Return the hidden states of all rows, and the caches of the players."""
        return self._joined([hidden for hidden, _ in parts]), tuple(cache for _, cache in parts)

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters of each player in the form that the other functions read."""
        return tuple(model.decode_params(p) for model, p in zip(self.models, params, strict=True))

    def prefill(
        self,
        weights: types.Tree,
        token: Array,
        mask: Array,
        samples: int,
        columns: int,
        block: int,
        image: Array | None = None,
    ) -> tuple[Array, Any]:
        """Prefill each player's rows; ``samples`` is 1. ValueError if there are pictures."""
        if image is not None:
            raise ValueError("config.world.players: several players cannot read pictures")
        read = zip(self.models, weights, self._split(token), self._split(mask), strict=True)
        return self._both([model.prefill(w, t, m, samples, columns, block) for model, w, t, m in read])

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append one token to each row."""
        read = zip(self.models, weights, self._split(token), self._split(mask), cache, strict=True)
        return self._both([model.extend(w, t, m, c) for model, w, t, m, c in read])

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Raise ValueError: a batch of several players does not shrink."""
        raise ValueError("sampler.compact: expected 0 with several players")

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the logits of each row by its player."""
        read = zip(self.models, params, self._split(hidden), strict=True)
        return self._joined([model.logits(w, h) for model, w, h in read])
