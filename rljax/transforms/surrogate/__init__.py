"""Surrogates: write the policy term, whose gradient is the update. Advantages are constants.

``token`` holds losses of single tokens, ``row`` those of whole rows, ``pair`` those of two rows of one prompt. A
row's loss stands on each of its tokens, so that ``reduce.mean_over_rows`` counts it once. Where a chain has two
surrogates their terms add up. At ratio 1 every one but the regressions and likelihoods has REINFORCE's gradient.
"""

from rljax.transforms.surrogate.pair import pairwise_clip, preference, reward_difference, squared_preference
from rljax.transforms.surrogate.row import (
    geometric_mean,
    group_variance,
    mirror_descent,
    reference_regression,
    scaled_mirror_descent,
    trajectory_balance,
)
from rljax.transforms.surrogate.token import (
    banded_importance,
    centred_clip,
    clip,
    clipped_importance,
    divergence_mask,
    gamma_weight,
    implicit_negative,
    likelihood,
    quadratic,
    reinforce,
    soft_gate,
    unclipped,
    value_error,
)
