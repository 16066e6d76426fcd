"""A game as rules of characters: ``Duel`` of two seats, and ``Against`` an opponent that is part of the world."""

import abc
import dataclasses
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.worlds import rules
from rljax.environments.worlds.shipped.games import boards, cards, library, variants
from rljax.language import settings
from rljax.language.settings import setting

Name = Literal["tic_tac_toe", "connect_four", "othello", "kuhn_poker", "leduc_holdem"]
Rows = Literal["conversation", "chapters"]
VARIANTS: dict[str, variants.Variant] = {
    variant.name: variant
    for variant in (
        *(boards.TicTacToe(), boards.ConnectFour(), boards.Othello()),
        *(cards.KuhnPoker(), cards.LeducHoldem()),
    )
}
_LEGAL = " legal"


class _Turn(NamedTuple):
    """A turn of a player."""

    player: types.Array  # int32
    illegal: types.Array  # bool, whether its text is no legal move
    message: types.Array  # [K] int32, the move as others are told of it, with its event
    event: types.Array  # [k] int32, what it turned up


@dataclasses.dataclass(frozen=True)
class Game(abc.ABC):
    """What both kinds of games have in common: the settings, the texts, and what a move does."""

    game: Name = setting("tic_tac_toe", "The game.")
    rows: Rows = setting("conversation", "What a row holds: a game, or a turn.")
    illegal: Annotated[float, types.Range(-1e6, 0)] | None = setting(
        None, "Reward of a turn that is no legal move, and of others the opposite; None: the game's largest loss."
    )
    openings: Annotated[int, types.Range(0, 8)] = setting(0, "Random moves before the players begin, on boards.")
    board: bool = setting(False, "Whether replies show the board after the move.")
    legal: bool = setting(False, "Whether the legal moves are listed.")

    seats: ClassVar[int]
    moves_before: ClassVar[int]  # the most moves before the first turn of a seat that it has not been told
    parts = ("drawn", "illegal")

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, or pgx is missing."""
        settings.check(self)
        if self.openings > self.variant.openings:
            allowed = f"[0, {self.variant.openings}]"
            raise ValueError(
                f"openings={self.openings}: must be in {allowed} in {self.game}, so that no game has ended"
            )
        if self.board and self.variant.remembers:
            raise ValueError(f"board={self.board}: {self.game} has no board")
        library.require()

    @property
    def variant(self) -> variants.Variant:
        """The game."""
        return VARIANTS[self.game]

    @property
    def name(self) -> str:
        """Name of the game."""
        return self.game

    @property
    def alphabet(self) -> str:
        """The characters of its texts."""
        return "".join(dict.fromkeys(self.variant.alphabet + (_LEGAL if self.legal else "")))

    @property
    @abc.abstractmethod
    def max_turns(self) -> int:
        """The most turns of the seats."""

    @property
    @abc.abstractmethod
    def moves_between(self) -> int:
        """The most moves that a reply tells."""

    @property
    def turns_each(self) -> int:
        """The most turns of a seat."""
        return self.variant.turns_each

    @property
    def turn_length(self) -> int:
        """The most characters of a move."""
        return self.variant.move_length

    @property
    def prompt_length(self) -> int:
        """The most characters of a view; in a conversation, of one before the first turn."""
        moves = self.variant.max_turns if self.rows == "chapters" else self.moves_before
        return self.variant.view_length + self.variant.remembers * moves * self._told + self._tail

    @property
    def reply_length(self) -> int:
        """The most characters that a seat is told after a turn."""
        board = self.board * (1 + self.variant.view_length)
        return self.variant.event_length + self.moves_between * self._told + board + self._tail

    @property
    def row_length(self) -> int:
        """The most tokens of a conversation: a seat's own turns, and what it is told after the turns of others."""
        message = self.turns_each + (self.variant.event_length > 0)
        return self.turns_each * (self.turn_length + 1) + message * self.reply_length

    @property
    def _told(self) -> int:
        return len(self.variant.separator) + self.variant.move_length + self.variant.event_length

    @property
    def _tail(self) -> int:
        actions = {"tic_tac_toe": 9, "connect_four": 7, "othello": 65, "kuhn_poker": 2, "leduc_holdem": 3}[self.game]
        return 1 + self.legal * (len(_LEGAL) + actions * (1 + self.variant.move_length))

    def size(self, split: Split) -> int:
        """Return the number of problems; they differ in the deal, the opening and, with one seat, who moves first."""
        return 2**20 if split == "train" else 2**10

    def _begun(self, player: types.Array, deal: types.Key, opening: types.Key) -> Any:
        """Deal the cards and draw the opening; ``player`` writes for the first seat."""
        game = self.variant.dealt(library.begin(self.game, deal), jnp.int32(self.openings % 2))
        history = jnp.zeros((self.variant.max_turns, self._told), jnp.int32)
        zero = jnp.int32(0)
        state = {"game": game, "history": history, "moves": zero, "turn": zero, "player": player}
        if not self.openings:
            return state

        def drawn(i: types.Array, state: Any) -> Any:
            action = rules.draw(jax.random.fold_in(opening, i), state["game"].legal_action_mask)
            return self._move(state, action)[0]

        return jax.lax.fori_loop(0, self.openings, drawn, state)

    def _played(self, state: Any, player: types.Array, text: types.Array) -> tuple[Any, _Turn]:
        """Return the state after the turn of a player, and what the turn was."""
        game = state["game"]
        chosen = jnp.all(self.variant.names(game) == text[None, :], axis=1) & game.legal_action_mask
        illegal = ~jnp.any(chosen)
        action = jnp.argmax(jnp.where(illegal, game.legal_action_mask, chosen)).astype(jnp.int32)
        after, message = self._move(state, action)
        after = {**after, "turn": state["turn"] + 1}
        return after, _Turn(player, illegal, message, self.variant.event(game, after["game"]))

    def _answer(
        self, state: Any, turn: _Turn, reply: types.Array, seats: types.Array | slice, **fields: Any
    ) -> rules.Answer:
        """Return what follows a turn.

        Args:
          state: after the turn, and after the moves of an opponent that is part of the world.
          turn: the turn.
          reply: what the seats are told, ``[seats, K]``.
          seats: the players of the game that have seats.
          **fields: further fields of the answer.
        """
        game, illegal = state["game"], turn.illegal
        done = illegal | game.terminated
        penalty = -self.variant.stake if self.illegal is None else self.illegal
        writer = jnp.arange(2) == turn.player
        reward = jnp.where(illegal, jnp.where(writer, penalty, -penalty), game.rewards)
        outcome = jnp.where(reward > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        outcome = jnp.where(illegal, jnp.where(writer, types.Outcome.UNPARSEABLE, types.Outcome.CORRECT), outcome)
        drawn = done & ~illegal & (reward == 0)
        return rules.Answer(
            jnp.where(done, 0, reply),
            reward=jnp.where(done, reward, 0.0)[seats],
            done=done,
            truncated=~done & (state["turn"] >= self.max_turns),
            outcome=outcome[seats],
            parts={"drawn": drawn[seats] * 1.0, "illegal": (illegal & writer)[seats] * 1.0},
            **fields,
        )

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Return a good move."""
        return self.variant.names(state["game"])[self.variant.expert(state["game"], key)]

    def _move(self, state: Any, action: types.Array) -> tuple[Any, types.Array]:
        """Return the state after an action, and what it is called to those who see it."""
        before = state["game"]
        game = library.step(self.game, before, action)
        word = self.variant.names(before)[action]
        message = rules.line(self.variant.separator, word, self.variant.event(before, game))
        history = state["history"].at[state["moves"]].set(message)
        return {**state, "game": game, "history": history, "moves": state["moves"] + 1}, message

    def _reads(self, state: Any, player: types.Array) -> types.Array:
        """Return a player's view of the game as it stands."""
        return rules.line(self._view(state, player), self._asked(state, player))

    def _view(self, state: Any, player: types.Array) -> types.Array:
        view = self.variant.view(state["game"], player)
        return rules.line(view, state["history"].reshape(-1)) if self.variant.remembers else view

    def _next(self, state: Any, player: types.Array) -> types.Array:
        """Return what a player reads before a turn, at the end of a reply; nothing to one who waits."""
        turn = state["game"].current_player == player
        board = jnp.where(turn, rules.line("\n", self._view(state, player)), 0) if self.board else ""
        return rules.line(board, self._asked(state, player))

    def _asked(self, state: Any, player: types.Array) -> types.Array:
        """Return the legal moves and the mark after which a player writes; nothing to one who waits."""
        game = state["game"]
        listed: types.Array | str = ""
        if self.legal:
            names = self.variant.names(game)
            names = jnp.pad(names, ((0, 0), (1, 0)), constant_values=ord(" "))
            listed = rules.line(_LEGAL, jnp.where(game.legal_action_mask[:, None], names, 0).reshape(-1))
        return jnp.where(game.current_player == player, rules.line(listed, ">"), 0)


@dataclasses.dataclass(frozen=True)
class Duel(Game):
    """Rules: a game between two seats."""

    seats = 2
    moves_before = 0
    moves_between = 1

    @property
    def max_turns(self) -> int:
        """The most turns of the seats."""
        return self.variant.max_turns

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Deal the cards and draw the opening."""
        deal, opening, _ = jax.random.split(key, 3)
        return self._begun(jnp.int32(0), deal, opening)

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Return the seat's view of the game as it stands."""
        return self._reads(state, jnp.asarray(seat, jnp.int32))

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Play the move, and tell it to the other seat."""
        state, turn = self._played(state, jnp.asarray(seat, jnp.int32), text)
        word, event = turn.message[: -len(turn.event) or None], turn.event
        spoken = [jnp.concatenate([jnp.where(turn.player == s, 0, word), event]) for s in (0, 1)]
        reply = jnp.stack([rules.line(spoken[s], self._next(state, jnp.int32(s))) for s in (0, 1)])
        return state, self._answer(state, turn, reply, slice(None), next_seat=state["game"].current_player)


@dataclasses.dataclass(frozen=True)
class Against(Game):
    """Rules: a game between a seat and an opponent that is part of the world."""

    opponent: Literal["random", "expert"] = setting("random", "Who plays the other side.")

    seats = 1
    moves_before = 1
    domains = 2  # who moves first, the seat or the opponent
    domain_names = ("moves_first", "moves_second")

    @property
    def max_turns(self) -> int:
        """The most turns of the seat."""
        return self.variant.turns_each

    @property
    def moves_between(self) -> int:
        """The most moves of the opponent between two turns."""
        return self.variant.replies

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Deal the cards, draw the opening, and let the opponent move if it is the first."""
        deal, opening, other = jax.random.split(key, 3)
        return self._answered(self._begun(jnp.asarray(index % 2, jnp.int32), deal, opening), other)[0]

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Return the seat's view of the game as it stands."""
        return self._reads(state, state["player"])

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Play the move, and the opponent's moves."""
        player = state["player"]
        state, turn = self._played(state, player, text)
        state, others = self._answered(state, key)
        parts = turn.event, others, self._next(state, player)
        reply = rules.line(*(jnp.where(turn.illegal, 0, x) for x in parts))[None]
        return state, self._answer(state, turn, reply, player[None], domain=player)

    def _answered(self, state: Any, key: types.Key) -> tuple[Any, types.Array]:
        """Return the state once it is the seat's turn again, and what the opponent has played."""
        message = []
        for number in range(self.variant.replies):
            game, drawn = state["game"], jax.random.fold_in(key, number)
            waits = (game.current_player != state["player"]) & ~game.terminated
            if self.opponent == "random":
                action = rules.draw(drawn, game.legal_action_mask)
            else:
                action = self.variant.expert(game, drawn)
            after, word = self._move(state, action)
            state = jax.tree.map(lambda a, b, waits=waits: jnp.where(waits, a, b), after, state)
            message.append(jnp.where(waits, word, 0))
        return state, jnp.concatenate(message)
