"""Worlds of several seats with different knowledge or interests, and of a policy that may change its own reward.

==============  ==================================================================
``agree.py``    ``agree``: two seats are paid if they name the same item
``bargain.py``  ``bargain``: two seats with private values divide items by offers
``contest.py``  ``contest``: two seats answer, a third one says whose answer is better
``panel.py``    ``panel``: seats answer a problem, alone or one after the other; ``examine``: the second one judges
``spy.py``      ``spy``: clues and votes against a player with another card
``tamper.py``   ``tamper``: a sum with a check that may be edited
==============  ==================================================================
"""
