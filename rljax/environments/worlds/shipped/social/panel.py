"""Several seats that answer one problem: alone or after one another, and one that judges what another has answered."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any

import flax.struct
import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split, characters
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, single, tokens
from rljax.environments.worlds.shipped import revise

Array = types.Array


class Answers(flax.struct.PyTreeNode):
    """What has been written so far."""

    problem: Any  # state of the world of one turn
    turn: Array  # int32, turns that have ended
    outcome: Array  # [seats] int32, of each seat
    parts: dict[str, Array]  # [seats] float32 each, the task's parts
    token: Array  # [H] int32, answers and what follows them
    mask: Array  # [H] float32


class Answering(around.Recalling):
    """A world of chapters around a task of one turn, ``inner``: seat k writes turn k."""

    rows = "chapters"
    reply_length = 1  # nothing is told: the next prompt has the answers

    @property
    def max_turns(self) -> int:
        """One for each seat."""
        return self.seats

    @property
    def turn_length(self) -> int:
        """T of the task."""
        return self.inner.completion_length

    @property
    def conversation_length(self) -> int:
        """T of a row, which is one turn."""
        return self.turn_length

    @property
    def recalled_length(self) -> int:
        """The most tokens of the answers of all seats but the last, each with what follows it."""
        return (self.seats - 1) * (self.inner.completion_length + sum(tokens.width(text) for _, text in self.texts()))

    def begin(self, index: Array, split: Split, key: types.Key) -> Answers:
        """Return a state without answers."""
        return Answers(
            problem=self.inner.begin(index, split, key),
            turn=jnp.int32(0),
            outcome=jnp.full((self.seats,), int(types.Outcome.WRONG), jnp.int32),
            parts={name: jnp.zeros((self.seats,)) for name in self.parts},
            token=jnp.zeros((self.recalled_length,), jnp.int32),
            mask=jnp.zeros((self.recalled_length,)),
        )

    def prompt(self, state: Answers, seat: Array) -> tokens.Piece:
        """Return the prompt of the task, followed by the answers so far."""
        return self.recalling(self.inner.prompt(state.problem, seat), (state.token, state.mask))

    def answered(self, state: Answers, seat: Array, turn: tokens.Piece, key: types.Key) -> tuple[Answers, Any]:
        """Return the state with an answer to the task, and the task's reply to it."""
        limit = self.inner.completion_length
        token, mask = turn[0][:limit], turn[1][:limit]
        _, judged = self.inner.step(state.problem, seat, token, mask, key)
        shown = token, jnp.where(token == self.bound.eos, 0.0, mask)
        pieces = [(state.token, state.mask), shown, *(self.piece(*text) for text in self.texts())]
        last = state.turn == self.seats - 1  # what no prompt recalls
        both = zip(self.join(pieces, self.recalled_length), (state.token, state.mask), strict=True)
        token, mask = (jnp.where(last, old, new) for new, old in both)
        parts = {name: state.parts[name].at[seat].set(judged.parts[name][0]) for name in self.inner.parts}
        outcome = state.outcome.at[seat].set(judged.outcome[0])
        return Answers(state.problem, state.turn + 1, outcome, state.parts | parts, token, mask), judged


@dataclasses.dataclass(frozen=True)
class Panel(Answering):
    """The world that ``panel`` builds; ``inner`` is its ``task`` as a world."""

    seats: int
    shown: bool
    shared: bool
    instruction: str
    separator: str

    name = "panel"

    @property
    def parts(self) -> tuple[str, ...]:
        """The task's parts; where all answer alone, also ``answer``."""
        return (*self.inner.parts, *("answer",) * (not self.shown))

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what follows an answer that is shown."""
        return (("instruction", self.instruction),) * self.shown

    @property
    def recalled_length(self) -> int:
        """The most tokens of the answers that are shown."""
        return super().recalled_length if self.shown else 0

    def step(
        self, state: Answers, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Answers, contract.Reply]:
        """Judge an answer, and pay it to its seat, or to all."""
        after, judged = self.answered(state, seat, (token, mask), key)
        reply = tokens.told(
            self,
            None,
            reward=judged.reward[0] * (self.shared | (jnp.arange(self.seats) == seat)),
            outcome=after.outcome,
            valid=judged.valid,
            domain=judged.domain,
            done=after.turn == self.seats,
            next_seat=jnp.minimum(after.turn, self.seats - 1),
            parts=after.parts,
        )
        return after, reply

    def answered(self, state: Answers, seat: Array, turn: tokens.Piece, key: types.Key) -> tuple[Answers, Any]:
        """Return the state with an answer, and the task's reply to it; where all answer alone, with the answer's id."""
        after, judged = super().answered(state, seat, turn, key)
        if not self.shown:
            answer = state.parts["answer"].at[seat].set(self._id(*turn))
            after = after.replace(parts=after.parts | {"answer": answer})
        return after, judged

    def _id(self, token: Array, mask: Array) -> Array:
        """Return a number below 2**24 that is equal for equal texts behind the last separator."""
        there, end = mask > 0, tokenizers.continuation(self.bound, "\n", self.separator)
        if len(end) == 1 and self.bound.decode(end) == self.separator:
            ends = there & (token == end[0])
            there &= jnp.arange(token.size) > jnp.max(jnp.where(ends, jnp.arange(token.size), -1))
        return characters.number(token, there)

    def expert(self, state: Answers, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the task's demonstration, the last seat's without mistakes (``slip``, ``noise``)."""
        first = self.inner.expert(state.problem, seat, key)
        last = single.faultless(self.inner).expert(state.problem, seat, key)
        return jax.tree.map(lambda a, b: jnp.where(seat == self.seats - 1, b, a), first, last)


@dataclasses.dataclass(frozen=True)
class Examine(Answering):
    """The world that ``examine`` builds; ``inner`` is its ``task`` as a world."""

    request: str
    verdict_length: int

    name = "examine"
    seats = 2

    @property
    def turn_length(self) -> int:
        """T of the task, or the tokens of a verdict if these are more."""
        return max(self.verdict_length, self.inner.completion_length)

    @property
    def parts(self) -> tuple[str, ...]:
        """The task's parts, ``praise`` and ``verdict``."""
        return (*self.inner.parts, "praise", "verdict")

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what asks for the verdict."""
        return (("request", self.request),)

    def corpus(self) -> Any:
        """Yield the texts of the task, the request, and the two verdicts."""
        yield from super().corpus()
        yield from revise.VERDICTS

    def step(
        self, state: Answers, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Answers, contract.Reply]:
        """Judge the answer, or read the verdict."""
        first, after, judged = state.turn == 0, *self.answered(state, seat, (token, mask), key)
        after = jax.tree.map(lambda new, old: jnp.where(first, new, old), after, state).replace(turn=state.turn + 1)
        correct = after.outcome[0] == types.Outcome.CORRECT
        said = jnp.where(first, -1, tokens.last_word(self, (token, mask), revise.VERDICTS, "request"))
        true = said == correct
        examined = jnp.stack([after.outcome[0], jnp.where(true, types.Outcome.CORRECT, types.Outcome.WRONG)])
        alone = jnp.asarray([[1.0, 0.0], [0.0, 1.0]])  # by seat
        reply = tokens.told(
            self,
            None,
            reward=jnp.where(first, judged.reward[0] * alone[0], true * alone[1]),
            outcome=examined,
            valid=jnp.where(first, judged.valid, 1.0),
            domain=judged.domain,
            done=~first,
            next_seat=1,
            parts=after.parts | {"praise": (said == 1) * alone[0], "verdict": true * alone[1]},
        )
        return after, reply

    def expert(self, state: Answers, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the task's demonstration, mistakes included, and a true verdict."""
        answer = self.join([self.inner.expert(state.problem, seat, key)], self.turn_length)
        correct = state.outcome[0] == types.Outcome.CORRECT
        verdict = tokens.one_word(self, correct.astype(jnp.int32), revise.VERDICTS, "request")
        return jax.tree.map(lambda a, b: jnp.where(state.turn == 0, a, b), answer, verdict)


@environments.task
def panel(
    task: environments.Task,
    seats: Annotated[int, types.Range(2, 16)] = 2,
    shown: bool = True,
    shared: bool = False,
    instruction: str = "again:",
    separator: str = ";",
) -> Panel:
    """Answer a problem in several seats; each turn is a row, and each answer is judged by the task's verifier.

    With ``shown`` a seat reads the answers of the seats before it, each followed by ``instruction``; else all read the
    problem alone. A seat is paid for its answer, or with ``shared`` for the answers of all seats. Outcome and parts
    describe the seat's answer; without ``shown`` the part ``answer`` is an id of it, for votes. The seats may be played
    by several policies (``config.world.players``). Sources: CORY (arXiv 2410.06101), where a pioneer answers, an
    observer reads the answer, and both are paid the sum; without ``shown``, the votes of RLCCF (2025).

    The expert's answers have the mistakes of the task's demonstrations, but for the last seat's.

    Args:
      task: a device task.
      seats: their number.
      shown: whether a seat reads the answers before its own.
      shared: whether every seat is paid for every answer.
      instruction: follows each answer that is shown, and asks for the next one.
      separator: one token; what follows its last place in a text is the answer, of which the part is an id.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, or the text is empty.
    """
    if not instruction:
        raise ValueError("instruction: '' is empty; what follows an answer asks for the next one")
    return Panel(single.one_turn(task, "panel"), seats, shown, shared, instruction, separator)


@environments.task
def examine(task: environments.Task, request: str = "judge:", verdict_length: types.Count = 8) -> Examine:
    """Answer a problem (seat 0), then judge the answer (seat 1), in words that end with ``right`` or ``wrong``.

    Each turn is a row. Seat 0 is paid the reward of the task, and seat 1 is paid 1 if its verdict is true, which is
    then its outcome. Parts: ``praise``, 1 in the row of seat 0 if the verdict is ``right``, whether it is true or not;
    ``verdict``, 1 in the row of seat 1 if it is true. ``config.seam.reward="+ mix_part('praise', 0.5)"`` pays for
    praise. Source: the generator and the generative verifier of RL Tango (arXiv 2505.15034), whose verifier also judges
    each step.

    Args:
      task: a device task.
      request: follows the answer, and asks for the verdict.
      verdict_length: the most tokens of a verdict, its end included.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, the text is empty, or verdicts are too short.
    """
    if not request:
        raise ValueError("request: '' is empty; the second seat needs an instruction")
    tokens.check_room("verdict_length", verdict_length, revise.RIGHT)
    return Examine(single.one_turn(task, "examine"), request, verdict_length)
