"""Answer, then answer again: self-correction, with or without a judgement or a critique in between."""

import dataclasses
from collections.abc import Iterator
from typing import Literal

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import single, tokens
from rljax.language import settings

Array = types.Array
Mode = Literal["unjudged", "judged", "critique"]
RIGHT, FALSE = "right", "wrong"  # verdicts of critiques and judgements


class Attempts(flax.struct.PyTreeNode):
    """What has been written so far."""

    problem: single.Problem
    turn: Array  # int32, turns that have ended
    first: Array  # float32, reward of the first answer
    correct: Array  # bool, whether the first answer was correct
    verdict: Array  # float32, 1 where the critique judged the first answer correctly
    token: Array  # [H] int32, turns and replies, for the prompts of chapters
    mask: Array  # [H] float32


@dataclasses.dataclass(frozen=True)
class Revise(tokens.TokenWorld):
    """The world that ``revise`` builds; fields are its arguments."""

    task: environments.DeviceTask
    mode: Mode = "unjudged"
    instruction: str = "check:"
    request: str = "judge:"
    critique_length: int = 8
    mended: float = 1.0
    rows: contract.Rows = "conversation"
    tokenizer: tokenizers.Tokenizer | None = None

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
        return max(self.critique_length if self.mode == "critique" else 0, self.task.completion_length)

    @property
    def reply_length(self) -> int:
        """The most tokens of a judgement with an instruction."""
        judgement = len(RIGHT) + 1 if self.mode == "judged" else 0
        asked = tokens.width(self.request) if self.mode == "critique" else 0
        return max(asked, judgement + tokens.width(self.instruction))

    @property
    def prompt_length(self) -> int:
        """L, of the task or, in chapters, with all that comes before the last turn."""
        return self.task.prompt_length + (self._history if self.rows == "chapters" else 0)

    @property
    def completion_length(self) -> int:
        """T of a row."""
        return self.turn_length + (self._history if self.rows == "conversation" else 0)

    @property
    def parts(self) -> tuple[str, ...]:
        """Those of the task for the last answer, and those of the two answers."""
        extra = ("first", "second", "improved", "spoiled", *(("verdict",) if self.mode == "critique" else ()))
        return (*self.task.parts, *extra)

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the task, and what this world tells."""
        yield from self.task.corpus()
        yield from (RIGHT + " ", FALSE + " ", self.instruction, self.request)

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Revise":
        """Return a copy with the tokenizer; ValueError if it cannot write a text."""
        bound = dataclasses.replace(self, task=self.task.bind(tokenizer), tokenizer=tokenizer)
        for field, text in bound._texts().items():
            tokens.ids(tokenizer, text, field)
        return bound

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.task.size(split)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        return self.task.text(index, split)

    def begin(self, index: Array, split: Split, key: types.Key) -> Attempts:
        """Return a state without attempts."""
        zero = jnp.float32(0)
        return Attempts(
            problem=single.Problem(jnp.asarray(index, jnp.int32), split),
            turn=jnp.int32(0),
            first=zero,
            correct=jnp.zeros((), bool),
            verdict=zero,
            token=jnp.zeros((self._history,), jnp.int32),
            mask=jnp.zeros((self._history,)),
        )

    def prompt(self, state: Attempts, seat: Array) -> tuple[Array, Array]:
        """Return the prompt of the task; in chapters followed by the turns and replies so far."""
        prompts = self.task.prompts(state.problem.index[None], state.problem.split)
        pieces = [(prompts.token[0], prompts.mask[0])]
        if self.rows == "chapters":
            pieces.append((state.token, state.mask))
        return tokens.join(pieces, self.prompt_length, self._bound.pad, side="left")

    def step(
        self, state: Attempts, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Attempts, contract.Reply]:
        """Judge an answer, or read a critique, and tell what comes next."""
        limit = self.task.completion_length  # a longer answer has no end
        verdict = single.judge(self.task, state.problem, token[:limit], mask[:limit])
        reward, correct = verdict.reward[0], verdict.outcome[0] == types.Outcome.CORRECT
        first, last = state.turn == 0, state.turn == self.max_turns - 1
        critic = (state.turn == 1) & (self.mode == "critique")
        said = self._judgement(token, mask)
        before = jnp.where(first, reward, state.first)
        was = jnp.where(first, correct, state.correct)
        matches = jnp.where(critic, jnp.where(was, said == 1, said == 0), state.verdict).astype(jnp.float32)
        part = self._told(state.turn, was, ~last)
        parts = {name: x[0] for name, x in verdict.parts.items()}
        parts |= {
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
            verdict,
            outcome=jnp.where(critic, jnp.where(was, types.Outcome.CORRECT, types.Outcome.WRONG), verdict.outcome[0]),
            reward=paid,
            done=last,
            next_seat=jnp.where(first & (self.seats > 1), 1, 0),
            parts=parts,
        )
        pieces = [(state.token, state.mask), (token, mask), part]
        history = tokens.join(pieces, self._history, self._bound.pad)
        history = jax.tree.map(lambda new, old: jnp.where(last, old, new), history, (state.token, state.mask))
        after = Attempts(state.problem, state.turn + 1, before, was, matches, *history)
        return after, reply

    def expert(self, state: Attempts, seat: Array, key: types.Key) -> tuple[Array, Array]:
        """Write the task's demonstration first, mistakes included, a true critique, and last mostly a right answer."""
        index, split = state.problem.index[None], state.problem.split
        first = self.task.demonstrations(index, split, key)
        last = single.faultless(self.task).demonstrations(index, split, key)
        errs = (state.turn == 0) | ~jax.random.bernoulli(jax.random.fold_in(key, 0), self.mended)
        turn = jax.tree.map(lambda a, b: jnp.where(errs, a[0], b[0]), first, last)
        turn = tokens.join([turn], self.turn_length, self._bound.pad)
        if self.mode != "critique":
            return turn
        critique = self._critique(state.correct)
        return jax.tree.map(lambda a, b: jnp.where(state.turn == 1, a, b), critique, turn)

    @property
    def _history(self) -> int:
        return (self.max_turns - 1) * (self.turn_length + self.reply_length)

    @property
    def _bound(self) -> tokenizers.Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: world {self.name!r} has none; call world.bind(tokenizer) first")
        return self.tokenizer

    def _texts(self) -> dict[str, str]:
        """Return what is told and judged, by the setting that holds it."""
        return {"instruction": self.instruction, "request": self.request, "mode": f"{RIGHT} {FALSE} "}

    def _piece(self, text: str, field: str) -> tokens.Piece:
        return tokens.piece(tokens.ids(self.tokenizer, text, field))

    def _told(self, turn: Array, correct: Array, more: Array) -> tokens.Piece:
        """Return what follows a turn: a request of a critique, or a judgement and the instruction."""
        pieces = []
        asks = (turn == 0) & (self.mode == "critique")
        if self.mode == "judged":
            pieces.append(tokens.masked(self._piece(RIGHT + " ", "mode"), more & correct))
            pieces.append(tokens.masked(self._piece(FALSE + " ", "mode"), more & ~correct))
        if self.mode == "critique":
            pieces.append(tokens.masked(self._piece(self.request, "request"), more & asks))
        pieces.append(tokens.masked(self._piece(self.instruction, "instruction"), more & ~asks))
        return tokens.join(pieces, self.reply_length, self._bound.pad)

    def _critique(self, correct: Array) -> tokens.Piece:
        end = tokens.piece(np.asarray([self._bound.eos]))
        right, false = (self._piece(text, "mode") for text in (RIGHT, FALSE))
        pieces = [tokens.masked(right, correct), tokens.masked(false, ~correct), end]
        return tokens.join(pieces, self.turn_length, self._bound.pad)

    def _judgement(self, token: Array, mask: Array) -> Array:
        """Read a critique: 1 if it ends with ``right``, 0 with ``wrong``, -1 with neither or without an end."""
        if self.mode != "critique":
            return jnp.int32(-1)
        said = jnp.int32(-1)
        count = jnp.sum(mask > 0)
        for value, text in ((1, RIGHT), (0, FALSE)):
            ids = jnp.asarray([*tokens.ids(self.tokenizer, text, "mode"), self._bound.eos])
            start = count - len(ids)
            end = jax.lax.dynamic_slice(jnp.pad(token, (0, len(ids))), (jnp.maximum(start, 0),), (len(ids),))
            said = jnp.where((start >= 0) & jnp.all(end == ids), value, said)
        return said


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

    Every answer is paid its reward, on its last token; the outcome is that of the last answer. Parts: ``first`` and
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
    needed = tokens.width(RIGHT) + 1
    if critique_length < needed:
        raise ValueError(f"critique_length: {critique_length} tokens are too few; {RIGHT!r} and its end need {needed}")
    return Revise(single.device(task, "revise"), mode, instruction, request, critique_length, mended, rows)
