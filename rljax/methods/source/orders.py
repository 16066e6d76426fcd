"""Orders: prompts that stand from easy to hard, by rank, in blocks, or as variants of a problem.

A task is in the order of its domains, 0 the easiest, and within a domain of its prompts: of a file, its rows.
"""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.transforms import define
from rljax.transforms.source import candidates as candidates_lib
from rljax.transforms.source import draws, groups

Array = types.Array


def in_order(problems: types.Problems, count: int) -> Array:
    """Return the candidates from easy to hard, ``[N]`` int32."""
    index = candidates_lib.index(problems, count)
    return index[jnp.argsort(problems.domain(index), stable=True)]


@define.source
def ranked(centre: types.Fraction, width: types.Positive = 0.1, candidates: candidates_lib.Number = 0) -> types.Source:
    """Draw prompts by a Gaussian over their rank: p_i ~ exp(-(i / (N - 1) - centre)^2 / (2 width^2)).

    No prompt is drawn twice in a step. Source: GAIN-RL (arXiv 2506.02281), whose centre follows the accuracy,
    ``centre=adaptive_difficulty()``, and a change of angles, which is not here. Its order is by a score of each
    prompt, the angle concentration of hidden states before training: sort the file by such a score. Differs from
    ``gaussian``, which draws domains.

    Args:
      centre: rank of the most likely prompt, 0 the first, 1 the last. Usually a schedule.
      width: standard deviation, in the same unit.
      candidates: see ``draws``.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        return {"order": in_order(problems, candidates)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        order = pool["order"]
        draws.enough(order, offered.size, candidates)
        rank = jnp.linspace(0.0, 1.0, order.size)
        value = jax.random.gumbel(key, rank.shape) - (rank - centre) ** 2 / (2.0 * width**2)
        return types.Choice(order[jax.lax.top_k(value, offered.size)[1]])

    return types.Source(init=init, choose=choose)


@define.source
def adcl(blocks: types.Count = 4, candidates: candidates_lib.Number = 0) -> types.Source:
    """Train on blocks from easy to hard, each sorted by the success rates that the policy has had on it before.

    The order is cut into blocks. While a block is trained on, P prompts a step, as many of the next one are sampled,
    scored and not trained on; the next block is then sorted by their success rates, the largest first. The last step of
    a block takes its last P prompts, and the first block follows the last. Source: Adaptive Difficulty Curriculum
    Learning (arXiv 2505.08364) for the blocks, from memory: there the next block is scored at once when it begins, and
    the first order is by success rates of the base model; here it is the task's. In a chain it stands before other
    pieces that select.

    Args:
      blocks: at least 2, of at least P prompts; what remains of the division is not drawn.
      candidates: see ``draws``.

    Raises:
      ValueError: ``blocks`` is 1, or a block has fewer than P prompts.
    """
    if blocks < 2:
        raise ValueError(f"blocks={blocks}: must be at least 2, as the next one is scored.")

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        order = in_order(problems, candidates)
        order = order[: order.size // blocks * blocks].reshape(blocks, -1)
        return {"order": order, "rate": jnp.zeros(order.shape), "step": jnp.zeros((), jnp.int32)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        order, size = pool["order"], offered.size // 2
        length = order.shape[1]
        if length < size:
            raise ValueError(f"blocks={blocks}: a block has {length} prompts, and a step {size}; give fewer blocks.")
        block, step = jnp.divmod(pool["step"], -(-length // size))
        now, after = block % blocks, (block + 1) % blocks
        place = jnp.minimum(step * size, length - size) + jnp.arange(size)
        easiest_first = jnp.argsort(-pool["rate"][now], stable=True)
        return types.Choice(jnp.concatenate([order[now][easiest_first[place]], order[after][place]]))

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        rows = jnp.arange(rollout.group.size)
        seen, order = groups.tally(groups.take(rollout, rows[count:])), pool["order"].reshape(-1)
        by_index = jnp.argsort(order)
        place, there = candidates_lib.slot(order[by_index], seen.index)
        place = jnp.where(there & (seen.count > 0), by_index[place], order.size)
        rate = pool["rate"].reshape(-1).at[place].set(seen.wins / jnp.maximum(seen.count, 1.0), mode="drop")
        new = {**pool, "rate": rate.reshape(pool["rate"].shape), "step": pool["step"] + 1}
        return groups.take(rollout, rows[:count]), new

    return types.Source(oversample=2, init=init, choose=choose, select=select)


@define.source
def ladder(rungs: types.Count, passed: types.Fraction = 0.5) -> types.Source:
    """Draw variants of problems in order: the next harder one after a success, the next easier one after a failure.

    Each problem has a rung, 0 at first, which goes up if at least the share ``passed`` of its rows succeed and down if
    fewer do, within the variants. Problems that have just gone down are drawn first, the others at random. Source:
    dynamic data scheduling of MathBook-RL (arXiv 2508.10433), from memory: it inserts variants that isolate what the
    failed one had added, a step of knowledge or a modality; here the variants are in one order.

    Args:
      rungs: variants of each problem, adjacent in the task and from easy to hard, none of them held out by a hash; a
        last, incomplete problem is not drawn.
      passed: share of the rows.

    Raises:
      ValueError: the task has fewer problems than a step has prompts, or more than 65,536.
    """

    def init(rollout: types.Rollout, problems: types.Problems) -> types.Tree:
        count = problems.size // rungs
        if count > candidates_lib.LARGEST:
            raise ValueError(
                f"rungs={rungs}: the task has {count:,} problems of {rungs} variants, and a rung is kept of at most "
                f"{candidates_lib.LARGEST:,}; use a task with fewer prompts."
            )
        return {"rung": jnp.zeros((count,), jnp.int32), "down": jnp.zeros((count,), bool)}

    def choose(pool: types.Tree, problems: types.Problems, offered: Array, key: types.Key) -> types.Choice:
        rung, size = pool["rung"], offered.size
        if rung.size < size:
            raise ValueError(f"rungs={rungs}: a step draws {size} problems, and the task has {rung.size}.")
        problem = jax.lax.top_k(pool["down"] + jax.random.uniform(key, rung.shape), size)[1].astype(jnp.int32)
        return types.Choice(problem * rungs + rung[problem])

    def select(rollout: types.Rollout, pool: types.Tree, count: int, key: types.Key):
        seen, before = groups.tally(rollout), pool["rung"]
        problem = jnp.where(seen.count > 0, seen.index // rungs, before.size)
        up = seen.wins >= passed * seen.count - 1e-3
        rung = jnp.clip(seen.index % rungs + jnp.where(up, 1, -1), 0, rungs - 1).astype(jnp.int32)
        new = before.at[problem].set(rung, mode="drop")
        down = pool["down"].at[problem].set(rung < seen.index % rungs, mode="drop")
        return rollout, {"rung": new, "down": down}

    return types.Source(init=init, choose=choose, select=select)
