"""Reductions: the constant coefficient of every token, computed on the whole minibatch.

loss = sum over terms, rows and tokens of term * coefficient. A coefficient is 0 on masked tokens and on
invalid rows; a term uses the common one unless its penalty names another.
"""

from typing import Any, Literal

import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define, ops, trajectories


def _trained(mask):
    return jnp.any(mask > 0, axis=1).astype(mask.dtype)


def _rollouts(r: types.Rollout, mask):
    """Return the number of trajectories with a trained token."""
    return jnp.maximum(jnp.sum(trajectories.once(r, _trained(mask))), 1.0)


def _share(mask):
    return mask / jnp.maximum(jnp.sum(mask), 1.0)


def _distinct(ids, mask):
    """Return how many of the segments ``ids`` [B] have a trained token."""
    return jnp.maximum(jnp.sum(ops.segment_first(ids, _trained(mask))), 1.0)


def _tokens_of(ids, mask):
    """Return the number of tokens of each row's segment, [B, 1]."""
    return jnp.maximum(ops.segment_total(jnp.sum(mask, axis=1), ids), 1.0)[:, None]


@define.reduce
def mean_over_tokens(r, mask, only: types.Predicate | None = None) -> types.Array:
    """Average over all tokens of the minibatch: m_t / sum m (DAPO, arXiv 2503.14476, section 3.3).

    ``only`` averages over the tokens that satisfy it (``transforms.where``) and leaves out the others.
    """
    return _share(mask if only is None else jnp.where(transforms.PREDICATES[only](r), mask, 0.0))


@define.reduce
def mean_over_tokens_by(r, mask, predicate: types.Predicate) -> types.Array:
    """Average over the tokens that satisfy ``predicate``, and over the others, and add (OREAL, 2502.06781)."""
    where = transforms.PREDICATES[predicate](r)
    return _share(jnp.where(where, mask, 0.0)) + _share(jnp.where(where, 0.0, mask))


@define.reduce
def mean_over_rows(
    r, mask, empty: Literal["skip", "count"] = "skip", per: Literal["trajectory", "row"] = "trajectory"
) -> types.Array:
    """Average over rows of token means: m_t / (|y_i| n) (GRPO, arXiv 2402.03300, eq. 3).

    n counts the rows with a trained token ("skip": OpenRLHF, Tunix) or all valid ones ("count": TRL, verl). Short
    rows' tokens weigh more.

    Args:
      empty: whether rows without a trained token count.
      per: "trajectory": an agent's rows of an episode share the weight of one, so that episodes of many rows do not
        weigh more; "row": each row has it.
    """
    counted, tokens = _trained(mask) if empty == "skip" else ops.valid_rows(r), jnp.sum(mask, axis=1, keepdims=True)
    if per == "row" or r.episode is None:
        return mask / jnp.maximum(tokens, 1.0) / jnp.maximum(jnp.sum(counted), 1.0)
    rows = jnp.maximum(ops.segment_total(counted, trajectories.ids(r)), 1.0)[:, None]
    return mask / jnp.maximum(tokens, 1.0) / (rows * jnp.maximum(jnp.sum(trajectories.once(r, counted)), 1.0))


@define.reduce
def mean_over_rows_of_sums(r, mask) -> types.Array:
    """Average over rollouts of token sums: m_t / n, the gradient of the expected return.

    n counts an agent's rows of an episode once: where an episode has several, it is the episode's return. With
    ``ratio.sequence`` it is LUSPO's length-scaled mean (arXiv 2602.05261).
    """
    return mask / _rollouts(r, mask)


@define.reduce
def fixed_length(r, mask, length: types.Positive | None = None) -> types.Array:
    """Divide by a constant length: m_t / (n length) (Dr. GRPO, arXiv 2503.20783, section 3.2).

    ``length`` in tokens; None is the width of the record, which is the sampler's limit.
    """
    return mask / _rollouts(r, mask) / (mask.shape[1] if length is None else length)


@define.reduce
def sum_over_tokens(r, mask, divisor: types.Positive = 1.0) -> types.Array:
    """Sum all tokens and divide by a constant: m_t / divisor."""
    return mask / divisor


@define.reduce
def mean_over_prompts(r, mask) -> types.Array:
    """Average over prompts of the token mean over all rows of the prompt (SkyRL, ScaleRL).

    Equals ``mean_over_tokens`` when prompts have equally many tokens.
    """
    return mask / _tokens_of(r.group, mask) / _distinct(r.group, mask)


def _episodes(r: types.Rollout):
    return ops.given(r.episode, "reduce: the rollout has no episode")


@define.reduce(needs=types.Needs(episodes=True))
def mean_over_episodes(r, mask, count: Literal["episodes", "rows"] = "episodes") -> types.Array:
    """Average over episodes of the token mean over all their rows (Delethink, arXiv 2510.06557).

    ``count`` "rows" divides by the number of trained rows instead (Agent Lightning, arXiv 2508.03680), so that an
    episode of many rows weighs less. With one row an episode it is ``mean_over_rows``.
    """
    number = _distinct(_episodes(r), mask) if count == "episodes" else jnp.maximum(jnp.sum(_trained(mask)), 1.0)
    return mask / _tokens_of(_episodes(r), mask) / number


@define.reduce(needs=types.Needs(turns=True))
def mean_over_turns(r, mask) -> types.Array:
    """Average over tokens of a turn, then turns of an episode, then episodes (WebAgent-R1, arXiv 2505.16421).

    With one turn and one row an episode it is ``mean_over_rows``.
    """
    keys: types.Segments = ("episode", "turn") if r.agent is None else ("episode", "agent", "turn")
    tokens = jnp.maximum(ops.segment_total(mask, ops.segments(r, keys)), 1.0)
    # each token is 1 / tokens of a turn: their sum over the episode is its number of turns
    return mask / tokens / _tokens_of(_episodes(r), mask / tokens) / _distinct(_episodes(r), mask)


@define.reduce
def mean_over_first_tokens(r, mask) -> types.Array:
    """Average over rows of their first token alone, as for a value of the prompt."""
    return ops.first_token(mask) / jnp.maximum(jnp.sum(_trained(mask)), 1.0)


def __getattr__(name: str) -> Any:
    return transforms.piece("reduce", name)
