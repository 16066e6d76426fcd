"""Reward shaping: on the whole batch, before advantages, no gradient.

``shaping`` has rewards of the outcome (scale, parts, gates, votes, likelihoods, KL), ``length`` rewards of length and
repetition, ``steps`` rewards of tokens and turns within a row, ``learned`` rewards of a reward model, ``process`` those
of a process reward model. Statistics skip rows with ``valid`` 0; rows without trained tokens count, with length 0.
Pieces run in the order in which they are written: a row is right if its reward so far is positive.
"""

from rljax.transforms.reward.learned import implicit, implicit_steps, judged, learned, likelihood
from rljax.transforms.reward.length import (
    brevity_if_solved,
    budget_triangle,
    cosine_length,
    length_gap,
    length_zscore,
    min_max_length,
    mode_balance,
    overlong,
    relative_length,
    repetition,
    sibling_cosine,
    solve_rate_length,
    tag_cosine,
    tail_repetition,
    truncated,
)
from rljax.transforms.reward.process import continuations, process, process_steps
from rljax.transforms.reward.shaping import (
    add_parts,
    affine,
    by_domain,
    collective_vote,
    confidence_penalty,
    decoupled,
    exponential_distance,
    kl,
    learnability,
    majority_vote,
    mix_part,
    outcome,
    reference_likelihood,
    require,
    student_likelihood,
    unparseable,
    zero_sum_votes,
)
from rljax.transforms.reward.steps import (
    center_turns,
    clip_process,
    delta_process,
    gated,
    improvement,
    only_turn,
    turn_returns,
)
