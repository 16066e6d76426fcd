"""Answer, then answer again: self-correction, with or without a judgement or a critique in between."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

import flax.struct
import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, single, tokens
from rljax.language import settings

Array = types.Array
Mode = Literal["unjudged", "judged", "critique"]
RIGHT, FALSE = "right", "wrong"  # verdicts of critiques and judgements
VERDICTS = FALSE, RIGHT


class Attempts(flax.struct.PyTreeNode):
    """What has been written so far."""

    problem: Any  # state of the world of one turn
    turn: Array  # int32, turns that have ended
    first: Array  # float32, reward of the first answer
    correct: Array  # bool, whether the first answer was correct
    verdict: Array  # float32, 1 where the critique judged the first answer correctly
    token: Array  # [H] int32, turns and replies, for the prompts of chapters
    mask: Array  # [H] float32


@dataclasses.dataclass(frozen=True)
class Revise(around.Recalling):
    """The world that ``revise`` builds; fields are its arguments, and ``inner`` is a world of one turn."""

    mode: Mode = "unjudged"
    instruction: str = "check:"
    request: str = "judge:"
    critique_length: int = 8
    mended: float = 1.0
    rows: contract.Rows = "conversation"

    name = "revise"

    @property
    def seats(self) -> int:
        """In chapters with a critique, seat 0 answers and seat 1 judges; else 1."""
        return 2 if self.mode == "critique" and self.rows == "chapters" else 1

    @property
    def max_turns(self) -> int:
        """Answer, critique if there is one, and answer."""
        return 3 if self.mode == "critique" else 2

    @property
    def turn_length(self) -> int:
        """T of the task, or the tokens of a critique if these are more."""
        return max(self.critique_length if self.mode == "critique" else 0, self.inner.completion_length)

    @property
    def reply_length(self) -> int:
        """The most tokens of a judgement with an instruction."""
        judgement = len(RIGHT) + 1 if self.mode == "judged" else 0
        asked = tokens.width(self.request) if self.mode == "critique" else 0
        return max(asked, judgement + tokens.width(self.instruction))

    @property
    def recalled_length(self) -> int:
        """The most tokens before the last turn, replies included."""
        return (self.max_turns - 1) * (self.turn_length + self.reply_length)

    @property
    def conversation_length(self) -> int:
        """T of a conversation."""
        return self.turn_length + self.recalled_length

    @property
    def parts(self) -> tuple[str, ...]:
        """The task's parts for the last answer, and the parts of the two answers."""
        extra = ("first", "second", "improved", "spoiled", *(("verdict",) if self.mode == "critique" else ()))
        return (*self.inner.parts, *extra)

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what is told and judged."""
        texts = (("instruction", self.instruction), ("request", self.request))
        return (*texts, ("mode", RIGHT + " "), ("mode", FALSE + " "))

    def begin(self, index: Array, split: Split, key: types.Key) -> Attempts:
        """Return a state without attempts."""
        zero = jnp.float32(0)
        return Attempts(
            problem=self.inner.begin(index, split, key),
            turn=jnp.int32(0),
            first=zero,
            correct=jnp.zeros((), bool),
            verdict=zero,
            token=jnp.zeros((self.recalled_length,), jnp.int32),
            mask=jnp.zeros((self.recalled_length,)),
        )

    def prompt(self, state: Attempts, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the task; in chapters followed by the turns and replies so far."""
        return self.recalling(self.inner.prompt(state.problem, seat), (state.token, state.mask))

    def step(
        self, state: Attempts, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Attempts, contract.Reply]:
        """Judge an answer, or read a critique, and tell what comes next."""
        limit = self.inner.turn_length  # a longer answer has no end
        _, judged = self.inner.step(state.problem, seat, token[:limit], mask[:limit], key)
        reward, correct = judged.reward[0], judged.outcome[0] == types.Outcome.CORRECT
        first, last = state.turn == 0, state.turn == self.max_turns - 1
        critic = (state.turn == 1) & (self.mode == "critique")
        verdict = self._judgement(token, mask)
        before = jnp.where(first, reward, state.first)
        was = jnp.where(first, correct, state.correct)
        matches = jnp.where(critic, jnp.where(was, verdict == 1, verdict == 0), state.verdict).astype(jnp.float32)
        part = self._told(state.turn, was, ~last)
        parts = {name: x[0] for name, x in judged.parts.items()} | {
            "first": before,
            "second": reward * last,
            "improved": last & correct & ~was,
            "spoiled": last & ~correct & was,
        }
        if self.mode == "critique":  # only the critic is paid for its verdict where it has a seat of its own
            parts["verdict"] = matches * (jnp.arange(self.seats) == self.seats - 1)
        paid = jnp.where(critic, 0.0, jnp.where(jnp.arange(self.seats) > 0, reward * last, reward))
        reply = tokens.told(
            self,
            part,
            outcome=jnp.where(critic, jnp.where(was, types.Outcome.CORRECT, types.Outcome.WRONG), judged.outcome[0]),
            valid=judged.valid,
            domain=judged.domain,
            reward=paid,
            done=last,
            next_seat=jnp.where(first, self.seats - 1, 0),  # the critic, where it has a seat of its own
            parts=parts,
        )
        pieces = [(state.token, state.mask), (token, mask), part]
        history = self.join(pieces, self.recalled_length)
        history = jax.tree.map(lambda new, old: jnp.where(last, old, new), history, (state.token, state.mask))
        after = Attempts(state.problem, state.turn + 1, before, was, matches, *history)
        return after, reply

    def expert(self, state: Attempts, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Write the task's demonstration first, mistakes included, a true critique, and last mostly a right answer."""
        first = self.inner.expert(state.problem, seat, key)
        last = single.faultless(self.inner).expert(state.problem, seat, key)
        errs = (state.turn == 0) | ~jax.random.bernoulli(jax.random.fold_in(key, 0), self.mended)
        turn = jax.tree.map(lambda a, b: jnp.where(errs, a, b), first, last)
        turn = self.join([turn], self.turn_length)
        if self.mode != "critique":
            return turn
        critique = tokens.one_word(self, state.correct.astype(jnp.int32), VERDICTS, "mode")
        return jax.tree.map(lambda a, b: jnp.where(state.turn == 1, a, b), critique, turn)

    def _told(self, turn: Array, correct: Array, more: Array) -> tokens.Piece:
        """Return what follows a turn: a request of a critique, or a judgement and the instruction."""
        pieces = []
        asks = (turn == 0) & (self.mode == "critique")
        if self.mode == "judged":
            pieces.append(tokens.masked(self.piece("mode", RIGHT + " "), more & correct))
            pieces.append(tokens.masked(self.piece("mode", FALSE + " "), more & ~correct))
        if self.mode == "critique":
            pieces.append(tokens.masked(self.piece("request", self.request), more & asks))
        pieces.append(tokens.masked(self.piece("instruction", self.instruction), more & ~asks))
        return self.join(pieces, self.reply_length)

    def _judgement(self, token: Array, mask: Array) -> Array:
        """Read a critique: 1 if it ends with ``right``, 0 with ``wrong``, -1 with neither or without an end."""
        if self.mode != "critique":
            return jnp.int32(-1)
        return tokens.last_word(self, (token, mask), VERDICTS, "mode")


@environments.task
def revise(
    task: environments.Task,
    mode: Mode = "unjudged",
    instruction: str = "check:",
    request: str = "judge:",
    critique_length: types.Count = 8,
    mended: settings.Share = 1.0,
    rows: contract.Rows = "conversation",
) -> Revise:
    """Answer a problem of a task, then answer it again; both answers are judged by the task's verifier.

    Every answer is paid its reward, on its last token; the outcome is the last answer's. Parts: ``first`` and
    ``second``, the rewards; ``improved``, 1 where only the second answer is correct; ``spoiled``, where only the first
    is. Sources: SCoRe (arXiv 2409.12917) without, Critique-RL (arXiv 2510.24320) with a critique.

    ``mode``: after the first answer,

    - "unjudged": ``instruction`` is told, and nothing about the answer.
    - "judged": ``right`` or ``wrong`` is told, then ``instruction``.
    - "critique": ``request`` is told, and the player writes a critique, whose last word is ``right`` or ``wrong``; then
      ``instruction`` is told. The part ``verdict`` is 1 where the critique is true. In chapters the critic is seat 1,
      it is paid the reward of the second answer, and ``verdict`` is 0 in the rows of seat 0.

    The expert's first answer has the mistakes of the task's demonstrations (``slip``, ``noise``). The second has none
    with probability ``mended``, else mistakes of its own.

    Args:
      task: a device task.
      mode: see above.
      instruction: asks for the second answer.
      request: asks for the critique.
      critique_length: the most tokens of a critique, its end included.
      mended: share of the demonstrations whose second answer has no mistakes.
      rows: "chapters": each turn is a row, whose prompt is the conversation so far.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, a text is empty, or critiques are too short.
    """
    for field, text in (("instruction", instruction), ("request", request)):
        if not text:
            raise ValueError(f"{field}: '' is empty; the second turn needs an instruction")
    tokens.check_room("critique_length", critique_length, RIGHT)
    return Revise(single.one_turn(task, "revise"), mode, instruction, request, critique_length, mended, rows)
