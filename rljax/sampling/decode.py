"""Prefill, then a decode loop with early exit: the sampler, all of it inside jit."""

import dataclasses
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models import score
from rljax.sampling import processors as processors_lib

Array = types.Array
EVERY_TOKEN = 0xFFFFFFFF  # a word of Sample.kept with all bits set


class Cache(Protocol):
    """What the sampler must know of a cache: where its rows and slots are."""

    key: Array  # [N, B, S, H, K]
    value: Array  # [N, B, S, H, K]
    mask: Array  # [B, S]
    length: Array  # [] int32, slots in use, common to all rows

    def replace(self, **updates: Any) -> Any:
        """Return a copy with some fields replaced."""
        ...


class Policy(Protocol):
    """What the sampler asks of a model; ``rljax.models.build`` makes one."""

    def init_cache(self, rows: int, length: int) -> Any:
        """Return an empty cache for ``rows`` rows of ``length`` positions."""
        ...

    def apply(self, params: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append ``token [B, s]`` to the cache; return the hidden states ``[B, s, D]`` and the cache."""
        ...

    def logits(self, params: types.Tree, hidden: Array) -> Array:
        """Return the logits ``[..., V]`` of the next token."""
        ...


@flax.struct.dataclass
class Sample:
    """Completions, right-padded. Row ``p * samples + g`` is sample g of prompt p."""

    token: Array  # [B, T] int32, the pad id after the end
    mask: Array  # [B, T] float32, 1 on emitted tokens, the stop token among them
    behaviour_logp: Array  # [B, T] float32, under the distribution drawn from; 0 after the end
    raw_logp: Array  # [B, T] float32, tempered, unfiltered; 0 after the end
    entropy: Array  # [B, T] float32, nats, of the tempered unfiltered distribution; 0 after the end
    square_prob: Array  # [B, T] float32, sum over v of p_v^2 of the same; 0 after the end
    finish: Array  # [B] int32, a types.Finish
    turns: Array  # int32, positions decoded before every row had ended
    kept: Array | None = None  # [B, T, ceil(V / 32)] uint32, packed support drawn from; all bits set after the end


def row_keys(root: types.Key, step: int | Array, index: Array, sample: Array) -> types.Key:
    """Return the key of each row: ``root`` with step, prompt index and sample number folded in.

    ``step`` (a number, or ``[B]``) is the step when the row's rollout started; ``index`` and
    ``sample`` are ``[B]`` int32. Make ``root`` a threefry key: other generators do not promise the
    same draw inside another batch.
    """

    def one(step: Array, index: Array, sample: Array) -> types.Key:
        return jax.random.fold_in(jax.random.fold_in(jax.random.fold_in(root, step), index), sample)

    return jax.vmap(one)(jnp.broadcast_to(jnp.asarray(step), index.shape), index, sample)


def generate(
    model: Policy,
    params: types.Tree,
    prompts: types.Prompts,
    keys: types.Key,
    *,
    samples: int,
    length: int,
    stop: tuple[int, ...],
    pad: int,
    processors: processors_lib.Processors,
    keep_support: bool = False,
    axis_name: str | None = None,
) -> Sample:
    """Sample ``samples`` completions of each prompt, at most ``length`` tokens each.

    Token t of row b is drawn with ``fold_in(keys[b], t)`` and nothing else random, so it depends on
    the row's own prompt and key, never on its place, its batch or the number of turns. Each prompt
    is prefilled once and its cache repeated; the loop ends when every row has emitted one of ``stop``.

    With temperature tau, filter F and logits l: ``raw_logp = log_softmax(l / tau)`` and
    ``behaviour_logp = log_softmax(F(l / tau))`` at the token drawn. At temperature 0 the most
    probable token is taken (the lowest id among equals), ``behaviour_logp`` is 0, and ``raw_logp``
    and ``entropy`` are those of temperature 1.

    Args:
        model: gives ``init_cache``, ``apply`` and ``logits``.
        params: the model's parameters.
        prompts: P prompts, left-padded to L; the last position of each is a token.
        keys: [B] typed keys, ``B = P * samples``, rows of a prompt adjacent; see ``row_keys``.
        samples: completions of each prompt.
        length: T, the most tokens of a completion.
        stop: token ids that end a completion; may be empty.
        pad: token id written after the end.
        processors: temperature and filter.
        keep_support: fill ``Sample.kept``, provided there is a filter (and temperature is not 0).
        axis_name: axis of an enclosing ``vmap``. The loop then runs until every row of every member
            has ended; a predicate of each member's own would copy the whole cache each turn.

    Raises:
        ValueError: no sample, no length, or a number of keys other than P * samples.
    """
    rows = prompts.token.shape[0] * samples
    if samples < 1 or length < 1:
        raise ValueError(f"generate: samples = {samples}, length = {length}: expected at least 1 of each")
    if keys.shape != (rows,):
        raise ValueError(f"generate: keys of shape {keys.shape}: expected {(rows,)}, prompts times samples")

    hidden, read = model.apply(params, prompts.token, prompts.mask, model.init_cache(*prompts.token.shape))
    # The last token drawn is never fed back, hence one slot less than positions.
    cache = _spread(read, model.init_cache(rows, prompts.token.shape[1] + length - 1), samples)
    logits = jnp.repeat(model.logits(params, hidden[:, -1]), samples, axis=0)
    stop_ids = jnp.asarray(stop, jnp.int32)[None, :]

    def emit(sample: Sample, logits: Array, live: Array) -> tuple[Sample, Array, Array]:
        """Draw the next position of every live row; return also the token and who is still live."""
        drawn = _draw(logits, keys, sample.turns, processors, sample.kept is not None)
        token = jnp.where(live, drawn.token, pad)
        stopped = live & jnp.any(token[:, None] == stop_ids, axis=1)
        sample = _write(sample, dataclasses.replace(drawn, token=token), live)
        finish = jnp.where(stopped, int(types.Finish.STOP), sample.finish)
        return dataclasses.replace(sample, finish=finish), token, live & ~stopped

    def unfinished(carry: tuple[Sample, Any, Array, Array]) -> Array:
        sample, _, _, live = carry
        some = jnp.any(live)
        if axis_name is not None:
            some = jax.lax.pmax(some.astype(jnp.int32), axis_name) > 0
        return some & (sample.turns < length)

    def turn(carry: tuple[Sample, Any, Array, Array]) -> tuple[Sample, Any, Array, Array]:
        sample, cache, token, live = carry
        hidden, cache = model.apply(params, token[:, None], live[:, None].astype(jnp.float32), cache)
        sample, token, live = emit(sample, model.logits(params, hidden[:, 0]), live)
        return sample, cache, token, live

    keep = keep_support and processors.filter is not None and processors.temperature > 0
    empty = _empty(rows, length, logits.shape[1] if keep else None, pad)
    sample, token, live = emit(empty, logits, jnp.ones((rows,), bool))
    return jax.lax.while_loop(unfinished, turn, (sample, cache, token, live))[0]


@flax.struct.dataclass
class _Drawn:
    """One position of every row; the fields are those of Sample without T."""

    token: Array
    behaviour_logp: Array
    raw_logp: Array
    entropy: Array
    square_prob: Array
    kept: Array | None


def _draw(logits: Array, keys: types.Key, position: Array, processors: processors_lib.Processors, keep: bool) -> _Drawn:
    """Draw one token of each row from ``logits [B, V]`` and say how probable it was."""
    logits = logits.astype(jnp.float32)
    greedy = processors.temperature == 0
    tempered = logits if greedy else logits / processors.temperature
    raw = jax.nn.log_softmax(tempered, axis=1)
    filtered = tempered if greedy or processors.filter is None else processors.filter(tempered)
    if greedy:
        token = jnp.argmax(tempered, axis=1).astype(jnp.int32)
        behaviour_logp = jnp.zeros(token.shape, jnp.float32)
    else:
        step_keys = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, position)
        token = jax.vmap(jax.random.categorical)(step_keys, filtered).astype(jnp.int32)
        behaviour_logp = _at(jax.nn.log_softmax(filtered, axis=1), token)
    # A model may rule tokens out with minus infinity; 0 * -inf must count as 0.
    entropy = -jnp.sum(jnp.where(raw == -jnp.inf, 0.0, jnp.exp(raw) * raw), axis=1)
    return _Drawn(
        token=token,
        behaviour_logp=behaviour_logp,
        raw_logp=_at(raw, token),
        entropy=entropy,
        square_prob=jnp.sum(jnp.exp(2.0 * raw), axis=1),
        kept=score.pack_bits(filtered > -jnp.inf) if keep else None,
    )


def _at(logp: Array, token: Array) -> Array:
    """Return ``logp [B, V]`` at ``token [B]``, by a comparison: it stays local where the vocabulary is split."""
    chosen = jax.lax.broadcasted_iota(jnp.int32, logp.shape, 1) == token[:, None]
    return jnp.sum(jnp.where(chosen, logp, 0.0), axis=1)


def _empty(rows: int, length: int, vocabulary: int | None, pad: int) -> Sample:
    """Return the sample before its first token; ``vocabulary`` is given where the support is kept."""
    zeros = jnp.zeros((rows, length), jnp.float32)
    kept = None
    if vocabulary is not None:
        # Every bit set, not none: an empty support would make re-scoring of the padding NaN.
        kept = jnp.full((rows, length, -(-vocabulary // 32)), EVERY_TOKEN, jnp.uint32)
    return Sample(
        token=jnp.full((rows, length), pad, jnp.int32),
        mask=zeros,
        behaviour_logp=zeros,
        raw_logp=zeros,
        entropy=zeros,
        square_prob=zeros,
        finish=jnp.full((rows,), int(types.Finish.LENGTH), jnp.int32),
        turns=jnp.zeros((), jnp.int32),
        kept=kept,
    )


def _write(sample: Sample, drawn: _Drawn, live: Array) -> Sample:
    """Write position ``sample.turns``, with nothing but padding in the rows that are not ``live``."""

    def put(whole: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(whole, part, sample.turns, axis=1)

    kept = sample.kept
    if kept is not None and drawn.kept is not None:
        kept = put(kept, jnp.where(live[:, None], drawn.kept, jnp.uint32(EVERY_TOKEN)))
    return dataclasses.replace(
        sample,
        token=put(sample.token, drawn.token),
        mask=put(sample.mask, live.astype(jnp.float32)),
        behaviour_logp=put(sample.behaviour_logp, jnp.where(live, drawn.behaviour_logp, 0.0)),
        raw_logp=put(sample.raw_logp, jnp.where(live, drawn.raw_logp, 0.0)),
        entropy=put(sample.entropy, jnp.where(live, drawn.entropy, 0.0)),
        square_prob=put(sample.square_prob, jnp.where(live, drawn.square_prob, 0.0)),
        turns=sample.turns + 1,
        kept=kept,
    )


def _spread(read: Cache, empty: Cache, samples: int) -> Any:
    """Copy each prompt's slots into its ``samples`` adjacent rows of ``empty``, which gives size and layout."""

    def fill(whole: Array, part: Array, row_axis: int) -> Array:
        return jax.lax.dynamic_update_slice_in_dim(whole, jnp.repeat(part, samples, axis=row_axis), 0, row_axis + 1)

    return empty.replace(
        key=fill(empty.key, read.key, 1),
        value=fill(empty.value, read.value, 1),
        mask=fill(empty.mask, read.mask, 0),
        length=read.length,
    )
