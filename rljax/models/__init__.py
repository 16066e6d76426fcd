"""Policies, critics and reward models: pure functions over parameter trees.

``build(architecture)`` gives a ``Model``, which is all the rest of the program sees of a network::

    model = models.build(models.Architecture(vocabulary=64, layers=2, width=32, heads=4, kv_heads=2, hidden=64))
    params = model.init(jax.random.key(0))
    hidden, _ = model.apply(params, token, mask)
    logits = model.logits(params, hidden)
"""

import dataclasses

from rljax.models import transformer
from rljax.types import Array, Key, Tree

Architecture = transformer.Architecture
Cache = transformer.Cache


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as pure functions. Hashable, and equal when built alike: safe to close over in jit.

    ``constrain(array, names)`` lays an activation out over a mesh by its logical axis names and never
    changes its value; ``sharding.Layout(mesh)`` is one. The default leaves layouts to the compiler.
    """

    architecture: Architecture
    constrain: transformer.Constrain = transformer.unconstrained

    @property
    def axes(self) -> Tree:
        """A tree like the parameters; each leaf is a tuple with a logical axis name, or None, per dimension."""
        return transformer.axes(self.architecture)

    def init(self, key: Key) -> Tree:
        """Return fresh float32 parameters: plain nested dictionaries, layers stacked first."""
        return transformer.init(self.architecture, key)

    def init_cache(self, rows: int, length: int) -> Cache:
        """Return an empty cache for ``rows`` rows of ``length`` slots, prompt included."""
        return transformer.init_cache(self.architecture, rows, length, self.constrain)

    def apply(self, params: Tree, token: Array, mask: Array, cache: Cache | None = None) -> tuple[Array, Cache | None]:
        """Read ``token`` [B, s] and return (hidden [B, s, D] after the final norm, cache).

        A token's position is the number of real tokens before it in its row, those in the cache
        included, and it sees the real tokens up to itself: padding, on whichever side, changes nothing.
        Hidden states of padding are finite and meaningless. With a cache the tokens go to slots
        [length, length + s); writing past the last slot is the caller's error and is not noticed.

        Args:
          params: from ``init``.
          token: [B, s] int32; padding may hold any id.
          mask: [B, s], not 0 on real tokens.
          cache: what the rows hold already, or None to read them from their start.

        Raises:
          ValueError: shapes of token, mask and cache do not fit.
        """
        return transformer.apply(self.architecture, params, token, mask, cache, self.constrain)

    def logits(self, params: Tree, hidden: Array) -> Array:
        """Return float32 logits [..., V] of ``hidden`` [..., D]; ValueError unless output is "logits"."""
        return transformer.logits(self.architecture, params, hidden)

    def scalar(self, params: Tree, hidden: Array) -> Array:
        """Return float32 [...] of ``hidden`` [..., D]; ValueError unless output is "scalar"."""
        return transformer.scalar(self.architecture, params, hidden)


def build(architecture: Architecture, constrain: transformer.Constrain = transformer.unconstrained) -> Model:
    """Return the model of an architecture, its activations laid out by ``constrain``."""
    return Model(architecture, constrain)
