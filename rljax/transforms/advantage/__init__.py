"""Advantages: on the whole batch, whole groups, no gradient.

The first piece starts from the reward-to-go, which is the row's reward on each of its tokens if there are no token
rewards; each later piece starts from the advantage so far. Statistics are of the row's total reward and skip rows with
``valid`` 0. Every group baseline gives a group of one valid row the advantage 0.

``normalise`` has the two general pieces, ``center_by`` and ``scale_by``, their presets and other scales; ``baseline``
other baselines; ``outcome`` signs, pass@k and difficulty; ``credit`` critics, turns, trees and steps.
"""

from rljax.transforms.advantage.baseline import (
    leave_one_out,
    length_weighted_baseline,
    log_partition_baseline,
    optimal_token_baseline,
    part_baseline,
    role_baseline,
    value_tracker,
)
from rljax.transforms.advantage.credit import (
    branch_tree,
    center_distinct,
    center_steps,
    convex,
    gae,
    length_adaptive_gae,
    mix,
    partition_target,
    prefix_tree,
    process_leave_one_out,
    step_value_difference,
    truncated_gae,
    turn_gae,
    values,
    zscore_steps,
)
from rljax.transforms.advantage.normalise import (
    binarise,
    boltzmann,
    center_by,
    center_by_group,
    clamp,
    drop_outliers,
    exponentiated,
    positive_part,
    scale_by,
    scale_by_batch,
    scale_by_group,
    scale_by_group_mean,
    scale_by_informative_share,
    scale_by_task,
    scale_mixed_groups,
    standardise_rows,
    whiten,
    zscore_by_group,
)
from rljax.transforms.advantage.outcome import (
    best_minus_second,
    budget_relative,
    charge_kl,
    distillation,
    pairwise_reference,
    pass_at_k,
    returns,
    reward_on_reference_answer,
    sign_weighted,
    zero_variance,
)
