"""Reward shaping: on the whole batch, before advantages, no gradient.

``shaping`` has rewards of the outcome (parts, confidence, KL), ``length`` the overlong punishment, ``steps`` rewards of
turns within a row, ``learned`` rewards of a reward model, ``process`` rewards of a process reward model.
``rljax.methods.reward`` has the other pieces: lengths and repetition, gates, votes and likelihoods, steps.

Statistics skip rows with ``valid`` 0; rows without trained tokens count, with length 0. Pieces run in the order in
which they are written: a row is right if its reward so far is positive.
"""

from typing import Any

from rljax import transforms
from rljax.transforms.reward.learned import implicit, implicit_steps, judged, learned, likelihood
from rljax.transforms.reward.process import continuations, process, process_steps
from rljax.transforms.reward.shaping import add_parts, confidence_penalty, kl, learnability, overlong, scale
from rljax.transforms.reward.steps import improvement, only_turn


def __getattr__(name: str) -> Any:
    return transforms.piece("reward", name)
