"""Acting: trajectories of a control world, step by step in one ``lax.scan``.

A trajectory ends where the system ends it, or after ``horizon`` steps; until then it may be cut anywhere and continued.
Action t of an episode is drawn with ``fold_in(key, t)`` of the row's key, and so is what is random in the system.
"""

from typing import Any, Protocol

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.language import limits
from rljax.transforms.source import groups
from rljax.types import Array, Key, Tree


class Actor(Protocol):
    """What draws actions: ``models.actors.Actor``."""

    @property
    def scored(self) -> tuple[bool, ...]:
        """Whether each of the n positions of an action has a log-prob."""
        ...

    def stored(self, action: Array, keys: Key) -> Array:
        """Return actions as rows store them."""
        ...

    def draw(
        self,
        params: Tree,
        observation: Array,
        keys: Key,
        legal: Array | None,
        temperature: Array | float,
        shared: Key | None,
    ) -> Any:
        """Return the actions of B states: taken, action, logp, entropy."""
        ...


class Episodes(flax.struct.PyTreeNode):
    """Episodes in progress, ``[B]`` each."""

    system: Tree  # states of the world, [B, ...]
    time: Array  # int32, steps so far
    total: Array  # rewards so far
    outcome: Array  # int32; UNJUDGED until the end
    finish: Array  # int32; UNFINISHED until the end
    parts: dict[str, Array]  # sums so far
    last: Array  # total of the episode before in the same place; nan: there was none

    @property
    def live(self) -> Array:
        """Whether the episode goes on."""
        return self.finish == types.Finish.UNFINISHED


class Trace(flax.struct.PyTreeNode):
    """What each of T positions of B rows has, ``[T, B]``: n for each step of time, ``Actor.scored``."""

    observation: Array  # [T, B, O]
    legal: Array | None
    taken: Array
    reward: Array
    logp: Array
    entropy: Array
    mask: Array
    time: Array  # int32, of the episode


def begun(rules: Any, index: Array, split: Any) -> Episodes:
    """Return the episodes of problems ``index`` ``[B]`` at their start."""
    zero = jnp.zeros(index.shape)
    return Episodes(
        system=jax.vmap(lambda i: rules.begin(i, split))(index),
        time=jnp.zeros_like(index),
        total=zero,
        outcome=jnp.full_like(index, int(types.Outcome.UNJUDGED)),
        finish=jnp.full_like(index, int(types.Finish.UNFINISHED)),
        parts=dict.fromkeys(rules.parts, zero),
        last=jnp.full_like(zero, jnp.nan),
    )


def seen(rules: Any, system: Tree) -> tuple[Array, Array | None]:
    """Return what is observed in states, ``[B, O]``, and the actions that are allowed, if rules have ``legal``."""
    legal = getattr(rules, "legal", None)
    return jax.vmap(rules.observe)(system), None if legal is None else jax.vmap(legal)(system)


def unroll(
    actor: Actor,
    rules: Any,
    params: Tree,
    episodes: Episodes,
    keys: Key,
    steps: int,
    temperature: Array | float,
    traced: bool = True,
    expert: bool = False,
    shared: Key | None = None,
) -> tuple[Episodes, Trace | None]:
    """Act for some steps of time in every episode that goes on; the others stay as they are.

    Args:
      actor: draws actions.
      rules: of the world, with ``horizon``.
      params: of the actor.
      episodes: B episodes.
      keys: ``[B]``, of the rows.
      steps: T, steps of time.
      temperature: of the actions; 0: the most probable ones.
      traced: whether the steps are returned.
      expert: whether ``rules.expert`` acts in place of the policy, whose log-probs are then 0.
      shared: ``[B]``, keys of the draws that the samples of a prompt have in common; None: ``keys``.

    Returns:
      The episodes after these steps, and their positions, or None. An episode ends where the system says so (STOP), or
      after ``horizon`` steps (LENGTH). Where a reward or what is observed is not finite, it ends as CRASHED.
    """
    n, scored = len(actor.scored), np.asarray(actor.scored, np.float32)[:, None]
    paid = np.arange(n)[:, None] == np.flatnonzero(scored).max()  # the position of a step that its reward is paid at

    def spread(x: Array) -> Array:
        return jnp.broadcast_to(x[None], (n, *x.shape))

    def step(before: Episodes, _: None) -> tuple[Episodes, Trace | None]:
        live, time = before.live, before.time
        observation, legal = seen(rules, before.system)
        draw, move = _drawing(keys, time)
        if expert:
            action, zero = jax.vmap(rules.expert)(before.system), jnp.zeros((time.size, n)[: 1 + (n > 1)])
            taken, logp, entropy = actor.stored(action, draw), zero, zero
        else:
            common = None if shared is None else _drawing(shared, time)[0]
            taken, action, logp, entropy = actor.draw(params, observation, draw, legal, temperature, common)
        system, moved = jax.vmap(rules.step)(before.system, action, move)
        small = jnp.abs(moved.reward) <= limits.LARGEST
        sound = small & jnp.all(jnp.isfinite(seen(rules, system)[0]), axis=-1)
        reward = jnp.where(sound, moved.reward, 0.0)
        total = before.total + reward
        solved = jax.vmap(rules.solved)(system, total)
        cut = time + 1 >= rules.horizon
        verdict = jnp.where(solved, int(types.Outcome.CORRECT), int(types.Outcome.WRONG))
        verdict = jnp.where(sound, verdict, int(types.Outcome.CRASHED))
        ended = moved.done | cut | ~sound
        reason = jnp.where(moved.done | ~sound, int(types.Finish.STOP), int(types.Finish.LENGTH))
        after = Episodes(
            system=groups.put(sound, system, before.system),
            time=time + 1,
            total=total,
            outcome=jnp.where(ended, verdict, before.outcome),
            finish=jnp.where(ended, reason, before.finish),
            parts={name: x + jnp.where(sound, moved.parts[name], 0.0) for name, x in before.parts.items()},
            last=before.last,
        )
        after = groups.put(live, after, before)
        if not traced:
            return after, None
        taken, logp, entropy = (x[None] if n == 1 else jnp.moveaxis(x, 1, 0) for x in (taken, logp, entropy))
        mask = live.astype(jnp.float32)[None] * scored
        seen_at = [None if x is None else spread(x) for x in (observation, legal)]
        reward, logp, entropy = (x * mask for x in (jnp.where(paid, reward[None], 0.0), logp, entropy))
        return after, Trace(*seen_at, taken, reward, logp, entropy, mask, spread(time))

    after, trace = jax.lax.scan(step, episodes, None, length=steps)
    return after, jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trace)


def _drawing(keys: Key, time: Array) -> tuple[Key, Key]:
    """Return the keys of an action and of the move that follows it, ``[B]`` each."""
    return jax.vmap(lambda key, t: tuple(jax.random.split(jax.random.fold_in(key, t))))(keys, time)
