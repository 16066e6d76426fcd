"""Batches at the edge: padding that holds garbage, and rows, rewards and log-ratios that are extreme but legal."""

from typing import Any

import numpy as np

from rljax.algorithms.battery import batch
from rljax.algorithms.battery.batch import Arrays, B, T

ROWS = ("as they are", "one token", "one token in some", "some empty", "all empty", "full")
VALID = ("most", "one group not", "one row", "none")
REWARDS = ("0/1", "all wrong", "all right", "wild", "wild in some groups", "nearly equal")
LEVELS = (0.0, -1e-7, -1.0, -20.0, -100.0)  # log-probs; exp(-100) is 0 in float32 but for a denormal
GAPS = ("none", "up", "down", "mixed")  # log-ratios of 0, 20, -20, either
ENTROPIES = (0.0, 1e-6, 12.0)

WORST: tuple[dict[str, Any], ...] = (
    {},
    {"rows": "all empty"},
    {"valid": "none"},
    {"valid": "one row", "rows": "one token"},
    {"rewards": "all wrong", "entropy": 0.0, "level": 0.0},
    {"rewards": "all right", "level": -100.0, "rows": "one token"},
    {"rewards": "wild", "gap": "mixed", "rows": "full"},
    {"rewards": "wild", "gap": "up", "level": 0.0, "rows": "full"},
    {"rewards": "wild", "gap": "down", "level": -100.0, "rows": "full"},
    {"rewards": "wild in some groups", "gap": "mixed", "rows": "some empty", "valid": "one group not"},
    {"rewards": "0/1", "gap": "up", "rows": "full"},
    {"rewards": "0/1", "gap": "down", "rows": "full", "level": 0.0},
    {"rewards": "nearly equal", "level": -1e-7, "gap": "none", "entropy": 0.0},
)
"""Arguments of ``extreme`` that are always tried."""


def extreme(
    seed: int = 0,
    rows: str = "as they are",
    valid: str = "most",
    rewards: str = "0/1",
    level: float = -1.0,
    gap: str = "none",
    entropy: float = 1.0,
    paid: bool = False,
) -> Arrays:
    """Return a batch at the edge.

    Args:
      seed: of the arrays.
      rows: one of ``ROWS``, which tokens count.
      valid: one of ``VALID``, which rows count.
      rewards: one of ``REWARDS``.
      level: the larger of the live and all other log-probs, nats.
      gap: one of ``GAPS``, between the live log-probs and every other.
      entropy: of every token, nats.
      paid: whether tokens are paid too.
    """
    r = np.random.default_rng(seed)
    d = batch.arrays(seed % 3, token_rewards=paid)
    first = np.arange(T) == 0
    d["mask"] = {
        "as they are": d["mask"],
        "one token": np.ones((B, 1)) * first,
        "one token in some": np.where(np.arange(B)[:, None] % 2 == 0, d["mask"], d["mask"] * first),
        "some empty": d["mask"] * (np.arange(B)[:, None] % 3 > 0),
        "all empty": np.zeros((B, T)),
        "full": np.ones((B, T)),
    }[rows]
    d["valid"] = {
        "most": d["valid"],
        "one group not": d["valid"] * (d["group"] != 7),
        "one row": (np.arange(B) == 3) * 1.0,
        "none": np.zeros(B),
    }[valid]
    wild = r.choice([-1e4, 0.0, 1.0, 1e4], B)
    d["reward"] = {
        "0/1": d["reward"],
        "all wrong": np.zeros(B),
        "all right": np.ones(B),
        "wild": wild,
        "wild in some groups": np.where(d["group"] == 7, wild, 0.0),
        "nearly equal": 0.1 + 1e-8 * np.arange(B),
    }[rewards]
    d["outcome"] = (d["reward"] > 0) * 1
    sign = {"none": np.zeros((B, T)), "up": 1, "down": -1, "mixed": r.choice([-1, 1], (B, T))}[gap] * np.ones((B, T))
    d["logp"] = level + 20 * np.minimum(sign, 0)  # the larger of the two is ``level``
    for name in ("proximal", "behaviour", "raw", "ref"):
        d[name] = d["logp"] - 20 * sign
    d["entropy"], d["sampled_entropy"] = np.full((2, B, T), entropy)
    d["square_prob"] = np.exp(2 * d["raw"])
    if rewards.startswith("wild"):
        d["value"] = d["live_value"] = r.choice([-1e4, 0.0, 1e4], (B, T))
        if paid:
            d["token_reward"] = r.choice([-1e4, 0.0, 1e4], (B, T)) * d["mask"]
    if level == 0 or level < -1:
        d["student"] = d["extra"]["probe_logp"] = np.full((B, T), level)
    return d


def padded(d: Arrays, extra: int = 3) -> Arrays:
    """Widen the batch by ``extra`` columns and put garbage wherever the mask is 0."""
    junk = {"logp": -1e30, "proximal": 50.0, "behaviour": -3e3, "ref": 1e30, "raw": -7.0, "value": 1e9}
    wide = {}
    for name, x in d.items():
        if isinstance(x, dict):
            x = {k: _widen(v, extra) for k, v in x.items()}
        else:
            x = _widen(x, extra)
        wide[name] = x
    wide["mask"][:, T:] = 0
    for name, value in junk.items():
        wide[name] = np.where(wide["mask"] > 0, wide[name], value)
    return wide


def _widen(x: np.ndarray, extra: int) -> np.ndarray:
    if x.ndim < 2 or x.shape[1] != T:
        return x
    return np.pad(x, ((0, 0), (0, extra), *((0, 0),) * (x.ndim - 2)), mode="edge")
