"""What one player did in one episode, over one row or several: ids, totals, returns, statistics that count it once.

A trajectory is the rows that share ``Rollout.episode`` and ``Rollout.agent``, in the order of the batch; without
episodes each row is one. Its total is the reward of the row, which every row of an episode repeats, and everything that
was paid at tokens of any of its rows. With one row an episode all of this is what the row alone gives, bit for bit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import ops
from rljax.transforms.frame import extras

Array = types.Array


def ids(rollout: types.Rollout) -> Array:
    """Return [B] int32, equal on the rows of a trajectory."""
    if rollout.episode is None:
        return jnp.arange(rollout.mask.shape[0], dtype=jnp.int32)
    return rollout.episode if rollout.agent is None else ops.dense(rollout.episode, rollout.agent)


def peers(rollout: types.Rollout) -> Array:
    """Return [B] int32, equal on the rows of a group that one agent wrote.

    A baseline that must not depend on the row itself reads these alone: the reward of another agent of the same episode
    depends on it, and in a game of two players it is the row's own with the other sign.
    """
    return rollout.group if rollout.agent is None else ops.dense(rollout.group, rollout.agent)


def of_domain(rollout: types.Rollout, values: tuple[types.Number, ...]) -> Array:
    """Return the value of each row's domain, ``[B]``; nan where the domain has none."""
    table = jnp.stack([jnp.asarray(v, rollout.mask.dtype) for v in values])
    domain = ops.given(rollout.domain, "by_domain: the rollout has no domain")
    return jnp.take(table, domain, mode="fill", fill_value=jnp.nan)


def on_policy(rollout: types.Rollout) -> Array:
    """Return [B], 1 on rows that the policy sampled: ``on_policy``, or 1 on all rows where the rollout has none."""
    return jnp.ones_like(rollout.mask[:, 0]) if rollout.on_policy is None else rollout.on_policy


def summed(rollout: types.Rollout, x: Array) -> Array:
    """Return the sum of ``x`` [B] over the valid rows of each trajectory, at every row of it."""
    if rollout.episode is None:
        return x
    valid = ops.valid_rows(rollout)
    return jnp.where(valid > 0, ops.segment_total(jnp.where(valid > 0, x, 0.0), ids(rollout)), x)


def total(rollout: types.Rollout) -> Array:
    """Return [B], the row's reward and all that was paid at tokens of its trajectory.

    ``interpreter.transform`` leaves it in extra["total"], since a loss sees a part of the rows.
    """
    if "total" in rollout.extra or rollout.token_reward is None:
        return rollout.extra.get("total", ops.reward(rollout))
    return ops.reward(rollout) + summed(rollout, ops.row_sum(rollout.token_reward, rollout.mask)[:, 0])


def uncharged(rollout: types.Rollout) -> Array:
    """Return [B], ``total`` without what ``reward.kl`` has charged, for a sign that says whether the answer is right.

    ``interpreter.transform`` leaves it in extra["uncharged"].
    """
    paid = rollout.extra.get("paid", rollout.token_reward)
    if "uncharged" in rollout.extra or paid is None:
        return rollout.extra.get("uncharged", ops.reward(rollout))
    return ops.reward(rollout) + summed(rollout, ops.row_sum(paid, rollout.mask)[:, 0])


def outcome(rollout: types.Rollout) -> Array:
    """Return [B], the row's reward without what its tokens are paid; 1 where it is 0 and the row is correct.

    Rows of a world are paid at tokens alone, and their reward is 0: then the verdict says how the episode ended.
    """
    if rollout.outcome is None or rollout.token_reward is None:
        return ops.reward(rollout)
    won = (ops.reward(rollout) == 0) & (rollout.outcome == types.Outcome.CORRECT)
    return jnp.where(won, jnp.ones_like(rollout.reward), rollout.reward)


def replaced(rollout: types.Rollout, reward: Array) -> types.Rollout:
    """Return a rollout whose ``total`` is ``reward`` [B], equal on the rows of a trajectory; charges stay."""
    paid = rollout.extra.get("paid")
    if rollout.token_reward is None or paid is None:
        return rollout.replace(reward=reward, token_reward=None)
    rollout = rollout.replace(reward=reward, token_reward=rollout.token_reward - paid)
    return extras.put(rollout, {"paid": jnp.zeros_like(paid)})


def repaid(rollout: types.Rollout, paid: Array) -> types.Rollout:
    """Return a rollout whose tokens are paid ``paid`` [B, T] in place of what they were; charges stay."""
    before = rollout.extra.get("paid")
    if rollout.token_reward is None or before is None:
        return rollout.replace(token_reward=paid)
    return extras.put(rollout.replace(token_reward=rollout.token_reward - before + paid), {"paid": paid})


def scored(rollout: types.Rollout, reward: Array, usable: Array) -> types.Rollout:
    """Return ``replaced`` with scores of a model: rows that are not ``usable``, bool [B], are invalid."""
    rollout = replaced(rollout, jnp.where(usable, reward, 0.0))
    return rollout.replace(valid=jnp.where(usable, ops.valid_rows(rollout), 0.0))


def spread(rollout: types.Rollout) -> Array:
    """Return [B], the standard deviation of the rewards of the row's group, charges aside; of rows that count."""
    return ops.segment_std(uncharged(rollout), rollout.group, once(rollout))


def flat(rollout: types.Rollout) -> Array:
    """Return bool [B], whether the rewards of the row's group are equal."""
    return spread(rollout) <= ops.FLAT


def correct(rollout: types.Rollout) -> Array:
    """Return bool [B]: the verifier's outcome, or a total reward above 0 where it gave none (``UNJUDGED``)."""
    if rollout.outcome is None:
        return uncharged(rollout) > 0
    unjudged = (rollout.outcome == types.Outcome.UNJUDGED) & (uncharged(rollout) > 0)
    return unjudged | (rollout.outcome == types.Outcome.CORRECT)


def prefixes(rollout: types.Rollout, x: Array) -> tuple[Array, Array]:
    """Return the mean of a number over the rows of a group that begin alike, and how many they are.

    A row that continues a trajectory begins where no other row does.

    Args:
      rollout: the rows, with ``action``; invalid ones do not count.
      x: ``[B]``, a number of each row.

    Returns:
      ``[B, T]`` each: at a token, of the rows that have the same tokens up to it, tool output among them. After the
      last trained token they stay as they were.

    Raises:
      ValueError: the rollout has no tokens.
    """
    if rollout.action is None:
        raise ValueError("prefixes: the rollout has no action")
    token = rollout.action.token
    runs, valid = jnp.cumsum(rollout.mask[:, ::-1], axis=1)[:, ::-1] > 0, ops.valid_rows(rollout)

    def step(carry: tuple[Array, ...], column: tuple[Array, Array]):
        (ids, mean, count), (t, inside) = carry, column
        ids = ops.dense(ids, jnp.where(inside, 1, 0), jnp.where(inside, t, 0))
        mean = jnp.where(inside, ops.segment_mean(x, ids, valid), mean)
        count = jnp.where(inside, ops.segment_total(valid, ids), count)
        return (ids, mean, count), (mean, count)

    alone = (once(rollout) == 0) & (valid > 0)
    group = ops.dense(rollout.group, jnp.where(alone, jnp.arange(1, valid.size + 1), 0))
    start = group, ops.segment_mean(x, group, valid), ops.segment_total(valid, group)
    mean, count = jax.lax.scan(step, start, (token.T, runs.T))[1]
    return mean.T, count.T


def once(rollout: types.Rollout, weight: Array | None = None) -> Array:
    """Return [B], ``weight`` (None: 1 on valid rows) on the first row with weight of each trajectory, 0 on others."""
    weight = ops.valid_rows(rollout) if weight is None else weight
    return weight if rollout.episode is None else ops.segment_first(ids(rollout), weight)


def last(rollout: types.Rollout) -> Array:
    """Return bool [B], the last row with trained tokens of each trajectory; all rows where their tokens are not paid.

    Rows whose tokens are not paid are judged as wholes, see ``_linked``.
    """
    if rollout.episode is None or rollout.token_reward is None:
        return jnp.ones_like(rollout.mask[:, 0], bool)
    counted = ops.valid_rows(rollout) * jnp.max(rollout.mask, axis=1)
    return ops.segment_first(ids(rollout)[::-1], counted[::-1])[::-1] > 0


def drawn(rollout: types.Rollout) -> Array:
    """Return [B, T], the mask of the rows whose log-probs at sampling are known; all of a demonstration are 0."""
    if rollout.raw_logp is None:
        return rollout.mask
    shown = jnp.all((rollout.raw_logp == 0) | (rollout.mask <= 0), axis=1) & (on_policy(rollout) == 0)
    return jnp.where(shown[:, None], 0.0, rollout.mask)


def to_reference(rollout: types.Rollout, piece: str, other: Array | None = None) -> Array:
    """Return log pi - log ref at sampling, unfiltered, ``[B, T]``; 0 on demonstrations, whose log pi is not known.

    Args:
      rollout: the rows.
      piece: its name, for the error.
      other: log-probs ``[B, T]`` of another policy, in place of the reference's.

    Raises:
      ValueError: a log-prob is absent, or rows are trained under another prompt than they were sampled under: log pi is
        under the one, log ref under the other. ``piece`` is named.
    """
    if rollout.context is not None and rollout.context.train_token is not None:
        raise ValueError(
            f"{piece}: the source trains rows under another prompt than they were sampled under, and the log-probs at "
            "sampling are not comparable with the reference's, which are under the prompt of training. Leave it "
            "out, as a recipe does if its coefficient is 0, or use a KL in the loss: config.seam.penalty='+ kl()'."
        )
    reference = ops.given(rollout.ref_logp if other is None else other, f"{piece}: the rollout has no ref_logp")
    d = ops.given(rollout.raw_logp, f"{piece}: the rollout has no raw_logp") - reference
    return jnp.where(drawn(rollout) < rollout.mask, 0.0, d)


def _following(rollout: types.Rollout) -> tuple[Array, Array]:
    """Return [B], the next valid row of each row's trajectory or -1, and how many rows follow in the longest."""
    counted = ops.valid_rows(rollout) > 0
    number, place = ids(rollout), jnp.arange(rollout.mask.shape[0])
    order = jnp.lexsort((place, number, ~counted))  # rows that do not count stand last
    same = (number[order][1:] == number[order][:-1]) & counted[order][1:] & counted[order][:-1]
    after = jnp.concatenate([jnp.where(same, order[1:], -1), jnp.full((1,), -1, order.dtype)])
    rows = ops.segment_total(counted.astype(jnp.int32), number)
    return jnp.zeros_like(after).at[order].set(after), jnp.max(jnp.where(counted, rows, 1)) - 1


def _linked(rollout: types.Rollout, back: Callable[[Any], tuple[Any, Array]], end: Any) -> Array:
    """Run a recurrence from the last token of each trajectory to its first.

    Args:
      rollout: the rows.
      back: the recurrence within rows: takes what follows a row, a tree of ``[B]``, and returns (the same at the row's
        first token, the result ``[B, T]``).
      end: what follows a trajectory.

    Returns:
      The result. Rows whose tokens are not paid are judged as wholes: each of them is a trajectory here.
    """
    if rollout.episode is None or rollout.token_reward is None:
        return back(end)[1]
    following, count = _following(rollout)

    def earlier(_: Array, start: Any) -> Any:
        return jax.tree.map(lambda x, last: jnp.where(following >= 0, x[following], last), back(start)[0], end)

    return back(jax.lax.fori_loop(0, count, earlier, end))[1]


def _at_first(x: Array, mask: Array, end: Array) -> Array:
    """Return [B], ``x`` [B, T] at the first token with mask 1, or ``end`` where there is none."""
    return jnp.where(jnp.any(mask > 0, axis=1), ops.row_sum(x, ops.first_token(mask))[:, 0], end)


def token_rewards(rollout: types.Rollout) -> Array:
    """Return ``ops.token_rewards``, with the rows' reward, which all rows of a trajectory repeat, in its last row."""
    return ops.token_rewards(rollout.replace(reward=jnp.where(last(rollout), ops.reward(rollout), 0.0)))


def reward_to_go(
    rollout: types.Rollout, gamma: Array | float = 1.0, paid: Array | None = None, mask: Array | None = None
) -> Array:
    """Return ``ops.reward_to_go`` up to the end of the trajectory.

    Args:
      rollout: the rows.
      gamma: discount of a step, in [0, 1].
      paid: ``[B, T]``, the reward of each token; None: ``token_rewards``.
      mask: ``[B, T]``, 1 on the tokens that are steps; None: the mask of the rollout.

    Returns:
      ``[B, T]``, 0 where ``mask`` is 0.
    """
    paid, mask = token_rewards(rollout) if paid is None else paid, rollout.mask if mask is None else mask

    def back(end: Array) -> tuple[Array, Array]:
        out = ops.reward_to_go(paid, mask, gamma, end)
        return _at_first(out, mask, end), out

    return _linked(rollout, back, jnp.zeros_like(paid[:, 0]))


def gae(
    rollout: types.Rollout, paid: Array, value: Array, mask: Array, gamma: Array | float, lam: Array | float
) -> Array:
    """Return ``ops.gae`` over trajectories: the first value of the next row follows the last token of a row.

    Args:
      rollout: the rows.
      paid: ``[B, T]``, the reward of each token.
      value: ``[B, T]``, the critic's estimate before the token.
      mask: ``[B, T]``, 1 on the tokens that are steps.
      gamma: discount of a step, in [0, 1].
      lam: lambda, in [0, 1]; also ``[B]``, one for each row.

    Returns:
      ``[B, T]``, 0 where ``mask`` is 0.
    """

    def back(end: tuple[Array, Array]) -> tuple[tuple[Array, Array], Array]:
        out = ops.gae(paid, value, mask, gamma, lam, end)
        return (_at_first(value, mask, end[0]), _at_first(out, mask, end[1])), out

    zero = jnp.zeros_like(paid[:, 0])
    return _linked(rollout, back, (zero, zero))


def turns(rollout: types.Rollout) -> Array:
    """Return the mean number of turns of an episode, all of its agents together."""
    counted = ops.trained_tokens(rollout)
    if "written" in rollout.extra:  # other players too, in the episodes that count
        played = ops.segments(rollout, "episode")
        counts = ops.segment_total(jnp.any(counted > 0, axis=1).astype(counted.dtype), played) > 0
        counted = rollout.extra["written"] * counts[:, None]
    row = jnp.arange(counted.shape[0], dtype=jnp.int32)[:, None]
    turn = ops.dense(jnp.broadcast_to(row, counted.shape), ops.segments(rollout, "turn"))
    episode = ops.segment_first(ops.segments(rollout, "episode"), jnp.any(counted > 0, axis=1).astype(counted.dtype))
    return jnp.sum(ops.segment_first(turn, counted)) / jnp.maximum(jnp.sum(episode), 1.0)


def only(rollout: types.Rollout, rows: Array) -> types.Rollout:
    """Return the rollout in which those that are not among ``rows`` [B] bool have mask 0 and ``valid`` 0."""
    rows = rows.astype(rollout.mask.dtype)
    return rollout.replace(mask=rollout.mask * rows[:, None], valid=ops.valid_rows(rollout) * rows)
