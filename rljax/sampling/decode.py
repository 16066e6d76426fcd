"""Prefill, then a decode loop with early exit: the sampler, all of it inside jit."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.models import scoring
from rljax.sampling import processors as processors_lib
from rljax.sampling import stopping
from rljax.transforms import ops

Array = types.Array
EVERY_TOKEN = 0xFFFFFFFF  # a word of Sample.kept with all bits set


class Policy(Protocol):
    """What the sampler asks of a model; ``rljax.models.build`` makes one."""

    def decode_params(self, params: types.Tree) -> types.Tree:
        """Return the parameters in the form the other functions read."""
        ...

    def prefill(
        self, weights: types.Tree, token: Array, mask: Array, samples: int, columns: int, block: int
    ) -> tuple[Array, Any]:
        """Read prompts [P, L]; return hidden [P, L, D] and a cache for ``samples`` rows of each."""
        ...

    def extend(self, weights: types.Tree, token: Array, mask: Array, cache: Any) -> tuple[Array, Any]:
        """Append a token [B] to each row of the cache; return hidden [B, D] and the cache."""
        ...

    def select(self, cache: Any, prompts: Array | None, rows: Array) -> Any:
        """Return the cache of some rows, and of some prompts (None: all of them), alone."""
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
    steps: Array  # int32, positions decoded before every row had ended
    slots: Array  # int32, tokens that could have been emitted: rows in the batch, summed over turns
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
    strings: stopping.Table | None = None,
    keep_support: bool = False,
    axis_name: str | None = None,
    block: int = 0,
    compact: int = 0,
) -> Sample:
    """Sample ``samples`` completions of each prompt, at most ``length`` tokens each.

    Token t of row b is drawn with ``fold_in(keys[b], t)`` and nothing else random, so it depends on
    the row's own prompt and key, never on its place, its batch or the number of turns. Each prompt
    is read once and its keys are shared; the loop ends when every row has ended by ``stop`` or ``strings``.

    With temperature tau, filter F and logits l: ``raw_logp = log_softmax(l / tau)`` and
    ``behaviour_logp = log_softmax(F(l / tau))`` at the token drawn. At temperature 0 the most
    probable token is taken (the lowest id among equals), ``behaviour_logp`` is 0, and ``raw_logp``
    and ``entropy`` are those of temperature 1.

    Args:
      model: gives ``decode_params``, ``prefill``, ``extend``, ``select`` and ``logits``.
      params: the model's parameters.
      prompts: P prompts, left-padded to L; the last position of each is a token.
      keys: [B] typed keys, ``B = P * samples``, rows of a prompt adjacent; see ``row_keys``.
      samples: completions of each prompt.
      length: T, the most tokens of a completion.
      stop: token ids that end a completion; may be empty.
      pad: token id written after the end.
      processors: temperature and filter.
      strings: texts that end a completion once it holds one of them; see ``stopping``.
      keep_support: fill ``Sample.kept``, provided there is a filter (and temperature is not 0).
      axis_name: axis of an enclosing ``vmap``. The loop then runs until every row of every member
        has ended; a predicate of each member's own would copy the whole cache each turn.
      block: columns of the cache that come into use together; 0: all at once.
      compact: how often the batch may shrink to half its rows as rows end; see ``stages``.

    Raises:
      ValueError: no sample, no length, a number of keys other than P * samples, or compaction inside ``vmap``.
    """
    count = prompts.token.shape[0]
    rows = count * samples
    if samples < 1 or length < 1:
        raise ValueError(f"generate: samples = {samples}, length = {length}: expected at least 1 of each")
    if keys.shape != (rows,):
        raise ValueError(f"generate: keys of shape {keys.shape}: expected {(rows,)}, prompts times samples")
    if compact and axis_name is not None:
        raise ValueError(f"generate: compact = {compact}: rows cannot be taken out of a batch inside vmap")

    weights = model.decode_params(params)
    # The last token drawn is never fed back, hence one column less than positions.
    hidden, cache = model.prefill(weights, prompts.token, prompts.mask, samples, max(1, length - 1), block)
    logits = ops.repeat(model.logits(weights, hidden[:, -1]), samples)
    keep = keep_support and processors.filter is not None and processors.temperature > 0
    sample = empty(rows, length, logits.shape[1] if keep else None, pad)
    row = jnp.arange(rows, dtype=jnp.int32)
    state = None if strings is None else strings.start(rows)
    start = Flight(sample, cache, jnp.zeros_like(row), jnp.ones((rows,), bool), keys, row, state)
    draw = functools.partial(emit, stop=stop, pad=pad, processors=processors, strings=strings)
    return run(model, weights, start, logits, draw, length, stages(count, samples, compact), axis_name)


def run(
    model: Policy,
    weights: types.Tree,
    start: "Flight",
    logits: Array,
    draw: Callable[["Flight", Array], "Flight"],
    steps: int,
    batches: list[tuple[int, int]],
    axis_name: str | None = None,
) -> Sample:
    """Emit from ``logits`` [B, V], then decode until no row is live, at most ``steps`` positions; see ``generate``.

    ``draw(flight, logits)`` emits a position of every live row; ``batches`` comes from ``stages``.
    """

    def turn(flight: Flight) -> Flight:
        hidden, cache = model.extend(weights, flight.token, flight.live, flight.cache)
        return draw(dataclasses.replace(flight, cache=cache), model.logits(weights, hidden))

    def some(live: Array) -> Array:
        found = jnp.any(live)
        return found if axis_name is None else jax.lax.pmax(found.astype(jnp.int32), axis_name) > 0

    flight = draw(start, logits)
    whole = flight.sample
    for batch, following in zip(batches, [*batches[1:], None], strict=True):
        if batch != batches[0]:
            whole = _gather(whole, flight)
            flight = _shrink(model, flight, whole, batch, batches[0])

        def unfinished(flight: Flight, batch=batch, following=following) -> Array:
            stay = some(flight.live) & (flight.sample.steps < steps)
            return stay if following is None else stay & ~_fits(flight.live, batch, following)

        flight = jax.lax.while_loop(unfinished, turn, flight)
    return flight.sample if len(batches) == 1 else _gather(whole, flight)


def stages(prompts: int, samples: int, compact: int) -> list[tuple[int, int]]:
    """Return the shapes (prompts, samples of each) of a batch that shrinks ``compact`` times, by half each time.

    While prompts keep more than a row each, every prompt keeps as many, and its keys stay shared; once there are
    no more rows than prompts, each row takes its own prompt along.
    """
    found = [(prompts, samples)]
    for _ in range(compact):
        p, s = found[-1]
        if (p, s) == (1, 1):
            break
        found.append((p, -(-s // 2)) if s > 1 else (-(-p // 2), 1))
    return found


@flax.struct.dataclass
class Flight:
    """Rows being decoded."""

    sample: Sample
    cache: Any
    token: Array  # [b] int32, the newest of each row, not yet in the cache
    live: Array  # [b] bool
    keys: types.Key  # [b]
    row: Array  # [b] int32, its place in the whole batch
    state: Array | None = None  # [b], how much of a stop string stands at the end; None: there are no strings


def emit(
    flight: Flight,
    logits: Array,
    *,
    stop: tuple[int, ...],
    pad: int,
    processors: processors_lib.Processors,
    strings: stopping.Table | None = None,
    before: Array | int = 0,
) -> Flight:
    """Draw the next position of every live row; ``before`` (a number, or [b]): those it had when the loop began."""
    live, sample = flight.live, flight.sample
    drawn = _draw(logits, flight.keys, before + sample.steps, processors, sample.kept is not None)
    token = jnp.where(live, drawn.token, pad)
    stopped = live & jnp.any(token[:, None] == jnp.asarray(stop, jnp.int32)[None, :], axis=1)
    state = flight.state
    if strings is not None and state is not None:
        state = strings.after(state, token)
        stopped |= live & strings.found(state)
    sample = _write(sample, dataclasses.replace(drawn, token=token), live)
    finish = jnp.where(stopped, int(types.Finish.STOP), sample.finish)
    sample = dataclasses.replace(sample, finish=finish)
    return dataclasses.replace(flight, sample=sample, token=token, live=live & ~stopped, state=state)


def _fits(live: Array, batch: tuple[int, int], following: tuple[int, int]) -> Array:
    """Tell whether the live rows of a batch fit into the following shape."""
    (prompts, samples), (fewer, lanes) = batch, following
    if fewer < prompts:
        return jnp.sum(live) <= fewer
    return jnp.max(jnp.sum(live.reshape(prompts, samples), axis=1)) <= lanes


def _shrink(model: Policy, flight: Flight, whole: Sample, batch: tuple[int, int], first: tuple[int, int]) -> Flight:
    """Move the live rows of a flight into a smaller batch; ``whole`` holds what all rows have emitted."""
    prompts, samples = batch
    rows = flight.live.shape[0]
    if prompts == first[0]:  # some rows of every prompt
        order = jnp.argsort(~flight.live.reshape(prompts, -1), axis=1, stable=True)[:, :samples]
        index = (order + jnp.arange(prompts)[:, None] * (rows // prompts)).reshape(-1)
        cache = model.select(flight.cache, None, index)
    else:  # one row for each place, of whichever prompt
        index = jnp.argsort(~flight.live, stable=True)[:prompts]
        cache = model.select(flight.cache, index, index)
    live, row = flight.live[index], flight.row[index]
    held = _take(whole, row)
    state = None if flight.state is None else flight.state[index]
    return Flight(held, cache, flight.token[index], live, flight.keys[index], row, state)


def rowwise(sample: Sample) -> dict[str, Array]:
    """Return the fields that have a row each."""
    names = [f.name for f in dataclasses.fields(sample) if f.name not in ("steps", "slots")]
    return {name: getattr(sample, name) for name in names if getattr(sample, name) is not None}


def _take(whole: Sample, row: Array) -> Sample:
    return dataclasses.replace(whole, **{name: x[row] for name, x in rowwise(whole).items()})


def _gather(whole: Sample, flight: Flight) -> Sample:
    """Write what the rows of a flight have emitted into the whole batch."""
    rows = rowwise(flight.sample)
    put = {name: x.at[flight.row].set(rows[name]) for name, x in rowwise(whole).items()}
    return dataclasses.replace(whole, steps=flight.sample.steps, slots=flight.sample.slots, **put)


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
        step_keys = jax.vmap(jax.random.fold_in)(keys, jnp.broadcast_to(position, keys.shape))
        token = jax.vmap(processors.draw)(step_keys, filtered).astype(jnp.int32)
        behaviour_logp = _at(jax.nn.log_softmax(filtered, axis=1), token)
    # A model may rule tokens out with minus infinity; 0 * -inf must count as 0.
    entropy = -jnp.sum(jnp.where(raw == -jnp.inf, 0.0, jnp.exp(raw) * raw), axis=1)
    return _Drawn(
        token=token,
        behaviour_logp=behaviour_logp,
        raw_logp=_at(raw, token),
        entropy=entropy,
        square_prob=jnp.sum(jnp.exp(2.0 * raw), axis=1),
        kept=scoring.pack_bits(filtered > -jnp.inf) if keep else None,
    )


def _at(logp: Array, token: Array) -> Array:
    """Return ``logp [B, V]`` at ``token [B]``, by a comparison: it stays local where the vocabulary is split."""
    chosen = jax.lax.broadcasted_iota(jnp.int32, logp.shape, 1) == token[:, None]
    return jnp.sum(jnp.where(chosen, logp, 0.0), axis=1)


def empty(rows: int, length: int, vocabulary: int | None, pad: int) -> Sample:
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
        steps=jnp.zeros((), jnp.int32),
        slots=jnp.zeros((), jnp.int32),
        kept=kept,
    )


def _write(sample: Sample, drawn: _Drawn, live: Array) -> Sample:
    """Write position ``sample.steps``, with nothing but padding in the rows that are not ``live``."""

    def put(whole: Array, part: Array) -> Array:
        return jax.lax.dynamic_update_index_in_dim(whole, part, sample.steps, axis=1)

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
        steps=sample.steps + 1,
        slots=sample.slots + live.shape[0],
        kept=kept,
    )
