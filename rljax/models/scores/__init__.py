"""Scores of given rows: log-probabilities and the other quantities of ``types.Scores``, computed in parts.

==============  ====================================================================================================
``coarse.py``   divergences between distributions over a module's k most probable tokens and all others as one token
``head.py``     log-probabilities of given tokens, computed over parts of the vocabulary
``packing.py``  several completions of a prompt in one row
``scoring.py``  log-probabilities, entropies, values and rewards of the rows of a rollout
``shapes.py``   checks of shapes that name the field
==============  ====================================================================================================
"""
