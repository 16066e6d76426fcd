"""What the sampler reads and writes: the protocol of a policy, the record of completions, the keys of rows."""

import dataclasses
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types

Array = types.Array
EVERY_TOKEN = 0xFFFFFFFF  # a word of Sample.kept with all bits set


class Policy(Protocol):
    """The functions of a model that the sampler calls; ``rljax.models.build`` returns one."""

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters in the form that the other functions read."""
        ...

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
        """Run the model over prompts and create the cache of their completions.

        Args:
          weights: from ``decode_params``.
          token: ``[P, L]`` int32, left-padded.
          mask: ``[P, L]``, nonzero on real tokens.
          samples: rows of each prompt.
          columns: the most tokens that a row may append.
          block: columns of the cache that come into use together; 0: all at once.
          image: pictures of the prompts, or of each P / p adjacent ones, ``[p, N, H, W, 3]`` uint8.

        Returns:
          Hidden states ``[P, L, D]``, and a cache of ``P * samples`` rows.
        """
        ...

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append one token to each row of the cache.

        Args:
          weights: from ``decode_params``.
          token: ``[B]`` int32.
          mask: ``[B]``, nonzero where the token is real.
          cache: from ``prefill`` or ``extend``.

        Returns:
          Hidden states ``[B, D]``, and the new cache.
        """
        ...

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Return the cache of a selection of rows.

        Args:
          cache: of B rows and P prompts.
          prompts: ``[p]`` int32; None keeps all.
          rows: ``[b]`` int32; kept row i continues kept prompt i // (b / p).

        Returns:
          A cache of b rows and p prompts.
        """
        ...

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the logits ``[..., V]`` of the next token, from hidden states ``[..., D]``."""
        ...


@flax.struct.dataclass
class Sample:
    """Completions, right-padded. Row ``p * samples + g`` is sample g of prompt p."""

    token: Array  # [B, T] int32; the pad id after the end
    mask: Array  # [B, T] float32, 1 on emitted tokens, the stop token included
    behaviour_logp: Array  # [B, T] float32, under the distribution drawn from; 0 after the end
    raw_logp: Array  # [B, T] float32, tempered, unfiltered; 0 after the end
    entropy: Array  # [B, T] float32, nats, of the tempered unfiltered distribution; 0 after the end
    square_prob: Array  # [B, T] float32, sum over v of p_v^2 of the same; 0 after the end
    finish: Array  # [B] int32, a types.Finish
    length: Array  # [B] int32, positions in use; in a conversation, replies included, where mask is 0
    steps: Array  # int32, positions decoded before every row had ended
    slots: Array  # int32, positions computed: rows in the batch, summed over decode steps
    kept: Array | None = None  # [B, T, ceil(V / 32)] uint32, packed support drawn from; all bits set after the end
    turn: Array | None = None  # [B, T] int32, of a conversation: turns that the row's seat had ended before the token


def row_keys(root: types.Key, step: int | Array, index: Array, sample: Array, repeat: Array | None = None) -> types.Key:
    """Return the key of each row: ``root`` with step, prompt index and sample number folded in.

    Args:
      root: a typed threefry key; other generators do not guarantee the same draws in another batch shape.
      step: the step at which the row's rollout started, a number or ``[B]`` int32.
      index: ``[B]`` int32, the prompt's index in its task.
      sample: ``[B]`` int32, the number of the sample of its prompt.
      repeat: ``[B]`` int32, how often the step had drawn or passed the prompt before; None: 0.

    Returns:
      Typed keys ``[B]``.
    """

    def one(step: Array, index: Array, sample: Array, repeat: Array | None = None) -> types.Key:
        key = root
        if repeat is not None:  # its numbers differ from the numbers of steps
            other = jax.random.fold_in(root, jnp.uint32(0xC0000000) + repeat.astype(jnp.uint32))
            key = jnp.where(repeat > 0, other, root)
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(key, step), index), sample)

    rows = jnp.broadcast_to(jnp.asarray(step), index.shape), index, sample
    return jax.vmap(one)(*rows) if repeat is None else jax.vmap(one)(*rows, repeat)


def mapped(function: Callable[..., Array], *samples: Sample) -> Sample:
    """Apply a function to the fields whose first dimension is the row; the other fields are the first sample's."""
    names = [f.name for f in dataclasses.fields(Sample) if f.name not in ("steps", "slots")]
    fields = [{name: getattr(sample, name) for name in names} for sample in samples]
    return dataclasses.replace(samples[0], **jax.tree.map(function, *fields))


def placed(sample: Sample, part: Sample, row: Array, done: Array) -> Sample:
    """Write the tokens of ``part`` behind the first ``done`` [b] positions of rows ``row`` [b] of a sample.

    The numbers of these rows become the part's; what is out of bounds is left out.
    """
    place = jnp.arange(part.token.shape[1], dtype=jnp.int32)[None, :]
    column = jnp.where(place < part.length[:, None], done[:, None] + place, sample.token.shape[1])

    def put(whole: Array, new: Array) -> Array:
        return (whole.at[row] if whole.ndim == 1 else whole.at[row[:, None], column]).set(new, mode="drop")

    return mapped(put, sample, part)


def cut(sample: Sample, limit: Array, pad: int) -> Sample:
    """Return a sample whose row i has at most ``limit[i]`` tokens, as if it had been drawn with this length."""
    inside = jnp.arange(sample.token.shape[1])[None, :] < limit[:, None]
    numbers = {n: getattr(sample, n) for n in ("mask", "behaviour_logp", "raw_logp", "entropy", "square_prob")}
    return dataclasses.replace(
        sample,
        token=jnp.where(inside, sample.token, pad),
        finish=jnp.where(sample.length > limit, int(types.Finish.LENGTH), sample.finish),
        length=jnp.minimum(sample.length, limit),
        kept=None if sample.kept is None else jnp.where(inside[..., None], sample.kept, jnp.uint32(EVERY_TOKEN)),
        **{name: jnp.where(inside, x, 0.0) for name, x in numbers.items()},
    )


def empty(rows: int, length: int, vocabulary: int | None, pad: int, *, turns: bool = False) -> Sample:
    """Return a sample without any token.

    Args:
      rows: B.
      length: T.
      vocabulary: V if the support is kept, else None.
      pad: token id of padding.
      turns: whether it has ``turn``.

    Returns:
      The sample, ``finish`` LENGTH in every row.
    """
    zeros = jnp.zeros((rows, length), jnp.float32)
    kept = None
    if vocabulary is not None:
        # Every bit is set: an empty support would make the scores of padding NaN.
        kept = jnp.full((rows, length, -(-vocabulary // 32)), EVERY_TOKEN, jnp.uint32)
    return Sample(
        token=jnp.full((rows, length), pad, jnp.int32),
        mask=zeros,
        behaviour_logp=zeros,
        raw_logp=zeros,
        entropy=zeros,
        square_prob=zeros,
        finish=jnp.full((rows,), int(types.Finish.LENGTH), jnp.int32),
        length=jnp.zeros((rows,), jnp.int32),
        steps=jnp.zeros((), jnp.int32),
        slots=jnp.zeros((), jnp.int32),
        kept=kept,
        turn=jnp.zeros((rows, length), jnp.int32) if turns else None,
    )
