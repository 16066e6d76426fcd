"""Let checkpoints play a game of two seats against each other, and rate them.

    python -m rljax match RUN@STEP RUN@PHASE RUN ... [--task "game('connect_four')"] [--problems 64] [--games 2]
    python -m rljax match runs/first@warm runs/first runs/second

Every pair plays the same problems, in both seats equally often. The player with the larger reward wins the game.
Without --task, the game is the first run's. The checkpoints need equal tokenizers and shapes of parameters.
"""

import dataclasses
import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import rich.console
from absl import flags

from rljax import types
from rljax.environments import Split
from rljax.run import programs
from rljax.run.evaluation import evaluate, loading, trials
from rljax.run.games import elo, matches
from rljax.run.records import forks
from rljax.run.reports.pages import tables
from rljax.sampling import players
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.training.producers import play

_PLAYERS = ("policy", "snapshot")
_KEY = 1_000_033  # stream of the root key


@dataclasses.dataclass(frozen=True)
class Games:
    """Games of two players, ``[E]`` each: the score of the first one, its seat, and whether a budget ended the game."""

    score: npt.NDArray[np.float64]  # 1, 0.5 or 0
    seat: npt.NDArray[np.int_]
    truncated: npt.NDArray[np.bool_]


def player(
    setup: phases.Setup, samples: int, split: Split, temperature: float | None = None
) -> Callable[[types.Tree, types.Tree, npt.NDArray[np.int32], types.Key], Games]:
    """Return a function that lets two policies play, inside the compiled program.

    Args:
      setup: the phase on devices; its task is a world of two seats.
      samples: games of each problem, an even number: half of them in each order of seats.
      split: of the problems.
      temperature: divisor of the logits; None: the sampler's.

    Returns:
      ``(params, other params, problems, key) -> games``; games whose world failed are left out.

    Raises:
      ValueError: the task is no world of two seats, or ``samples`` is odd.
    """
    world, sampler = setup.world, matches.sampler(setup, temperature)
    if world is None or world.seats != 2:
        seats = "is no world" if world is None else f"has {world.seats} seat" + "s" * (world.seats != 1)
        raise ValueError(f"--task={setup.settings.task}: {seats}; a match needs a world of 2 seats.")
    if samples < 2 or samples % 2:
        raise ValueError(
            f"--games={samples}: must be an even number, so that both players have each seat equally often."
        )

    @jax.jit
    def run(params: types.Tree, other: types.Tree, index: types.Array, key: types.Key) -> types.Rollout:
        pair: dict[str, types.Tree] = dict(zip(_PLAYERS, (params, other), strict=True))
        zero = jnp.zeros((), jnp.int32)
        drawn = rows_lib.each_once(index)
        return play.seated(setup, pair, _PLAYERS, zero, drawn, split, key, samples=samples, sampler=sampler)[0]

    def games(params: types.Tree, other: types.Tree, index: npt.NDArray[np.int32], key: types.Key) -> Games:
        parts = evaluate.parts_of(index, samples * setup.rows_of_episode)
        batches = [run(params, other, jnp.asarray(part), key) for part in parts]
        count = len(index) * samples
        seat = players.seats_of(_PLAYERS, count, 2, samples).argmin(axis=1)  # of player 0
        return results(trials.collect(setup, batches, count), seat)

    return games


def results(played: trials.Trials, seat: npt.NDArray[np.int_]) -> Games:
    """Return the games of valid episodes of two seats.

    Args:
      played: the episodes.
      seat: ``[E]``, the seat of the first player. In chapters, a seat that has not written counts as paid 0.
    """
    rows, count = played.rows, seat.size
    number = np.arange(rows.mask.shape[0]) // played.each
    total = np.zeros((count, 2))
    np.add.at(total, (number, np.asarray(rows.agent)), np.where(played.present, played.reward(), 0.0))
    ahead = np.sign(total[np.arange(count), seat] - total[np.arange(count), 1 - seat])
    keep = played.valid()
    cut = np.asarray(rows.finish)[:: played.each] == types.Finish.LENGTH
    return Games((1 + ahead[keep]) / 2, seat[keep], cut[keep])


def tournament(
    params: Mapping[str, types.Tree],
    games: Callable[[types.Tree, types.Tree, npt.NDArray[np.int32], types.Key], Games],
    index: npt.NDArray[np.int32],
    key: types.Key,
    resamples: int = 500,
) -> dict[str, Any]:
    """Let every pair of policies play.

    Args:
      params: at least two policies by name.
      games: as ``player`` returns it.
      index: the problems.
      key: a typed key.
      resamples: of the games, for the intervals of the ratings.

    Returns:
      "ratings", a list of "player", "elo", "low", "high" and "games", the highest first; and "pairs", a list of
      "players", "games", "score", the mean of the first one's, "in_seat_0" and "in_seat_1", its means in seats 0 and 1,
      "drawn" and "truncated", shares. A mean over no game is None.
    """
    played, pairs = [], []
    for number, (one, other) in enumerate(itertools.combinations(params, 2)):
        result = games(params[one], params[other], index, jax.random.fold_in(key, number))
        played += [(one, other, float(score)) for score in result.score]
        means = {
            "score": result.score,
            "in_seat_0": result.score[result.seat == 0],
            "in_seat_1": result.score[result.seat == 1],
            "drawn": result.score == 0.5,
            "truncated": result.truncated,
        }
        means = {name: float(np.mean(x)) if x.size else None for name, x in means.items()}
        pairs.append({"players": [one, other], "games": int(result.score.size), **means})
    return {
        "ratings": [dataclasses.asdict(rating) for rating in elo.ratings(played, resamples=resamples)],
        "pairs": pairs,
    }


def table(record: Mapping[str, Any], console: rich.console.Console | None = None) -> None:
    """Print the ratings and the pairs of a tournament."""
    rows = [
        [r["player"], f"{r['elo']:+.0f} [{r['low']:+.0f}, {r['high']:+.0f}]", str(r["games"])]
        for r in record["ratings"]
    ]
    tables.Table(["player", "Elo", "games"], rows, "Elo ratings, mean 0 [95 % interval over games]").show(console)
    names = ("score", "in_seat_0", "in_seat_1", "drawn", "truncated")
    rows = [
        [*pair["players"], str(pair["games"]), *("" if pair[n] is None else f"{100 * pair[n]:.1f}" for n in names)]
        for pair in record["pairs"]
    ]
    columns = ["player", "against", "games", "score, %", "in seat 0, %", "in seat 1, %", "drawn, %", "cut, %"]
    tables.Table(columns, rows, "points of the player", left=2).show(console)


def load(names: Sequence[str], task: str, allow_code: Sequence[str]) -> tuple[programs.Program, int, dict[str, Any]]:
    """Return the first run's program with the task, the index of its phase, and all policies by name.

    Raises:
      ValueError: fewer than two names, equal ones, or a checkpoint whose tokenizer or parameters differ in kind.
    """
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError(
            f"match: got {' '.join(names) or 'none'}: expected at least two different checkpoints, RUN@STEP each"
        )
    places = [forks.place(name, "checkpoint") for name in names]
    program, params, step = loading.load(places[0][0], task, places[0][1], allow_code)
    policies = {names[0]: params}
    for name, (run, number) in zip(names[1:], places[1:], strict=True):
        other, params, _ = loading.load(run, task or program.settings.task, number, allow_code)
        shapes = [jax.tree.map(lambda x: (x.shape, x.dtype), p) for p in (params, policies[names[0]])]
        if other.tokenizer.serialized != program.tokenizer.serialized or shapes[0] != shapes[1]:
            raise ValueError(f"{name}: the tokenizer or the shapes of the parameters differ from those of {names[0]}.")
        policies[name] = params
    return program, program.number(step - 1), policies


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("task", "", "Game, such as \"game('connect_four')\"; default: the first run's.")
    flags.DEFINE_list("allow_code", [], loading.ALLOW_CODE)
    flags.DEFINE_integer("problems", 64, "Number of problems that each pair plays.", lower_bound=1)
    flags.DEFINE_integer("games", 2, "Games of each problem, an even number.", lower_bound=2)
    flags.DEFINE_enum("split", "heldout", ["train", "heldout"], "Split of the problems.")
    flags.DEFINE_float("temperature", None, "Divisor of the logits, 0 is greedy; default: the run's.", lower_bound=0.0)


def main(argv: Sequence[str]) -> None:
    """Play; print tables and one line of JSON."""
    f = flags.FLAGS
    program, number, policies = load(argv[1:], f.task, f.allow_code)
    setup = program.setups[number]
    games = player(setup, f.games, f.split, f.temperature)
    index = np.arange(min(f.problems, setup.task.size(f.split)), dtype=np.int32)
    record = tournament(policies, games, index, jax.random.fold_in(program.key, _KEY))
    table(record)
    print(json.dumps(record))
