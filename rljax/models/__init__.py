"""Policies, critics and reward models: pure functions over parameter trees.

``build(architecture)`` gives a ``Model``, which is all the rest of the program sees of a network::

    model = models.build(models.Architecture(vocabulary=64, layers=2, width=32, heads=4, kv_heads=2, hidden=64))
    params = model.init(jax.random.key(0))
    hidden = model.apply(params, token, mask)
    logits = model.logits(params, hidden)
"""

import dataclasses

from rljax.models import architecture as architectures
from rljax.models import cache as caches
from rljax.models import layouts, presets, transformer
from rljax.types import Array, Key, Tree

Architecture = architectures.Architecture
MATRICES = architectures.MATRICES
Cache = caches.Cache
preset = presets.preset


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as pure functions. Hashable, and equal when built alike: safe to close over in jit.

    ``layout`` lays activations out over a mesh by their logical axis names and never changes a value;
    ``sharding.Layout(mesh)`` is one. The default knows of no mesh.
    """

    architecture: Architecture
    layout: layouts.Layout = layouts.WHOLE

    @property
    def axes(self) -> Tree:
        """A tree like the parameters; each leaf is a tuple with a logical axis name, or None, per dimension."""
        return architectures.axes(self.architecture)

    def init(self, key: Key) -> Tree:
        """Return fresh parameters: plain nested dictionaries, layers stacked first."""
        return architectures.init(self.architecture, key)

    def apply(self, params: Tree, token: Array, mask: Array) -> Array:
        """Read rows ``token`` [B, S] and return hidden [B, S, D] after the final norm.

        A token's position is the number of real tokens before it in its row, and it sees the real tokens
        up to itself: padding, on whichever side, changes nothing. Hidden states of padding are finite and
        meaningless.

        Args:
          params: from ``init``.
          token: [B, S] int32; padding may hold any id.
          mask: [B, S], not 0 on real tokens.

        Raises:
          ValueError: shapes of token and mask do not fit.
        """
        return transformer.apply(self.architecture, params, token, mask, self.layout)

    def apply_shared(
        self, params: Tree, prompt: Array, prompt_mask: Array, token: Array, segment: Array
    ) -> tuple[Array, Array]:
        """Read prompts [P, L] once, and rows [B, W] that follow them: row b is of prompt b // (B / P).

        A row may hold several completions of its prompt, one segment each, side by side: a token sees its
        prompt and the tokens up to itself of its own segment, and its position counts these.

        Args:
          params: from ``init``.
          prompt: [P, L] int32.
          prompt_mask: [P, L], not 0 on real tokens.
          token: [B, W] int32.
          segment: [B, W] int32, 0 on padding; a segment's tokens are adjacent.

        Returns:
          hidden of the prompts [P, L, D] and of the rows [B, W, D].

        Raises:
          ValueError: shapes that do not fit.
        """
        return transformer.apply_shared(self.architecture, params, prompt, prompt_mask, token, segment, self.layout)

    def decode_params(self, params: Tree) -> Tree:
        """Return the parameters as ``prefill``, ``extend`` and ``logits`` read them: made once for many tokens."""
        return caches.decode_params(self.architecture, params, self.layout)

    def prefill(
        self, weights: Tree, token: Array, mask: Array, samples: int, columns: int, block: int = 0
    ) -> tuple[Array, Cache]:
        """Read prompts [P, L]; return hidden [P, L, D] and a cache for ``samples`` rows of each prompt.

        Args:
          weights: from ``decode_params``.
          token: [P, L] int32.
          mask: [P, L], not 0 on real tokens.
          samples: rows of each prompt; they share its keys.
          columns: tokens that each row may add; writing past the last is the caller's error, not noticed.
          block: columns of a block, which is not read before it is in use; 0 for one block.
        """
        return caches.prefill(self.architecture, weights, token, mask, samples, columns, block, self.layout)

    def extend(self, weights: Tree, token: Array, mask: Array, cache: Cache) -> tuple[Array, Cache]:
        """Append a token [B] to every row, real where ``mask`` [B] is not 0; return hidden [B, D] and the cache."""
        return caches.extend(self.architecture, weights, token, mask, cache, self.layout)

    def select(self, cache: Cache, prompts: Array | None, rows: Array) -> Cache:
        """Return the cache of the rows [b] and prompts [p] (None: all) alone; row i is of prompt i // (b / p)."""
        return caches.select(cache, prompts, rows)

    def logits(self, params: Tree, hidden: Array) -> Array:
        """Return float32 logits [..., V] of ``hidden`` [..., D]; ValueError unless output is "logits".

        Of single positions [B, D] a row's logits are whole on one device in the end, as drawing a token wants them.
        """
        z = transformer.logits(self.architecture, params, hidden)
        return self.layout(self.layout(z, ("rows", "vocabulary")), ("drawing", None)) if z.ndim == 2 else z

    def balance(self, params: Tree, token: Array, mask: Array) -> dict[str, Array]:
        """Describe how evenly tokens of rows [B, S] use the experts, the mean over layers; see ``gated.balance``."""
        return transformer.balance(self.architecture, params, token, mask, self.layout)

    def scalar(self, params: Tree, hidden: Array) -> Array:
        """Return float32 [...] of ``hidden`` [..., D]; ValueError unless output is "scalar"."""
        return transformer.scalar(self.architecture, params, hidden)


def build(architecture: Architecture, layout: layouts.Layout = layouts.WHOLE) -> Model:
    """Return the model of an architecture, its activations laid out by ``layout``."""
    return Model(architecture, layout)
