"""Episodes of a world as rows: problems begun, conversations or chapters sampled, payments put on tokens."""

import functools
from collections.abc import Callable
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from rljax import sampling, types
from rljax.environments import Split, traits, worlds
from rljax.environments.worlds import demonstrations
from rljax.models import adapters
from rljax.sampling import chapters, conversation, dialogue, refill
from rljax.sampling import players as seats
from rljax.training import phases
from rljax.training import rows as rows_lib
from rljax.transforms import ops, trajectories
from rljax.transforms.frame import extras

Array = types.Array
_SNAPSHOTS = 10  # stream of the root key


def seated(
    setup: phases.Setup,
    players: dict[str, types.Tree],
    order: tuple[str, ...],
    step: Array,
    drawn: rows_lib.Drawn,
    split: Split,
    key: types.Key,
    *,
    swap: bool = True,
    samples: int | None = None,
    sampler: sampling.SamplerConfig | None = None,
) -> tuple[types.Rollout, Array]:
    """Sample episodes of the world.

    Args:
      setup: the phase on devices; its task is a world.
      players: parameters by the name of the player.
      order: who plays the seats, by name; see ``sampling.players.seats_of``.
      swap: whether players change seats from sample to sample.
      step: updates before this rollout, int32 scalar.
      drawn: the P problems.
      split: of the problems.
      key: the run's root key.
      samples: episodes of each problem; None: the settings' number.
      sampler: how tokens are drawn; None: the settings.

    Returns:
      B = P * samples * ``setup.rows_of_episode`` rows, adjacent for each problem, and ``[B]`` int32, the number of the
      row's player among the distinct ones.
    """
    world, sampler = setup.world, sampler or setup.settings.sampler
    assert world is not None
    samples = samples or setup.settings.batch.samples
    states = begin(world, drawn.index, split, step, jax.random.fold_in(key, rows_lib.PROBLEMS), samples, drawn.repeat)
    number = jnp.tile(jnp.arange(samples, dtype=jnp.int32), drawn.index.size)
    index, repeat = (ops.repeat(x, samples) for x in (drawn.index, drawn.repeat))
    keys = sampling.row_keys(jax.random.fold_in(key, rows_lib.ROWS), step, index, number, repeat)
    position, index = (ops.repeat(x, samples * setup.rows_of_episode) for x in (drawn.position, drawn.index))
    names = seats.distinct(order)
    params, models = tuple(players[name] for name in names), tuple(setup.writer(name) for name in names)
    player = seats.seats_of(order, keys.shape[0], world.seats, samples, swap)
    version = jnp.broadcast_to(step, (position.size, setup.task.completion_length)).astype(jnp.int32)
    if world.rows == "chapters":
        book = chapters.write(models, params, player, world, states, keys, sampler, setup.ends)
        rows = rows_lib.blank(setup, position, index, book.prompts.context)
        rows = of_chapters(rows_lib.filled(rows, book.sample, version), book, world.max_turns, world.seats)
        return rows, jnp.asarray(player)[rows.episode, rows.agent]
    prompts = views(world, states, samples)
    each = position.size // prompts.token.shape[0]
    context = jax.tree.map(lambda x: ops.repeat(x, each), prompts.context)
    rows = rows_lib.blank(setup, position, index, context)
    alone = len(params) == 1
    fewer = alone and 0 < sampler.slots < keys.size  # a world of several seats has no fewer, see ``producers.refused``
    out, talk = (refill if fewer else conversation).converse(
        models[0] if alone else seats.Team(models, player.reshape(-1)),
        params[0] if alone else params,
        world,
        states,
        prompts,
        keys,
        sampler,
        setup.ends,
        length=setup.task.completion_length,
    )
    return conversed(setup, rows, out, talk, version), jnp.asarray(player.reshape(-1))


def conversed(
    setup: phases.Setup, rows: types.Rollout, out: sampling.Sample, talk: dialogue.Talk, version: Array
) -> types.Rollout:
    """Write conversations into blank rows; the state of unfinished ones stays with them."""
    assert setup.world is not None
    rows = of_conversations(rows_lib.filled(rows, out, version), out, talk, setup.world.seats)
    if not setup.algorithm.source.segment or rows.action is None:
        return rows
    return rows.replace(action=rows.action.replace(state=talk))


def begin(
    world: worlds.World,
    index: Array,
    split: Split,
    step: Array,
    key: types.Key,
    samples: int,
    repeat: Array | None = None,
) -> Any:
    """Begin the episodes of problems; episodes of a problem are adjacent.

    Args:
      world: the world.
      index: ``[P]`` int32, the problems.
      split: of the problems.
      step: the step in which the episodes start, int32, scalar or ``[P]``.
      key: a typed key, which (step, problem) is folded into; the sample too if the world begins anew for each.
      samples: episodes of each problem.
      repeat: ``[P]`` int32, how often the step had drawn the problem before; None: 0.

    Returns:
      States ``[P * samples, ...]``.
    """
    sample = jnp.arange(samples, dtype=jnp.int32)
    number = jnp.tile(sample, index.size) if world.anew else jnp.zeros_like(index)
    rows = jnp.broadcast_to(step, index.shape), index, jnp.zeros_like(index) if repeat is None else repeat
    if world.anew:
        rows = tuple(ops.repeat(x, samples) for x in rows)
    started, repeated, again = rows
    keys = sampling.row_keys(key, started, repeated, number, again)
    states = jax.vmap(lambda i, k: world.begin(i, split, k))(repeated, keys)
    return states if world.anew else jax.tree.map(lambda x: ops.repeat(x, samples), states)


def views(world: worlds.World, states: Any, samples: int) -> types.Prompts:
    """Return what the seats read first: a prompt for each problem, or for each row where rows differ.

    Args:
      world: the world.
      states: ``[E, ...]``.
      samples: episodes of each problem, which are adjacent.

    Returns:
      The prompts, ``[P, L]`` with P problems, or ``[E * seats, L]``.
    """
    if traits.traits(world).alike:
        states = jax.tree.map(lambda x: x[::samples], states)
    count = jax.tree.leaves(states)[0].shape[0]
    each = jax.tree.map(lambda x: ops.repeat(x, world.seats), states)
    seat = jnp.tile(jnp.arange(world.seats, dtype=jnp.int32), count)
    return jax.vmap(functools.partial(types.Prompts.of, world))(each, seat)


def of_conversations(rows: types.Rollout, out: sampling.Sample, talk: dialogue.Talk, seats: int) -> types.Rollout:
    """Write conversations into blank rows, except what the sampler reports of each token.

    Args:
      rows: B rows with ``context``, ``group`` and ``index``.
      out: their samples.
      talk: their episodes.
      seats: rows of an episode.

    Returns:
      The rows.
    """
    row = jnp.arange(rows.reward.size, dtype=jnp.int32)
    one = talk.paid.shape[1] == 1  # a world of one turn pays the row, as a task does
    return rows.replace(
        turn=out.turn,
        token_reward=None if one else dialogue.on_last_tokens(out, talk.paid),
        reward=talk.unearned + talk.paid[:, 0] if one else talk.unearned,
        outcome=talk.outcome,
        parts=talk.parts,
        valid=ops.repeat(talk.valid, seats),
        domain=ops.repeat(talk.domain, seats),
        episode=row // seats,
        agent=row % seats,
        finish=out.finish,
        extra={**rows.extra, **{name: dialogue.of_turns(out, x) for name, x in talk.extra.items()}},
    )


def of_host(rows: types.Rollout, out: sampling.Sample, answers: dict[str, Array], seats: int) -> types.Rollout:
    """Write conversations with a host world into blank rows, as ``of_conversations`` does.

    Args:
      rows: B rows with ``context``, ``group`` and ``index``, filled by the sampler.
      out: their samples.
      answers: "paid" ``[B, M]``, by turn; "unearned", "outcome", "valid", "finish" and "parts", ``[B]`` each.
      seats: rows of an episode.

    Returns:
      The rows. They do not have the slots of the decoder, which depend on the times of answers.
    """
    row = jnp.arange(rows.reward.size, dtype=jnp.int32)
    return rows.replace(
        turn=out.turn,
        token_reward=dialogue.on_last_tokens(out, answers["paid"]),
        reward=answers["unearned"],
        outcome=answers["outcome"],
        parts=answers["parts"],
        valid=answers["valid"],
        episode=row // seats,
        agent=row % seats,
        finish=answers["finish"],
        extra={},
    )


def host_turns(rows: types.Rollout, token: Array, mask: Array, stop: tuple[int, ...]) -> types.Rollout:
    """Write the turns of a host world's demonstrations into blank rows.

    Args:
      rows: B rows.
      token: ``[B, T]`` int32.
      mask: ``[B, T]``, 1 on the tokens of turns.
      stop: token ids of which one ends each turn.

    Returns:
      The rows with their positions in use, turns, and payments of 0.
    """
    ends = (mask > 0) & jnp.isin(token, jnp.asarray(stop, jnp.int32))
    length = jnp.max(jnp.where(mask > 0, jnp.arange(1, mask.shape[1] + 1)[None, :], 0), axis=1)
    return rows.replace(
        action=types.Action(token=token, length=length.astype(jnp.int32)),
        turn=jnp.cumsum(ends, axis=1, dtype=jnp.int32) - ends,
        token_reward=jnp.zeros_like(mask),
    )


def of_chapters(rows: types.Rollout, book: chapters.Book, turns: int, seats: int) -> types.Rollout:
    """Write chapters into blank rows, except what the sampler reports of each token.

    Args:
      rows: B rows with ``group`` and ``index``.
      book: their samples and episodes.
      turns: rows of an episode.
      seats: players of an episode.

    Returns:
      The rows; absent turns have ``valid`` 0, and the rows of a seat share what it was paid before it wrote.
    """
    row = jnp.arange(rows.reward.size, dtype=jnp.int32)
    episode, number = row // turns, row % turns
    present, talk = book.present, book.talk
    by_episode = book.seat.reshape((-1, turns))
    earlier = jnp.arange(turns)[None, :] < jnp.arange(turns)[:, None]
    earlier = (by_episode[:, None, :] == by_episode[:, :, None]) & earlier[None]
    place = jnp.sum(earlier, axis=2, dtype=jnp.int32).reshape(-1)  # the seat's turns before this one
    player = episode * seats + book.seat

    def of_seat(x: Array) -> Array:  # [E * seats] or [E * seats, M] -> [B]
        return x[player] if x.ndim == 1 else x[player, place]

    mask, context, on_policy = book.sample.mask, book.prompts.context, rows.on_policy
    if context.train_token is not None:  # another prompt: the policy that is trained did not sample the row
        token, seen = context.training
        on_policy = on_policy * jnp.all((token == context.token) & (seen == context.mask), axis=1)
    return rows.replace(
        context=context,
        on_policy=on_policy,
        turn=jnp.broadcast_to(number[:, None], mask.shape),
        token_reward=ops.last_token(mask) * of_seat(talk.paid)[:, None],
        reward=jnp.where(present, of_seat(talk.unearned), 0.0),
        outcome=of_seat(talk.outcome),
        parts={name: of_seat(x) for name, x in talk.parts.items()},
        valid=talk.valid[episode] * present,
        domain=talk.domain[episode],
        episode=episode,
        agent=book.seat,
        finish=jnp.where(talk.done, int(types.Finish.STOP), int(types.Finish.LENGTH))[episode],
        extra={**rows.extra, **{name: of_seat(x)[:, None] * mask for name, x in talk.extra.items()}},
    )


def players(setup: phases.Setup, state: types.TrainState, key: types.Key) -> dict[str, types.Tree]:
    """Return the parameters of those who play the seats of a step, by name; ``key`` is the run's root key."""
    params = {"policy": state.params["policy"]}
    params |= {name: setup.params(state, name) for name in setup.phase.writers}
    if not setup.snapshot:
        return params
    snapshot = state.snapshot
    if isinstance(snapshot, tuple):
        drawn = jax.random.fold_in(jax.random.fold_in(key, _SNAPSHOTS), state.step)
        number = jax.random.randint(drawn, (), 0, len(snapshot))
        snapshot = jax.tree.map(lambda *each: jax.lax.select_n(number, *each), *snapshot)
    return params | {"snapshot": adapters.joined(snapshot, params["policy"])}


def fixed(setup: phases.Setup, state: types.TrainState, key: types.Key) -> dict[str, types.Tree]:
    """Return the parameters of those who play seats of their own beside the policy, by name; none if players swap."""
    several = len(setup.players) > 1 and not setup.settings.world.swap
    return {name: x for name, x in players(setup, state, key).items() if name != "policy"} if several else {}


def learning(setup: phases.Setup, rows: types.Rollout, player: Array) -> types.Rollout:
    """Return rows in which those of players that do not learn have mask 0 and ``valid`` 0.

    Args:
      setup: the phase on devices.
      rows: B rows.
      player: ``[B]`` int32, see ``seated``; it becomes extra["player"].

    Returns:
      The rows. extra["written"] ``[B, T]`` is the mask before: 1 on what a player wrote, whoever it was.
    """
    learn = np.array([name in ("policy", *setup.settings.world.trained) for name in setup.players])
    return trajectories.only(extras.put(rows, {"written": rows.mask, "player": player}), jnp.asarray(learn)[player])


def shown(
    world: worlds.World, blank: Callable[..., types.Rollout], position: Array, index: Array, key: types.Key
) -> types.Rollout:
    """Return demonstrations of a world as off-policy rows.

    Args:
      world: the world, which has an expert.
      blank: ``(position, index, context) -> rows`` without a completion.
      position: ``[P]`` int32, the rows' group.
      index: ``[P]`` int32, problems of the training split.
      key: a typed key.

    Returns:
      P times the rows of an episode, with reward 1.

    Raises:
      ValueError: the world has no expert.
    """
    if not hasattr(world, "expert"):
        raise ValueError(f"task {world.name!r} has no expert, so no demonstrations")
    answers = demonstrations.of(cast(demonstrations.Shown, world), index, "train", key)
    each = answers.seat.shape[1]
    answers = jax.tree.map(lambda x: x.reshape((-1, *x.shape[2:])), answers)
    rows = blank(ops.repeat(position, each), ops.repeat(index, each), answers.prompt.context)
    return rows.replace(
        mask=answers.mask,
        action=types.Action(token=answers.token, length=answers.length),
        turn=answers.turn,
        token_reward=jnp.zeros_like(answers.mask),
        reward=jnp.ones_like(rows.reward),  # demonstrations are assumed to be correct
        valid=jnp.any(answers.mask > 0, axis=1).astype(jnp.float32),
        episode=jnp.arange(rows.reward.size, dtype=jnp.int32) // each,
        agent=answers.seat,
        on_policy=jnp.zeros_like(rows.reward),
        extra=dict.fromkeys(world.extra, jnp.zeros_like(answers.mask)),
    )
