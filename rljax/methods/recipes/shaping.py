"""Recipes that differ in their reward: length, modes, gates, votes and other shaping on a plain base."""

import dataclasses
from typing import Annotated

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, after, penalty, ratio, reduce, reward, schedule, source, surrogate, weight
from rljax.types import Algorithm, Count, Fraction, NonNegative, Number, Positive, Range


def _grpo(rewards, low=0.2, high=0.2, kl=0.0):
    """Return GRPO's chain (row mean, k3 where ``kl`` is given) on shaped rewards."""
    return compose(
        reward=rewards,
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def grpo_lambda(share: Fraction = 0.2, alpha: Fraction = 0.5) -> Algorithm:
    """GRPO that charges length only in the groups it solves best.

    GRPO-lambda (arXiv 2505.18086): in the top ``share`` of groups, correct rows are paid 1 - alpha sigmoid(z(len)). No
    public source gives alpha.

    Args:
      share: share of the groups, the best solved ones, in which length is charged.
      alpha: largest charge of length.
    """
    return _grpo([reward.solve_rate_length(share, alpha)])


@recipe
def cosine_grpo(
    limit: Count, correct: tuple[float, float] = (0.5, 1.0), wrong: tuple[float, float] = (-1.0, -0.5)
) -> Algorithm:
    """GRPO on the cosine length reward: short correct answers are paid most, short wrong answers least.

    Demystifying Long Chain-of-Thought (arXiv 2502.03373).

    Args:
      limit: length at which the reward reaches its end, in tokens.
      correct: reward of the longest and of the shortest correct rows.
      wrong: reward of the shortest and of the longest wrong rows.
    """
    return _grpo([reward.cosine_length(limit, correct, wrong)])


@recipe
def vl_cogito(limit: Count = 750, kl: NonNegative = 0.0) -> Algorithm:
    """GRPO whose wrong rows are pulled to the length of the correct rows of their group, weighed by difficulty.

    VL-Cogito (arXiv 2507.22607), hard stage: dynamic length reward, repetition penalty on wrong rows, difficulty
    weight.

    Args:
      limit: length that wrong rows are pulled to where a group has no correct row, in tokens.
    """
    return compose(
        reward=[reward.sibling_cosine(limit), reward.repetition(only="wrong")],
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(), weight.by_difficulty("hard"), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def ada_ctrl() -> Algorithm:
    """GRPO on rewards for a correct difficulty tag, and for brevity where the prompt was tagged easy.

    AdaCtrl (2025): the outcome is 1 or -1; part "tag" (1 match, 0 mismatch, -1 missing), part "easy" (1 where tagged
    easy).
    """
    return _grpo([reward.outcome(1.0, -1.0), reward.tag_cosine()])


@recipe
def auto_think(alpha: Positive = 0.05, beta: Positive = 0.05) -> Algorithm:
    """GRPO that learns when to think: successes without a thought are paid double, and length is charged by z-score.

    AutoThink (arXiv 2505.10832), stage 3; stages 1 and 2 are ``reward.mode_balance`` with and without its balance. The
    part "think" is 1 on rows that contain a thought.

    Args:
      alpha: rate at which a success loses reward for a standard deviation of length.
      beta: rate at which a failure gains reward for a standard deviation of length.
    """
    return _grpo([reward.mode_balance(limit=1.0), reward.length_zscore(alpha, beta)])


@recipe
def train_long_think_short(
    budget: Positive, decay: Fraction = 0.9, every: Count = 100, correct: NonNegative = 1.0, length: NonNegative = 0.5
) -> Algorithm:
    """GRPO with a triangular reward around a token budget that shrinks during training.

    Train Long, Think Short (arXiv 2508.08940): B = max(1, budget decay^floor(step / every)).

    Args:
      budget: target length at the start, in tokens.
      decay: factor of the budget, applied every ``every`` steps.
      every: steps between two changes of the budget.
      correct: weight of the reward.
      length: weight of the length.
    """
    return _grpo([reward.budget_triangle(schedule.decay(budget, decay, every, low=1.0), correct, length)])


@recipe
def campo(
    constant: NonNegative = 0.2, low: NonNegative = 0.2, high: NonNegative = 0.2, oversample: Count = 2
) -> Algorithm:
    """GRPO by token mean that subtracts a constant from truncated rows whose tail repeats itself.

    CAMPO, MiroMind-M1 (arXiv 2507.14683).

    Args:
      constant: subtracted from the reward of truncated rows whose tail repeats itself.
    """
    return compose(
        source=source.dynamic(oversample),
        reward=[reward.tail_repetition(constant)],
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def grpo_tcr(limit: Count, cache: Count, low: NonNegative = 0.2, high: NonNegative = 0.28) -> Algorithm:
    """DAPO's loss and soft overlong punishment without its dynamic sampling; tool output is masked.

    GRPO-TCR (2025). Differs from ``dapo`` by the source.

    Args:
      limit: length at which the punishment is full, in tokens.
      cache: tokens over which the punishment grows.
    """
    return compose(
        reward=[reward.overlong(limit, cache)],
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def rlsp(alpha: Fraction = 0.8, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on alpha correct + (1 - alpha) exploration, the part "exploration". RLSP (2025).

    Args:
      alpha: share of correctness in the reward; the rest is exploration.
    """
    return _grpo([reward.mix_part("exploration", alpha)], low, high)


@recipe(task="arithmetic(votes=True)")
def mm_upt() -> Algorithm:
    """GRPO on agreement with the group's majority answer, without labels: r = 1[answer = majority].

    TTRL (arXiv 2504.16084), MM-UPT (arXiv 2505.22453): the part "answer" is an id. Unparseable rows do not vote and are
    paid 0; in MM-UPT's release "no answer" can win the vote. TTRL trains on 32 of the 64 rows that vote.
    """
    return _grpo([reward.majority_vote()])


@recipe
def rlccf(models: Count) -> Algorithm:
    """GRPO on agreement with a vote of several models, each weighed by how much it agrees with itself.

    RLCCF (2025): the row's model is its ``agent``. One model is ``mm_upt``.

    Args:
      models: models that vote; the agent of a row, modulo this number, is its model.
    """
    return _grpo([reward.collective_vote(models)])


@recipe
def general_reasoner(weight: NonNegative = 0.05, limit: Positive = 10.0) -> Algorithm:
    """GRPO on 1[verified] (1 - weight min(limit, |length gap|)), and -0.5 where no answer could be read.

    General-Reasoner (arXiv 2505.14652): the part "length_gap" is the difference in length to the target answer.

    Args:
      weight: charge for a token of difference in length.
      limit: largest difference that is charged, in tokens.
    """
    return _grpo([reward.length_gap(weight, limit), reward.unparseable(-0.5)])


@recipe
def rlt(
    kl: NonNegative = 0.04, low: NonNegative = 0.2, high: NonNegative = 0.2, every: Count = 32, share: Fraction = 0.9
) -> Algorithm:
    """Pay a teacher's explanation by how well a student then predicts the solution and follows the thought.

    RLT (arXiv 2506.08388). The teacher's prompt shows the solution, ``config.seam.source="hinted(1.0)"``; the student
    has the task's own, ``config.module.student = rljax.module(prompt="{prompt}", after="{solution}")``. Every ``every``
    steps the reference becomes share policy + (1 - share) reference, as in the release. Differs from ``grpo`` by the
    reward and the reference.

    Args:
      every: steps between two updates of the reference.
      share: share of the policy in the new reference.
    """
    built = _grpo([reward.student_likelihood()], low, high, kl)
    return dataclasses.replace(built, after=when(kl, after.mix_reference(every, share)))


@recipe(task="guess()")
def gated_reward(threshold: Number = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on the outcome, with the dense rewards added where the outcome reaches ``threshold``.

    Gated reward accumulation (arXiv 2508.10548): R + 1[R >= threshold] sum_t r_t, one number for each row.

    Args:
      threshold: outcome from which the dense rewards are added.
    """
    return _grpo([reward.gated(threshold)], low, high)


@recipe(task="screen(ask='box', twin=True)")
def gui_g1(alpha: NonNegative = 0.25, beta: NonNegative = 0.125, length: Positive = 64.0) -> Algorithm:
    """Center r + alpha IoU + beta box in the group, weigh by the prompt's difficulty, divide by a constant length.

    GUI-G1 (arXiv 2505.15810), with the parts "iou", "box" and "rate" of the task ``screen``. The weight "rate" is from
    the relative size of the target box, as in the paper; in the release it comes with each prompt of the data. Differs
    from ``dr_grpo`` by the reward and the weight.

    Args:
      alpha: weight of the part "iou".
      beta: weight of the part "box".
      length: tokens by which the sum over a row is divided.
    """
    return compose(
        reward=[reward.add_parts((("iou", alpha), ("box", beta)))],
        advantage=[advantage.center_by_group()],
        loss=[ratio.token(), surrogate.clip(), weight.by_part("rate")],
        reduce=reduce.fixed_length(length),
    )


@recipe(task="screen(ask='box', twin=True)")
def vlm_r1(part: str = "iou", form: NonNegative = 1.0, kl: NonNegative = 0.04) -> Algorithm:
    """GRPO on a part that says how well boxes fit, plus the format: the IoU of one box, or the scaled mAP of several.

    VLM-R1 (arXiv 2504.07615). Of ``screen`` the part "iou" is the reward for a referring expression; of ``scene`` the
    part "map", min(1, boxes / boxes written) mAP, is that for detection. The format is an answer in form; the paper's
    also asks for a thought.

    Args:
      part: part of the verdict that takes the place of the reward.
      form: weight of the part "format".
    """
    return _grpo([reward.mix_part(part, 0.0), reward.add_parts((("format", form),))], kl=kl)


@recipe(task="scene(twin=True)")
def r1_sgg(
    node: NonNegative = 2.0,
    box: NonNegative = 2.0,
    edge: NonNegative = 5.0,
    recall: NonNegative = 0.0,
    form: NonNegative = 1.0,
    kl: NonNegative = 0.04,
) -> Algorithm:
    """GRPO on how well a scene graph fits: names and boxes of matched objects, relations between them, the format.

    R1-SGG (arXiv 2504.13617), weights of the release; ``recall`` alone is the paper's Hard Recall. Names are equal or
    not, where the release has the similarity of their word vectors, and the format asks for no thought.

    Args:
      node: weight of the share of objects with the right name.
      box: weight of the mean fit of the boxes.
      edge: weight of the share of relations between matched objects.
      recall: weight of the share of relations with right names and an IoU of at least 0.5.
      form: weight of the part "format".
    """
    weights = (("node", node), ("box", box), ("edge", edge), ("recall", recall), ("format", form))
    return _grpo([reward.affine(scale=0.0), reward.add_parts(weights)], kl=kl)


@recipe
def cls_rl(form: NonNegative = 1.0, kl: NonNegative = 0.04) -> Algorithm:
    """GRPO on accuracy plus format, for questions whose answer is a class.

    CLS-RL (arXiv 2503.16188). Demonstrations decide whether a thought precedes the answer: ``working=True`` or False
    of a task such as ``counting``. The format is an answer in form; the paper's also asks for a thought. No-Thinking-RL
    of the same paper is ``form=0.0`` with ``working=False``.

    Args:
      form: weight of the part "format".
    """
    return _grpo([reward.add_parts((("format", form),))], kl=kl)


@recipe(task="programs()")
def absolute_zero(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Pay a proposer of tasks by how hard they are for the solver, provided that it can solve them at all.

    Absolute Zero (arXiv 2505.03335): 1 - s for 0 < s < 1, else -0.5; -1 where malformed; s is the part
    "solver_success". Advantages are whitened over each (domain, agent).
    """
    return compose(
        reward=[reward.learnability()],
        advantage=[advantage.returns(), advantage.whiten(key=("domain", "agent"))],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def prime_rl_length(output: NonNegative = 0.1, turns: NonNegative = 0.0, low: NonNegative = 0.2) -> Algorithm:
    """GRPO, centered, on r - mean(r) sum_k w_k x_k / max x_k, x the output tokens and the turns of a row.

    The length penalty of prime-rl (2025).

    Args:
      output: weight of the trained tokens.
      turns: weight of the turns; 0 leaves them out.
      low: largest change of the probability of a token against the sampler.
    """
    return compose(
        reward=[reward.relative_length(output, turns)],
        advantage=[advantage.center_by_group()],
        loss=[ratio.token("behaviour"), surrogate.divergence_mask("tv", low, low)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="redraw(twin=True)")
def msrl(
    first: Annotated[int, Range(0, 1e9)] = 100, visual: Fraction = 0.5, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """GRPO on how alike drawings are as text, after ``first`` steps also as rendered pictures.

    MSRL (arXiv 2508.13587), with the parts "structure" and "ssim" of ``redraw``, or of rows with ``rendered()``.
    Absent: its judge of pictures, a model, for which SSIM stands; its five rules for charts, for which "structure"
    stands.

    Args:
      first: steps of the first stage, on "structure" alone.
      visual: share of "ssim" in the reward of the second stage.
    """
    textual = schedule.piecewise(((0, 1.0), (first, 1 - visual)))
    return _grpo([reward.mix_part("structure", 0.0), reward.mix_part("ssim", textual)], low, high)


@recipe(task="redraw(twin=True)")
def rrvf(format: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on how alike rendered pictures are, without any text to compare with, and on whether they can be rendered.

    RRVF (arXiv 2507.20766): "ssim" + ``format`` "format". Absent: its judge of pictures, a model, for which SSIM
    stands; turns in which the policy sees what it drew, and their reward. No weights were found in a public source.

    Args:
      format: weight of the part "format".
    """
    return _grpo([reward.mix_part("ssim", 0.0), reward.add_parts((("format", format),))], low, high)
