"""The constructor of games."""

from typing import Annotated, Literal

from rljax import environments, types
from rljax.environments.worlds.shipped.games import rules
from rljax.environments.worlds.text import TextWorld


@environments.task
def game(
    game: rules.Name,
    opponent: Literal["self", "random", "expert"] = "self",
    rows: rules.Rows = "conversation",
    illegal: Annotated[float, types.Range(-1e6, 0)] | None = None,
    openings: Annotated[int, types.Range(0, 8)] = 0,
    board: bool = False,
    legal: bool = False,
) -> TextWorld:
    """Play a board or card game of pgx, over text. See ``rljax.environments.worlds.shipped.games``.

    Args:
      game: the game.
      opponent: who plays the other side: a second seat ("self"), random moves, or the game's expert, which is perfect
        in tic-tac-toe and plays an equilibrium in Kuhn poker.
      rows: what a row holds: a game as one seat sees it, or a turn.
      illegal: reward of a turn that is no legal move; the other seat gets the opposite. None: the largest loss.
      openings: random moves before the players begin, in games on a board.
      board: whether replies show the board after the move.
      legal: whether the legal moves are listed.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: a setting is out of range, or pgx is not installed.
    """
    given = game, rows, illegal, openings, board, legal
    made = rules.Duel(*given) if opponent == "self" else rules.Against(*given, opponent)
    return TextWorld(made, length=made.row_length)
