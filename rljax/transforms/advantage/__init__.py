"""Advantages: on the whole batch, whole groups, no gradient.

The first piece starts from the reward-to-go, which is the row's reward on each of its tokens if there are no token
rewards; each later piece starts from the advantage so far. Statistics are of the row's total reward and skip rows with
``valid`` 0. Every group baseline gives a group of one valid row the advantage 0.

``normalise`` has the two general pieces, ``center_by`` and ``scale_by``, and their presets; ``baseline`` other
baselines; ``outcome`` returns, signs and pass@k; ``credit`` critics. ``rljax.methods.advantage`` has the other pieces:
scales, comparisons within a group, credit of turns, trees and steps.
"""

from typing import Any

from rljax import transforms
from rljax.transforms.advantage.baseline import leave_one_out, part_baseline, role_baseline
from rljax.transforms.advantage.credit import gae, keep_above_value, step_value_difference, values
from rljax.transforms.advantage.normalise import (
    binarise,
    center_by,
    center_by_group,
    exponentiated,
    positive_part,
    scale_by,
    scale_by_batch,
    scale_by_group,
    scale_mixed_groups,
    whiten,
)
from rljax.transforms.advantage.outcome import charge_kl, distillation, pass_at_k, returns, sign_weighted, zero_variance


def __getattr__(name: str) -> Any:
    return transforms.piece("advantage", name)
