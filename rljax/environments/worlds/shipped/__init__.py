"""Worlds that ship: each a file, which nothing in the frame imports.

=================  ============================================================================================
``calculator.py``  ``calculator``: long arithmetic by calls of a tool
``extract.py``     ``extract``: one seat writes a skill, the other one solves with it (chapters)
``games/``         board and card games of pgx as worlds: ``game("tic_tac_toe")``
``guess.py``       ``guess``, ``twenty_questions``: find a secret number; ``tagged``: with tagged turns
``maze.py``        ``maze``: walk to a goal in a grid with walls
``memory.py``      ``memory``: a document read in chunks, with a note as the only memory (chapters)
``planning/``      worlds of planning, paid by comparison with a plan that the program computes
``propose.py``     ``propose``: one seat writes problems, the other one solves them (chapters)
``programs.py``    ``programs``: the same with programs: deduction, abduction, induction (chapters)
``quest.py``       ``quest``: find a key and the gold behind a locked door, by words as commands
``retry.py``       ``retry``: a search that often finds nothing, and may be repeated
``revise.py``      ``revise``: answer, with or without a judgement, then answer again
``social/``        worlds of several seats with different knowledge or interests
``wordle.py``      ``wordle``: find a word by marks of its letters
``zoom.py``        ``zoom``: name where a plate is in a blurred picture, read it in the magnified cell (chapters)
=================  ============================================================================================
"""
