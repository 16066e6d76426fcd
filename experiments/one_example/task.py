"""Sums of which a few are trained on."""

import dataclasses

from rljax import environments
from rljax.environments import Split
from rljax.environments.problems import task
from rljax.environments.problems.shipped import arithmetic


@dataclasses.dataclass(frozen=True)
class Few(task.Problems):
    """A task of which the first ``count`` problems are the training set; held-out problems are the task's."""

    count: int = 1

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.count if split == "train" else super().size(split)


@environments.task
def few(count: int = 1) -> Few:
    """Build two-digit sums of which ``count`` are trained on."""
    whole = arithmetic.arithmetic(operands=2, digits=2)
    assert isinstance(whole, task.Problems)
    return Few(whole.rules, whole.common, whole.prompt_length, whole.completion_length, count=count)
