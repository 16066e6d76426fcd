"""Population-based training: several members train in rounds, and between rounds the worst continue from the best.

    from rljax.run.members import population

    rounds = population.evolve(
        rljax.get_config("quickstart"),
        {"phase.main.optimizer.learning_rate": [1e-4, 3e-4, 1e-3, 3e-3]},
        "runs/population",
        rounds=4,
        steps=50,
    )

A round is a phase of ``steps`` updates, the config's last phase cut into parts. All members of a round are one call of
``train_many``; those of the next round fork them (``config.checkpoint.init``) with their optimizer and reference. A
call that was interrupted resumes.

Source: Population Based Training of Neural Networks (arXiv 1711.09846), truncation selection and perturbation; there
members wait for nobody, here a round ends for all at once, so that a population is a function of its seed.
"""

import dataclasses
import json
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rljax.algorithms import interpreter
from rljax.config import resolve, schema
from rljax.data import storage
from rljax.run import loop
from rljax.run.members import many, sweep
from rljax.transforms import modules

_WORD = "population.evolve"

Values = dict[str, float]
"""The numbers of a member, by field."""


@dataclasses.dataclass(frozen=True)
class Round:
    """A round of a population.

    Attributes:
      values: of each member.
      parents: the member of the round before that each continues; empty in the first round.
      runs: of each member.
      scores: of each member; -inf if it failed.
    """

    values: tuple[Values, ...]
    parents: tuple[int, ...]
    runs: tuple[sweep.Run, ...]
    scores: tuple[float, ...]


def accuracy(result: loop.Result) -> float:
    """Return pass@1 of the evaluation at the end of a round."""
    return result.evaluations[-1]["pass_at_k"]["1"][0]


def evolve(
    config: schema.ConfigDict,
    values: Mapping[str, Sequence[float]],
    workdir: str | os.PathLike[str],
    *,
    rounds: int,
    steps: int,
    share: float = 0.25,
    factors: Sequence[float] = (0.8, 1.25),
    score: Callable[[loop.Result], float] = accuracy,
    progress: bool = True,
) -> list[Round]:
    """Train a population.

    Args:
      config: of every member; its last phase is cut into rounds. Schedules begin anew in each round.
      values: the members' first numbers, by field, such as "algorithm.high"; as many of each as there are members.
        Fields of the last phase may be among them. Member m has the seed ``config.seed`` + m.
      workdir: folder of the members' work directories, and of ``population.json``, which has each round.
      rounds: their number.
      steps: updates of a round.
      share: share of the members, at least one, that continue from one of as many best ones, drawn at random.
      factors: numbers of a member that continues another one are multiplied by one of these, drawn for each; if a field
        refuses one of the products, the member has the other one's numbers.
      score: of the result of a round; the larger, the better.
      progress: as in ``train_many``.

    Returns:
      The rounds.

    Raises:
      ValueError: numbers of fields differ, fewer than two members, a share above 1/2, no factor, or what
        ``train_many`` refuses; all members of a round failed.
    """
    members = sweep.zipped(values)
    if len(members) < 2 or not 0 < share <= 0.5 or rounds < 1 or steps < 1 or not factors:
        given = f"{len(members)} members, share={share}, rounds={rounds}, steps={steps}, factors={tuple(factors)}"
        raise ValueError(f"{_WORD}: {given}: needs two members, a share in (0, 0.5], rounds, steps and factors.")
    folder, done = storage.path(workdir), list[Round]()
    parents: tuple[int, ...] = ()
    for number in range(1, rounds + 1):
        runs = many.train_many(
            in_rounds(config, number, steps),
            [_fields(config, number, m, members[m], parents, done) for m in range(len(members))],
            folder / f"round_{number}",
            progress=progress,
        )
        scores = tuple(-np.inf if run.result is None else float(score(run.result)) for run in runs)
        scores = tuple(-np.inf if np.isnan(score) else score for score in scores)
        done.append(Round(tuple(members), parents, tuple(runs), scores))
        storage.write(folder / "population.json", json.dumps([_described(r) for r in done], indent=1) + "\n")
        if max(scores) == -np.inf:
            raise ValueError(f"{_WORD}: all members of round {number} failed, or have no score: {runs[0].failure}")
        before = members
        parents, members = select(scores, before, share, factors, np.random.default_rng([config.seed, number]))
        members = [x if _allowed(config, x) else before[p] for x, p in zip(members, parents, strict=True)]
    return done


def _allowed(config: schema.ConfigDict, values: Values) -> bool:
    """Return whether the fields accept the numbers of a member."""
    try:
        sweep.expand([values], config)
    except ValueError:
        return False
    return True


def in_rounds(config: schema.ConfigDict, count: int, steps: int) -> schema.ConfigDict:
    """Return a copy of a config whose last phase is ``count`` phases, each of which continues the one before."""
    reads = modules.reads_reference(interpreter.needs(resolve.run(config).phases[-1].algorithm))
    config = config.copy_and_resolve_references()
    *earlier, last = config.phases
    names = [_name(last, number) for number in range(1, count + 1)]
    for name in names:
        part = config.phase[last].copy_and_resolve_references()
        part.update({"steps": steps, "evaluate": name})
        if name != names[0]:
            part.update({"reset_optimizer": False, "before": "", **({"reference": "keep"} if reads else {})})
        config.phase[name] = part
    del config.phase[last]
    config.phases = (*earlier, *names)
    return config


def select(
    scores: Sequence[float],
    values: Sequence[Values],
    share: float,
    factors: Sequence[float],
    random: np.random.Generator,
) -> tuple[tuple[int, ...], list[Values]]:
    """Return which member each member of the next round continues, and with which numbers.

    Args:
      scores: of each member.
      values: of each member.
      share: of the members that are replaced, beside all that failed, and of those that replace them.
      factors: of the numbers of those that are replaced.
      random: what is drawn from.

    Returns:
      The parents and the numbers, in the order of the members.
    """
    order = sorted(range(len(scores)), key=lambda m: -scores[m])
    count, ended = max(1, int(share * len(order))), sum(score > -np.inf for score in scores)
    parents, new = [*range(len(order))], [dict(x) for x in values]
    for member in order[min(len(order) - count, ended) :]:
        parents[member] = int(random.choice(order[: min(count, ended)]))
        new[member] = {f: float(x * random.choice(list(factors))) for f, x in values[parents[member]].items()}
    return tuple(parents), new


def _name(phase: str, number: int) -> str:
    return f"{phase}_{number}"


def _fields(
    config: schema.ConfigDict, number: int, member: int, values: Values, parents: Sequence[int], done: Sequence[Round]
) -> sweep.Fields:
    """Return the fields of a member in a round: its numbers; fields of the last phase become fields of the round's."""
    last, fields = config.phases[-1], {"seed": config.seed + member}
    for field, value in values.items():
        of_phase = field.startswith(f"phase.{last}.")
        fields[field.replace(f".{last}.", f".{_name(last, number)}.", 1) if of_phase else field] = value
    if not parents:
        return fields
    parent = done[-1].runs[parents[member]]
    return {**fields, "checkpoint.init": f"{parent.workdir}@{_name(last, number - 1)}"}


def _described(round_: Round) -> dict[str, Any]:
    rows = zip(round_.values, round_.parents or (None,) * len(round_.values), round_.scores, strict=True)
    return {"members": [{**values, "parent": parent, "score": score} for values, parent, score in rows]}
