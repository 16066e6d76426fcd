"""Conversations of one world in the compiled program and on the host: ``python -m rljax bench worlds``.

The world tells the number of the turn, whatever is written. Both forms start from the same parameters and keys, so
their first step has the same tokens; the record counts the rows in which it does.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import bench, types
from rljax.config import files, schema
from rljax.environments import Split
from rljax.environments.worlds import host, rules, text
from rljax.environments.worlds.host import task as host_task
from rljax.run import host_worlds, programs

TURNS = 4
"""Turns of a conversation."""

_PROMPT, _PROBLEMS = "0123456789", 1000


@dataclasses.dataclass(frozen=True)
class Inside:
    """The world as rules of characters."""

    turn_length: int

    name = "turns"
    alphabet = _PROMPT
    prompt_length = len(_PROMPT)
    reply_length = 1
    max_turns = TURNS

    def size(self, split: Split) -> int:
        """Return the number of problems."""
        return _PROBLEMS

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Return turn 0, and whether the problem pays."""
        return {"turn": jnp.int32(0), "pays": index % 2}

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Write the digits."""
        return rules.line(_PROMPT)

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Tell the number of the turn."""
        turn = state["turn"] + 1
        done = turn >= TURNS
        outcome = jnp.where(done & (state["pays"] > 0), types.Outcome.CORRECT, types.Outcome.WRONG)
        answer = rules.Answer((turn + ord("0"))[None], reward=done * 1.0 * state["pays"], done=done, outcome=outcome)
        return {**state, "turn": turn}, answer

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Write a digit."""
        return rules.line("0")


class Outside:
    """The same world as a class on text."""

    def reset(self, example: int) -> str:
        """Begin a problem."""
        self.turn, self.pays = 0, example % 2
        return _PROMPT

    def step(self, text: str) -> host.Observation:
        """Tell the number of the turn."""
        self.turn += 1
        done = self.turn == TURNS
        return host.Observation(str(self.turn), float(done and self.pays), done)


def worlds(config: schema.ConfigDict, shape: str, new_tokens: int, rounds: int, workers: int = 2) -> dict[str, Any]:
    """Time steps of both forms, interleaved.

    Args:
      config: the config, whose model is set.
      shape: its name.
      new_tokens: the most tokens of the turns of a conversation.
      rounds: steps of each.
      workers: worker processes.

    Returns:
      A JSON-able record: for each form the seconds of a step and of its rollout, and the share of decoded positions
      that became no token of the row; "equal", the share of rows whose tokens are equal.
    """
    config = files.last_phase(config)
    config.task, config.log.rollout_rows = f"guess(turns={TURNS})", 0
    config.verifier.workers = workers
    length = max(2, new_tokens // TURNS)
    devices = jax.devices()[:1]
    inside = programs.build(config, devices=devices, task=text.TextWorld(Inside(length - 1)))
    lengths: dict[str, Any] = {
        "max_turns": TURNS,
        "turn_length": length,
        "reply_length": 1,
        "prompt_length": len(_PROMPT),
    }
    outer: Any = host_task.host_world(Outside, examples=2 * _PROBLEMS, heldout=0.5, **lengths)
    outside = programs.build(config, inside.tokenizer, devices, outer)
    one, two = inside.steps[0], outside.steps[0]
    started = {"inside": one.begin(None, inside.key, None), "outside": two.begin(None, outside.key, None)}
    state, last = dict(started), dict[str, types.Rollout]()
    with host_worlds.workers(outside.setups[0]) as opened:
        none = host_worlds.Journal(None, 0)

        def play(name: str) -> None:
            here = state[name]
            last[name] = one.rollout(here, inside.key) if name == "inside" else _outer(here)
            jax.block_until_ready(last[name])

        def _outer(here: types.TrainState) -> types.Rollout:
            return host_worlds.rollout(outside, two, here, opened, none)

        def step(name: str) -> None:
            if name == "inside":
                assert one.fused is not None
                state[name], metrics = one.fused(state[name], inside.key)
            else:
                state[name], metrics = two.update(state[name], _outer(state[name]), outside.key)
            jax.block_until_ready(metrics)

        rollouts = {name: functools.partial(play, name) for name in state}
        for call in rollouts.values():
            call()  # compiles
        first = jax.device_get(last)
        opened.slots = opened.written = 0
        played = bench.interleaved(rollouts, rounds)
        idle = {"inside": _idle(first["inside"]), "outside": 1 - opened.written / opened.slots}
        stepped = _steps({name: functools.partial(step, name) for name in state}, rounds)
    same = [
        np.array_equal(a, b)
        for a, b in zip(*((first[name].action.token) for name in ("inside", "outside")), strict=True)
    ]
    record: dict[str, Any] = {"bench": "worlds", "device": devices[0].device_kind, "shape": shape, "turns": TURNS}
    record |= {"rows": len(same), "turn_length": length, "workers": workers, "equal": float(np.mean(same)), "forms": {}}
    for name in state:
        record["forms"][name] = {
            "step_s": statistics.median(stepped[name]),
            "rollout_s": statistics.median(played[name]),
            "idle": idle[name],
        }
    return record


def _steps(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    for call in calls.values():
        call()  # compiles
    return bench.interleaved(calls, rounds)


def _idle(rows: types.Rollout) -> float:
    """Return the share of decoded positions that are no token of a row: replies are decoded too."""
    assert rows.action is not None
    return float(1 - np.sum(np.asarray(rows.action.length)) / np.sum(np.asarray(rows.extra["slots"])))


def table(record: dict[str, Any]) -> str:
    """Return the record of ``worlds`` as text."""
    lines = [
        f"{record['rows']} conversations of {record['turns']} turns of up to {record['turn_length']} tokens;"
        f" {record['shape']}, {record['device']}; {record['workers']} workers;"
        f" {100 * record['equal']:.0f} % of rows have equal tokens",
        f"{'':10s}{'steps/s':>10s}{'rollout s':>12s}{'idle slots':>12s}",
    ]
    for name, form in record["forms"].items():
        idle = f"{100 * form['idle']:.0f} %"
        lines.append(f"{name:10s}{1 / form['step_s']:10.2f}{form['rollout_s']:12.3f}{idle:>12s}")
    return "\n".join(lines)
