# ruff: noqa: D102 (the tests say what each method is for)
"""A world of two seats in both forms: rules of characters, and a class on text, imported by worker processes.

A turn is up to two characters. The code of the first one, v, decides all that follows: who is told what and paid what,
who writes next, and whether the episode ends. Seat 0 is told one character, or nothing; seat 1 two. An empty turn has
v = 0; one without its end is read as "?".
"""

import dataclasses
import os
import signal

from rljax import environments
from rljax.environments.worlds.host import Observation

DIGITS, TURNS = "0123456789", 5
OUTCOMES = ("wrong", "correct", "unparseable")
WRONG = {  # what an answer has in each mood
    "three": {"text": ["", "", ""]},
    "unknown": {"next_seat": 2},
    "true": {"next_seat": True},
    "named": {"next_seat": "seat 1"},
    "long": {"text": ["", "123"]},
    "lost": {"reward": [0.0]},
    "number": {"reward": [0.0, "x"]},
    "part": {"parts": {"heard": [1.0]}},
    "judge": {"outcome": ["wrong", "won"]},
}


class Relay:
    """The class; ``MOOD`` makes it fail, by problem; ``KILLED_AT`` ends its process at a call of ``step``."""

    examples, seats, parts = 20, 2, ("heard",)
    calls = 0  # in this process

    def reset(self, example):
        self.turn = self.seat = 0
        self.mood = dict(each.split("=") for each in os.environ.get("MOOD", "").split()).get(str(example), "")
        return [f"{example % 8}a", f"{example % 8}bb"] if self.mood != "mute" else ["a"]

    def step(self, text):
        Relay.calls += 1
        if os.environ.get("KILLED_AT") == str(Relay.calls):
            os.kill(os.getpid(), signal.SIGKILL)
        value = ord(text[0]) if 0 < len(text) <= 2 else ord("?") if text else 0
        self.turn += 1
        self.seat = self.seat if value % 2 else 1 - self.seat
        if self.mood == "fewer":
            self.seats = 1
            return Observation("+")
        answer = {
            "text": ["" if value % 4 == 2 else DIGITS[value % 10], DIGITS[self.turn] + DIGITS[value % 7]],
            "reward": [0.25 * (value % 3), -0.5 * (value % 3 == 1)],
            "done": value % 5 == 1 and self.turn > 1,
            "truncated": value % 11 == 4,
            "outcome": [OUTCOMES[value % 3], OUTCOMES[self.turn % 3]],
            "parts": {"heard": [float(value % 4), float(self.turn)]},
            "next_seat": self.seat,
        }
        return Observation(**{**answer, **WRONG.get(self.mood, {})})


class Seatless(Relay):
    """A class without a player."""

    seats = 0


class Bool(Relay):
    """A class whose number of seats is no number."""

    seats = True


@environments.task
def inside(length=None):
    """Return the rules as a world inside the program."""
    import jax.numpy as jnp

    from rljax import types
    from rljax.environments.worlds import rules, text

    digits = jnp.array([ord(c) for c in DIGITS], jnp.int32)
    kinds = jnp.array([int(types.Outcome[name.upper()]) for name in OUTCOMES])

    @dataclasses.dataclass(frozen=True)
    class Rules:
        name, alphabet, seats, max_turns, parts = "relay", DIGITS + "ab?", 2, TURNS, ("heard",)
        prompt_length, turn_length, reply_length = 3, 2, 2

        def size(self, split):
            return 20

        def begin(self, index, split, key):
            return {"example": index, "turn": jnp.int32(0)}

        def prompt(self, state, seat):
            name = jnp.where(seat == 0, rules.line("a", jnp.int32(0)), rules.line("bb"))
            return rules.line(digits[state["example"] % 8], name)

        def step(self, state, seat, text, key):
            value, turn = text[0], state["turn"] + 1
            first = jnp.stack([jnp.where(value % 4 == 2, 0, digits[value % 10]), 0])
            return {**state, "turn": turn}, rules.Answer(
                text=jnp.stack([first, jnp.stack([digits[turn], digits[value % 7]])]).astype(jnp.int32),
                reward=jnp.stack([0.25 * (value % 3), -0.5 * (value % 3 == 1)]),
                done=(value % 5 == 1) & (turn > 1),
                truncated=value % 11 == 4,
                outcome=jnp.stack([kinds[value % 3], kinds[turn % 3]]),
                next_seat=jnp.where(value % 2 == 1, seat, 1 - seat),
                parts={"heard": jnp.stack([value % 4 * 1.0, turn * 1.0])},
            )

        def expert(self, state, seat, key):
            return rules.line("1")

    return text.TextWorld(Rules(), length)
