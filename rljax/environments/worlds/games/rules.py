"""A game as rules of characters."""

import dataclasses
from typing import Annotated, Any, Literal

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import Split
from rljax.environments.worlds import rules
from rljax.environments.worlds.games import boards, cards, library, variants
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


@dataclasses.dataclass(frozen=True)
class Game:
    """Rules: a game of pgx between two seats, or between a seat and an opponent that is part of the world."""

    game: Name = setting("tic_tac_toe", "The game.")
    opponent: Literal["self", "random", "expert"] = setting("self", "Who plays the other side; 'self': a second seat.")
    rows: Rows = setting("conversation", "What a row holds: a game, or a turn.")
    illegal: Annotated[float, types.Range(-1e6, 0)] | None = setting(
        None, "Reward of a turn that is no legal move, and of others the opposite; None: the game's largest loss."
    )
    openings: Annotated[int, types.Range(0, 8)] = setting(0, "Random moves before the players begin, on boards.")
    board: bool = setting(False, "Whether replies show the board after the move.")
    legal: bool = setting(False, "Whether the legal moves are listed.")

    parts = ("drawn", "illegal")
    domain_names = ("moves_first", "moves_second")

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
    def seats(self) -> int:
        """Number of seats."""
        return 2 if self.opponent == "self" else 1

    @property
    def domains(self) -> int:
        """Against an opponent that is part of the world: who moves first, the seat or the opponent."""
        return 2 if self.seats == 1 else 1

    @property
    def max_turns(self) -> int:
        """The most turns of the seats."""
        return self.variant.max_turns if self.seats == 2 else self.variant.turns_each

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
        moves = self.variant.max_turns if self.rows == "chapters" else self.seats == 1
        return self.variant.view_length + self.variant.remembers * moves * self._told + self._tail

    @property
    def reply_length(self) -> int:
        """The most characters that a seat is told after a turn."""
        moves = 1 if self.seats == 2 else self.variant.replies
        board = self.board * (1 + self.variant.view_length)
        return self.variant.event_length + moves * self._told + board + self._tail

    @property
    def row_length(self) -> int:
        """The most tokens of a conversation: a seat's own turns, and what it is told after those of others."""
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

    def begin(self, index: types.Array, split: Split, key: types.Key) -> Any:
        """Deal the cards, draw the opening, and let the opponent move if it is the first."""
        deal, opening, other = jax.random.split(key, 3)
        game = self.variant.dealt(library.begin(self.game, deal), jnp.int32(self.openings % 2))
        history = jnp.zeros((self.variant.max_turns, self._told), jnp.int32)
        player = jnp.asarray(index % 2 if self.seats == 1 else 0, jnp.int32)
        zero = jnp.int32(0)
        state = {"game": game, "history": history, "moves": zero, "turn": zero, "player": player}
        if self.openings:

            def drawn(i: types.Array, state: Any) -> Any:
                action = variants.draw(state["game"].legal_action_mask, jax.random.fold_in(opening, i))
                return self._move(state, action)[0]

            state = jax.lax.fori_loop(0, self.openings, drawn, state)
        return self._answered(state, other)[0] if self.seats == 1 else state

    def prompt(self, state: Any, seat: types.Array) -> types.Array:
        """Return the seat's view of the game as it stands."""
        player = self._player(state, seat)
        return rules.line(self._view(state, player), self._asked(state, player))

    def step(self, state: Any, seat: types.Array, text: types.Array, key: types.Key) -> tuple[Any, rules.Answer]:
        """Play the move, and those of the opponent if it is part of the world."""
        game, player = state["game"], self._player(state, seat)
        chosen = jnp.all(self.variant.names(game) == text[None, :], axis=1) & game.legal_action_mask
        illegal = ~jnp.any(chosen)
        action = jnp.argmax(jnp.where(illegal, game.legal_action_mask, chosen)).astype(jnp.int32)
        after, message = self._move(state, action)
        after = {**after, "turn": state["turn"] + 1}
        event = self.variant.event(game, after["game"])
        if self.seats == 1:
            after, others = self._answered(after, key)
            parts = event, others, self._next(after, player)
            reply = rules.line(*(jnp.where(illegal, 0, x) for x in parts))[None]
        else:
            spoken = [
                jnp.concatenate([jnp.where(player == s, 0, message[: -len(event) or None]), event]) for s in (0, 1)
            ]
            reply = jnp.stack([rules.line(spoken[s], self._next(after, jnp.int32(s))) for s in (0, 1)])
        done = illegal | after["game"].terminated
        penalty = -self.variant.stake if self.illegal is None else self.illegal
        writer = jnp.arange(2) == player
        reward = jnp.where(illegal, jnp.where(writer, penalty, -penalty), after["game"].rewards)
        outcome = jnp.where(reward > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        outcome = jnp.where(illegal, jnp.where(writer, types.Outcome.UNPARSEABLE, types.Outcome.CORRECT), outcome)
        view = slice(None) if self.seats == 2 else player[None]
        drawn = done & ~illegal & (reward == 0)
        return after, rules.Answer(
            jnp.where(done, 0, reply),
            reward=jnp.where(done, reward, 0.0)[view],
            done=done,
            truncated=~done & (after["turn"] >= self.max_turns),
            outcome=outcome[view],
            next_seat=after["game"].current_player if self.seats == 2 else 0,
            parts={"drawn": drawn[view] * 1.0, "illegal": (illegal & writer)[view] * 1.0},
            domain=state["player"] if self.seats == 1 else 0,
        )

    def expert(self, state: Any, seat: types.Array, key: types.Key) -> types.Array:
        """Return a good move."""
        return self.variant.names(state["game"])[self.variant.expert(state["game"], key)]

    def _player(self, state: Any, seat: types.Array) -> types.Array:
        return jnp.asarray(seat, jnp.int32) if self.seats == 2 else state["player"]

    def _move(self, state: Any, action: types.Array) -> tuple[Any, types.Array]:
        """Return the state after an action, and what it is called to those who see it."""
        before = state["game"]
        game = library.step(self.game, before, action)
        word = self.variant.names(before)[action]
        message = rules.line(self.variant.separator, word, self.variant.event(before, game))
        history = state["history"].at[state["moves"]].set(message)
        return {**state, "game": game, "history": history, "moves": state["moves"] + 1}, message

    def _answered(self, state: Any, key: types.Key) -> tuple[Any, types.Array]:
        """Return the state once it is the seat's turn again, and what the opponent has played."""
        message = []
        for number in range(self.variant.replies):
            game, drawn = state["game"], jax.random.fold_in(key, number)
            waits = (game.current_player != state["player"]) & ~game.terminated
            if self.opponent == "random":
                action = variants.draw(game.legal_action_mask, drawn)
            else:
                action = self.variant.expert(game, drawn)
            after, word = self._move(state, action)
            state = jax.tree.map(lambda a, b, waits=waits: jnp.where(waits, a, b), after, state)
            message.append(jnp.where(waits, word, 0))
        return state, jnp.concatenate(message)

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
