"""Rewards of the bench of a host verifier, apart from it so that worker processes do not import JAX."""

import time

SECONDS = 0.05
"""Seconds that ``asleep`` takes for an answer."""


def asleep(completion: str, reference: str) -> float:
    """Return a reward after ``SECONDS``."""
    time.sleep(SECONDS)
    return float(len(completion) % 2)


def awake(completion: str, reference: str) -> float:
    """Return the same reward at once."""
    return float(len(completion) % 2)
