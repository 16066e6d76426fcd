"""Rewards of the outcome: scale, gates, votes, likelihoods, roles."""

import dataclasses
from typing import Any, Literal

import jax.numpy as jnp

from rljax import types
from rljax.transforms import define, modules, ops, trajectories
from rljax.transforms.frame import extras
from rljax.transforms.reward import shaping

Pair = tuple[float, float]
KEPT = ("paid", "step_end", "undistributed")  # arrays of ``extra`` that reward pieces write


def zscore(
    x: types.Array, r: types.Rollout, weight: types.Array, ddof: int, epsilon: types.NonNegative = 0.0
) -> types.Array:
    """Return (x - mean) / (std + epsilon) over the group's rows with weight.

    Args:
      x: ``[B]`` numbers.
      r: the rows.
      weight: ``[B]``, above 0 on the rows that count.
      ddof: degrees of freedom that the standard deviation subtracts.
      epsilon: added to the standard deviation.

    Returns:
      ``[B]``; 0 without spread, and on rows without weight.
    """
    mean, std = ops.segment_mean(x, r.group, weight), ops.segment_std(x, r.group, weight, ddof)
    return jnp.where((weight > 0) & (std > ops.FLAT), shaping.over(x - mean, std + epsilon), 0.0)


@define.reward
def affine(r, scale: types.Number = 1.0, bias: types.Number = 0.0, limit: types.Cap = float("inf")) -> types.Rollout:
    """Rescale and clip the row's reward: clip((r + bias) scale, -limit, limit).

    Args:
      scale: factor.
      bias: added before the factor.
      limit: bound of the result's absolute value.
    """
    return trajectories.replaced(r, jnp.clip((trajectories.uncharged(r) + bias) * scale, -limit, limit))


@define.reward(needs=types.Needs(domains=True))
def by_domain(r, scale: tuple[types.Number, ...]) -> types.Rollout:
    """Multiply the row's reward by the scale of its domain: rewards of several tasks in one unit.

    The scale by task of InternBootCamp and Intern-S1 (arXiv 2508.15763); ``in_domains`` gives a domain a reward of its
    own. Differs from ``advantage.scale_by_task``, whose scale is the spread of the domain.

    Args:
      scale: one of each domain, which may be a schedule; rows of a domain without one make the loss nan, and the step
        is refused.
    """
    return trajectories.replaced(r, trajectories.uncharged(r) * trajectories.of_domain(r, scale))


@define.constructor("reward")
def in_domains(domains: tuple[int, ...], piece: types.RolloutTransform) -> types.RolloutTransform:
    """Apply a reward piece to the rows of some domains alone; the others keep their reward and do not count in it.

    The mixture of rewards of Intern-S1 (arXiv 2508.15763): each kind of task is paid by a verifier or a model of its
    own, ``in_domains((1,), learned(("reward",)))``. Differs from ``by_domain``, which scales.

    Args:
      domains: numbers of the task's domains, from 0 on.
      piece: of the seam ``reward``.
    """
    if not domains or min(domains) < 0:
        raise ValueError(f"in_domains(domains={domains}): expected numbers from 0 on, at least one")

    def apply(r: types.Rollout, state, key):
        of = ops.given(r.domain, "in_domains: the rollout has no domain")
        inside = jnp.isin(of, jnp.asarray(domains, of.dtype))
        new, state = piece.apply(trajectories.only(r, inside), state, key)

        def pick(x, y) -> Any:
            if x is None and y is None:
                return None
            x, y = (jnp.zeros_like(r.mask) if z is None else z for z in (x, y))
            return jnp.where(inside if x.ndim == 1 else inside[:, None], x, y)

        tokens = pick(new.token_reward, r.token_reward)
        before = {"paid": r.token_reward, "step_end": r.extra.get("paid", r.token_reward)}
        before = {**before, "undistributed": trajectories.uncharged(r), **r.extra}
        new = extras.put(new, {name: pick(x, before[name]) for name, x in new.extra.items() if name in KEPT})
        reward, valid = pick(new.reward, r.reward), pick(ops.valid_rows(new), ops.valid_rows(r))
        return new.replace(mask=r.mask, reward=reward, token_reward=tokens, valid=valid), state

    return dataclasses.replace(piece, apply=apply, needs=piece.needs | types.Needs(domains=True))


@define.reward
def outcome(
    r, correct: types.Number = 1.0, wrong: types.Number = 0.0, unparseable: types.Number | None = None
) -> types.Rollout:
    """Set the reward by the verifier's outcome; ``unparseable`` None is ``wrong``. NFT (1, -1), ReLIFT (1, 0, -1).

    Args:
      correct: reward of a correct row, and of one that the verifier did not judge if its reward is above 0.
      wrong: reward of a wrong row, a timeout or a crash.
      unparseable: reward of an unreadable answer; None: ``wrong``.
    """
    verdict, unread = shaping.field(r, "outcome"), wrong if unparseable is None else unparseable
    failed = jnp.where(verdict == types.Outcome.UNPARSEABLE, unread, wrong)
    return trajectories.replaced(r, jnp.where(trajectories.correct(r), correct, failed).astype(r.reward.dtype))


@define.reward
def unparseable(r, value: types.Number = -0.5) -> types.Rollout:
    """Set the reward of rows whose answer could not be read to ``value``; other rows are unchanged."""
    unread = shaping.field(r, "outcome") == types.Outcome.UNPARSEABLE
    return shaping.pay_instead(r, unread, jnp.full_like(r.reward, value))


@define.reward(needs=lambda a: define.reads(a["part"]))
def require(r, part: str, threshold: types.Number = 0.5, otherwise: types.Number = 0.0) -> types.Rollout:
    """Keep the reward where part >= threshold, else pay ``otherwise``; several are a cascade. Cf. ``gated``: tokens.

    Args:
      part: name of the part.
      threshold: smallest value that keeps the reward.
      otherwise: reward of the other rows.
    """
    return shaping.pay_instead(r, ops.part(r, part) < threshold, jnp.full_like(r.reward, otherwise))


@define.reward(needs=lambda a: define.reads(a["name"]))
def mix_part(r, name: str, alpha: types.Fraction) -> types.Rollout:
    """Mix the reward with a part: alpha r + (1 - alpha) part. Source: RLSP (2025)."""
    return trajectories.replaced(r, alpha * trajectories.uncharged(r) + (1 - alpha) * ops.part(r, name))


@define.reward(needs=lambda a: define.reads(a["name"]))
def charge(r, name: str, price: types.Number) -> types.Rollout:
    """Charge a part, such as a cost: r - price part. With ``schedule.multiplier`` for the price: RCPO (1805.11074).

    Differs from ``add_parts`` by one part, whose factor may move.
    """
    return trajectories.replaced(r, trajectories.uncharged(r) - price * ops.part(r, name))


@define.reward(needs=lambda a: define.reads(*shaping.part_names(a["weights"]), siblings=True))
def decoupled(
    r, weights: tuple[tuple[str, float], ...], epsilon: types.NonNegative = 1e-6, ddof: int = 1
) -> types.Rollout:
    """Pay z-scores of parts in the group: sum_k w_k (part_k - mean_k) / (std_k + epsilon). GDPO (arXiv 2601.05242).

    Args:
      weights: (name of a part, weight) pairs.
      epsilon: added to the standard deviation.
      ddof: subtracted from the count in the variance.
    """
    scores = (w * zscore(ops.part(r, k), r, trajectories.once(r), ddof, epsilon) for k, w in weights)
    return trajectories.replaced(r, sum(scores, jnp.zeros_like(r.reward)))


@define.reward(needs=lambda a: define.reads(a["part"]))
def exponential_distance(r, part: str, alpha: types.NonNegative) -> types.Rollout:
    """Pay closeness: exp(-alpha |part|), the part a distance in any unit. Source: Time-R1 (2025)."""
    return trajectories.replaced(r, jnp.exp(-alpha * jnp.abs(ops.part(r, part))))


def _readable(r: types.Rollout):
    """Return [B], 1 on valid rows with an answer: all of them where the verifier reports no outcome."""
    valid = ops.valid_rows(r)
    return valid if r.outcome is None else jnp.where(r.outcome == types.Outcome.UNPARSEABLE, 0.0, valid)


def _agreement(r: types.Rollout, score, answer):
    """Return [B], 1 on readable rows whose answer has their group's best total score; the smallest of equal ones."""
    readable = _readable(r)
    total = ops.segment_total(score * trajectories.once(r, readable), ops.dense(r.group, answer))
    best = shaping.largest(jnp.where(readable > 0, total, 0.0), r)
    best = best * (1 - 1e-5)  # sums in another order differ by rounding
    number = answer.astype(total.dtype)
    winner = -shaping.largest(jnp.where((readable > 0) & (total >= best), -number, -jnp.inf), r)
    return jnp.where((readable > 0) & (number == winner), 1.0, 0.0)


@define.reward(needs=define.reads("answer", siblings=True))
def majority_vote(r) -> types.Rollout:
    """Pay agreement with the group's most frequent answer: 1[answer = majority] (part "answer", an id).

    Unparseable rows do not vote and are paid 0; of equally frequent answers the smallest id wins. Source: MM-UPT (arXiv
    2505.22453), whose release also counts "no answer" as one.
    """
    score = jnp.ones_like(r.reward)
    return trajectories.replaced(r, _agreement(r, score, ops.part(r, "answer").astype(r.group.dtype)))


@define.reward(needs=lambda a: define.reads("answer", siblings=True) | types.Needs(agents=a["models"] > 1))
def collective_vote(r, models: types.Count) -> types.Rollout:
    """Pay agreement with argmax_a sum_m SC_m n_m(a), n_m(a) the votes of model m in the group. RLCCF (2025).

    SC_m is the share of model m's readable rows that agree with its own majority; a row's model is its agent modulo
    ``models``. Unparseable rows do not vote and are paid 0. One model is ``majority_vote``.
    """
    readable, answer = _readable(r), ops.part(r, "answer").astype(r.group.dtype)
    model = ops.dense(r.group, (r.group if models == 1 else shaping.field(r, "agent")) % models)
    once = trajectories.once(r, readable)
    votes = ops.segment_total(once, ops.dense(model, answer))
    most = shaping.largest(jnp.where(readable > 0, votes, 0.0), r, model)
    return trajectories.replaced(r, _agreement(r, shaping.over(most, ops.segment_total(once, model)), answer))


@define.reward(needs=define.reads(extra=("reference_answer",)))
def reference_likelihood(r) -> types.Rollout:
    """Pay exp(sum_t log pi(y*_t)) over trained tokens with extra["reference_answer"] 1; 0 without such a token.

    Source: VeriFree (arXiv 2505.21493).
    """
    answer = r.mask * ops.extra(r, "reference_answer")
    paid = jnp.exp(ops.row_sum(shaping.field(r, "raw_logp"), answer)[:, 0])
    return trajectories.replaced(r, jnp.where(jnp.any(answer > 0, axis=1), paid, 0.0))


def _row_max(x, mask):
    top = jnp.max(jnp.where(mask > 0, x, -jnp.inf), axis=1)
    return jnp.where(top > -jnp.inf, top, 0.0)


@define.reward(
    needs=lambda a: modules.needs(a["module"], field="logp") | modules.needs(a["module"], field="after_logp")
)
def student_likelihood(
    r,
    module: str = "student",
    solution: Pair = (1.0, 0.01),
    thought: Pair = (3.0, 0.03),
    malformed: types.Number = -1.0,
) -> types.Array:
    """Pay a teacher by its student: a mean(s) + b min(s) - (c mean(d) + e max(d)). RLT (arXiv 2506.08388).

    s = log pi_student on the tokens of the solution behind the row, (a, b) = ``solution``; d = log pi - log pi_student
    on the row's trained tokens, (c, e) = ``thought``. The student reads the task's own prompt and the solution, the
    teacher a prompt that shows it: ``rlt``. Unparseable rows get ``malformed``.

    Args:
      module: the student, a name of ``config.module``.
      solution: (a, b), weights of the student's log-probs.
      thought: (c, e), weights of the gap to the student.
      malformed: reward of unparseable rows.
    """
    solved, there = (modules.score(r, module, name) for name in ("after_logp", "after_mask"))
    gap = shaping.field(r, "raw_logp") - modules.score(r, module, "logp")
    gain = solution[0] * ops.row_mean(solved, there)[:, 0] - solution[1] * _row_max(-solved, there)
    paid = gain - thought[0] * ops.row_mean(gap, r.mask)[:, 0] - thought[1] * _row_max(gap, r.mask)
    return jnp.where(shaping.field(r, "outcome") == types.Outcome.UNPARSEABLE, malformed, paid)


def _voting(a) -> types.Needs:
    of_groups = a["key"] == "group"
    return define.reads("votes", siblings=of_groups) | types.Needs(agents=True) | ops.key_needs(a["key"])


@define.reward(needs=_voting)
def zero_sum_votes(
    r, beta: types.NonNegative = 0.1, lam: types.NonNegative = 0.1, key: Literal["group", "episode"] = "group"
) -> types.Rollout:
    """Pay the spy -beta Psi, each of n civilians beta Psi / n - lam (votes on it - the civilians' mean), by game.

    Psi = votes on the spy (agent 0) - mean votes on civilians, the part "votes"; 0 where either is missing. Votes on
    k spies are averaged and civilians get k beta Psi / n, so that the sum is 0. Vision-Zero (arXiv 2509.25541).

    Args:
      beta: weight of Psi.
      lam: weight of a civilian's votes.
      key: ids whose equality makes a game.
    """
    spy, votes, valid = shaping.field(r, "agent") == 0, ops.part(r, "votes"), ops.valid_rows(r)
    game, once = ops.segments(r, key), trajectories.once(r)
    spies, civilians = jnp.where(spy, once, 0.0), jnp.where(spy, 0.0, once)
    k, n = ops.segment_total(spies, game), ops.segment_total(civilians, game)
    mean = ops.segment_mean(votes, game, civilians)
    psi = jnp.where(jnp.minimum(k, n) > 0, ops.segment_mean(votes, game, spies) - mean, 0.0)
    paid = jnp.where(spy, -beta * psi, shaping.over(beta * k * psi, n) - lam * (votes - mean))
    return trajectories.replaced(r, jnp.where(valid > 0, paid, 0.0))
