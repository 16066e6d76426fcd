"""Tic-tac-toe, connect four and Othello: their texts and their experts. The first player is x, the second o."""

import string
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments import characters
from rljax.environments.worlds import rules
from rljax.environments.worlds.shipped.games import library, perfect, variants

State = Any
_NEW_LINE = ord("\n")


def _mark(color: types.Array) -> types.Array:
    return jnp.where(color == 0, ord("x"), ord("o"))


def _rows(cells: types.Array) -> types.Array:
    """Write cells ``[rows, columns]`` as lines: ``[rows * (columns + 1)]``."""
    return jnp.pad(cells, ((0, 0), (0, 1)), constant_values=_NEW_LINE).reshape(-1)


class Board(variants.Variant):
    """What the games on boards have in common."""

    separator = ""
    remembers = False
    stake = 1.0


def _color(state: State, player: types.Array, turn: types.Array) -> types.Array:
    """Return the color of a player, 0 or 1, where ``turn`` is the color of the player whose turn it is."""
    return jnp.where(player == state.current_player, turn, 1 - turn)


class TicTacToe(Board):
    """Free cells are shown by their numbers, which are the legal moves."""

    name = "tic_tac_toe"
    alphabet = "123456789xo>\n"
    max_turns, turns_each, openings = 9, 5, 4
    move_length, view_length = 1, 14

    def names(self, state: State) -> types.Array:
        """Return the numbers of the cells."""
        return characters.words("123456789")

    def view(self, state: State, player: types.Array) -> types.Array:
        """Return the player's mark and the board."""
        board = state._x.board
        cells = jnp.where(board < 0, jnp.arange(9) + ord("1"), _mark(board))
        return rules.line(_mark(_color(state, player, state._x.color)), "\n", _rows(cells.reshape(3, 3)))

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a perfect move, drawn from those that win soonest, else draw, else lose latest."""
        board = state._x.board
        digit = jnp.where(board < 0, 0, jnp.where(board == state._x.color, 1, 2))
        code = jnp.sum(digit * 3 ** jnp.arange(9))
        moves = jnp.asarray(perfect.tic_tac_toe())[code] >> jnp.arange(9) & 1
        return variants.best((moves > 0, state.legal_action_mask), key)


class ConnectFour(Board):
    """The last line has the letters of the columns that are not full, which are the legal moves."""

    name = "connect_four"
    alphabet = "abcdefgxo.->\n"
    max_turns, turns_each, openings = 42, 21, 6
    move_length, view_length = 1, 58

    def names(self, state: State) -> types.Array:
        """Return the letters of the columns."""
        return characters.words("abcdefg")

    def view(self, state: State, player: types.Array) -> types.Array:
        """Return the player's mark, the board, and the columns."""
        board = state._x.board.reshape(6, 7)
        cells = jnp.where(board < 0, ord("."), _mark(board))
        letters = jnp.where(board[0] < 0, jnp.arange(7) + ord("a"), ord("-"))
        cells = jnp.concatenate([cells, letters[None, :]])
        return rules.line(_mark(_color(state, player, state._x.color)), "\n", _rows(cells))

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a move that wins at once, else one that stops the other from this, else a random one."""
        player, legal = state.current_player, state.legal_action_mask

        def wins(player: types.Array, color: types.Array) -> types.Array:
            moved = state.replace(current_player=player, _x=state._x._replace(color=color))
            after = jax.vmap(lambda a: library.step(self.name, moved, a).rewards[player])(jnp.arange(7))
            return legal & (after > 0)

        color = state._x.color
        return variants.best((wins(player, color), wins(1 - player, 1 - color), legal), key)


class Othello(Board):
    """The legal moves are shown as stars to the player whose turn it is."""

    name = "othello"
    alphabet = "12345678abcdefghxo.*->\n "
    max_turns, turns_each, openings = 66, 33, 8  # 60 discs, and passes; more than 6 of these end the game as a draw
    move_length, view_length = 2, 92

    def names(self, state: State) -> types.Array:
        """Return column and row of the cells, then the pass."""
        cells = (column + row for row in "12345678" for column in string.ascii_lowercase[:8])
        return characters.words([*cells, "-"])

    def view(self, state: State, player: types.Array) -> types.Array:
        """Return the player's mark and the board, with the names of rows and columns."""
        turn = state._x.turn
        board = state._x.board * jnp.where(turn == 0, 1, -1)  # 1: x, -1: o
        legal = state.legal_action_mask[:64] & (player == state.current_player) & ~state.terminated
        cells = jnp.where(board == 0, jnp.where(legal, ord("*"), ord(".")), _mark(jnp.where(board > 0, 0, 1)))
        cells = jnp.concatenate([jnp.arange(8)[:, None] + ord("1"), cells.reshape(8, 8)], axis=1)
        return rules.line(_mark(_color(state, player, turn)), "\n", _rows(cells), " abcdefgh\n")

    def expert(self, state: State, key: types.Key) -> types.Array:
        """Return a move to a corner if there is one, else a random one."""
        corners = jnp.isin(jnp.arange(65), jnp.asarray([0, 7, 56, 63]))
        legal = state.legal_action_mask
        return variants.best((legal & corners, legal), key)
