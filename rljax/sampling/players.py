"""Several players in one batch: a policy of the sampler made of one network and the parameters of each player."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.sampling import samples as samples_lib

Array = types.Array


def seats_of(players: int, episodes: int, seats: int, samples: int) -> np.ndarray:
    """Return the player of each seat, [episodes, seats]: seat s of sample n has player (s + n) % players.

    Args:
      players: number of players.
      episodes: E, adjacent for each problem.
      seats: of an episode.
      samples: episodes of each problem.

    Returns:
      int32 ``[E, seats]``.
    """
    number = np.arange(episodes)[:, None] % samples
    return ((np.arange(seats)[None, :] + number) % players).astype(np.int32)


@dataclasses.dataclass(frozen=True, eq=False)
class Team:
    """A ``Policy`` whose rows are written by several players; its parameters are a tuple, one for each player."""

    model: samples_lib.Policy
    player: np.ndarray  # [B] int32, who writes each row

    def _split(self, x: Any) -> list[Any]:
        return [x[np.flatnonzero(self.player == i)] for i in range(self.player.max() + 1)]

    def _joined(self, parts: list[Array]) -> Array:
        return jnp.concatenate(parts)[np.argsort(np.argsort(self.player, kind="stable"))]

    def _both(self, parts: list[tuple[Array, Any]]) -> tuple[Array, Any]:
        """Return the hidden states of all rows, and the caches of the players."""
        return self._joined([hidden for hidden, _ in parts]), tuple(cache for _, cache in parts)

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters of each player in the form that the other functions read."""
        return tuple(self.model.decode_params(p) for p in params)

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
        read = zip(weights, self._split(token), self._split(mask), strict=True)
        return self._both([self.model.prefill(*given, samples, columns, block) for given in read])

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append one token to each row."""
        read = zip(weights, self._split(token), self._split(mask), cache, strict=True)
        return self._both([self.model.extend(*given) for given in read])

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Raise ValueError: a batch of several players does not shrink."""
        raise ValueError("sampler.compact: expected 0 with several players")

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the logits of each row by its player."""
        return self._joined([self.model.logits(w, h) for w, h in zip(params, self._split(hidden), strict=True)])
