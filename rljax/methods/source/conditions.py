"""Conditions: rows are trained under a text that says how good they are, and sampled under the best one."""

import jax.numpy as jnp

from rljax import types
from rljax.methods.source import retries
from rljax.transforms import define, ops, trajectories
from rljax.transforms.source import edits

Array = types.Array


@define.source
def conditioned(texts: tuple[str, ...]) -> types.Source:
    """Sample with the last text behind the prompt, and train each row with the text of its quantile there.

    Of n texts a row has number min(n - 1, floor(n b / (a + b))), of the step's valid rows b with a lower and a with a
    higher total reward: the best rows always have the last text, the worst the first, and all if they are equal. With
    the likelihood of all rows as the loss the policy learns what each text stands for. Source: Quark (arXiv
    2205.13636), whose quantiles are of all rows so far, and whose texts are new tokens; before it, return-conditioned
    policies (Decision Transformer, arXiv 2106.01345). Rows are sampled twice, and the first sample is dropped. A row
    with another text than the last has ``on_policy`` 0.

    Args:
      texts: from bad to good, all with equally many tokens.

    Raises:
      ValueError: fewer than two texts, or other numbers of tokens.
    """
    if len(texts) < 2:
        raise ValueError(f"conditioned: texts={texts}: expected at least two, from bad to good")

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        ids = [problems.encode(text) for text in texts]
        if len({*map(len, ids)}) > 1 or not ids[0]:
            raise ValueError(f"conditioned: texts={texts} have {[*map(len, ids)]} tokens: expected equally many")
        return {"texts": jnp.asarray(ids, jnp.int32)}

    def part(pool: types.Tree, problems: types.Problems, rollout: types.Rollout, solutions, sample, of):
        return [edits.text(problems, texts[-1])]

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        context, number = rollout.context, quantile(rollout, len(texts))
        if context is None:
            raise ValueError("conditioned: the rows have no prompts")
        end, edited = pool["texts"][number], ops.extra(rollout, "pass") > 0
        retold = jnp.concatenate([context.token[:, : -end.shape[1]], end], axis=1)
        token = jnp.where(edited[:, None], retold, context.token)
        kept = jnp.where(edited & (number < len(texts) - 1), 0.0, 1.0)
        on_policy = kept if rollout.on_policy is None else kept * rollout.on_policy
        context = context.replace(train_token=token, train_mask=context.mask)
        return rollout.replace(context=context, on_policy=on_policy), pool

    again = retries.of_rows(part, edits.room(texts[-1]))
    return types.Source(off_policy=True, init=init, select=select, again=again)


def quantile(rollout: types.Rollout, count: int) -> Array:
    """Return the number of each row among ``count`` quantiles, see ``conditioned``; ``[B]`` int32, 0 the lowest.

    Args:
      rollout: B rows; those that are not valid do not count.
      count: of the quantiles.
    """
    reward, valid = trajectories.uncharged(rollout), ops.valid_rows(rollout)
    lower = jnp.sum((reward[None, :] < reward[:, None]) * valid[None, :], axis=1)
    higher = jnp.sum((reward[None, :] > reward[:, None]) * valid[None, :], axis=1)
    share = lower / jnp.maximum(lower + higher, 1.0)
    return jnp.minimum(jnp.floor(count * share + 1e-4), count - 1).astype(jnp.int32)  # 3 * (1 / 3) may be below 1
