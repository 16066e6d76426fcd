"""Surrogates: write the policy term, whose gradient is the update. Advantages are constants.

``token`` has losses of single tokens, ``row`` losses of whole rows, ``pair`` losses of two rows of one prompt,
``scored`` losses of a reward model; ``rljax.methods.surrogate`` has the other pieces. The loss of a row is written on
each of its tokens, so that ``reduce.mean_over_rows`` counts it once. The terms of two surrogates in
one chain add up. At ratio 1 all but the regressions and likelihoods have REINFORCE's gradient.
"""

from typing import Any

from rljax import transforms
from rljax.transforms.surrogate.row import kahneman_tversky, preference, squared_preference
from rljax.transforms.surrogate.scored import (
    bradley_terry,
    implicit_bradley_terry,
    implicit_outcome,
    ordinal,
    reward_error,
    step_labels,
    token_outcome,
)
from rljax.transforms.surrogate.token import (
    clip,
    clipped_importance,
    likelihood,
    reinforce,
    unclipped,
    value_error,
    value_histogram,
)


def __getattr__(name: str) -> Any:
    return transforms.piece("surrogate", name)
