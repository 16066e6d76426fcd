"""Recipes for conversations, agents, and episodes of several rows."""

from rljax.algorithms.base import compose, recipe, when
from rljax.transforms import advantage, penalty, prepare, ratio, reduce, reward, schedule, surrogate, weight
from rljax.types import Algorithm, Cap, Count, Fraction, NonNegative, Positive


@recipe(task="memory()")
def delethink(low: NonNegative = 0.2, high: NonNegative = 0.26, cap: Cap = 2.0) -> Algorithm:
    """One advantage for a thought cut into chunks; all its tokens are averaged together.

    Delethink (arXiv 2510.06557): statistics and mean over episodes. One chunk is ``tis`` by row mean.
    """
    return compose(
        advantage=[advantage.center_by("group", per="episode"), advantage.scale_by("group", per="episode")],
        loss=[ratio.token(), surrogate.clip(low, high), weight.truncated_importance(cap)],
        reduce=reduce.mean_over_episodes(),
    )


@recipe(task="memory()")
def mem_searcher(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on episodes that hand a memory from row to row; all rows of an episode share one advantage.

    MemSearcher (2025). Differs from ``grpo`` by the mean over rows, in which episodes of many rows weigh more.
    """
    return compose(
        advantage=[advantage.center_by("group", per="episode"), advantage.scale_by("group", per="episode")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(per="row"),
    )


@recipe(task="memory()")
def supo(low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """``mem_searcher`` by token mean, without the episodes that the length limit cut.

    SUPO (arXiv 2510.06727), where summaries are the memory.
    """
    return compose(
        advantage=[advantage.center_by("group", per="episode"), advantage.scale_by("group", per="episode")],
        prepare=[prepare.drop_truncated("episode")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="memory()")
def agent_lightning(low: NonNegative = 0.2, high: NonNegative = 0.2, cap: Cap = 2.0) -> Algorithm:
    """Weigh each row of an episode by the share of its tokens in the episode, and average over rows.

    Agent Lightning (arXiv 2508.03680). Differs from ``delethink`` by dividing by the number of rows, so that episodes
    of many rows weigh less.
    """
    return compose(
        advantage=[advantage.center_by("group", per="episode"), advantage.scale_by("group", per="episode")],
        loss=[ratio.token(), surrogate.clip(low, high), weight.truncated_importance(cap)],
        reduce=reduce.mean_over_episodes(count="rows"),
    )


@recipe(task="game('tic_tac_toe')")
def mars(
    gamma: Fraction = 1.0, limit: Positive | None = None, low: NonNegative = 0.2, high: NonNegative = 0.2
) -> Algorithm:
    """Center the turn rewards of each player, sum them to go, center over distinct values, whiten.

    MARS (arXiv 2510.15414), self-play in turn-based games; the player is the row's ``agent``.

    Args:
      gamma: discount of later rewards for each token.
      limit: largest |A|; None: no bound.
    """
    return compose(
        reward=[reward.center_turns("agent")],
        advantage=[
            advantage.returns(gamma),
            advantage.center_distinct("agent"),
            advantage.whiten(),
            *when(limit, advantage.clamp(limit)),
        ],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="spy()")
def vision_zero(beta: NonNegative = 0.1, lam: NonNegative = 0.1, decay: Fraction = 0.9) -> Algorithm:
    """Zero-sum voting game between a spy and civilians, with a running baseline for each role.

    Vision-Zero (arXiv 2509.25541): the part "votes" counts the votes against the row and replaces its reward; an
    episode is a game, agent 0 is its spy, and all other agents are civilians, who share a baseline.

    Args:
      beta: weight of the votes on the spy.
      lam: weight of the votes on a civilian.
      decay: weight of the former baseline, for each step.
    """
    return compose(
        reward=[reward.zero_sum_votes(beta, lam, "episode")],
        advantage=[advantage.role_baseline(2, decay)],
        loss=[surrogate.reinforce()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="game('kuhn_poker')")
def dr_mas(low: NonNegative = 0.2, high: NonNegative = 0.2, epsilon: NonNegative = 1e-6) -> Algorithm:
    """GRPO with mean and deviation of each agent of a group: A = (r - mean_agent) / std_agent.

    Dr. MAS (2026): statistics over the calls of that agent. One agent is ``grpo`` without KL.
    """
    key = ("group", "agent")
    return compose(
        advantage=[advantage.center_by(key, per="row"), advantage.scale_by(key, epsilon, per="row")],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_rows(),
    )


@recipe(task="extract(arithmetic(), others=True)")
def evolving_rl(weights: tuple[float, ...] = (0.2, 1.0), low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO for an extractor and a solver in one policy, normalized and weighed by role.

    Evolving-RL (2025): agent 0 is the extractor, whose reward is the mean success of the rows that use its output.
    Differs from ``dr_mas`` by the weight of each role.

    Args:
      weights: weight of each agent, by its number.
    """
    key = ("group", "agent")
    return compose(
        advantage=[advantage.center_by(key, per="row"), advantage.scale_by(key, per="row")],
        loss=[ratio.token(), surrogate.clip(low, high), weight.by_role(weights)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="revise(arithmetic(), 'critique')")
def critique_rl(bonus: NonNegative = 0.2, kl: NonNegative = 0.01) -> Algorithm:
    """Pay a critique by the answer that was revised after it, plus ``bonus`` for a correct verdict.

    Critique-RL (arXiv 2510.24320), stage II: the part "verdict" is 1 where the critique judged correctly; the KL is to
    the policy of stage I (the phase's reference). Leave-one-out baseline.

    Args:
      bonus: reward of a correct verdict.
    """
    return compose(
        reward=[reward.add_parts((("verdict", bonus),))],
        advantage=[advantage.leave_one_out()],
        loss=[surrogate.reinforce(), *when(kl, penalty.kl("k2", kl))],
        reduce=reduce.mean_over_rows_of_sums(),
    )


@recipe(task="recorded(guess())")
def ui_s1(gamma: Fraction = 0.5, episode: NonNegative = 1.0, step: NonNegative = 1.0) -> Algorithm:
    """Add an advantage of the episode and one of its steps, both centered; returns stop where the expert disagrees.

    UI-S1 (arXiv 2509.11543): R_t = r_t + gamma R_{t+1} while steps match; extra["match"] [B, T] is 1 there.

    Args:
      gamma: discount of the reward of later turns.
      episode: weight of the advantage of the episode.
      step: weight of the advantage of the step.
    """
    return compose(
        reward=[reward.turn_returns(gamma)],
        advantage=[
            advantage.mix(advantage.center_by_group(), advantage.center_steps(("group", "turn")), episode, step)
        ],
        loss=[ratio.token(), surrogate.clip()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="tagged()")
def rlvmr(step: NonNegative = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Add the advantages of the row and of rule rewards on tagged steps (plan, explore, reflect).

    RLVMR (arXiv 2507.22844): token rewards pay the steps, extra["tag"] [B, T] names them; the step's mean is over
    (group, tag). Differs from ``ui_s1`` by the tags.

    Args:
      step: weight of the advantage of the step.
    """
    return compose(
        advantage=[
            advantage.mix(advantage.center_by_group(), advantage.center_steps(("group", "tag"), "tag"), 1.0, step)
        ],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="tagged()")
def istar(alpha: NonNegative = 1.0, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """Add the row's z-score and alpha times the z-score of implicit step rewards (token rewards).

    iStar (arXiv 2509.19199): step rewards beta log(pi_phi / pi_old) of a process reward model.

    Args:
      alpha: weight of the z-score of the step.
    """
    return compose(
        advantage=[advantage.mix(advantage.zscore_by_group(), advantage.zscore_steps("group"), 1.0, alpha)],
        loss=[ratio.token(), surrogate.clip(low, high)],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="arithmetic(step_reward=1.0)")
def process_grpo(low: NonNegative = 0.2, high: NonNegative = 0.2, kl: NonNegative = 0.04) -> Algorithm:
    """GRPO on rewards of steps alone: each is standardised over the group's steps, and those to come are added up.

    Process supervision of GRPO, DeepSeekMath (arXiv 2402.03300, section 4.1.3), where a model judges the steps; here
    the task does, or a piece such as ``reward.process_steps``. Differs from ``grpo`` by what is paid.
    """
    return compose(
        advantage=[advantage.process_supervision()],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_rows(),
    )


@recipe(task="tagged()")
def tango(start: NonNegative = 0.5, end: NonNegative = 1e-3, steps: Count = 1000) -> Algorithm:
    """Mix the advantages of outcome and steps: (1 - alpha) A_outcome + alpha A_step, where alpha decays exponentially.

    RL Tango (arXiv 2505.15034): the steps are judged by a verifier that is trained with the policy. Differs from
    ``istar`` by the convex mixture.

    Args:
      start: alpha at the first step.
      end: alpha after ``steps`` steps.
      steps: steps over which alpha decays.
    """
    alpha = schedule.exponential(start, end, steps)
    return compose(
        advantage=[advantage.convex(advantage.zscore_by_group(), advantage.zscore_steps("group"), alpha)],
        loss=[ratio.token(), surrogate.clip()],
        reduce=reduce.mean_over_tokens(),
    )


@recipe(task="format_parts(calculator())")
def paravt(success: float = 0.4, flow: float = 0.3, unclosed: float = -0.3, scale: float = 0.5) -> Algorithm:
    """GRPO plus small payments for the fragile positions of a format: parts "closing", "flow" and "unclosed".

    ParaVT (2025).

    Args:
      success: reward of the part "closing".
      flow: reward of the part "flow".
      unclosed: reward of the part "unclosed".
      scale: factor of all three.
    """
    parts = (("closing", success * scale), ("flow", flow * scale), ("unclosed", unclosed * scale))
    return compose(
        reward=[reward.add_parts(parts)],
        advantage=[advantage.center_by_group(), advantage.scale_by_group()],
        loss=[ratio.token(), surrogate.clip()],
        reduce=reduce.mean_over_rows(),
    )


@recipe(task="zoom(twin=True)")
def mgpo(kl: NonNegative = 0.01, low: NonNegative = 0.2, high: NonNegative = 0.2) -> Algorithm:
    """GRPO on episodes that name a part of a picture, then see it magnified, and are paid for the answer alone.

    MGPO (arXiv 2507.05920): an episode's advantage is on the tokens of both turns, with the KL k3 of the release, which
    averages over tokens. That the part is cropped, and that two turns are forced, is the task's, ``zoom``.
    """
    return compose(
        advantage=[advantage.center_by("group", per="episode"), advantage.scale_by("group", per="episode")],
        loss=[ratio.token(), surrogate.clip(low, high), *when(kl, penalty.kl("k3", kl))],
        reduce=reduce.mean_over_tokens(),
    )
