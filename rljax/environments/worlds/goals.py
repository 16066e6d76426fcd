"""Rows of a world with goals, as if the goal of each had been what its episode reached."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import types

Array = types.Array


def relabelled(world: Any, rollout: types.Rollout, drawn: Array) -> tuple[types.Rollout, Array]:
    """Return rows with other goals: what their episodes had reached after one of their turns.

    The turns of a row are played again from the start of its problem, with its goal and then with the other one. Up to
    the turn that arrives there the row's replies stay as they are, and what follows is masked.

    Args:
      world: of one seat, whose rules have ``aimed``; see ``rules.Rules``.
      rollout: conversations with it, ``[B, T]``.
      drawn: ``[B]`` float32 in [0, 1), after which of a row's turns.

    Returns:
      The rows, with training prompts, rewards, outcomes and ends of the other goals; ``[B]`` bool, False where there is
      none.
    """
    action, turn, context = rollout.action, rollout.turn, rollout.context
    assert action is not None and turn is not None and context is not None and rollout.index is not None
    seat, key = jnp.int32(0), jax.random.key(0)

    def one(index: Array, token: Array, mask: Array, turn: Array, drawn: Array) -> tuple[dict[str, Array], Array]:
        written, sizes = (mask > 0).astype(jnp.int32), (world.max_turns, world.turn_length)
        count = jnp.zeros(sizes[0], jnp.int32).at[turn].add(written)
        place = jnp.cumsum(written) - 1 - (jnp.cumsum(count) - count)[turn]  # in the turn
        text = jnp.zeros(sizes, jnp.int32).at[jnp.where(mask > 0, turn, sizes[0]), place].set(token, mode="drop")
        used = (jnp.arange(sizes[1])[None, :] < count[:, None]).astype(jnp.float32)

        def play(carry: tuple[Any, Array], each: tuple[Array, Array]) -> tuple[tuple[Any, Array], Any]:
            (state, live), (text, used) = carry, each
            after, reply = world.step(state, seat, text, used, key)
            live &= used[0] > 0
            state = jax.tree.map(lambda x, y: jnp.where(live, x, y), after, state)
            out = (state, jnp.where(live, reply.reward[0], 0.0), live & reply.done, reply.outcome[0])
            return (state, live & ~reply.done), out

        start, live = world.begin(index, "train", key), jnp.bool_(True)
        states = jax.lax.scan(play, (start, live), (text, used))[1][0]
        turns = jnp.sum(count > 0)
        reached = jax.tree.map(lambda x: x[jnp.floor(drawn * turns).astype(jnp.int32)], states)
        aimed, possible = world.rules.aimed(start, reached)
        _, paid, done, outcome = jax.lax.scan(play, (aimed, live), (text, used))[1]
        last = jnp.where(jnp.any(done), jnp.argmax(done), turns - 1)
        read, shown = world.prompt(aimed, seat)
        new = {
            "token": read,
            "shown": shown,
            "mask": jnp.where(turn <= last, mask, 0.0),
            "paid": jnp.where((mask > 0) & (place == count[turn] - 1), paid[turn], 0.0),
            "outcome": outcome[last],
            "finish": jnp.where(jnp.any(done), int(types.Finish.STOP), int(types.Finish.LENGTH)),
        }
        return new, possible & (turns > 0)

    new, possible = jax.vmap(one)(rollout.index, action.token, rollout.mask, turn, drawn)
    rows = rollout.replace(
        context=context.replace(train_token=new["token"], train_mask=new["shown"]),
        mask=new["mask"],
        token_reward=new["paid"],
        outcome=new["outcome"],
        finish=new["finish"].astype(jnp.int32),
    )
    return rows, possible
