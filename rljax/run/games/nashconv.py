"""Exact NashConv of strategies for Kuhn poker, and the strategy that a language policy plays."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy import special

from rljax import models, types
from rljax.data import tokenizers
from rljax.environments.worlds.text import TextWorld
from rljax.models.scores import scoring
from rljax.run.games import matches
from rljax.training import phases
from rljax.transforms import ops

Floats = npt.NDArray[np.float64]
CARDS = "JQK"
History = tuple[str, ...]
HISTORIES: tuple[History, ...] = ((), ("check", "bet"), ("check",), ("bet",))
INFORMATION = tuple((card, history) for history in HISTORIES for card in CARDS)  # the order of a strategy's numbers
_DEALS = np.array(list(itertools.permutations(range(3), 2)))  # [6, 2], cards of the two players
_WIN = np.where(_DEALS[:, 0] > _DEALS[:, 1], 1.0, -1.0)


def moves(history: History) -> tuple[str, str]:
    """Return the legal moves after a history: the move without a chip, and the move with one."""
    return ("fold", "call") if history[-1:] == ("bet",) else ("check", "bet")


def value(strategy: npt.ArrayLike) -> float:
    """Return the expected reward of the first player, in chips.

    Args:
      strategy: ``[12]``, the probability of putting a chip into the pot at each of ``INFORMATION``.
    """
    return float(np.sum(_walk(_checked(strategy), (), np.full(6, 1 / 6), None)))


def best_response(strategy: npt.ArrayLike, player: int) -> float:
    """Return the largest expected reward of a player, 0 or 1, against the other player's strategy, in chips."""
    return float(np.sum(_walk(_checked(strategy), (), np.full(6, 1 / 6), player)))


def nashconv(strategy: npt.ArrayLike) -> float:
    """Return how much both players together could gain by a best response; 0 in an equilibrium.

    ``sum_i max_s u_i(s, strategy_-i) - u_i(strategy)``; the second terms sum to 0. Exploitability is half of it.
    Source: Lanctot et al., A Unified Game-Theoretic Approach to Multiagent Reinforcement Learning, arXiv 1711.00832.

    Args:
      strategy: ``[12]``, as in ``value``.

    Returns:
      NashConv, in chips.

    Raises:
      ValueError: not 12 probabilities.
    """
    return best_response(strategy, 0) + best_response(strategy, 1)


def plays(world: Any) -> bool:
    """Return whether a task is Kuhn poker with two seats."""
    return getattr(world, "name", "") == "kuhn_poker" and getattr(world, "seats", 0) == 2


def strategy(
    world: TextWorld, logprobs: Callable[[list[list[int]], list[list[int]]], npt.ArrayLike]
) -> tuple[Floats, Floats]:
    """Return the strategy that a language policy plays in Kuhn poker, by scoring every legal move.

    Args:
      world: ``game("kuhn_poker")`` with two seats, bound to a tokenizer.
      logprobs: ``(contexts, moves) -> log-probabilities`` of the tokens of each of 24 moves, its end included, after
        the tokens that a seat has read and written.

    Returns:
      The strategy ``[12]`` at ``INFORMATION``, normalized over the two legal moves, and the probability ``[12]`` of
      these two together, the probability of a legal turn.

    Raises:
      ValueError: another world.
    """
    if not plays(world):
        raise ValueError(f"world: got {world.name!r} with {world.seats} seats, must be game('kuhn_poker') with 2")
    functions = matches.functions(world)
    contexts, written = [], []
    for card, history in INFORMATION:
        context = _context(world, functions, CARDS.index(card), history)
        contexts += [context, context]
        written += [_tokens(world, move) for move in moves(history)]
    logp = np.asarray(logprobs(contexts, written), np.float64).reshape(12, 2)
    return special.expit(logp[:, 1] - logp[:, 0]), np.exp(np.logaddexp(logp[:, 0], logp[:, 1]))


def of_policy(setup: phases.Setup, params: types.Tree) -> tuple[Floats, Floats]:
    """Return the strategy of a policy that plays both seats, and the probabilities of a legal turn; see ``strategy``.

    Args:
      setup: the phase on devices; its task is ``game("kuhn_poker")`` with two seats.
      params: the policy's parameters.

    Returns:
      Both ``[12]``, at the temperature of the phase, without its filters; of temperature 0, as of 1.
    """
    world, model = setup.world, setup.networks["policy"]
    assert isinstance(world, TextWorld)
    width = matches.width(world)

    def logprobs(contexts: list[list[int]], written: list[list[int]]) -> npt.ArrayLike:
        prompt = types.Context(*map(jnp.asarray, tokenizers.padded(contexts, width, setup.ends.pad, left=True)))
        token, mask = map(jnp.asarray, tokenizers.padded(written, world.turn_length, setup.ends.pad))
        moves = types.Rollout(
            mask=mask,
            reward=jnp.zeros(len(written)),
            group=jnp.zeros(len(written), jnp.int32),
            context=prompt,
            action=types.Action(token=token),
        )
        logp = _score(model, setup.temperature, params, moves)
        return np.asarray(logp, np.float64).sum(axis=1)

    return strategy(world, logprobs)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _score(model: models.Model, temperature: float, params: types.Tree, rows: types.Rollout) -> types.Array:
    """Return the log-probs ``[B, T]`` of the rows, 0 where the mask is 0."""
    logp = scoring.score(model, params, rows, types.Needs(), temperature=temperature).logp
    return ops.given(logp, "the scores have no logp") * rows.mask


def report(strategy: Floats, legal: Floats) -> dict[str, Any]:
    """Return the record of a strategy: "nashconv" and "value", in chips; "legal", a mean; "strategy".

    Args:
      strategy: ``[12]``, as in ``value``.
      legal: ``[12]``, the probability of a legal turn.
    """
    legals = float(np.mean(legal))
    return {"nashconv": nashconv(strategy), "value": value(strategy), "legal": legals, "strategy": strategy.tolist()}


def _context(world: TextWorld, functions: matches.Functions, card: int, history: History) -> list[int]:
    """Return what the seat to move has read and written, if it has a card and the moves so far are a history."""
    seat = len(history) % 2
    other = (card + 1) % 3
    state = functions.begin(0, "train", 0)
    cards = np.array([card, other] if seat == 0 else [other, card], np.int32)
    state = {**state, "game": state["game"].replace(_cards=cards)}
    episode = matches.Episode(functions, state)
    for move in history:
        episode.step(_tokens(world, move))
    return episode.context(seat)


def _tokens(world: TextWorld, move: str) -> list[int]:
    tokenizer = world.tokenizer
    if tokenizer is None:
        raise ValueError("world: has no tokenizer; call world.bind(tokenizer) first")
    return [*itertools.chain(*(tokenizers.continuation(tokenizer, "\n", c) for c in move)), tokenizer.eos]


def _walk(strategy: Floats, history: History, reach: Floats, responder: int | None) -> Floats:
    """Return the reward of each deal times its reach, [6], to the responder, who plays best; None: to player 0."""
    if (paid := _paid(history)) is not None:
        return reach * paid * (-1 if responder == 1 else 1)
    player = len(history) % 2
    card = _DEALS[:, player]
    without, chip = ((*history, move) for move in moves(history))
    if player != responder:
        p = strategy[3 * HISTORIES.index(history) + card]
        return _walk(strategy, without, reach * (1 - p), responder) + _walk(strategy, chip, reach * p, responder)
    both = np.stack([_walk(strategy, h, reach, responder) for h in (without, chip)])
    best = np.array([np.argmax(both[:, card == c].sum(axis=1)) for c in range(3)])  # one move for all deals of a card
    return both[best[card], np.arange(6)]


def _paid(history: History) -> Floats | None:
    """Return what player 0 gets in each deal, [6]; None if the game goes on."""
    if history[-1:] == ("fold",):
        return np.full(6, 1.0 if len(history) == 2 else -1.0)
    if history[-1:] == ("call",):
        return 2 * _WIN
    return _WIN if history == ("check", "check") else None


def _checked(strategy: npt.ArrayLike) -> Floats:
    array = np.asarray(strategy, np.float64)
    if array.shape != (12,) or not np.all((array >= 0) & (array <= 1)):
        raise ValueError(f"strategy: got {np.shape(strategy)}, must be 12 probabilities")
    return array
