"""Games of textarena (Guertler et al., arXiv 2504.11442) as worlds on text. Worker processes load this module."""

import copy
import dataclasses
import importlib
import random
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from rljax.environments.worlds import host
from rljax.language import messages, parse

Opponent = Literal["random", "self"]

_SQUARES = tuple(f"[{n}]" for n in range(9))

# What an opponent may write, by the first part of a game's name; which of it the rules allow is tried on a copy.
ACTIONS: Mapping[str, tuple[str, ...]] = {
    "TicTacToe": _SQUARES,
    "ReverseTicTacToe": _SQUARES,
    "WildTicTacToe": tuple(f"[{mark} {n}]" for mark in "XO" for n in range(9)),
    "ConnectFour": tuple(f"[col {n}]" for n in range(7)),
    "Othello": tuple(f"[{row}, {column}]" for row in range(8) for column in range(8)),
    "Nim": tuple(f"[{pile} {count}]" for pile in range(8) for count in range(1, 10)),
    "KuhnPoker": ("[Check]", "[Bet]", "[Fold]", "[Call]"),
    "LeducHoldem": ("[check]", "[call]", "[bet]", "[raise]", "[fold]"),
    "PigDice": ("[roll]", "[hold]"),
    "Chopsticks": tuple(f"[attack {mine} {other}]" for mine in range(2) for other in range(2)),
    "IteratedPrisonersDilemma": ("[Cooperate]", "[Defect]"),
    "IteratedStagHunt": ("[Stag]", "[Hare]"),
    "IteratedMatchingPennies": ("[heads]", "[tails]"),
    "IteratedRockPaperScissors": ("[rock]", "[paper]", "[scissors]"),
}


class Game:
    """An episode of a game, of which the policy plays one player, or with the opponent "self" all, each in a seat.

    A player reads what the game tells it since its last turn, and writes an action. Its reward is what the game pays
    it at the end. With the opponent "random" the other players write actions drawn from those that the rules allow.

    An example is a whole number, or a mapping with one under ``seed``. A game is drawn from its seed; the policy's
    player is ``seat``, or if that is None the seed modulo the number of players. In self-play seat 0 moves first.
    """

    parts = ("turns", "invalid")
    cut = True

    def __init__(
        self,
        game: str,
        players: int = 1,
        seat: int | None = None,
        actions: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        opponent: Opponent = "random",
    ):
        """Take a game.

        Args:
          game: as textarena names it, such as "TicTacToe-v0".
          players: number of players.
          seat: of the policy; None: in turn.
          actions: what other players may write; (): of the games in ``ACTIONS``, those.
          settings: arguments of the game.
          opponent: "self": every player has a seat.
        """
        self._name, self._players, self._seat, self._opponent = game, players, seat, opponent
        self._actions = tuple(actions) or ACTIONS.get(family(game), ())
        self._settings, self.seats = dict(settings or {}), players if opponent == "self" else 1

    def check(self) -> None:
        """Begin a game.

        Raises:
          ValueError: textarena is not installed, has no such game or cannot begin it, or an argument is out of range.
        """
        messages.need("textarena", "textarena", "worlds")
        name, players, seat, games = self._name, self._players, self._seat, _library().envs.registration.ENV_REGISTRY
        if name not in games:
            close = parse.nearest(str(name), games).partition(" Valid:")[0]  # of hundreds
            raise ValueError(f"game: textarena has no game {messages.shown(name)}.{close}")
        if players < 1:
            raise ValueError(f"players={players}: must be 1 or more")
        if seat is not None and not 0 <= seat < players:
            raise ValueError(f"seat={seat}: must be in [0, {players - 1}], or None (in turn)")
        if self._opponent == "self" and (players < 2 or seat is not None):
            raise ValueError(f"opponent='self': needs players of 2 or more and no seat; got {players=}, {seat=}")
        if self._opponent == "random" and players > 1 and not self._actions:
            known = ", ".join(ACTIONS)
            raise ValueError(f"actions: what may the other players of {name!r} write? They are known of {known}")
        before = random.getstate()
        try:
            self.reset(0)
        except Exception as error:  # assertions among them
            problem = messages.printable(f"{type(error).__name__}: {error}")
            raise ValueError(f"game: {name!r} with players={players} cannot begin: {problem}") from None
        finally:
            random.setstate(before)

    def reset(self, example: Any) -> Any:
        """Begin a game; other players who come first write their actions."""
        seed = int(example["seed"] if isinstance(example, Mapping) else example)
        self._turns, self._draw = 0, random.Random(seed)
        self._game = _make(self._name, self._settings)
        self._game.reset(num_players=self._players, seed=seed)
        first = self._game.unwrapped.state.current_player_id if self.seats > 1 else self._seat
        first = seed if first is None else first
        self._seated = [(first + seat) % self._players for seat in range(self.seats)]  # the player of each seat
        self._done = False
        self._others()
        return self._by_seat([self._heard(player) for player in self._seated])

    def step(self, text: str) -> host.Observation:
        """Play the action of a seat, then those of players without one up to the next turn of a seat."""
        self._turns += 1
        self._done, _ = self._game.step(action=text)
        self._others()
        if not self._done:
            seat = self._seated.index(self._game.unwrapped.state.current_player_id)
            texts = [self._heard(player) if n == seat else "" for n, player in enumerate(self._seated)]
            parts = {"turns": float(self._turns), "invalid": 0.0}
            return host.Observation(self._by_seat(texts), parts=parts, next_seat=seat)
        rewards, info = self._game.close()
        details = [(info or {}).get(player, {}) for player in self._seated]
        paid = [float((rewards or {}).get(player, 0.0)) for player in self._seated]
        outcome = self._by_seat(["correct" if x >= 1 else "wrong" if x <= 0 else "unjudged" for x in paid])
        invalid = self._by_seat([float(bool(each.get("invalid_move"))) for each in details])
        parts, reasons = {"turns": float(self._turns), "invalid": invalid}, [str(d.get("reason", "")) for d in details]
        return host.Observation(self._by_seat(reasons), self._by_seat(paid), True, outcome, parts)

    def _by_seat(self, values: list[Any]) -> Any:
        return values if self.seats > 1 else values[0]

    def expert(self) -> str:
        """Return the turn of a demonstration: of GuessTheNumber, the middle of the numbers that remain."""
        if family(self._name) != "GuessTheNumber":
            raise ValueError(f"textarena: {self._name!r} has no demonstrations")
        game = self._game.unwrapped
        low, high = game.min_number, game.max_number
        for guess, hint in game.state.game_state["guess_history"]:
            low, high = (max(low, guess + 1), high) if hint == "higher" else (low, min(high, guess - 1))
        return f"[{(low + high) // 2}]"

    def _others(self) -> None:
        """Let players without a seat write until it is the turn of a seat."""
        state = self._game.unwrapped.state
        while not self._done and state.current_player_id not in self._seated:
            self._game.get_observation()  # also empties what the game has for this player
            self._done, _ = self._game.step(action=self._drawn())
            state = self._game.unwrapped.state

    def _drawn(self) -> str:
        """Return an action of another player, drawn among those that the rules allow."""
        ahead, between = random.getstate(), self._draw.sample(self._actions, len(self._actions))
        try:
            for action in between:
                trial = copy.deepcopy(self._game)
                player = trial.unwrapped.state.current_player_id
                over, _ = trial.step(action=action)
                state = trial.unwrapped.state
                refused = getattr(state, "error_count", 0) > 0 and state.current_player_id == player
                if not refused and not (over and state.game_info[player]["invalid_move"]):
                    return action
        finally:
            random.setstate(ahead)  # which textarena's games draw from
        raise RuntimeError(f"textarena: the rules of {self._name!r} allow none of actions={messages.shown(between)}")

    def _heard(self, reader: int) -> str:
        """Return what the game has told a player since its last turn."""
        state = self._game.unwrapped.state
        current, state.current_player_id = state.current_player_id, reader
        _, heard = self._game.get_observation()
        state.current_player_id = current
        names, lines = state.role_mapping, []
        for sender, message, kind in heard:
            if sender == reader and kind.name == "PLAYER_ACTION":
                continue  # what the player wrote
            player = isinstance(sender, int) and sender >= 0  # some games mix up the fields
            lines.append(f"[{names.get(sender, f'Player {sender}')}] {message}" if player else str(message))
        return "\n".join(lines)


def family(game: str) -> str:
    """Return the first part of a game's name, TicTacToe of TicTacToe-v0."""
    return game.partition("-v")[0]


def _make(game: str, settings: Mapping[str, Any]) -> Any:
    """Return a game with its wrappers of actions; wrappers of observations repeat all that has been said."""
    arena = _library()
    spec = arena.envs.registration.ENV_REGISTRY[game]
    module, _, name = spec.entry_point.partition(":")
    made = getattr(importlib.import_module(module), name)(**{**spec.kwargs, **settings})
    made.env_id, made.entry_point = game, spec.entry_point
    return _Wrapped(made, [w for w in spec.default_wrappers or () if issubclass(w, arena.ActionWrapper)])


@dataclasses.dataclass
class _Wrapped:
    """A game whose actions go through wrappers."""

    unwrapped: Any
    wrappers: Sequence[Any]

    def __post_init__(self) -> None:
        self._outer = self.unwrapped
        for wrapper in self.wrappers:
            self._outer = wrapper(self._outer)

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Wrapped":
        return _Wrapped(copy.deepcopy(self.unwrapped, memo), self.wrappers)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_outer"], name)


def _library() -> Any:
    return importlib.import_module("textarena")
