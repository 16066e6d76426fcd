"""Actors: policies and critics of control worlds, as pure functions over trees of parameters.

A module of a run is a ``models.Model``, which reads tokens, or an ``Actor``, which reads observations. Both have
``init`` and ``axes``; an actor is scored by ``score``, as ``scores.scoring`` scores a model, and sampled by ``draw``.

====================  =================================================================
``actor.py``          ``Actor``: a network with a distribution of actions, or a value
``critics.py``        the expectation of Q over the actions of a policy
``distributions.py``  distributions of actions: log-probs, entropies, exact divergences
``denoising.py``      the settings and steps of chains that end in an action
``mlp.py``            the settings and layers of the network
====================  =================================================================
"""

from rljax.models.actors.actor import Actor, Drawn, Motion
from rljax.models.actors.denoising import Denoising
from rljax.models.actors.mlp import Mlp

__all__ = ["Actor", "Denoising", "Drawn", "Mlp", "Motion"]
