"""Worlds that are made of tasks and of other worlds, played turn by turn with texts and judged in plain Python."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.worlds import demonstrations, single
from rljax.language import parse

CORRECT, WRONG, UNPARSEABLE = (int(o) for o in (types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE))
SUMS = "arithmetic(digits=1, working=False, noise=0.5)"


@functools.cache
def make(text):
    """Return a task as ``config.task`` names it, with a tokenizer of its corpus."""
    task = parse.one(text, parse.Registry("task", environments.TASKS), "config.task")
    return task.bind(tokenizers.train(list(task.corpus())))


@functools.cache
def _compiled(world):
    step = jax.jit(lambda state, seat, token, mask: world.step(state, seat, token, mask, jax.random.key(1)))
    return jax.jit(lambda i: world.begin(i, "train", jax.random.key(0))), jax.jit(world.prompt), step


def written(world, text, closed=True):
    """Return a turn: token and mask ``[turn_length]``; one that is not closed has no end-of-sequence."""
    ids = [*world_tokenizer(world).encode(text), *([world_tokenizer(world).eos] if closed else [])]
    assert len(ids) <= world.turn_length
    token, mask = np.zeros(world.turn_length, np.int32), np.zeros(world.turn_length, np.float32)
    token[: len(ids)], mask[: len(ids)] = ids, 1
    return token, mask


def world_tokenizer(world):
    """Return the tokenizer that a world was bound to."""
    return world.tokenizer if hasattr(world, "tokenizer") else world_tokenizer(world.task)


def read(world, token, mask):
    return world_tokenizer(world).decode([int(t) for t, m in zip(token, mask, strict=True) if m])


def play(world, index, texts):
    """Write turns until the episode ends: return the replies, and what each turn's seat would be prompted with."""
    begin, prompt, step = _compiled(world)
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


@pytest.mark.parametrize("text", [SUMS, pytest.param("countdown(numbers=2, slip=0.5)", marks=pytest.mark.full)])
def test_a_task_as_a_world_gives_the_verdicts_of_the_task(text):
    task = make(text)
    world = single.from_task(task)
    index = jnp.arange(64, dtype=jnp.int32)
    assert worlds.in_turns(world) and single.from_task(world) is world
    for split in ("train", "heldout"):
        token, mask = task.demonstrations(index, split, jax.random.key(3))
        mask = mask.at[:4, -1].set(0.0).at[4:8].set(0.0)  # unclosed and empty ones

        @jax.jit
        def stepped(index, token, mask, split=split):
            keys = jax.random.split(jax.random.key(0), len(index))
            state = jax.vmap(lambda i: world.begin(i, split, jax.random.key(0)))(index)
            prompt = jax.vmap(world.prompt)(state, jnp.zeros_like(index))
            return prompt, jax.vmap(world.step)(state, jnp.zeros_like(index), token, mask, keys)[1]

        prompt, reply = stepped(index, token, mask)
        verdict, prompts = task.verify(index, split, token, mask), task.prompts(index, split)
        assert 0 < np.sum(verdict.reward) < 64
        np.testing.assert_array_equal(reply.reward[:, 0], verdict.reward)
        np.testing.assert_array_equal(reply.outcome[:, 0], verdict.outcome)
        assert set(reply.parts) == set(verdict.parts) == set(world.parts)
        for name, x in verdict.parts.items():
            np.testing.assert_array_equal(reply.parts[name][:, 0], x)
        np.testing.assert_array_equal(prompt[0], prompts.token)
        np.testing.assert_array_equal(prompt[1], prompts.mask)
        assert np.all(reply.done) and not np.any(reply.truncated) and not np.any(reply.mask)


def test_only_device_tasks_become_worlds():
    with pytest.raises(ValueError, match=r"from_task: task 'gym' is judged on the host; give one"):
        single.from_task(type("Hosted", (), {"host": True, "name": "gym"})())
