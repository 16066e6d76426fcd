"""Rewards and worlds of the bench of a host verifier, apart from it so that worker processes do not import JAX."""

import asyncio
import time

from rljax.environments.worlds import host

SECONDS = 0.05
"""Seconds that ``asleep`` takes for an answer."""

CALL = 0.2
"""Seconds of a slow call."""


def asleep(completion: str, reference: str) -> float:
    """Return a reward after ``SECONDS``."""
    time.sleep(SECONDS)
    return float(len(completion) % 2)


def awake(completion: str, reference: str) -> float:
    """Return the same reward at once."""
    return float(len(completion) % 2)


def slow(completion: str, reference: str) -> float:
    """Return a reward after a slow call."""
    time.sleep(CALL)
    return 1.0


class Quick:
    """A world that answers at once."""

    def reset(self, example: int) -> str:
        """Begin a problem."""
        return "?"

    def step(self, text: str) -> host.Observation:
        """Answer a turn."""
        return host.Observation("!")


class Blocking(Quick):
    """A world with a slow call in each turn, which blocks its thread."""

    def step(self, text: str) -> host.Observation:
        """Answer a turn."""
        time.sleep(CALL)
        return super().step(text)


class Awaiting(Quick):
    """A world with a slow call in each turn, which it awaits."""

    async def step(self, text: str) -> host.Observation:
        """Answer a turn."""
        await asyncio.sleep(CALL)
        return super().step(text)
