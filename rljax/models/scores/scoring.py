"""Teacher-forced scores: log-probabilities and other quantities of the rows of a rollout under a model.

Rows are read in one of three ways, equal up to rounding: each whole, [prompt | completion]; each prompt once, followed
by its completions; or each prompt once, followed by its completions packed several to a row (``packing``). The
unembedding is applied to a part of the vocabulary at a time (``head``) or to a few columns of the completions, and
recomputed in the backward pass, so that no array of size [B, T, V] exists. Only what ``needs`` names is computed.
"""

import functools
import math
from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rljax import models, types
from rljax.models import layouts, precision
from rljax.models.network import attention, transformer
from rljax.models.scores import coarse, head, packing, shapes
from rljax.transforms import modules, ops
from rljax.types import Array, Tree


def score(
    model: models.Model,
    params: Tree,
    rollout: types.Rollout,
    needs: types.Needs,
    *,
    temperature: Array | float = 1.0,
    chunk: int = 4096,
    vocabulary: int = 4096,
    keep_logits: bool = False,
    kept: bool = False,
    reference: Tree | None = None,
    teachers: Mapping[str, tuple[models.Model, Tree]] | None = None,
    heads: Mapping[str, tuple[models.Model, Tree, types.Needs]] | None = None,
    samples: int = 0,
    places: packing.Places | None = None,
    words: tuple[int, int] | None = None,
) -> types.Scores:
    """Score the rows [context | action] of a rollout; differentiable in ``params``.

    With h_i the hidden state at position i, the token at completion position t has the
    logits z = logits(h_{L+t-1}) / temperature, log_normaliser = logsumexp(z), p = softmax(z) and

        logp = z[token] - log_normaliser        entropy = -sum p log p      square_prob = sum p^2
        value = scalar(h_{L+t-1})               divergences: ``ops.divergence``
        process = scalar(h_{L+t})

    and the reward of a row is scalar(h) at its last real position, or with words (yes, no) the difference of their
    logits there, at temperature 1: log p(yes) - log p(no) of the next token. An action is real up to its last
    position with mask 1, tool output before it included; beyond it every score is 0 and has no
    gradient. A model with output "logits" fills logp and, on request, the functions of p; "scalar"
    fills value, reward and process on request; "both" fills both from one forward pass.

    Args:
      model: provides ``apply``, ``apply_shared``, and ``logits`` or ``scalar``.
      params: parameters of the model, differentiated.
      rollout: ``context``, ``action`` and ``mask`` are read; the training prompt, if there is one.
      needs: what to fill besides ``logp``.
      temperature: of the policy; 0 is greedy sampling, which is scored at 1.
      chunk: about how many positions each device passes through the unembedding at once.
      vocabulary: about how many tokens of the vocabulary are in memory at once; 0: all. Exact divergences
        always use all.
      keep_logits: save the logits for the backward pass instead of recomputing them; all are then in
        memory at once.
      kept: renormalize logp over the support that the sampler stored; raw_logp is the unfiltered one.
        Without a stored support the rows were drawn unfiltered: logp is plain and raw_logp None.
      reference: parameters of the reference policy, for divergences; never differentiated.
      teachers: model and parameters of the modules that divergences name (``modules.divergence``), of the same
        vocabulary; never differentiated.
      heads: model, parameters and needs of heads that read the same hidden states, by name; see ``Scores.heads``.
      samples: the number of adjacent rows that share a prompt, which is then read once; 0 reads every row
        whole. Rewards of rows are always computed from whole rows.
      places: the place of each completion among the packed rows of its prompt; requires ``samples``.
      words: ids of the words whose logits make the reward of a row; None: the scalar head.

    Returns:
      Scores of shape ``[B, T]`` (reward ``[B]``), float32; the fields that are not needed are None.

    Raises:
      ValueError: context or action is absent, a shape does not match ``rollout.mask``, temperature or chunk
        is out of range, a divergence is unknown, or one is needed without its reference or teacher.
    """
    others = {**({} if reference is None else {modules.REFERENCE: (model, reference)}), **(teachers or {})}
    context, action = _checked(rollout, needs, temperature, chunk, others)
    if samples and rollout.mask.shape[0] % samples:
        raise ValueError(f"samples={samples} must divide the {rollout.mask.shape[0]} rows of rollout.mask")
    heads = heads or {}
    asked = {name for each in (needs, *(needs for *_, needs in heads.values())) for name in each.requested}
    shared = samples and not any(types.SCORES[name].at == "end" for name in asked)
    read = context, action, rollout.mask
    rows = _shared(*read, samples, places) if shared else _whole(*read)
    hidden, previous = rows.read(model, params)
    named = {name: _numbers(*given, hidden, previous, rows) for name, given in heads.items()}
    numbers = _numbers(model, params, needs, hidden, previous, rows, words).replace(heads=named)
    if model.architecture.output == "scalar":
        return numbers

    columns: dict[str, Any] = {"hidden": previous, "token": rows.token, "real": rows.real}
    if kept and action.kept is not None:
        columns["kept"] = rows.put(action.kept)
    # float32: the gradients of groups of columns are added in the type of what the groups share
    live = {name: precision.wide(w) for name, w in params.items() if not isinstance(w, dict)}
    others = {n: (others[n][0], jax.lax.stop_gradient(others[n][1])) for n in sorted(modules.compared(needs))}
    exact, ranked = coarse.apart(needs)
    columns["others"] = _compared(rows, context, action, rollout.mask, others, exact)
    columns["top"] = coarse.columns(rollout, ranked, rows.put)
    request = _request(model, needs, vocabulary, keep_logits)

    def body(groups: dict[str, Any]) -> dict[str, Array]:
        if not exact.divergence and vocabulary:
            return _in_parts(model, params, groups, request, needs, temperature)
        one = jax.checkpoint(lambda columns: _from_logits((model, live), others, columns, exact, temperature))
        result = jax.lax.map(one, groups)  # all logits of a position at once
        return {**_in_parts(model, params, groups, request, needs, temperature), **result} if ranked else result

    result = _over_columns(body, columns, chunk, model.layout)
    if needs.top:
        most = functools.partial(coarse.most_probable, model, params, request, max(needs.top), temperature)
        result |= _over_columns(most, columns, chunk, model.layout)
    result = {name: jax.tree.map(rows.take, x) for name, x in result.items()}
    divergence = {name: result.pop(name) for name in sorted(needs.divergence)}
    return numbers.replace(divergence=divergence, **result)


_COLUMNS: layouts.Names = ("rows", "positions")


class _Rows(NamedTuple):
    """Completions arranged for a forward pass: X rows of W positions; B and T as in the rollout."""

    read: Any  # (model, params) -> all hidden states, hidden state before each position [X, W, D]
    token: Array  # [X, W]
    real: Array  # [X, W] bool
    put: Any  # [B, T, ...] -> [X, W, ...]
    take: Any  # [X, W, ...] -> [B, T, ...]
    last: Array | None  # [B] index of the last real position in all hidden states; None: rows are not whole


def _same(x: Array) -> Array:
    return x


def _whole(context: types.Context, action: types.Action, mask: Array) -> _Rows:
    """Read every row from the start of its prompt."""
    prompt, prompt_mask = context.training
    real = packing.written(mask)
    length, width = prompt.shape[1], real.shape[1]
    token = jnp.concatenate([prompt, action.token], axis=1)
    attended = jnp.concatenate([prompt_mask != 0, real], axis=1)

    def read(model: models.Model, params: Tree) -> tuple[Array, Array]:
        hidden = model.apply(params, token, attended, context.image)
        return hidden, hidden[:, length - 1 : length - 1 + width]

    # Prompts are left-padded: the last position of a row without a completion is its prompt's last.
    last = length - 1 + jnp.sum(real, axis=1, dtype=jnp.int32)
    return _Rows(read, action.token, real, _same, _same, last)


def _shared(
    context: types.Context, action: types.Action, mask: Array, samples: int, places: packing.Places | None
) -> _Rows:
    """Read each prompt once and its completions after it."""
    prompt, prompt_mask = (x[::samples] for x in context.training)
    image = None if context.image is None else context.image[::samples]
    real = packing.written(mask)
    put, take = (_same, _same) if places is None else packing.movers(places, real)
    token, packed = put(action.token), put(real)
    segment = packed.astype(jnp.int32)
    first = jnp.zeros_like(packed).at[:, 0].set(True)
    if places is not None:
        order = jnp.broadcast_to(jnp.arange(real.shape[0], dtype=jnp.int32)[:, None], real.shape)
        segment = jnp.where(packed, 1 + put(order), 0)
        first = put(jnp.zeros_like(real).at[:, 0].set(True))

    def read(model: models.Model, params: Tree) -> tuple[Array, Array]:
        prompt_hidden, hidden = model.apply_shared(params, prompt, prompt_mask, token, segment, image)
        start = ops.repeat(prompt_hidden[:, -1:], token.shape[0] // prompt.shape[0])
        previous = jnp.concatenate([start, hidden[:, :-1]], axis=1)
        # the state before a completion is the state at the end of its prompt, not its neighbour's
        return hidden, previous if places is None else jnp.where(first[:, :, None], start, previous)

    return _Rows(read, token, packed, put, take, None)


def pack_bits(mask: Array) -> Array:
    """Pack bool ``mask`` [..., V] into uint32 [..., ceil(V / 32)]: v is bit v % 32 of word v // 32."""
    words = -(-mask.shape[-1] // 32)
    lead = mask.shape[:-1]
    padded = jnp.pad(mask, [(0, 0)] * len(lead) + [(0, words * 32 - mask.shape[-1])])
    bits = padded.reshape(*lead, words, 32).astype(jnp.uint32)
    place = jnp.arange(32, dtype=jnp.uint32).reshape((1,) * (len(lead) + 1) + (32,))
    return jnp.sum(bits << place, axis=-1, dtype=jnp.uint32)


def unpack_bits(words: Array, vocabulary: int) -> Array:
    """Undo ``pack_bits``: uint32 [..., ceil(V / 32)] to bool [..., V]."""
    place = jnp.arange(32, dtype=jnp.uint32).reshape((1,) * words.ndim + (32,))
    bits = (words[..., None] >> place) & jnp.uint32(1)
    return bits.reshape(*words.shape[:-1], words.shape[-1] * 32)[..., :vocabulary] > 0


def _checked(
    rollout: types.Rollout, needs: types.Needs, temperature: Array | float, chunk: int, others: Collection[str]
) -> tuple[types.Context, types.Action]:
    if rollout.context is None or rollout.action is None:
        missing = "context" if rollout.context is None else "action"
        raise ValueError(f"rollout.{missing} is None: scoring reads the tokens of context and action")
    _check_shapes(rollout, rollout.context, rollout.action)
    if rollout.context.token.shape[1] < 1:
        raise ValueError("rollout.context.token has width 0: the first completion token needs a position before it")
    if isinstance(temperature, int | float) and not 0 <= temperature < math.inf:
        raise ValueError(f"temperature={temperature} must be at least 0 (0: greedy, scored at 1) and finite")
    if chunk < 1:
        raise ValueError(f"chunk={chunk} must be at least 1 position")
    unknown = sorted(name for name in needs.divergence if not _is_exact(modules.parts(name)[0]))
    if unknown:
        raise ValueError(f"needs.divergence={unknown}: choose from {', '.join(ops.DIVERGENCES)}")
    if absent := sorted(modules.compared(needs) - {*others}):
        raise ValueError(f"needs.divergence={sorted(needs.divergence)} needs parameters of {', '.join(absent)}")
    return rollout.context, rollout.action


def _is_exact(name: str) -> bool:
    return name == modules.LEAST or name.startswith(modules.EVERY) or ops.is_divergence(name)


def _check_shapes(rollout: types.Rollout, context: types.Context, action: types.Action) -> None:
    shapes.check({"rollout.mask": rollout.mask}, (None, None), "[B, T]")
    rows, width = rollout.mask.shape
    shapes.check({"rollout.action.token": action.token}, (rows, width), "[B, T] of rollout.mask")
    shapes.check({"rollout.action.kept": action.kept}, (rows, width, None), "[B, T, ceil(V / 32)]")
    for prefix in ("", "train_"):
        token, mask = (getattr(context, prefix + name) for name in ("token", "mask"))
        shapes.check({f"rollout.context.{prefix}token": token}, (rows, None), "[B, L]")
        if token is not None:
            shapes.check({f"rollout.context.{prefix}mask": mask}, token.shape, f"[B, L] of {prefix}token")


_HEADS = {"value_logits": models.Model.bin_logits}  # of a number head; of the other scores its number


def _numbers(
    model: models.Model,
    params: Tree,
    needs: types.Needs,
    hidden: Array,
    previous: Array,
    rows: _Rows,
    words: tuple[int, int] | None = None,
) -> types.Scores:
    """Return the scores that number heads give, where their rows of ``types.SCORES`` say.

    A model without a number head has none of them, and at the rows' ends its words only.
    """
    width, numbers = rows.real.shape[1], {}
    for name in needs.requested:
        at = types.SCORES[name].at
        if not at or (model.architecture.output == "logits" and (at != "end" or words is None)):
            continue
        head_of = _HEADS.get(name, models.Model.scalar)
        if at == "end":
            assert rows.last is not None
            end = jnp.take_along_axis(hidden, rows.last[:, None, None], axis=1)[:, 0]
            if words is None:
                numbers[name] = head_of(model, params, end)
            else:
                z = model.logits(params, end)
                numbers[name] = z[:, words[0]] - z[:, words[1]]
        else:
            x = head_of(model, params, previous if at == "before" else hidden[:, -width:])
            real = rows.real if x.ndim == 2 else rows.real[:, :, None]
            numbers[name] = rows.take(jnp.where(real, x, 0.0))
    return types.Scores(**numbers)


def _compared(
    rows: _Rows,
    context: types.Context,
    action: types.Action,
    mask: Array,
    others: Mapping[str, tuple[models.Model, Tree]],
    needs: types.Needs,
) -> dict[str, Array]:
    """Return the hidden states of reference and teachers before each position, [X, W, D], by name and prompt.

    The prompts that rows of one group were sampled under may differ, so these are read whole.
    """
    plain = types.Context(token=context.token, mask=context.mask, image=context.image)
    sampled = _whole(plain, action, mask)
    asked = {(module, sampling) for _, named, sampling in map(modules.parts, needs.divergence) for module in named}
    hidden = {}
    for module, sampling in sorted(asked):
        read = rows.put(sampled.read(*others[module])[1]) if sampling else rows.read(*others[module])[1]
        hidden[module + modules.SAMPLING * sampling] = read
    return hidden


def _over_columns(body: Any, columns: dict[str, Array], chunk: int, layout: layouts.Layout) -> dict[str, Array]:
    """Apply ``body`` to the n groups of completion columns, [n, B, c, ...], and join its [n, B, c] results.

    Of n groups, group g has the columns i n + g, so that columns sharded over devices are split within each shard.
    """
    rows, width = columns["token"].shape
    shards = layouts.parts(layout, (rows, width), _COLUMNS)
    groups = -(-width // max(1, chunk * shards // rows))
    size = -(-width // groups)  # as equal as possible
    groups = -(-width // size)

    def cut(x: Array) -> Array:
        x = jnp.pad(x, [(0, 0), (0, groups * size - width)] + [(0, 0)] * (x.ndim - 2))
        return layout(jnp.moveaxis(x.reshape(rows, size, groups, *x.shape[2:]), 2, 0), (None, *_COLUMNS))

    result = body(jax.tree.map(cut, columns))
    return jax.tree.map(lambda x: jnp.moveaxis(x, 0, 2).reshape(rows, groups * size, *x.shape[3:])[:, :width], result)


def _request(model: models.Model, needs: types.Needs, vocabulary: int, keep_logits: bool) -> head.Request:
    chunk = vocabulary or model.architecture.vocabulary
    asked = tuple(name for name in needs.requested if not types.SCORES[name].at)
    return head.Request(model.architecture.dtype, chunk, keep_logits, asked, model.architecture.logit_cap)


def _in_parts(
    model: models.Model,
    params: Tree,
    columns: dict[str, Any],
    request: head.Request,
    needs: types.Needs,
    temperature: Array | float,
) -> dict[str, Array]:
    """Compute all that is needed but divergences over the vocabulary for groups of columns; each [n, B, c]."""
    stored = columns["top"]
    result: dict[str, Any] = head.scores(
        request,
        columns["hidden"],
        transformer.unembedding(model.architecture, params).T,
        columns["token"],
        coarse.positive(temperature),
        columns.get("kept"),
        tuple(ids for ids, _ in stored.values()),
    )
    live = dict(zip(stored, result.pop("top", ()), strict=True))
    result |= coarse.divergences(needs.divergence, live, stored)
    return {name: jnp.where(columns["real"], x, 0.0) for name, x in result.items()}


def _from_logits(
    live: tuple[models.Model, Tree],
    others: dict[str, tuple[models.Model, Tree]],
    columns: dict[str, Any],
    needs: types.Needs,
    temperature: Array | float,
) -> dict[str, Array]:
    """Compute all that is needed from whole logits for one group of columns; each [B, c]."""

    def tempered(model: models.Model, params: Tree, hidden: Array) -> Array:
        z = model.logits(params, hidden)
        z = model.layout(z, ("rows", None, "vocabulary"))
        if isinstance(temperature, int | float):
            return z if temperature in (0, 1) else z / temperature
        return z / jnp.where(temperature > 0, temperature, 1.0)

    z = tempered(*live, columns["hidden"])
    normaliser = jax.nn.logsumexp(z, axis=-1)
    # A comparison, not a gather: it is local if the vocabulary is sharded, and its gradient has no scatter.
    chosen = jax.lax.broadcasted_iota(jnp.int32, z.shape, 2) == columns["token"][:, :, None]
    sampled = jnp.sum(jnp.where(chosen, z, 0.0), axis=-1)
    result = {"logp": sampled - normaliser}
    if "kept" in columns:
        # chosen: tokens the policy did not draw (tool output, padding) may have no support stored.
        support = unpack_bits(columns["kept"], z.shape[-1]) | chosen
        result["raw_logp"] = result["logp"]
        result["logp"] = sampled - jax.nn.logsumexp(jnp.where(support, z, attention.MASKED), axis=-1)
    every = sorted(name for name in needs.divergence if name.startswith(modules.EVERY))
    result |= dict.fromkeys((*("log_normaliser",) * needs.log_normaliser, *every), normaliser)
    statistics = [(name, head.STATISTICS[name]) for name in needs.requested if name in head.STATISTICS]
    if statistics or needs.divergence:
        logp = z - normaliser[:, :, None]
        for name, statistic in statistics:
            result[name] = statistic.whole(logp)
        if needs.divergence:
            # Sorted: the order of a set differs between processes, which would then compile different programs.
            apart = {
                n: jax.nn.log_softmax(tempered(*others[n.removesuffix(modules.SAMPLING)], hidden), axis=-1)
                for n, hidden in columns["others"].items()
            }
            for full in sorted(needs.divergence - {*every}):
                name, named, sampling = modules.parts(full)
                if name == modules.LEAST:
                    q = jnp.stack([tempered(*others[n], columns["others"][n]) for n in named])
                    result[full] = jnp.sum(jnp.exp(logp) * jax.lax.stop_gradient(jnp.min(q, axis=0)), axis=-1)
                    continue
                mixture = modules.mixture([apart[n + modules.SAMPLING * sampling] for n in named])
                result[full] = ops.divergence(name, logp, mixture)
    return {name: jnp.where(columns["real"], x, 0.0) for name, x in result.items()}
