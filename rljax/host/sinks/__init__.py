"""Sinks: where the records of a run go beside its own logs, ``log.sinks="tensorboard() | wandb('project') | csv()"``.

``tensorboard``   Scalars, rollouts, pictures and settings as TensorBoard events.
``wandb``         The same to Weights & Biases (the package wandb, imported only if named).
``csv``           Metrics, timings and evaluations as comma-separated values.

A sink is opened with a ``Run`` and has the methods of ``Sink``. A function of one's own that returns an opener is named
by its dotted path; ``@rljax.host.sinks.sink`` marks it. Only process 0 of a run has sinks. They hold copies: a resumed
run reads nothing from them.
"""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

from rljax.language import dotted, messages, parse

Log = Literal["metrics", "timings", "evaluations"]
PREFIX: dict[Log, str] = {"metrics": "", "timings": "time/", "evaluations": "evaluation/"}  # of names of scalars
F = TypeVar("F", bound=Callable[..., Any])

TABLE = {
    "tensorboard": "rljax.host.sinks.tensorboard:tensorboard",
    "wandb": "rljax.host.sinks.weights_and_biases:wandb",
    "csv": "rljax.host.sinks.table:csv",
}
"""The sinks by name, imported at first use."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What a sink is opened with."""

    folder: pathlib.Path  # of the logs, on this machine
    name: str
    first: int  # the step from which records follow; earlier steps' were written before
    settings: Mapping[str, Any]  # by dotted name
    past: Mapping[Log, Sequence[Mapping[str, Any]]]  # the records of earlier steps


class Sink(Protocol):
    """What the logger calls; subclass it: methods that a sink does not define do nothing.

    An error that is not an OSError ends the run with a traceback.
    """

    def scalars(self, log: Log, step: int, phase: str, values: Mapping[str, float]) -> None:
        """Write numbers by name; the phase of an evaluation is its name."""

    def rollouts(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Write sampled rollouts of one step: "step", "prompt", "completion", "reward" and more."""

    def picture(self, path: pathlib.Path, step: int) -> None:
        """Write a PNG file, named after what it shows."""

    def flush(self) -> None:
        """Store what was written."""

    def close(self) -> None:
        """Close the sink."""


Opener = Callable[[Run], Sink]


def sink(function: F) -> F:
    """Mark a function that returns an ``Opener``, so that a config can name it by its dotted path."""
    return dotted.mark(function, "sink")


def build(text: str, field: str) -> tuple[Opener, ...]:
    """Return the openers of the sinks that a text names.

    Args:
      text: calls joined by "|", or "none".
      field: field of the config that errors name.

    Returns:
      The openers, in order.

    Raises:
      ValueError: an unknown name, an invalid argument, or a package that is not installed.
    """
    openers = parse.many(text, parse.Registry("sink", TABLE), field)
    if not all(map(callable, openers)):
        raise ValueError(f"{field}={messages.shown(text)}: must be a chain of sinks such as tensorboard() | csv().")
    return tuple(openers)


def flat(evaluation: Mapping[str, Any]) -> tuple[int, str, dict[str, float]]:
    """Return step, name and numbers of an evaluation's record: ``pass_at_1``, ..., ``greedy``, ``length``.

    Of episodes of a world ``world/success``, ``world/turns`` and others.
    """
    values = {f"pass_at_{k}": row[0] for k, row in evaluation.get("pass_at_k", {}).items()}
    values |= {f"maj_at_{k}": row[0] for k, row in evaluation.get("majority_at_k", {}).items()}
    values |= {"greedy": evaluation["greedy"][0]} if "greedy" in evaluation else {}
    values |= {name: evaluation[name] for name in ("length", "unjudged") if name in evaluation}
    world = evaluation.get("world") or {}
    values |= {
        f"world/{name}": world[name] for name in ("turns", "truncated", "invalid") if world.get(name) is not None
    }
    values |= {f"world/part/{name}": value for name, value in world.get("parts", {}).items() if value is not None}
    values |= {"world/success": world["success"][0]} if world else {}
    values |= {"world/nashconv": world["nashconv"]["nashconv"]} if "nashconv" in world else {}
    return evaluation["step"], evaluation.get("name", ""), values


def markdown(record: Mapping[str, Any]) -> str:
    """Return a rollout as Markdown: its numbers, then prompt and completion as code."""
    facts = [f"{k} {record[k]}" for k in ("seat", "outcome", "reward", "total", "advantage", "finish") if k in record]
    said = [f"\n[{message['by']}] {message['text']}" for message in record.get("turns", ())]
    text = f"{record['prompt']}{''.join(said) or record['completion']}".replace("\n", "\n    ")
    return f"{', '.join(facts)}\n\n    {text}\n"
