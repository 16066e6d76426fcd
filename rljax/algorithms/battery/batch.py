"""A synthetic batch with all fields that a piece may read, from one seed: for the battery, and for tests."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types

B, T = 12, 6
SEGMENTS = 3

# Fields of the live scores by the name of their array; other scores are random numbers where an algorithm asks for them
LIVE = {"logp": "logp", "entropy": "entropy", "value": "live_value", "reward": "learned", "process": "live_stepwise"}
LIVE |= {"log_normaliser": "normaliser"}
SHIFT = tuple(f"reverse_kl{of}" for of in ("", "/q_target", "/q_2_target"))  # divergences of a shift by Q - V

GREATEST, AT_MODE = "greatest/base", "at_mode/base"
LIVE_LEAST, LEAST, EVERY = "least_q/q/q_2", "least_q/q_target/q_2_target", "every_q_10/policy"
SAMPLED = {f"{name}_logp": name for name in ("proximal", "behaviour", "raw", "ref")} | {"entropy": "sampled_entropy"}
SAMPLED |= {name: name for name in ("mask", "reward", "valid", "square_prob", "value", "on_policy")}
WHOLE = ("group", "turn", "version", "episode", "agent", "domain", "finish", "outcome")
Arrays = dict[str, Any]


def arrays(seed: int = 0, token_rewards: bool = False, episodes: bool = False) -> Arrays:
    """Return the batch as a dict of float64 and integer NumPy arrays.

    Three groups of unequal size (5, 4, 3), gaps in the masks, row 8 invalid, row 4 empty; groups 7 and 2 have
    mixed rewards, group 9 is all wrong.

    With ``token_rewards`` tokens are paid too. Each agent has one row of an episode; with ``episodes``, one agent has
    all of them, with the episode's reward.
    """
    r = np.random.default_rng(seed)
    mask = (r.random((B, T)) < 0.75).astype(np.float64)
    mask[:, 0] = 1
    mask[4] = 0
    d: Arrays = {"mask": mask}
    # per token, log-probs: live, at the start of the update, of the sampler (filtered, raw), of the reference
    d["logp"] = -r.random((B, T)) * 2 - 0.05
    d["proximal"] = np.minimum(d["logp"] + r.normal(size=(B, T)) * 0.15, -0.01)
    d["behaviour"] = np.minimum(d["proximal"] + r.normal(size=(B, T)) * 0.1, -0.01)
    d["raw"] = np.minimum(d["behaviour"] - r.random((B, T)) * 0.05, -0.01)
    d["ref"] = np.minimum(d["logp"] + r.normal(size=(B, T)) * 0.3, -0.01)
    d["entropy"] = r.random((B, T)) * 1.5  # live, differentiated
    d["sampled_entropy"] = r.random((B, T)) * 1.5  # when the token was drawn
    d["square_prob"] = np.exp(2 * d["raw"]) + r.random((B, T)) * 0.1  # sum of p^2 when the token was drawn
    d["value"] = r.random((B, T))  # of the critic, when the rows were completed
    d["live_value"] = d["value"] + r.normal(size=(B, T)) * 0.2  # differentiated by the critic's objective
    d["token"] = r.integers(0, 3, (B, T))
    d["turn"] = np.sort(r.integers(0, 2, (B, T)), axis=1)
    d["version"] = r.integers(90, 101, (B, T))
    # per row
    d["group"] = np.array([7, 7, 7, 7, 7, 2, 2, 2, 2, 9, 9, 9])
    d["reward"] = np.array([1, 0, 0, 1, 0, 1, 1, 0, 1, 0, 0, 0], np.float64)
    d["valid"] = np.ones(B)
    d["valid"][8] = 0
    d["episode"] = np.array([0, 0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9])  # rows of a rollout share it
    d["reward_of_rollout"] = np.array([1, 1, 0, 1, 0, 1, 0, 0, 1, 0, 0, 0], np.float64)
    d["agent"] = np.arange(B) % 2
    d["domain"] = np.array([0] * 9 + [1] * 3)
    d["on_policy"] = np.array([1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0], np.float64)
    d["finish"] = np.array([1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1])  # 0: cut by the limit, 1: stopped
    d["outcome"] = np.where(d["reward"] == 1, 1, np.array([0, 0, 2] * 4))  # 0 wrong, 1 correct, 2 unparseable
    if token_rewards:
        d["token_reward"] = (r.random((B, T)) - 0.3) * 0.5 * mask
    d["parts"] = _parts(r)
    d["extra"] = _extra(r, d)
    d["parts"]["rate"] = r.random(B) + 0.5
    d["extra"]["head"] = 1.0 - d["mask"]
    d["extra"]["previous_logp"] = np.minimum(d["logp"] + r.normal(size=(B, T)) * 0.2, -0.01)
    d["scored"] = r.normal(size=B)  # of a reward model that is not trained
    d["prm"] = np.minimum(d["ref"] + r.normal(size=(B, T)) * 0.3, -0.01)  # of a language model that scores tokens
    d["learned"] = d["scored"] + r.normal(size=B) * 0.3  # differentiated by the reward model's objective
    other = np.random.default_rng(seed + 2)
    d["after"] = -other.random((B, 3))  # log-probs of a solution behind each row
    d["student"] = -other.random((B, T)) * 2
    d["stepwise"] = other.normal(size=(B, T))  # logits of a process reward model that is not trained
    d["live_stepwise"] = d["stepwise"] + other.normal(size=(B, T)) * 0.3  # differentiated by its objective
    d["js"] = np.random.default_rng(seed + 1).random((B, T))  # exact divergence, differentiated
    d["value_2"] = other.random((B, T))  # of a second critic
    d["normaliser"] = other.normal(size=(B, T))  # live, of logits that are Q
    d |= {name: other.normal(size=(B, T)) for name in ("q_target", "q_2_target")}  # Q of critics that follow others
    d["extra"]["q_returns"] = other.normal(size=(B, T))
    d["least"] = other.normal(size=(B, T))  # the expected Q of the policy, of critics that follow others
    if episodes:
        d["reward"] = d["reward_of_rollout"]  # every row of a rollout holds the rollout's reward
        d["agent"] = d["episode"] % 2  # one agent writes all of it
    return d


def _parts(r: np.random.Generator) -> Arrays:
    return {
        "greedy_reward": r.random(B),
        "optimal_value": r.random(B),
        "prompt_value": r.random(B),
        "next_value": r.random(B),
        "drift": r.random(B) * 0.02,
        "kept": np.array([1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0], np.float64),
        "beats_reference": np.array([1, -1, 0, 1, 1, 1, 1, 0, 1, -1, 0, 1], np.float64),
        "format": (r.random(B) < 0.6).astype(np.float64),
        "exploration": r.random(B),
        "answer": np.array([3, 4, 4, 3, 4, 1, 1, 2, 1, 5, 6, 5], np.float64),  # row 2, unreadable, would break a tie
        "length_gap": np.arange(B) % 5 - 2.0,
        "ssim": np.arange(B) * 5 % 11 / 11,
        "structure": np.arange(B) * 7 % 13 / 13,
        "iou": r.random(B),
        "box": r.random(B),
        "node": r.integers(0, 3, B) / 2.0,
        "edge": (r.random(B) < 0.5).astype(np.float64),
        "recall": (r.random(B) < 0.5).astype(np.float64),
        "solver_success": np.array([0.5, 0, 0.25, 1, 0.75, 0.5, 0, 0.1, 0.2, 0.3, 0.9, 0], np.float64),
        "verdict": (r.random(B) < 0.5).astype(np.float64),
        "votes": r.integers(0, 4, B).astype(np.float64),
        "tag": np.array([1, 0, -1, 1] * 3, np.float64),
        "easy": (r.random(B) < 0.5).astype(np.float64),
        "think": np.array([1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 0, 1], np.float64),
        "closing": (r.random(B) < 0.5).astype(np.float64),
        "flow": (r.random(B) < 0.5).astype(np.float64),
        "unclosed": (r.random(B) < 0.5).astype(np.float64),
    }


def _extra(r: np.random.Generator, d: Arrays) -> Arrays:
    return {
        "segment": np.array([[0, 0, 1, 1, 2, 2]] * B),
        "cut_reward": (r.random((B, SEGMENTS)) < 0.5).astype(np.float64),  # after each of three budgets
        "used": (r.random((B, T)) < 0.3).astype(np.float64),
        "probe_logp": -r.random((B, T)) * 2,
        "reference_answer": np.array([[0, 0, 0, 0, 1, 1]] * B, np.float64),
        "match": np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]] * 6, np.float64),
        "tag": np.array([[0, 0, 1, 1, 2, 2]] * B),
        "token_score": r.normal(size=(B, T)),
        "preference": np.array([1, -1, 0, 0, 0, 1, 0, -1, 0, -1, 1, 0], np.float64),  # a pair of each group
        "margin": np.array([1] * 5 + [0.5] * 4 + [2] * 3, np.float64),
    }


def records(d: Arrays, dtype: Any = jnp.float32) -> tuple[types.Rollout, types.Scores]:
    """Return the batch as (Rollout, Scores)."""
    f = functools.partial(jnp.asarray, dtype=dtype)
    i = functools.partial(jnp.asarray, dtype=jnp.int32)
    fields: dict[str, Any] = {field: f(d[name]) for field, name in SAMPLED.items()}
    fields |= {name: i(d[name]) for name in WHOLE}
    rollout = types.Rollout(
        **fields,
        action=types.Action(token=i(d["token"])),
        token_reward=f(d["token_reward"]) if "token_reward" in d else None,
        index=i(d.get("index", d["group"])),
        parts={k: f(v) for k, v in d["parts"].items()},
        extra={k: f(v) if v.dtype == np.float64 else i(v) for k, v in d["extra"].items()},
        scores={
            "reward": types.Scores(reward=f(d["scored"])),
            "judge": types.Scores(reward=f(d["scored"])),
            "prm": types.Scores(logp=f(d["prm"]), process=f(d["stepwise"])),
            "scorer": types.Scores(after_logp=f(d["after"]), after_mask=f(np.ones_like(d["after"]))),
            "policy": types.Scores(
                logp=f(d["raw"]),
                entropy=f(d["sampled_entropy"]),
                divergence={LEAST: f(d["least"]), GREATEST: f(d["stepwise"]), AT_MODE: f(d["prm"])},
            ),
            "student": types.Scores(
                logp=f(d["student"]), after_logp=f(d["after"]), after_mask=f(np.ones_like(d["after"]))
            ),
            **{name + of: types.Scores(value=f(d[name])) for name in ("value", "value_2") for of in ("", "_target")},
            **{
                name: types.Scores(logp=f(d["prm"]), log_normaliser=f(d[name] - d["prm"]), process=f(d[name]))
                for name in ("q_target", "q_2_target")
            },
        },
    )
    live: dict[str, Any] = {field: f(d[name]) for field, name in LIVE.items()}
    live["value_logits"] = jnp.stack([0.0 * live["value"], live["value"]], axis=-1)  # of a critic of two bins
    exact = {name: f((number + 1) * d["js"]) for number, name in enumerate(("js", *SHIFT, LIVE_LEAST, EVERY, GREATEST))}
    return rollout, types.Scores(divergence=exact, **live)


def select(d: Arrays, rows: Any) -> Arrays:
    """Return the batch's rows in the order given."""
    return jax.tree.map(lambda x: x[np.asarray(rows)], d)
