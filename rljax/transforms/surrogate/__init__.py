"""Surrogates: write the policy term, whose gradient is the update. Advantages are constants.

``token`` has losses of single tokens, ``row`` losses of whole rows, ``pair`` losses of two rows of one prompt,
``scored`` losses of a reward model. A row's
loss is written on each of its tokens, so that ``reduce.mean_over_rows`` counts it once. The terms of two surrogates in
one chain add up. At ratio 1 all but the regressions and likelihoods have REINFORCE's gradient.
"""

from rljax.transforms.surrogate.pair import (
    length_normalised_preference,
    odds_ratio,
    pairwise_clip,
    preference,
    reward_difference,
    squared_preference,
)
from rljax.transforms.surrogate.row import (
    geometric_mean,
    group_variance,
    kahneman_tversky,
    mirror_descent,
    reference_regression,
    scaled_mirror_descent,
    trajectory_balance,
)
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
    banded_importance,
    centred_clip,
    clip,
    clipped_importance,
    divergence_mask,
    entropy_clip,
    gamma_weight,
    implicit_negative,
    likelihood,
    quadratic,
    reinforce,
    soft_gate,
    unclipped,
    value_error,
    value_histogram,
)
