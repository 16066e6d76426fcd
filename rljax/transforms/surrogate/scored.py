"""Surrogates of a reward model: of the scalar at the end of a row or of a step, or of a language model.

The loss of a row is written on each of its tokens, so that ``reduce.mean_over_rows`` counts it once.
"""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.language import errors
from rljax.transforms import define, ops, trajectories
from rljax.transforms.surrogate import row

_NEEDS = types.Needs(reward=True)
_PAIRS = types.Needs(whole="group", siblings=True)


def _learned(s: types.Scores):
    if s.reward is None:
        raise errors.Absent("it needs scores.reward, the scalar at the end of each row")
    return s.reward


def _implied(r: types.Rollout, s: types.Scores, beta):
    return beta * ops.row_sum(row.to_reference(r, s), r.mask)[:, 0]


def _on_tokens(x, r: types.Rollout):
    return x[:, None] * jnp.ones_like(r.mask)


def _ranking(learned, r: types.Rollout, margin, ties, center):
    """Return the loss of ``bradley_terry`` for the learned rewards [B], and its metrics."""
    reward = trajectories.total(r)
    counts = jnp.where(jnp.any(r.mask > 0, axis=1), ops.valid_rows(r), 0.0)
    apart = (r.group[:, None] == r.group[None, :]) & ~jnp.eye(reward.size, dtype=bool)
    pair = jnp.where(apart, counts[:, None] * counts[None, :], 0.0)
    gap, d = reward[:, None] - reward[None, :], learned[:, None] - learned[None, :]
    threshold = 0.0 if ties is None else ties
    value = jnp.where(gap > 0, -jax.nn.log_sigmoid(d - margin * gap - threshold), 0.0)
    value += jnp.where(gap < 0, -jax.nn.log_sigmoid(-d + margin * gap - threshold), 0.0)
    if ties is None:
        pair = jnp.where(gap != 0, pair, 0.0)
    else:
        # 1 - sigmoid(d - t) - sigmoid(-d - t) = (exp(2 t) - 1) sigmoid(d - t) sigmoid(-d - t)
        tie = -jnp.log(jnp.expm1(2 * ties)) - jax.nn.log_sigmoid(d - ties) - jax.nn.log_sigmoid(-d - ties)
        value = jnp.where(gap == 0, tie, value)
    value += center * (learned[:, None] + learned[None, :]) ** 2
    of_row = jnp.sum(jnp.where(pair > 0, value, 0.0), axis=1)
    pairs, rows = (ops.segment_total(x, r.group) for x in (jnp.sum(pair, axis=1), counts))
    right = jnp.sum(jnp.where(gap * d > 0, pair, 0.0), axis=1)
    share = jnp.where(pairs > 0, rows / jnp.where(pairs > 0, pairs, 1.0), 0.0)
    return _on_tokens(of_row * share, r), {"ranked": _on_tokens(right * share, r)}


@define.surrogate(needs=_NEEDS | _PAIRS, term="reward")
def bradley_terry(
    loss, r, s, margin: types.NonNegative = 0.0, ties: types.Positive | None = None, center: types.NonNegative = 0.0
) -> tuple[types.Array, types.Metrics]:
    """Rank every pair of a group by its rewards: -log sigmoid(R_i - R_j - margin (r_i - r_j)) where r_i > r_j.

    The loss is the mean over the pairs of a group, and then over groups, as the paper of InstructGPT (arXiv 2203.02155,
    eq. 1) weighs the K (K - 1) / 2 pairs of a prompt; groups without a pair count 0, unless ``prepare.drop_unpaired``
    leaves them out, as in the recipes. Margin: Llama 2 (arXiv 2307.09288, eq. 2). With ``ties`` = t, pairs of equal
    rewards count by -log P(tie) of the model of Rao and Kupper (1967), as in arXiv 2410.05328, in which P(i over j) =
    sigmoid(d - t), d = R_i - R_j, and P(tie) = 1 - sigmoid(d - t) - sigmoid(-d - t). ``center`` adds
    center (R_i + R_j)^2, which fixes the constant that pairs leave open (arXiv 2312.09244).

    Args:
      margin: by how much R must differ for a difference of 1 in the reward.
      ties: the threshold t above 0, in units of R; None: equal rewards are no pair.
      center: coefficient of the squared sum of a pair.
    """
    return _ranking(_learned(s), r, margin, ties, center)


@define.surrogate(needs=_NEEDS, term="reward")
def reward_error(loss, r, s) -> types.Array:
    """Regress the learned reward onto the row's: (R - r)^2 / 2."""
    return _on_tokens(0.5 * (_learned(s) - trajectories.total(r)) ** 2, r)


@define.surrogate(needs=types.Needs(reference=True), term="reward")
def implicit_outcome(loss, r, s, beta: types.Positive = 0.05) -> tuple[types.Array, types.Metrics]:
    """Train a language model as a reward model: BCE of "the row is right" and sigmoid(R), R = beta sum log(pi / ref).

    Each token's share of R is then a process reward, though only outcomes were labels. Source: PRIME (arXiv
    2502.01456, eq. 4 and 5, the cross-entropy loss).

    Args:
      beta: scale of the log-ratio.
    """
    learned = _implied(r, s, beta)
    sign = jnp.where(trajectories.correct(r), 1.0, -1.0)
    return _on_tokens(-jax.nn.log_sigmoid(sign * learned), r), {
        "classified": _on_tokens(jnp.where(sign * learned > 0, 1.0, 0.0), r)
    }


@define.surrogate(needs=types.Needs(reference=True) | _PAIRS, term="reward")
def implicit_bradley_terry(
    loss,
    r,
    s,
    beta: types.Positive = 1.0,
    margin: types.NonNegative = 0.0,
    ties: types.Positive | None = None,
    center: types.NonNegative = 0.0,
) -> tuple[types.Array, types.Metrics]:
    """Rank pairs as ``bradley_terry`` does, with R = beta sum log(pi / ref) of a language model.

    The loss of DPO (arXiv 2305.18290, eq. 7), of a module that only scores rows; a reward model of this form is in Yuan
    et al. (arXiv 2412.01981). The equation is written from memory.

    Args:
      beta: scale of the log-ratio.
      margin: by how much R must differ for a difference of 1 in the reward.
      ties: the threshold t above 0, in units of R; None: equal rewards are no pair.
      center: coefficient of the squared sum of a pair.
    """
    return _ranking(_implied(r, s, beta), r, margin, ties, center)


@define.surrogate(needs=types.Needs(value=True), term="reward")
def token_outcome(loss, r, s) -> tuple[types.Array, types.Metrics]:
    """Explain the outcome by the mean of a score at every token: BCE of "the row is right" and sigmoid(mean_t w_t).

    w_t is the scalar before token t, ``Scores.value``. Source: the token-level reward model of OREAL (arXiv
    2502.06781), as its released code has it; ``weight.token_scores`` reads the scores. Differs from ``ordinal`` by
    scores that share the credit among the tokens.
    """
    if s.value is None:
        raise errors.Absent("it needs scores.value, the scalar before each token")
    sign = jnp.where(trajectories.correct(r), 1.0, -1.0)
    logit = sign * ops.row_mean(s.value, r.mask)[:, 0]
    return _on_tokens(-jax.nn.log_sigmoid(logit), r), {"classified": _on_tokens(jnp.where(logit > 0, 1.0, 0.0), r)}


def _levels(a) -> types.Needs:
    if not a["levels"]:
        raise ValueError("ordinal: levels=() must have at least one number")
    if a["cuts"] is not None and len(a["cuts"]) != len(a["levels"]):
        raise ValueError(f"ordinal: cuts={a['cuts']} must be as many as levels={a['levels']}")
    return _NEEDS


@define.surrogate(needs=_levels, term="reward")
def ordinal(
    loss, r, s, levels: tuple[float, ...] = (0.5,), cuts: tuple[float, ...] | None = None
) -> tuple[types.Array, types.Metrics]:
    """Classify rows by ordered levels: sum_k BCE([r > level_k], sigmoid(R - cut_k)), the cumulative logit model.

    Source: McCullagh (1980). With one level it is logistic regression on "the reward is above it", as reward models of
    right and wrong answers are trained (Cobbe et al., arXiv 2110.14168).

    Args:
      levels: rewards between the classes, increasing.
      cuts: the learned reward at which each level is as likely exceeded as not; None: 0, 1, 2, ...
    """
    at = range(len(levels)) if cuts is None else cuts
    above = trajectories.total(r)[:, None] > jnp.asarray([levels])
    logit = _learned(s)[:, None] - jnp.asarray([at], r.mask.dtype)
    value = -jnp.where(above, jax.nn.log_sigmoid(logit), jax.nn.log_sigmoid(-logit))
    right = jnp.mean((logit > 0) == above, axis=1)
    return _on_tokens(jnp.sum(value, axis=1), r), {"classified": _on_tokens(right, r)}


@define.surrogate(needs=types.Needs(process=True, token_reward=True), term="reward")
def step_labels(loss, r, s) -> tuple[types.Array, types.Metrics]:
    """Classify steps: BCE([r_t > 0], sigmoid(z_t)) at the last token t of each step.

    z_t is the scalar after token t, and the token reward r_t the label: right above 0, wrong below. Source: Let's
    verify step by step (arXiv 2305.20050), whose labels come from people; Uesato et al. (arXiv 2211.14275). Tokens
    without a label have no loss; ``prepare.step_ends`` drops them from the mean.
    """
    if s.process is None or r.token_reward is None:
        raise errors.Absent("it needs scores.process, the scalar after each token, and labels, rollout.token_reward")
    sign = jnp.sign(r.token_reward)
    value = -jax.nn.log_sigmoid(sign * s.process)
    return jnp.where(sign != 0, value, 0.0), {"classified": jnp.where(sign * s.process > 0, r.mask, 0.0)}
