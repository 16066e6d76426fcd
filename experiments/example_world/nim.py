"""Nim: take stones from a heap in turns with the world; whoever takes the last one wins."""

import dataclasses

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments.problems import numbering
from rljax.environments.worlds import rules, text


@dataclasses.dataclass(frozen=True)
class Nim:
    """Rules: the prompt ``17/3:`` is a heap, and the most stones of a move. The reply is the heap after both moves.

    The opponent moves at random. Taking the last stone pays 1; a turn that is no legal move loses.
    """

    slip: float  # probability that a demonstration moves at random

    name = "nim"
    alphabet = "0123456789/:"
    parts = ("illegal",)
    prompt_length, turn_length, reply_length = 5, 1, 2
    max_turns = 13

    def size(self, split):
        """Heaps of 5 to 26 stones, moves of up to 2 to 5; a fifth of these pairs is held out."""
        return numbering.size([22, 4], 0.2, split)

    def begin(self, index, split, key):
        """Return the heap, and the most stones of a move."""
        heap, most = numbering.values([22, 4], 0.2, index[None], split)[0]
        return {"heap": heap + 5, "most": most + 2}

    def prompt(self, state, seat):
        """Write both."""
        return rules.line(rules.decimal(state["heap"], 2), "/", rules.decimal(state["most"], 1), ":")

    def step(self, state, seat, text, key):
        """Take the stones, then let the opponent take some."""
        taken, readable = rules.number(text)
        legal = readable & (taken >= 1) & (taken <= jnp.minimum(state["most"], state["heap"]))
        left = state["heap"] - jnp.where(legal, taken, 0)
        after = jnp.maximum(left - jax.random.randint(key, (), 1, state["most"] + 1), 0)
        won = legal & (left == 0)
        lost = jnp.where(legal, types.Outcome.WRONG, types.Outcome.UNPARSEABLE)
        return {**state, "heap": after}, rules.Answer(
            text=rules.decimal(after, 2),
            reward=won,
            done=~legal | (after == 0),
            outcome=jnp.where(won, types.Outcome.CORRECT, lost),
            parts={"illegal": ~legal},
        )

    def expert(self, state, seat, key):
        """Leave a multiple of the most stones plus 1, or move at random."""
        slips, move = jax.random.split(key)
        best = state["heap"] % (state["most"] + 1)
        drawn = jnp.minimum(jax.random.randint(move, (), 1, state["most"] + 1), state["heap"])
        random = (best == 0) | jax.random.bernoulli(slips, self.slip)
        return rules.decimal(jnp.where(random, drawn, best), 1)


@environments.task
def nim(slip: types.Fraction = 0.7) -> text.TextWorld:
    """Take the last stone of a heap; see ``Nim``."""
    return text.TextWorld(Nim(slip))
