"""Board and card games of pgx as worlds: ``game("tic_tac_toe")``.

The rules come from pgx (Koyamada et al., Pgx: Hardware-Accelerated Parallel Game Simulators for Reinforcement
Learning, arXiv 2303.17503); ``pip install rljax-lm[worlds]`` installs it. The names are ``tic_tac_toe``,
``connect_four``, ``othello``, ``kuhn_poker`` and ``leduc_holdem``.

**Seats.** With ``opponent="self"`` there are two seats, and seat 0 moves first. With ``"random"`` and ``"expert"`` the
opponent is part of the world, there is one seat, and it moves first in problems of even index; the domain says who did,
"moves_first" or "moves_second". Seats move when the
game says so: in Leduc hold'em a seat may write two turns in a row.

**What a seat reads.** A prompt is the seat's view: its mark and the board, or its own card, the public card and the
moves so far. ``>`` is the last character of what a seat reads before its turn. In a conversation it is then told the
moves of others (and the public card), not its own. In chapters every prompt is the view of that turn, and of replies
nothing is read. No seat is ever told another's card: hands end with their last move.

**Moves.** A cell ("5"), a column ("d"), column and row ("d3", or "-" where a player must pass), or a word ("check",
"bet", "call", "raise", "fold"). A turn that is not the text of a legal move loses the game: the writer gets
``illegal``, by default the largest loss of the game, and every other seat the opposite.

**Rewards** are paid at the end and sum to 0: 1 for a won board game, chips in poker. ``outcome`` is CORRECT for a win,
WRONG for a loss or a draw, UNPARSEABLE for an illegal move; ``parts`` are ``drawn`` and ``illegal``.

**Randomness.** The key of ``begin`` deals the cards and draws the ``openings``, so that all samples of a prompt play
the same deal; the key of ``step`` draws the moves of the opponent.

==================  ======================================================================================
``constructor.py``  ``game``
``rules.py``        ``Duel`` and ``Against``: a game of two seats, or of one, as rules of characters
``variants.py``     the base ``Variant``: what the rules need to know about one game
``boards.py``       tic-tac-toe, connect four, Othello: texts and experts
``cards.py``        Kuhn poker, Leduc hold'em: texts and experts
``perfect.py``      perfect play: a table for tic-tac-toe, the equilibria of Kuhn poker
``library.py``      pgx, imported when a game begins
==================  ======================================================================================
"""
