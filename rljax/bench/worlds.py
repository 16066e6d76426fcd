"""Conversations of one world in the compiled program and on the host: ``python -m rljax bench worlds``.

The world tells the number of the turn, whatever is written. Both forms start from the same parameters and keys, so
their first step has the same tokens; the record counts the rows in which it does.
"""

import dataclasses
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import bench, types
from rljax.bench import parts
from rljax.config import files, schema
from rljax.environments import Split
from rljax.environments.worlds import host, rules, text
from rljax.environments.worlds.host import task as host_task
from rljax.run import producers, programs
from rljax.run.reports.pages import tables

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
    given: Any = host_task.host_world(Outside, examples=2 * _PROBLEMS, heldout=0.5, **lengths)
    outside = programs.build(config, inside.tokenizer, devices, given)
    with producers.workers(outside.setups[0]) as opened:
        produce = producers.make(outside, outside.steps[0], opened)
        runs = {
            "inside": parts.Runner(inside.steps[0], inside.key),
            "outside": parts.Runner(outside.steps[0], outside.key, produce),
        }
        for run in runs.values():
            run.rollout()  # compiles
        first = {name: jax.device_get(run.rows) for name, run in runs.items()}
        opened.slots = opened.written = 0
        played = bench.interleaved({name: run.rollout for name, run in runs.items()}, rounds)
        idle = {"inside": _idle(first["inside"]), "outside": 1 - opened.written / opened.slots}
        for run in runs.values():
            run.whole()  # compiles
        stepped = bench.interleaved({name: run.whole for name, run in runs.items()}, rounds)
    same = [
        np.array_equal(a, b)
        for a, b in zip(*((first[name].action.token) for name in ("inside", "outside")), strict=True)
    ]
    record: dict[str, Any] = {"shape": shape, "turns": TURNS, "rows": len(same), "turn_length": length}
    record |= {"workers": workers, "equal": float(np.mean(same)), "forms": {}}
    for name in runs:
        record["forms"][name] = {
            "step_s": statistics.median(stepped[name]),
            "rollout_s": statistics.median(played[name]),
            "idle": idle[name],
        }
    return record


def _idle(rows: types.Rollout) -> float:
    """Return the share of decoded positions that are no token of a row: replies are decoded too."""
    assert rows.action is not None
    return float(1 - np.sum(np.asarray(rows.action.length)) / np.sum(np.asarray(rows.extra["slots"])))


def table(record: dict[str, Any]) -> str:
    """Return the record of ``worlds`` as text."""
    head = (
        f"{record['rows']} conversations of {record['turns']} turns of up to {record['turn_length']} tokens;"
        f" {record['shape']}, {record['device']}; {record['workers']} workers;"
        f" {100 * record['equal']:.0f} % of rows have equal tokens"
    )
    rows = [
        [name, f"{1 / form['step_s']:.2f}", f"{form['rollout_s']:.3f}", f"{100 * form['idle']:.0f} %"]
        for name, form in record["forms"].items()
    ]
    return "\n".join([head, *tables.Table(["", "steps/s", "rollout s", "idle slots"], rows).lines()])
