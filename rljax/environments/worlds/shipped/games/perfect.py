"""Perfect play: a table of the best moves of tic-tac-toe, and the equilibria of Kuhn poker."""

import functools

import numpy as np

_LINES = (*((0, 1, 2), (3, 4, 5), (6, 7, 8)), *((0, 3, 6), (1, 4, 7), (2, 5, 8)), *((0, 4, 8), (2, 4, 6)))


@functools.cache
def tic_tac_toe() -> np.ndarray:
    """Return the best moves of every board.

    The value of a won game is 1 + the number of free cells, the value of a lost one the negative, so that the best
    moves win as soon and lose as late as possible.

    Returns:
      ``[3**9]`` int32: bit i is set if cell i is a best move. The board is the sum of 3**i times 0 for a free cell, 1
      for a cell of the player whose turn it is, 2 for one of the other; 0 for boards that no game has.
    """
    table = np.zeros(3**9, np.int32)
    values: dict[tuple[int, ...], int] = {}

    def value(board: tuple[int, ...]) -> int:
        if board in values:
            return values[board]
        free = [i for i in range(9) if not board[i]]
        if any(all(board[i] == 2 for i in line) for line in _LINES):
            result = -1 - len(free)
        elif not free:
            result = 0
        else:
            after = {}
            for i in free:
                moved = (*board[:i], 1, *board[i + 1 :])
                after[i] = -value(tuple((0, 2, 1)[c] for c in moved))
            result = max(after.values())
            table[sum(c * 3**i for i, c in enumerate(board))] = sum(1 << i for i in free if after[i] == result)
        values[board] = result
        return result

    value((0,) * 9)
    return table


def kuhn_poker(alpha: float) -> np.ndarray:
    """Return an equilibrium of Kuhn poker (Kuhn, A simplified two-person poker, 1950).

    The first player's equilibria are a family in alpha, the probability of betting a jack; the second player's is
    unique. The value of the game is -1/18 for the first player.

    Args:
      alpha: in [0, 1/3].

    Returns:
      ``[12]`` float64, the probability of putting a chip into the pot, for the cards J, Q, K in each of: the first
      player's first move; the first player's answer to a bet; the second player after a check; after a bet.

    Raises:
      ValueError: alpha is out of range.
    """
    if not 0 <= alpha <= 1 / 3:
        raise ValueError(f"alpha: {alpha} is not in [0, 1/3]")
    first = alpha, 0.0, 3 * alpha
    answer = 0.0, alpha + 1 / 3, 1.0
    return np.array([*first, *answer, 1 / 3, 0.0, 1.0, 0.0, 1 / 3, 1.0])
