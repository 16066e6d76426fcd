"""Recipes with demonstrations, a teacher, hints, probes, rescued rows or a target answer."""

from typing import Literal

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, chain, penalty, ratio, reduce, reward, source, surrogate, weight, where
from rljax.transforms.source import chain as sources
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive


@recipe
def dft() -> Algorithm:
    """Fit demonstrations in proportion to their probability: minimize -sg(pi) log pi, averaged over tokens.

    Dynamic fine-tuning (arXiv 2508.05629). Differs from ``sft`` by the weight sg(pi).
    """
    return compose(
        source=source.demonstrations(),
        loss=[surrogate.likelihood(), weight.probability()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def rl_plus(
    entropy: NonNegative = 1e-3, power: NonNegative = 0.5, length: Count | None = None, demonstrations: Count = 1
) -> Algorithm:
    """Weigh demonstrations by a multiple-importance ratio, and more where the policy finds a token unlikely.

    RL-PLUS (arXiv 2508.00222): ratio 2 pi / (pi_old + (pi_old + 1) / 2), weight (1 - pi)^power, the group mean over
    rows of the policy only. Differs from ``luffy`` by all three.

    Args:
      power: exponent of 1 - pi in the weight of demonstrations.
    """
    sampled = chain(ratio.token(), surrogate.unclipped())
    external = chain(ratio.multiple_importance(), surrogate.unclipped(), weight.exploration_focus(power))
    return compose(
        source=source.guided(demonstrations),
        advantage=[advantage.center_by("group", only="on_policy")],
        loss=[where("on_policy", sampled, external), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.fixed_length(length),
    )


@recipe
def srft(sft: NonNegative = 0.5, rl: NonNegative = 0.1, demonstrations: Count = 1) -> Algorithm:
    """Combine four terms: fit and reinforce demonstrations, fit correct samples, unlearn wrong ones.

    SRFT (arXiv 2506.19767): weights sft exp(-H) on the first and rl exp(H) on the third, H the token's entropy, not
    differentiated; demonstrations have the ratio pi / 1. Differs from ``luffy`` by the likelihood terms.

    Args:
      sft: weight of the likelihood of demonstrations.
      rl: weight of the likelihood of correct samples.
    """
    fit = chain(surrogate.likelihood(), weight.entropy_exponential(sft, -1.0))
    demonstration = chain(fit, ratio.token("one"), surrogate.unclipped())
    right = chain(surrogate.likelihood(), weight.entropy_exponential(rl, 1.0))
    wrong = chain(surrogate.likelihood(), weight.constant(-1.0))
    return compose(
        source=source.guided(demonstrations),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[where("on_policy", where("correct", right, wrong), demonstration)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def relift(entropy: NonNegative = 1e-3, length: Count | None = None, sft: NonNegative = 1.0) -> Algorithm:
    """Reinforce samples; when enough prompts were left unsolved, fit their demonstrations in a step of its own.

    ReLIFT (arXiv 2506.07527): centered rewards, no clip, constant length and a small entropy bonus; -sft logp averaged
    over the tokens of demonstrations, by the same optimizer. Equals ``luffy`` where all rows are sampled by the policy.

    Args:
      sft: coefficient of the likelihood of demonstrations; 0 leaves it out.
    """
    sampled = chain(ratio.token(), surrogate.unclipped())
    fit = penalty.nll(sft, "off_policy", reduce=reduce.mean_over_tokens("off_policy"))
    return compose(
        source=source.unsolved(),
        advantage=[advantage.center_by_group()],
        loss=[where("on_policy", sampled), *when(entropy, penalty.entropy(entropy)), *when(sft, fit)],
        reduce=reduce.fixed_length(length),
    )


@recipe
def dph_rl(
    divergence: Literal["forward_kl", "js", "alpha"] = "forward_kl",
    coefficient: NonNegative = 0.02,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
) -> Algorithm:
    """Clipped GRPO on fresh rows, and an f-divergence to the reference on stored rows that it solved before.

    DPH-RL (arXiv 2509.07430): forward KL u - 1 - log u, u = pi / ref, keeps what the base model can do. Stored rows
    have ``on_policy`` 0. ``coefficient`` is 0.05-0.2 for "js". ``source.base_samples`` samples them in the first steps.

    Args:
      divergence: f-divergence on the stored rows.
      coefficient: factor of the divergence, in nats.
    """
    fresh = chain(ratio.token(), surrogate.clip(low, high))
    return compose(
        source=source.base_samples(),
        advantage=[advantage.center_by("group", only="on_policy"), advantage.scale_by("group", only="on_policy")],
        loss=[where("on_policy", fresh), penalty.f_divergence(divergence, coefficient, only="off_policy")],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def critique_grpo(gamma: Positive = 0.1, length: Count | None = None) -> Algorithm:
    """Add refinements written after a critique to their group; their tokens have the ratio pi / (pi + gamma).

    Critique-GRPO (arXiv 2506.03106): ``source.refine`` puts one refinement, with ``on_policy`` 0, into each group; the
    texts of its critiques are empty by default, since they are the task's. Differs from ``luffy`` by the rows that are
    added and the missing entropy bonus.

    Args:
      gamma: probability of a refinement's token at which its ratio is 1/2.
    """
    sampled = chain(ratio.token(), surrogate.unclipped())
    refined = chain(ratio.shaped(gamma), surrogate.unclipped())
    return compose(
        source=source.refine(),
        advantage=[advantage.center_by_group()],
        loss=[where("on_policy", sampled, refined)],
        reduce=reduce.fixed_length(length),
    )


@recipe
def rex_rag(alpha: Fraction = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Clip the ratio to a mixture of the policy and the probes that were inserted into its rollouts.

    REX-RAG (arXiv 2508.08149): the denominator is (1 - alpha) pi_old + alpha mu, with log mu in extra["probe_logp"] [B,
    T], which ``source.probed`` writes for the task's probes; alpha is the share of rows with one. Differs from ``grpo``
    by the denominator.

    Args:
      alpha: share of rows with a probe: weight of the probes in the mixture.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.mixture(alpha), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def exp_grpo(beta: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on the policy's rows, and likelihood on explanations that it wrote with the answer in the prompt.

    ExPO (arXiv 2507.02834): ``source.explained`` puts one explanation into each group, with ``on_policy`` 0 and left
    out of its statistics.

    Args:
      beta: coefficient of the likelihood of explanations; 0 leaves it out.
    """
    sampled = chain(ratio.token(), surrogate.clip(low, high))
    fit = penalty.nll(beta, "off_policy", reduce=reduce.mean_over_tokens("off_policy"))
    return compose(
        source=source.explained(),
        advantage=[advantage.center_by("group", only="on_policy"), advantage.scale_by("group", only="on_policy")],
        loss=[where("on_policy", sampled), *when(beta, fit)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def cog_rethinker(coefficient: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.28) -> Algorithm:
    """DAPO's chain, and the likelihood of rows rescued by another template (``on_policy`` 0).

    Cog-Rethinker (2025), whose coefficient is not public: ``source.reflect`` samples unsolved groups again; its two
    templates are empty by default, since they are the task's. Differs from ``exp_grpo`` by the source and the token
    mean.

    Args:
      coefficient: coefficient of the likelihood of rescued rows; 0 leaves it out.
    """
    sampled = chain(ratio.token(), surrogate.clip(low, high))
    fit = penalty.nll(coefficient, "off_policy", reduce=reduce.mean_over_tokens("off_policy"))
    return compose(
        source=sources.chain((source.dynamic(), source.reflect())),
        advantage=[advantage.center_by("group", only="on_policy"), advantage.scale_by("group", only="on_policy")],
        loss=[where("on_policy", sampled), *when(coefficient, fit)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def verifree() -> Algorithm:
    """Without a verifier: pay a thought by the probability of the target answer after it, and fit that answer.

    VeriFree (arXiv 2505.21493): R = exp(sum log pi(y* | x, z)); loss -A logp(z) - R logp(y* | x, z), A leave-one-out.
    ``config.seam.source="answered('####')"`` writes the target answer behind each thought, extra["reference_answer"].
    """
    return compose(
        reward=[reward.reference_likelihood()],
        advantage=[advantage.leave_one_out(), advantage.reward_on_reference_answer()],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_rows_of_sums(),
    )
