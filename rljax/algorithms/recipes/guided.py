"""Recipes with demonstrations, a teacher, hints, probes, rescued rows or a target answer."""

from typing import Annotated, Literal

from rljax import types
from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, chain, penalty, ratio, reduce, reward, source, surrogate, weight, where
from rljax.types import Algorithm, Count, Fraction, NonNegative, Positive, Range


@recipe
def sft() -> Algorithm:
    """Fit demonstrations by maximum likelihood: minimize -log pi(y | x), averaged over tokens."""
    return compose(source=source.demonstrations(), loss=[surrogate.likelihood()], reduce=reduce.mean_over_tokens())


@recipe
def gkd(
    teachers: tuple[str, ...] = (),
    divergence: Literal["reverse_kl", "forward_kl", "js"] = "js",
    beta: Annotated[float, Range(1e-6, 1 - 1e-6)] = 0.5,
    demonstrations: Annotated[int, Range(0, 1e9)] = 0,
    top: Annotated[int, Range(0, 1e9)] = 0,
) -> Algorithm:
    """Distil whole distributions: an exact divergence from the teacher at every token, averaged over each row.

    Generalized knowledge distillation (arXiv 2306.13649, algorithm 1), ``penalty.distillation``. Of the samples of a
    prompt the last ``demonstrations`` are the task's: its share of the policy's samples is lambda = 1 - demonstrations
    / samples, of the batch and not by chance. At given states reverse_kl has the expected gradient of
    ``on_policy_distillation``, without the variance of the sampled token; the means differ. With ``top``, k, it is
    between distributions over the teacher's k most probable tokens and all others as one, stored with the rows.

    Args:
      divergence: KL(policy || teacher), KL(teacher || policy), or Jensen-Shannon between them.
      beta: weight of the teacher in the mixture; only js has one.
      demonstrations: samples of each prompt that are the task's demonstrations.
      top: most probable tokens of the teacher that are compared one by one; 0: all of the vocabulary.
    """
    return compose(
        source=source.guided(demonstrations) if demonstrations else source.task(),
        loss=[penalty.distillation(teachers, divergence, 1.0, beta, top=top)],
        reduce=reduce.mean_over_rows(),
    )


@recipe
def luffy(
    gamma: Positive = 0.1, entropy: NonNegative = 1e-3, length: Count | None = None, demonstrations: Count = 1
) -> Algorithm:
    """Add demonstrations to the group; their tokens have the ratio pi / (pi + gamma), the policy's tokens plain ratios.

    LUFFY (arXiv 2504.14945): statistics over the union, no std, no clip. Equals ``dr_grpo`` without a clip where all
    rows are sampled by the policy and ``entropy`` is 0.

    Args:
      gamma: probability of a demonstration's token at which its ratio is 1/2.
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
def oreal(
    positive: NonNegative = 1.0, negative: NonNegative = 0.5, kl: NonNegative = 0.01, module: str = ""
) -> Algorithm:
    """Reinforce correct rows by logp and wrong ones by the ratio with k3; each side is divided by its token count.

    OREAL (arXiv 2502.06781), leave-one-out advantages. With ``module`` a token reward model of that name is trained on
    the same rows, and weighs the tokens (``weight.token_scores``): its head starts at 0, at which every weight is 0.

    Args:
      positive: weight of correct rows.
      negative: weight of wrong rows.
      kl: coefficient of the k3 to the reference on wrong rows, in nats.
      module: name of the token reward model that weighs the tokens; "": none.
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
def ghpo(format: NonNegative = 0.5, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Sample unsolved groups again with 25, 50 or 75 % of the solution in the prompt, and train them under it.

    GHPO (arXiv 2507.10628): ``source.ghpo``, the chain of ``grpo`` without KL, and the part "format" paid beside
    the answer. Equals ``grpo`` without KL where every group has a success.

    Args:
      format: weight of the part "format"; 0 leaves it out.
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
    gamma: Positive | None = None, low: NonNegative = 0.2, high: NonNegative = 0.2, quantile: Fraction | None = None
) -> Algorithm:
    """Train rows that were sampled with a hint under the prompt without it, by the soft ratio rho / (rho + gamma).

    Guide (arXiv 2506.13923): ``source.guide`` samples unsolved groups again with half of the solution as the hint;
    these rows have ``on_policy`` 0 and behaviour log-probs under the prompt with the hint; only the others are clipped.
    Equals ``grpo`` without KL where no row had a hint.

    Args:
      gamma: ratio rho at which the soft ratio is 1/2; None: 1, or by ``quantile``.
      quantile: quantile of the ratios of rows with a hint that gives gamma; 0.9 in the scripts of the paper.
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
