"""Conversations in fewer slots than episodes: a slot whose episode has ended takes the next one.

As in ``conversation``, worlds answer inside the loop. It decodes in parts: a part ends after ``_COLUMNS`` steps, or
when a share of the slots is free. Then the prompts of new episodes are read into them, and the keys and values of the
part become history. With the same keys the tokens are the tokens of ``conversation.converse``, up to the rounding of
another batch shape.
"""

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax import types
from rljax.sampling import conversation, decode, dialogue, stopping, turns
from rljax.sampling import processors as processors_lib
from rljax.sampling import samples as samples_lib
from rljax.sampling.config import SamplerConfig

Array = types.Array
_COLUMNS = 32  # steps of a part at most
_FREE = 16  # a part ends when 1 / _FREE of the slots are free


class Policy(turns.Policy):
    """A policy that keeps keys and values of rows; see ``models.Model``."""

    def placed(self, weights: types.Tree, token: Array, mask: Array, cache: Any, rows: Array) -> Any:
        """Begin ``rows`` [b] with the tokens ``[b, W]``, right-padded; rows beyond the last are left out."""
        ...


@flax.struct.dataclass
class _Progress:
    """Episodes in n slots, and what the E rows are so far."""

    cache: Any
    token: Array  # [n] int32, the last token of each row, not in the cache
    row: Array  # [n] int32, the episode of each slot; E: none
    talk: dialogue.Talk  # of the n slots
    following: Array  # int32, episodes begun so far
    sample: samples_lib.Sample  # [E, T]
    talks: dialogue.Talk  # of the E rows


@dataclasses.dataclass(frozen=True)
class _Refilling:
    """The functions of one rollout."""

    model: Policy
    weights: types.Tree
    driver: conversation.Driver
    states: Any  # [E, ...]
    token: Array  # [P, L] int32, right-padded prompts
    image: Array | None  # [P, N, H, W, 3] uint8, their pictures
    size: Array  # [P] int32
    keys: types.Key  # [E]
    count: int  # slots filled together

    def fill(self, p: _Progress) -> _Progress:
        """Begin the next episodes in free slots."""
        episodes, slots = self.keys.shape[0], p.row.shape[0]
        free = p.row >= episodes
        slot = jnp.argsort(~free, stable=True)[: self.count].astype(jnp.int32)
        index = p.following + jnp.arange(self.count, dtype=jnp.int32)  # the free slots come first
        taken = free[slot] & (index < episodes)
        slot, index = jnp.where(taken, slot, slots), jnp.minimum(index, episodes - 1)

        def put(whole: Array, part: Array) -> Array:
            return whole.at[slot].set(part, mode="drop")

        prompt = index // (episodes // self.size.shape[0])
        token, size = self.token[prompt], self.size[prompt]
        read = jnp.arange(token.shape[1])[None, :] < size[:, None] - 1
        seen = () if self.image is None else (self.image[prompt],)
        begun = dialogue.begin(self.driver.world, jax.tree.map(lambda x: x[index], self.states), self.driver.ends)
        return dataclasses.replace(
            p,
            cache=self.model.placed(self.weights, token, read, p.cache, slot, *seen),
            token=put(p.token, jnp.take_along_axis(token, size[:, None] - 1, axis=1)[:, 0]),
            row=put(p.row, index),
            talk=jax.tree.map(put, p.talk, begun),
            following=p.following + jnp.sum(taken, dtype=jnp.int32),
        )

    def part(self, p: _Progress) -> _Progress:
        """Decode until enough slots are free or the columns of a part are used; add the part to the rows."""
        episodes, vocabulary = self.keys.shape[0], None if p.sample.kept is None else 32 * p.sample.kept.shape[2]
        empty = samples_lib.empty(p.row.shape[0], _COLUMNS, vocabulary, self.driver.ends.pad, turns=True)
        row = jnp.minimum(p.row, episodes - 1)
        live = (p.row < episodes) & ~p.talk.over
        start = decode.DecodeState(empty, p.cache, p.token, live, self.keys[row], row, p.talk)

        def more(decoding: decode.DecodeState) -> Array:
            enough = (p.following < episodes) & (jnp.sum(~decoding.live) >= self.count)
            return jnp.any(decoding.live) & (decoding.sample.steps < _COLUMNS) & ~enough

        step = decode.stepping(self.model, self.weights, self.driver.draw, self.driver.active)
        end = jax.lax.while_loop(more, step, start)
        talk, part, done = end.state, end.sample, p.talk.length
        sample = samples_lib.placed(p.sample, part, p.row, done)
        over = talk.over & (p.row < episodes)
        return dataclasses.replace(
            p,
            cache=self.model.settle(end.cache),
            token=end.token,
            row=jnp.where(over, episodes, p.row),
            talk=talk,
            sample=dataclasses.replace(
                sample,
                length=p.sample.length.at[p.row].set(talk.length, mode="drop"),
                steps=p.sample.steps + part.steps,
                slots=p.sample.slots + part.slots,
            ),
            talks=jax.tree.map(lambda whole, new: whole.at[p.row].set(new, mode="drop"), p.talks, talk),
        )


def converse(
    model: Policy,
    params: types.Tree,
    world: dialogue.World,
    states: Any,
    prompts: types.Prompts,
    keys: types.Key,
    config: SamplerConfig,
    ends: stopping.Ends,
    *,
    length: int,
) -> tuple[samples_lib.Sample, dialogue.Talk]:
    """Sample episodes of a world of one seat in ``config.slots`` slots; see ``conversation.converse``."""
    episodes, width, slots = keys.shape[0], prompts.token.shape[1], config.slots
    processors = processors_lib.build(config)
    weights = model.decode_params(params)
    order = jnp.argsort(prompts.mask <= 0, axis=1, stable=True)
    token = jnp.take_along_axis(prompts.token, order, axis=1)
    cache = model.history(slots, width + length + _COLUMNS, _COLUMNS, config.cache_block)
    talks = dialogue.begin(world, states, ends)
    none = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), talks)
    hidden = jax.eval_shape(lambda: model.extend(weights, jnp.zeros(slots, jnp.int32), jnp.ones(slots), cache)[0])
    logits = jax.eval_shape(lambda h: model.logits(weights, h), hidden)
    kept = logits.shape[1] if processors_lib.keeps(config, processors) else None
    refilling = _Refilling(
        model=model,
        weights=weights,
        driver=conversation.Driver(world, conversation.Alone(), ends, processors, length),
        states=states,
        token=token,
        image=prompts.image,
        size=jnp.sum(prompts.mask > 0, axis=1, dtype=jnp.int32),
        keys=keys,
        count=-(-slots // _FREE),
    )
    start = _Progress(
        cache=cache,
        token=jnp.zeros((slots,), jnp.int32),
        row=jnp.full((slots,), episodes, jnp.int32),
        talk=dataclasses.replace(none, over=jnp.ones((slots,), bool)),
        following=jnp.zeros((), jnp.int32),
        sample=samples_lib.empty(episodes, length, kept, ends.pad, turns=True),
        talks=talks,
    )

    def step(p: _Progress) -> _Progress:
        def room(p: _Progress) -> Array:
            free = jnp.sum(p.row >= episodes)
            return (p.following < episodes) & (free >= jnp.minimum(refilling.count, episodes - p.following))

        return refilling.part(jax.lax.while_loop(room, refilling.fill, p))

    end = jax.lax.while_loop(lambda p: (p.following < episodes) | jnp.any(p.row < episodes), step, start)
    return end.sample, end.talks
