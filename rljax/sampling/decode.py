"""The sampler: prefill, then a decode loop with early exit, all of it inside jit."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap

from rljax import types
from rljax.models.scores import scoring, shapes
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling import stopping
from rljax.sampling.config import SamplerConfig
from rljax.transforms import ops

Array = types.Array


def generate(
    model: samples_lib.Policy,
    params: types.Tree,
    prompts: types.Prompts,
    keys: types.Key,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    samples: int,
    length: int,
    of: Array | None = None,
    live: Array | None = None,
) -> samples_lib.Sample:
    """Sample ``samples`` completions of each prompt, at most ``length`` tokens each.

    Token t of row b is drawn with ``fold_in(keys[b], t)`` and no other randomness, so it depends on the row's prompt
    and key only, not on its place, its batch or the number of decode steps. Each prompt is read once and its keys and
    values are shared; the loop ends when every row has ended by ``stop`` or ``strings``. Inside ``vmap`` it ends when
    every row of every member has.

    With temperature tau, filter F and logits l: ``raw_logp = log_softmax(l / tau)`` and
    ``behaviour_logp = log_softmax(F(l / tau))`` at the token drawn. At temperature 0 the most
    probable token is chosen (the lowest id among equals), ``behaviour_logp`` is 0, and ``raw_logp``
    and ``entropy`` are at temperature 1.

    Args:
      model: the policy.
      params: the model's parameters.
      prompts: P prompts ``[P, L]``, left-padded; the last position of each is a real token.
      keys: ``[B]`` typed keys, ``B = P * samples``, rows of a prompt adjacent; see ``row_keys``.
      config: temperature, filters, and how the loop is laid out. With ``rescore="kept"``, a filter and a temperature
        above 0, ``Sample.kept`` is filled.
      ends: what ends a completion, and the token id written after the end.
      samples: completions of each prompt.
      length: T, the most tokens of a completion.
      of: ``[B]`` int32, the prompt of each row, where prompts have unequal numbers of rows; each row then has a copy of
        its prompt's keys and values. ``samples`` is 1, and B is the number of keys.
      live: ``[B]`` bool, rows to sample; the others get no token. None: all.

    Returns:
      The completions, ``B`` rows of ``T = length`` positions.

    Raises:
      ValueError: samples or length is below 1, or a shape does not match.
    """
    count = prompts.token.shape[0]
    rows = count * samples if of is None else of.size
    if samples < 1 or length < 1:
        raise ValueError(f"generate: samples = {samples}, length = {length}: expected at least 1 of each")
    shapes.check({"prompts.token": prompts.token}, (None, None), "[P, L]")
    shapes.check({"prompts.mask": prompts.mask}, prompts.token.shape, "[P, L] of prompts.token")
    shapes.check({"keys": keys}, (rows,), "[B], prompts times samples")

    processors = processors_lib.build(config)
    weights = model.decode_params(params)
    # The last token drawn is never fed back, hence one column less than positions.
    read = weights, prompts.token, prompts.mask, samples, max(1, length - 1), config.cache_block
    hidden, cache = model.prefill(*read, prompts.image)
    logits = ops.repeat(model.logits(weights, hidden[:, -1]), samples)
    if of is not None:
        count, logits, cache = rows, logits[of], model.select(cache, of, of)
    sample = samples_lib.empty(
        rows, length, logits.shape[1] if processors_lib.keeps(config, processors) else None, ends.pad
    )
    row = jnp.arange(rows, dtype=jnp.int32)
    state = None if ends.strings is None else ends.strings.start(rows)
    live = jnp.ones((rows,), bool) if live is None else live
    start = DecodeState(sample, cache, jnp.zeros_like(row), live, keys, row, state)
    draw = functools.partial(emit, ends=ends, processors=processors)
    return run(model, weights, start, logits, draw, length, stages(count, samples, config.compact))[0]


def run(
    model: samples_lib.Policy,
    weights: types.Tree,
    start: "DecodeState",
    logits: Array | None,
    draw: Callable[["DecodeState", Array], "DecodeState"],
    steps: int,
    batches: list[tuple[int, int]],
    active: Callable[["DecodeState"], Array] = lambda decoding: decoding.live,
) -> tuple[samples_lib.Sample, Any]:
    """Emit one position from ``logits``, then decode until no row is live.

    Args:
      model: the policy.
      weights: from ``model.decode_params``.
      start: the rows before the first position.
      logits: ``[B, V]``, of the first position; None: ``start.token`` is read first.
      draw: ``(state, logits) -> state``, draws one position of every live row; see ``emit``.
      steps: the most positions to emit.
      batches: the shapes of the shrinking batch, from ``stages``.
      active: which rows, [b] bool, get a token from the next ``draw``; the others keep their last one, unread.

    Returns:
      The completions of all B rows, and their ``DecodeState.state``.
    """
    decode_step = stepping(model, weights, draw, active)
    decoding = start if logits is None else draw(start, logits)
    whole = decoding.sample, decoding.state
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        if batch != batches[0]:
            whole = _gather(whole, decoding)
            decoding = _shrink(model, decoding, whole, batch, batches[0])

        def unfinished(decoding: DecodeState, batch=batch, following=following) -> Array:
            more = _anywhere(jnp.any(decoding.live)) & (decoding.sample.steps < steps)
            return more if following is None else more & _anywhere(~_fits(decoding.live, batch, following))

        decoding = jax.lax.while_loop(unfinished, decode_step, decoding)
    return (decoding.sample, decoding.state) if len(batches) == 1 else _gather(whole, decoding)


def stepping(
    model: samples_lib.Policy,
    weights: types.Tree,
    draw: Callable[["DecodeState", Array], "DecodeState"],
    active: Callable[["DecodeState"], Array] = lambda decoding: decoding.live,
) -> Callable[["DecodeState"], "DecodeState"]:
    """Return a step of the loop: read the last token of the active rows, draw the next; see ``run``."""

    def decode_step(decoding: DecodeState) -> DecodeState:
        hidden, cache = model.extend(weights, decoding.token, active(decoding), decoding.cache)
        return draw(dataclasses.replace(decoding, cache=cache), model.logits(weights, hidden))

    return decode_step


@custom_vmap
def _anywhere(predicate: Array) -> Array:
    """Return a predicate; inside ``vmap``, whether it holds for any member.

    With a predicate for each member, XLA would copy the whole cache at each step of the loop.
    """
    return predicate


@_anywhere.def_vmap
def _of_members(size: int, batched: list[bool], predicate: Array) -> tuple[Array, bool]:
    del size, batched
    return jnp.any(predicate), False


def stages(prompts: int, samples: int, compact: int) -> list[tuple[int, int]]:
    """Return the shapes of a batch that shrinks by half, ``compact`` times.

    While a prompt has more than one row, all prompts keep the same number of rows and share their keys and values;
    after that, each row has a copy of its prompt's.

    Args:
      prompts: P.
      samples: rows of each prompt.
      compact: how often the batch shrinks, at most.

    Returns:
      (prompts, rows of each prompt), the largest shape first.
    """
    shapes = [(prompts, samples)]
    for _ in range(compact):
        p, s = shapes[-1]
        if (p, s) == (1, 1):
            break
        shapes.append((p, -(-s // 2)) if s > 1 else (-(-p // 2), 1))
    return shapes


@flax.struct.dataclass
class DecodeState:
    """Rows being decoded."""

    sample: samples_lib.Sample
    cache: Any
    token: Array  # [b] int32, the last token of each row, not yet in the cache
    live: Array  # [b] bool
    keys: types.Key  # [b]
    row: Array  # [b] int32, the row's index in the whole batch
    state: Any = None  # [b, ...], what ``draw`` carries: the stop strings' automaton, or conversations


def emit(
    decoding: DecodeState,
    logits: Array,
    *,
    ends: stopping.Ends,
    processors: processors_lib.Processors,
    offset: Array | int = 0,
) -> DecodeState:
    """Draw the next position of every live row.

    Args:
      decoding: b rows.
      logits: ``[b, V]``.
      ends: what ends a completion, and the token id written in rows that have ended.
      processors: temperature and filter.
      offset: positions that the rows had when the loop began, a number or ``[b]`` int32.

    Returns:
      The rows with one more position; those that have stopped are no longer live.
    """
    live, sample = decoding.live, decoding.sample
    drawn = draw_tokens(logits, decoding.keys, offset + sample.steps, processors, sample.kept is not None)
    token = jnp.where(live, drawn.token, ends.pad)
    stopped = live & jnp.isin(token, jnp.asarray(ends.stop, jnp.int32))
    state = decoding.state
    if ends.strings is not None and state is not None:
        state = ends.strings.advance(state, token)
        stopped |= live & ends.strings.matched(state)
    sample = write(sample, dataclasses.replace(drawn, token=token), live, live)
    finish = jnp.where(stopped, int(types.Finish.STOP), sample.finish)
    sample = dataclasses.replace(sample, finish=finish)
    return dataclasses.replace(decoding, sample=sample, token=token, live=live & ~stopped, state=state)


def _fits(live: Array, batch: tuple[int, int], following: tuple[int, int]) -> Array:
    """Return whether the live rows of a batch fit into the following shape."""
    (prompts, samples), (fewer, lanes) = batch, following
    if fewer < prompts:
        return jnp.sum(live) <= fewer
    return jnp.max(jnp.sum(live.reshape(prompts, samples), axis=1)) <= lanes


def _shrink(
    model: samples_lib.Policy,
    decoding: DecodeState,
    whole: tuple[samples_lib.Sample, Any],
    batch: tuple[int, int],
    first: tuple[int, int],
) -> DecodeState:
    """Move the live rows into a smaller batch; ``whole`` holds the completions and states of all rows."""
    prompts, samples = batch
    rows = decoding.live.shape[0]
    if prompts == first[0]:  # some rows of every prompt
        order = jnp.argsort(~decoding.live.reshape(prompts, -1), axis=1, stable=True)[:, :samples]
        index = (order + jnp.arange(prompts)[:, None] * (rows // prompts)).reshape(-1)
        cache = model.select(decoding.cache, None, index)
    else:  # one row per prompt, of any prompt
        index = jnp.argsort(~decoding.live, stable=True)[:prompts]
        cache = model.select(decoding.cache, index, index)
    live, row = decoding.live[index], decoding.row[index]
    sample = samples_lib.mapped(lambda x: x[row], whole[0])
    state = jax.tree.map(lambda x: x[index], decoding.state)
    return DecodeState(sample, cache, decoding.token[index], live, decoding.keys[index], row, state)


def _gather(whole: tuple[samples_lib.Sample, Any], decoding: DecodeState) -> tuple[samples_lib.Sample, Any]:
    """Write the completions and states of the rows being decoded into the arrays of the whole batch."""

    def put(whole: Array, part: Array) -> Array:
        return whole.at[decoding.row].set(part)

    sample = samples_lib.mapped(put, whole[0], decoding.sample)
    sample = dataclasses.replace(sample, steps=decoding.sample.steps, slots=decoding.sample.slots)
    return sample, jax.tree.map(put, whole[1], decoding.state)


@flax.struct.dataclass
class Drawn:
    """One position of every row; its fields are the fields of Sample without T."""

    token: Array
    behaviour_logp: Array
    raw_logp: Array
    entropy: Array
    square_prob: Array
    kept: Array | None


def draw_tokens(
    logits: Array, keys: types.Key, position: Array, processors: processors_lib.Processors, keep: bool
) -> Drawn:
    """Draw one token of each row from ``logits`` [B, V], with its log-probabilities."""
    logits = logits.astype(jnp.float32)
    greedy = isinstance(processors.temperature, int | float) and processors.temperature == 0  # a traced one is above
    tempered = logits if greedy else logits / processors.temperature
    raw = jax.nn.log_softmax(tempered, axis=1)
    filtered = tempered if greedy or processors.filter is None else processors.filter(tempered)
    if greedy:
        token = jnp.argmax(tempered, axis=1).astype(jnp.int32)
        behaviour_logp = jnp.zeros(token.shape, jnp.float32)
    else:
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(position, keys.shape))
        token = jax.vmap(processors.draw)(step_keys, filtered).astype(jnp.int32)
        behaviour_logp = _at(jax.nn.log_softmax(filtered, axis=1), token)
    # A model may exclude tokens with minus infinity; 0 * -inf counts as 0.
    entropy = -jnp.sum(jnp.where(raw == -jnp.inf, 0.0, jnp.exp(raw) * raw), axis=1)
    return Drawn(
        token=token,
        behaviour_logp=behaviour_logp,
        raw_logp=_at(raw, token),
        entropy=entropy,
        square_prob=jnp.sum(jnp.exp(2.0 * raw), axis=1),
        kept=scoring.pack_bits(filtered > -jnp.inf) if keep else None,
    )


def _at(logp: Array, token: Array) -> Array:
    """Return ``logp [B, V]`` at ``token [B]``, by a comparison, which is local if the vocabulary is sharded."""
    chosen = jax.lax.broadcasted_iota(jnp.int32, logp.shape, 1) == token[:, None]
    return jnp.sum(jnp.where(chosen, logp, 0.0), axis=1)


def write(sample: samples_lib.Sample, drawn: Drawn, live: Array, used: Array) -> samples_lib.Sample:
    """Write position ``sample.steps``.

    Args:
      sample: b rows.
      drawn: the position of every row.
      live: ``[b]`` bool, rows whose token the policy emitted; the others get mask 0 and no values.
      used: ``[b]`` bool, rows that get a token, written by the policy or by somebody else.

    Returns:
      The rows with one more position.
    """

    def put(whole: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(whole, part, sample.steps, axis=1)

    kept = sample.kept
    if kept is not None and drawn.kept is not None:
        kept = put(kept, jnp.where(live[:, None], drawn.kept, jnp.uint32(samples_lib.EVERY_TOKEN)))
    numbers = ("behaviour_logp", "raw_logp", "entropy", "square_prob")
    return dataclasses.replace(
        sample,
        token=put(sample.token, drawn.token),
        mask=put(sample.mask, live.astype(jnp.float32)),
        **{name: put(getattr(sample, name), jnp.where(live, getattr(drawn, name), 0.0)) for name in numbers},
        length=sample.length + used,
        steps=sample.steps + 1,
        slots=sample.slots + live.shape[0],
        kept=kept,
    )
