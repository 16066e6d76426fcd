"""Worlds that are made of tasks and of other worlds: made, played and read."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.language import parse

CORRECT, WRONG, UNPARSEABLE = (int(o) for o in (types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE))
SUMS = "arithmetic(digits=1, working=False, noise=0.5)"


@functools.cache
def make(text):
    """Return a task as ``config.task`` names it, with a tokenizer of its corpus."""
    task = parse.one(text, parse.Registry("task", environments.TASKS), "config.task")
    return task.bind(tokenizers.train(list(task.corpus())))


@functools.cache
def compiled(world):
    step = jax.jit(lambda state, seat, token, mask: world.step(state, seat, token, mask, jax.random.key(1)))
    return jax.jit(lambda i: world.begin(i, "train", jax.random.key(0))), jax.jit(world.prompt), step


def written(world, text, closed=True):
    """Return a turn: token and mask ``[turn_length]``; one that is not closed has no end-of-sequence."""
    ids = [*world.tokenizer.encode(text), *([world.tokenizer.eos] if closed else [])]
    assert len(ids) <= world.turn_length
    token, mask = np.zeros(world.turn_length, np.int32), np.zeros(world.turn_length, np.float32)
    token[: len(ids)], mask[: len(ids)] = ids, 1
    return token, mask


def read(world, token, mask):
    return world.tokenizer.decode(np.asarray(token)[np.asarray(mask) > 0].tolist())


def play(world, index, texts):
    """Write turns until the episode ends: return the replies, and what each turn's seat would be prompted with."""
    begin, prompt, step = compiled(world)
    state, seat, replies, prompts = begin(jnp.int32(index)), jnp.int32(0), [], []
    for text in texts:
        prompts.append(read(world, *prompt(state, seat)))
        turn = text if isinstance(text, tuple) else written(world, text)
        state, reply = step(state, seat, *turn)
        assert reply.token.shape == reply.mask.shape == (world.seats, world.reply_length)
        assert reply.reward.shape == reply.outcome.shape == (world.seats,)
        assert set(reply.parts) == set(world.parts) and set(reply.extra) == set(world.extra)
        assert all(x.shape == (world.seats,) and x.dtype == jnp.float32 for x in reply.parts.values())
        replies.append(jax.tree.map(np.asarray, reply))
        seat = reply.next_seat
        if reply.done or reply.truncated:
            break
    assert len(replies) == len(texts), "the episode ended early"
    return replies, prompts


def told(world, reply, seat=0):
    return read(world, reply.token[seat], reply.mask[seat])


def answer(world, index):
    """Return the sum that a problem asks for, by Python."""
    return str(eval(world.text(index, "train").rstrip("=")))


def wrong(world, index):
    """Return an answer in form that is wrong."""
    return str(int(answer(world, index)) + 1)
