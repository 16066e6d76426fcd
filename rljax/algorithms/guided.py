"""Recipes with demonstrations, a teacher, hints, probes, rescued rows or a target answer."""

from typing import Annotated, Literal

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, chain, penalty, ratio, reduce, reward, source, surrogate, weight, where
from rljax.transforms.source import chain as sources
from rljax.types import Count, Fraction, NonNegative, Positive, Range


@recipe
def sft():
    """Fit demonstrations by maximum likelihood: minimize -log pi(y | x), averaged over tokens."""
    return compose(source=source.demonstrations(), loss=[surrogate.likelihood()], reduce=reduce.mean_over_tokens())


@recipe
def dft():
    """Fit demonstrations in proportion to their probability: minimize -sg(pi) log pi, averaged over tokens.

    Dynamic fine-tuning (arXiv 2508.05629). Differs from ``sft`` by the weight sg(pi).
    """
    return compose(
        source=source.demonstrations(),
        loss=[surrogate.likelihood(), weight.probability()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def gkd(
    teachers: tuple[str, ...] = (),
    divergence: Literal["reverse_kl", "forward_kl", "js"] = "js",
    beta: Annotated[float, Range(1e-6, 1 - 1e-6)] = 0.5,
    demonstrations: Annotated[int, Range(0, 1e9)] = 0,
    top: Annotated[int, Range(0, 1e9)] = 0,
):
    """Distil whole distributions: an exact divergence from the teacher at every token, averaged over each row.

    Generalized knowledge distillation (arXiv 2306.13649, algorithm 1), ``penalty.distillation``. Of the samples of a
    prompt the last ``demonstrations`` are the task's: its share of the policy's samples is lambda = 1 - demonstrations
    / samples, of the batch and not by chance. With reverse_kl the expected gradient at given states is that of
    ``on_policy_distillation``, without the variance of the sampled token; the means differ. With ``top``, k, it is
    between distributions over the teacher's k most probable tokens and all others as one, stored with the rows.
    """
    return compose(
        source=source.guided(demonstrations) if demonstrations else source.task(),
        loss=[penalty.distillation(teachers, divergence, 1.0, beta, top=top)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def luffy(gamma: Positive = 0.1, entropy: NonNegative = 1e-3, length: Count | None = None, demonstrations: Count = 1):
    """Add demonstrations to the group; their tokens have the ratio pi / (pi + gamma), the policy's tokens plain ratios.

    LUFFY (arXiv 2504.14945): statistics over the union, no std, no clip. Equals ``dr_grpo`` without a clip where all
    rows are sampled by the policy.
    """
    sampled = chain(ratio.token(), surrogate.unclipped())
    expert = chain(ratio.shaped(gamma), surrogate.unclipped())
    return compose(
        source=source.guided(demonstrations),
        advantage=[advantage.center_by_group()],
        loss=[where("on_policy", sampled, expert), *when(entropy, penalty.entropy(entropy))],
        reduce=reduce.fixed_length(length),
    )


@recipe
def rl_plus(
    entropy: NonNegative = 1e-3, power: NonNegative = 0.5, length: Count | None = None, demonstrations: Count = 1
):
    """Weigh demonstrations by a multiple-importance ratio, and more where the policy finds a token unlikely.

    RL-PLUS (arXiv 2508.00222): ratio 2 pi / (pi_old + (pi_old + 1) / 2), weight (1 - pi)^power, the group mean over
    rows of the policy only. Differs from ``luffy`` by all three.
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
def srft(sft: NonNegative = 0.5, rl: NonNegative = 0.1, demonstrations: Count = 1):
    """Combine four terms: fit and reinforce demonstrations, fit correct samples, unlearn wrong ones.

    SRFT (arXiv 2506.19767): weights sft exp(-H) on the first and rl exp(H) on the third, H the token's entropy, not
    differentiated; demonstrations have the ratio pi / 1. Differs from ``luffy`` by the likelihood terms.
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
def relift(entropy: NonNegative = 1e-3, length: Count | None = None, sft: NonNegative = 1.0):
    """Reinforce samples; when enough prompts were left unsolved, fit their demonstrations in a step of its own.

    ReLIFT (arXiv 2506.07527): centered rewards, no clip, constant length and a small entropy bonus; -sft logp averaged
    over the tokens of demonstrations, by the same optimizer. Equals ``luffy`` where all rows are sampled by the policy.
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
def oreal(positive: NonNegative = 1.0, negative: NonNegative = 0.5, kl: NonNegative = 0.01, module: str = ""):
    """Reinforce correct rows by logp and wrong ones by the ratio with k3; each side is divided by its token count.

    OREAL (arXiv 2502.06781), leave-one-out advantages. With ``module`` a token reward model of that name is trained on
    the same rows, and weighs the tokens (``weight.token_scores``): its head starts at 0, at which every weight is 0.
    """
    right = chain(surrogate.reinforce(), weight.constant(positive))
    wrong = chain(ratio.token(), surrogate.unclipped(), weight.constant(negative))
    scored = [weight.token_scores(module)] if module else []
    model = types.Objective(module=module, loss=(surrogate.token_outcome(),), reduce=reduce.mean_over_rows())
    return compose(
        advantage=[advantage.leave_one_out()],
        loss=[where("correct", right, wrong), *scored, *when(kl, penalty.kl("k3", kl, only="wrong"))],
        reduce=reduce.mean_over_tokens_by("correct"),
        others=[model] if module else [],
    )


@recipe
def dph_rl(
    divergence: Literal["forward_kl", "js", "alpha"] = "forward_kl",
    coefficient: NonNegative = 0.02,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
):
    """Clipped GRPO on fresh rows, and an f-divergence to the reference on stored rows that it solved before.

    DPH-RL (arXiv 2509.07430): forward KL u - 1 - log u, u = pi / ref, keeps what the base model can do. Stored rows
    have ``on_policy`` 0. ``coefficient`` is 0.05-0.2 for "js". ``source.base_samples`` samples them in the first steps.
    """
    fresh = chain(ratio.token(), surrogate.clip(low, high))
    return compose(
        source=source.base_samples(),
        advantage=[advantage.center_by("group", only="on_policy"), advantage.scale_by("group", only="on_policy")],
        loss=[where("on_policy", fresh), penalty.f_divergence(divergence, coefficient, only="off_policy")],
        reduce=reduce.mean_over_tokens(),
    )


@recipe
def ghpo(format: NonNegative = 0.5, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """Sample unsolved groups again with 25, 50 or 75 % of the solution in the prompt, and train them under it.

    GHPO (arXiv 2507.10628): ``source.ghpo``, the chain of ``grpo`` without KL, and the part "format" paid beside
    the answer. Equals ``grpo`` without KL where every group has a success.
    """
    return compose(
        source=source.ghpo(),
        reward=when(format, reward.add_parts((("format", format),))),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def guide_grpo(
    gamma: Positive | None = None,
    low: NonNegative = 0.2,
    high: NonNegative = 0.2,
    quantile: Fraction | None = None,
):
    """Train rows that were sampled with a hint under the prompt without it, by the soft ratio rho / (rho + gamma).

    Guide (arXiv 2506.13923): ``source.guide`` samples unsolved groups again with half of the solution as the hint;
    these rows have ``on_policy`` 0 and behaviour log-probs under the prompt with the hint; only the others are clipped.
    Equals ``grpo`` without KL where no row had a hint. With ``quantile``, 0.9 in its scripts, gamma is that quantile of
    the ratios of rows with a hint; with neither it is 1.
    """
    if gamma is not None and quantile is not None:
        raise ValueError(f"guide_grpo: gamma={gamma} and quantile={quantile} both set gamma; give one of them.")
    sampled = chain(ratio.token(), surrogate.clip(low, high))
    soft = ratio.shaped(1.0 if gamma is None else gamma, "behaviour")
    if quantile is not None:
        soft = ratio.shaped_by_quantile(quantile, "behaviour")
    return compose(
        source=source.guide(),
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[where("on_policy", sampled, chain(soft, surrogate.unclipped()))],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def critique_grpo(gamma: Positive = 0.1, length: Count | None = None):
    """Add refinements written after a critique to their group; their tokens have the ratio pi / (pi + gamma).

    Critique-GRPO (arXiv 2506.03106): ``source.refine`` puts one refinement, with ``on_policy`` 0, into each group; the
    texts of its critiques are empty by default, since they are the task's. Differs from ``luffy`` by the rows that are
    added and the missing entropy bonus.
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
def rex_rag(alpha: Fraction = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """Clip the ratio to a mixture of the policy and the probes that were inserted into its rollouts.

    REX-RAG (arXiv 2508.08149): the denominator is (1 - alpha) pi_old + alpha mu, with log mu in extra["probe_logp"] [B,
    T], which ``source.probed`` writes for the task's probes; alpha is the share of rows with one. Differs from ``grpo``
    by the denominator.
    """
    return compose(
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.mixture(alpha), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def exp_grpo(beta: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.2):
    """GRPO on the policy's rows, and likelihood on explanations that it wrote with the answer in the prompt.

    ExPO (arXiv 2507.02834): ``source.explained`` puts one explanation into each group, with ``on_policy`` 0 and left
    out of its statistics.
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
def cog_rethinker(coefficient: NonNegative = 0.1, low: NonNegative = 0.2, high: NonNegative = 0.28):
    """DAPO's chain, and the likelihood of rows rescued by another template (``on_policy`` 0).

    Cog-Rethinker (2025), whose coefficient is not public: ``source.reflect`` samples unsolved groups again; its two
    templates are empty by default, since they are the task's. Differs from ``exp_grpo`` by the source and the token
    mean.
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
def verifree():
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
