"""Recipes that train a reward model: alone, on rows of the policy or of files, or beside the policy."""

from rljax import types
from rljax.algorithms.base import recipe
from rljax.transforms import prepare, reduce, reward, surrogate
from rljax.types import Algorithm, Fraction, NonNegative, Positive


def _model(module: str, loss: types.LossTransform, *kept: types.PrepareTransform) -> types.Algorithm:
    model = types.Objective(module=module, prepare=kept, loss=(loss,), reduce=reduce.mean_over_rows())
    return types.Algorithm(objectives=(model,))


@recipe
def bradley_terry(
    margin: NonNegative = 0.0, ties: Positive | None = None, center: NonNegative = 0.0, module: str = "reward"
) -> Algorithm:
    """Train a reward model on pairs of a group: -log sigmoid(R_better - R_worse).

    Reward modelling as in InstructGPT (arXiv 2203.02155, eq. 1): all pairs of unequal rewards among the samples of a
    prompt, or the pairs of ``stored``. A later phase reads it by ``config.phase.NAME.seam.reward="learned()"``. Differs
    from ``dpo`` by what is trained: a scalar, not the policy.

    Args:
      margin: by how much the rewards R of a pair must differ for a difference of 1 in the reward.
    """
    return _model(module, surrogate.bradley_terry(margin, ties, center), prepare.drop_unpaired(ties is not None))


@recipe
def reward_regression(module: str = "reward") -> Algorithm:
    """Train a reward model by squared error: (R - r)^2 / 2. Differs from ``bradley_terry`` by the scale of R."""
    return _model(module, surrogate.reward_error())


@recipe
def reward_classifier(
    levels: tuple[float, ...] = (0.5,), cuts: tuple[float, ...] | None = None, module: str = "reward"
) -> Algorithm:
    """Train a reward model to say which of ordered levels the reward exceeds; with one level, whether a row is right.

    Verifiers of solutions (Cobbe et al., arXiv 2110.14168) by logistic regression at the end of the row, where the
    paper has a score at every token; several levels are McCullagh's cumulative logits.

    Args:
      levels: rewards between the classes, increasing.
      cuts: the reward R at which each level is as likely exceeded as not; None: 0, 1, 2, ....
    """
    return _model(module, surrogate.ordinal(levels, cuts))


@recipe
def implicit_bradley_terry(
    beta: Positive = 1.0,
    margin: NonNegative = 0.0,
    ties: Positive | None = None,
    center: NonNegative = 0.0,
    module: str = "prm",
) -> Algorithm:
    """Train a language model as a reward model on pairs of a group: -log sigmoid(R_better - R_worse).

    R = beta sum log(prm / ref), the reward that preferences imply in DPO (arXiv 2305.18290, eq. 5 and 7). Differs from
    ``dpo`` by what is trained, a module that only scores rows, and by all pairs of a group; from ``bradley_terry`` by
    R, which needs no head: the module starts as the policy. A later phase reads it by ``reward.implicit`` or
    ``reward.implicit_steps``, with the reference of that phase: the same as in this one, if the policy is.

    Args:
      beta: scale of the log-ratios.
      margin: by how much the rewards R of a pair must differ for a difference of 1 in the reward.
    """
    return _model(
        module, surrogate.implicit_bradley_terry(beta, margin, ties, center), prepare.drop_unpaired(ties is not None)
    )


def _steps(module: str, *transforms: types.RolloutTransform) -> types.Algorithm:
    """Train a module on labelled steps; the loss is a mean over steps."""
    model = types.Objective(
        module=module, prepare=(prepare.step_ends(),), loss=(surrogate.step_labels(),), reduce=reduce.mean_over_tokens()
    )
    return types.Algorithm(objectives=(model,), transforms=transforms)


@recipe(task="arithmetic(step_reward=1.0)")
def process_reward_model(module: str = "prm") -> Algorithm:
    """Train a process reward model: the cross-entropy of "this step is right" at the last token of each step.

    Let's verify step by step (arXiv 2305.20050). The labels are the signs of token rewards, such as
    ``arithmetic(step_reward=1.0)``. A later phase reads it by ``reward.process`` or ``reward.process_steps``. Differs
    from ``reward_classifier`` by a label for each step.
    """
    return _steps(module)


@recipe(task="arithmetic(step_reward=1.0)")
def math_shepherd(threshold: Fraction = 0.0, module: str = "prm") -> Algorithm:
    """Train a process reward model without labels of steps: a step is right if a sample that continues it is.

    Math-Shepherd (arXiv 2312.08935), hard estimation: the rows of a group that begin alike are the continuations
    (``reward.continuations``), where the paper samples some from each step. The task says where steps end. Differs from
    ``process_reward_model`` by the labels.

    Args:
      threshold: share of right continuations that a right step exceeds.
    """
    return _steps(module, reward.continuations(threshold))
