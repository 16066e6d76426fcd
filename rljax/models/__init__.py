"""Networks: policies, critics and reward models as pure functions over trees of parameters.

``build(architecture)`` returns a ``Model``, the only view of a network that the rest of the program has::

    model = models.build(models.Architecture(vocabulary=64, layers=2, width=32, heads=4, kv_heads=2, hidden=64))
    params = model.init(jax.random.key(0))
    hidden = model.apply(params, token, mask)
    logits = model.logits(params, hidden)

Public names: ``Architecture``, ``Model``, ``Cache``, ``MATRICES``, ``build``, ``preset``. Two protocols: the sampler
uses a model through ``sampling.Policy``, and a model shards its arrays over a mesh through ``layouts.Layout``.

===================  =========================================================================================
``architectures.py``  the fields of an architecture
``towers.py``        the fields of a vision tower
``parameters.py``    the parameters of an architecture and their logical axes
``presets.py``       architectures of published models
``network/``         the network: a decoder-only transformer as pure functions, over whole rows and with a cache
``scores/``          scores of given rows: log-probabilities and the other quantities of ``types.Scores``, computed in
                     parts
``adapters.py``      low-rank adapters
``precision.py``     gradients of bfloat16 parameters, summed in float32
``actors/``          policies and critics of control worlds, which read observations in place of tokens
``layouts.py``       the protocol by which a network names the axes of its arrays
``checkpoints/``     public checkpoints: read, checked and written
===================  =========================================================================================

``README.md`` shows how to read, adapt and write public checkpoints.
"""

import dataclasses

from rljax.models import architectures, layouts, parameters, presets
from rljax.models.network import caches, histories, transformer, vision
from rljax.transforms import ops
from rljax.types import Array, Key, Tree

Architecture = architectures.Architecture
MATRICES = architectures.MATRICES
Cache = caches.Cache
preset = presets.preset


@dataclasses.dataclass(frozen=True)
class Model:
    """A network as pure functions. Hashable, and equal when built alike: safe to close over in jit.

    ``layout`` constrains how activations are sharded over a mesh, by their logical axis names, and never changes a
    value; ``training.sharding.Layout(mesh)`` is one. The default constrains nothing.
    """

    architecture: Architecture
    layout: layouts.Layout = layouts.UNCONSTRAINED

    @property
    def axes(self) -> Tree:
        """A tree like the parameters; each leaf is a tuple with a logical axis name, or None, per dimension."""
        return parameters.axes(self.architecture)

    def init(self, key: Key) -> Tree:
        """Return random parameters: nested dictionaries of arrays; arrays of the layers are stacked on dimension 0."""
        return parameters.init(self.architecture, key)

    def look(self, params: Tree, image: Array | None) -> Array | None:
        """Return what the pictures of prompts are in place of their placeholders.

        Args:
          params: from ``init``, or ``decode_params``.
          image: ``[P, N, H, W, 3]`` uint8, or their ``features``; None: the prompts have no pictures.

        Returns:
          ``[P, N * tokens, D]``; None without pictures.

        Raises:
          ValueError: the network has no vision tower, or one for pictures of another size.
        """
        if image is None:
            return None
        if not self.architecture.vision.layers:
            raise ValueError("vision.layers=0: the prompts have pictures, which this network cannot read")
        return vision.look(self.architecture, params, image, self.layout)

    def features(self, params: Tree, image: Array) -> Array:
        """Return the output of the vision tower for pictures ``[P, N, H, W, 3]`` uint8: ``[P, N, tokens, width]``."""
        return vision.features(self.architecture, params, image, self.layout)

    def apply(self, params: Tree, token: Array, mask: Array, image: Array | None = None) -> Array:
        """Run the network over whole rows.

        The position of a token is the number of real tokens before it in its row, and it attends to the real
        tokens up to and including itself. Padding on either side therefore changes nothing.

        Args:
          params: from ``init``.
          token: ``[B, S]`` int32; padding may hold any id.
          mask: ``[B, S]``, nonzero on real tokens.
          image: of the rows, as ``look`` reads them.

        Returns:
          Hidden states after the final norm, ``[B, S, D]``. Those of padding are finite and meaningless.

        Raises:
          ValueError: token and mask differ in shape.
        """
        return transformer.apply(self.architecture, params, token, mask, self.layout, self.look(params, image))

    def apply_shared(
        self,
        params: Tree,
        prompt: Array,
        prompt_mask: Array,
        token: Array,
        segment: Array,
        image: Array | None = None,
    ) -> tuple[Array, Array]:
        """Run the network over prompts once, and over rows that continue them: row b continues prompt b // (B / P).

        A row may hold several completions of its prompt side by side, each one segment. A token attends to its
        prompt and to the tokens of its segment up to and including itself; its position counts those tokens.

        Args:
          params: from ``init``.
          prompt: ``[P, L]`` int32.
          prompt_mask: ``[P, L]``, nonzero on real tokens.
          token: ``[B, W]`` int32, W positions of a row.
          segment: ``[B, W]`` int32, 0 on padding; the tokens of a segment are adjacent.
          image: of the prompts, as ``look`` reads them.

        Returns:
          Hidden states of the prompts ``[P, L, D]`` and of the rows ``[B, W, D]``.

        Raises:
          ValueError: the shapes do not match, or P does not divide B.
        """
        read = prompt, prompt_mask, token, segment
        return transformer.apply_shared(self.architecture, params, *read, self.layout, self.look(params, image))

    def decode_params(self, params: Tree) -> Tree:
        """Return the parameters in the form that ``prefill``, ``extend`` and ``logits`` read; call once per rollout."""
        return caches.decode_params(self.architecture, params, self.layout)

    def prefill(
        self,
        weights: Tree,
        token: Array,
        mask: Array,
        samples: int,
        columns: int,
        block: int = 0,
        image: Array | None = None,
    ) -> tuple[Array, Cache]:
        """Run the network over prompts and create the cache of their completions.

        Args:
          weights: from ``decode_params``.
          token: ``[P, L]`` int32.
          mask: ``[P, L]``, nonzero on real tokens.
          samples: rows of each prompt; they share the prompt's keys and values.
          columns: the most tokens that a row may append. Appending more is an error that is not detected.
          block: columns of a block; a block is not read before its first column is written. 0: one block.
          image: of the prompts, as ``look`` reads them; of p prompts, each the pictures of P / p adjacent ones.

        Returns:
          Hidden states of the prompts ``[P, L, D]``, and a cache of ``P * samples`` rows.
        """
        seen = self.look(weights, image)
        if seen is not None:
            seen = ops.repeat(seen, token.shape[0] // seen.shape[0])
        return caches.prefill(self.architecture, weights, token, mask, samples, columns, block, self.layout, seen)

    def extend(self, weights: Tree, token: Array, mask: Array, cache: Cache) -> tuple[Array, Cache]:
        """Append one token to every row of the cache.

        Args:
          weights: from ``decode_params``.
          token: ``[B]`` int32.
          mask: ``[B]``, nonzero where the row's token is real; 0 appends padding.
          cache: from ``prefill`` or ``extend``.

        Returns:
          Hidden states of the tokens ``[B, D]``, and the new cache.
        """
        return caches.extend(self.architecture, weights, token, mask, cache, self.layout)

    def select(self, cache: Cache, prompts: Array | None, rows: Array) -> Cache:
        """Return the cache of a selection of rows.

        Args:
          cache: of B rows and P prompts.
          prompts: ``[p]`` int32, the prompts to keep; None keeps all.
          rows: ``[b]`` int32, the rows to keep; p divides b, and kept row i continues kept prompt i // (b / p).

        Returns:
          A cache of b rows and p prompts.
        """
        return caches.select(cache, prompts, rows)

    def history(self, rows: int, width: int, columns: int, block: int = 0) -> Cache:
        """Return a cache of rows without a token, whose keys and values are kept between calls.

        Args:
          rows: B.
          width: columns of a row: its tokens, and as many more as ``append`` or ``settle`` move at once.
          columns: the most tokens that ``extend`` may append before ``settle``.
          block: as in ``prefill``.

        Returns:
          A cache for ``extend``, ``append``, ``settle`` and ``emptied``; each row is a prompt of its own.
        """
        return histories.blank(self.architecture, rows, width, columns, block, self.layout)

    def append(self, weights: Tree, token: Array, mask: Array, cache: Cache) -> Cache:
        """Read several tokens into the history of every row.

        Args:
          weights: from ``decode_params``.
          token: ``[B, W]`` int32, right-padded.
          mask: ``[B, W]``, nonzero on real tokens.
          cache: from ``history``; ``extend`` has appended nothing since ``settle``.

        Returns:
          The new cache.
        """
        return histories.append(self.architecture, weights, token, mask, cache, self.layout)

    def placed(
        self, weights: Tree, token: Array, mask: Array, cache: Cache, rows: Array, image: Array | None = None
    ) -> Cache:
        """Begin some rows with whole texts, in place of what they hold.

        Args:
          weights: from ``decode_params``.
          token: ``[b, W]`` int32, right-padded.
          mask: ``[b, W]``, nonzero on real tokens.
          cache: from ``history``, as for ``append``.
          rows: ``[b]`` int32; a number beyond the last row is left out.
          image: of the rows, as ``look`` reads them.

        Returns:
          The new cache.
        """
        seen = self.look(weights, image)
        return histories.placed(self.architecture, weights, token, mask, cache, rows, self.layout, seen)

    def settle(self, cache: Cache) -> Cache:
        """Move the tokens that ``extend`` has appended to the ends of the histories; a row's come first."""
        return histories.settle(cache)

    def emptied(self, cache: Cache, rows: Array) -> Cache:
        """Return the cache with no token in some rows, ``[B]`` bool, which begin anew."""
        return histories.emptied(cache, rows)

    def logits(self, params: Tree, hidden: Array) -> Array:
        """Return float32 logits ``[..., V]`` of ``hidden`` ``[..., D]``; ValueError if output is "scalar".

        The logits of single positions, ``[B, D]``, are not sharded over the vocabulary: a draw reads whole rows.
        """
        z = transformer.logits(self.architecture, params, hidden)
        return self.layout(self.layout(z, ("rows", "vocabulary")), ("drawing", None)) if z.ndim == 2 else z

    def balance(self, params: Tree, token: Array, mask: Array, image: Array | None = None) -> dict[str, Array]:
        """Measure how evenly tokens use the experts, averaged over layers.

        Args:
          params: from ``init``.
          token: ``[B, S]`` int32.
          mask: ``[B, S]``, nonzero on real tokens.
          image: of the rows, as ``look`` reads them.

        Returns:
          The scalars that ``gated.balance`` returns.
        """
        return transformer.balance(self.architecture, params, token, mask, self.layout, self.look(params, image))

    def attended(
        self,
        params: Tree,
        token: Array,
        mask: Array,
        step: Array,
        steps: int,
        apart: int,
        image: Array | None = None,
    ) -> Array:
        """Return how much later steps of a row attend to each of its steps.

        max over layers and heads of sum_{j >= k + apart} a_jk, a_jk the mean attention weight of a token of step j on
        a token of step k: the forward context influence of AttnRL (arXiv 2509.26628), whose means were not checked.

        Args:
          params: from ``init``.
          token: ``[B, S]`` int32.
          mask: ``[B, S]``, nonzero on real tokens.
          step: ``[B, S]`` int32, the step of each token, from 1; 0: of none.
          steps: N, the most of a row.
          apart: of steps that count.
          image: of the rows, as ``look`` reads them.

        Returns:
          ``[B, N]`` float32; 0 of steps that a row does not have.
        """
        seen = self.look(params, image)
        return transformer.attended(self.architecture, params, token, mask, step, steps, apart, self.layout, seen)

    def scalar(self, params: Tree, hidden: Array) -> Array:
        """Return one float32 number for each ``hidden`` ``[..., D]``; ValueError if output is "logits"."""
        return transformer.scalar(self.architecture, params, hidden)

    def bin_logits(self, params: Tree, hidden: Array) -> Array:
        """Return float32 logits ``[..., bins]`` of the distribution whose mean ``scalar`` is; for ``bins`` only."""
        return transformer.bin_logits(self.architecture, params, hidden)


def build(architecture: Architecture, layout: layouts.Layout = layouts.UNCONSTRAINED) -> Model:
    """Return the model of an architecture, whose activations ``layout`` shards.

    Raises:
      ValueError: the architecture leaves the vocabulary to a tokenizer.
    """
    if not architecture.vocabulary:
        raise ValueError("vocabulary=0: a model needs at least 1 id; 0 is replaced by a tokenizer's number of ids")
    return Model(architecture, layout)
