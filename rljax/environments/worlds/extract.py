"""Extract and solve: one seat writes a skill for a problem, the other one solves the problem with it."""

import dataclasses
from collections.abc import Iterator

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import single, tokens

Array = types.Array


class Skill(flax.struct.PyTreeNode):
    """What has been written so far."""

    problem: single.Problem
    turn: Array  # int32, turns that have ended
    success: Array  # float32, correct attempts
    token: Array  # [length] int32, the skill
    mask: Array  # [length] float32


@dataclasses.dataclass(frozen=True)
class Extract(tokens.TokenWorld):
    """The world that ``extract`` builds; fields are its arguments."""

    task: environments.DeviceTask
    length: int
    attempts: int
    request: str
    instruction: str
    tokenizer: tokenizers.Tokenizer | None = None

    name = "extract"
    rows = "chapters"
    seats = 2
    reply_length = 1
    parts = ("success",)

    @property
    def max_turns(self) -> int:
        """The skill, then the attempts."""
        return 1 + self.attempts

    @property
    def turn_length(self) -> int:
        """The most tokens of a skill or an answer."""
        return max(self.length, self.task.completion_length)

    @property
    def prompt_length(self) -> int:
        """L: the problem, the texts and the skill."""
        return self.task.prompt_length + tokens.width(self.request) + self.length + tokens.width(self.instruction)

    @property
    def completion_length(self) -> int:
        """T of a row, which is one turn."""
        return self.turn_length

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the task, and what this world tells."""
        yield from self.task.corpus()
        yield from (self.request, self.instruction)

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Extract":
        """Return a copy with the tokenizer; ValueError if it cannot write a text."""
        for field in ("request", "instruction"):
            tokens.ids(tokenizer, getattr(self, field), field)
        return dataclasses.replace(self, task=self.task.bind(tokenizer), tokenizer=tokenizer)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return self.task.size(split)

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        return self.task.text(index, split) + self.request

    def begin(self, index: Array, split: Split, key: types.Key) -> Skill:
        """Return a state without a skill."""
        return Skill(
            problem=single.Problem(jnp.asarray(index, jnp.int32), split),
            turn=jnp.int32(0),
            success=jnp.float32(0),
            token=jnp.zeros((self.length,), jnp.int32),
            mask=jnp.zeros((self.length,)),
        )

    def prompt(self, state: Skill, seat: Array) -> tokens.Piece:
        """Return the problem and ``request``; for seat 1 also the skill and ``instruction``."""
        request, instruction = (
            tokens.piece(tokens.ids(self.tokenizer, getattr(self, field), field))
            for field in ("request", "instruction")
        )
        problem = self.task.prompts(state.problem.index[None], state.problem.split)
        solves = seat == 1
        pieces = [(problem.token[0], problem.mask[0]), request]
        pieces += [tokens.masked((state.token, state.mask), solves), tokens.masked(instruction, solves)]
        return tokens.join(pieces, self.prompt_length, self._bound.pad, side="left")

    def step(
        self, state: Skill, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Skill, contract.Reply]:
        """Note the skill, or judge an answer and pay both seats."""
        limit = self.task.completion_length
        verdict = single.judge(self.task, state.problem, token[:limit], mask[:limit])
        solves = state.turn > 0
        correct = solves & (verdict.outcome[0] == types.Outcome.CORRECT)
        success = state.success + correct
        some = jnp.where(success > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        reply = tokens.told(
            self,
            None,
            verdict,
            reward=jnp.where(solves, verdict.reward[0], 0.0) * jnp.asarray([1 / self.attempts, 1.0]),
            outcome=some,
            valid=jnp.where(solves, tokens.valid(verdict), 1.0),
            done=state.turn == self.attempts,
            next_seat=1,
            parts={"success": success / self.attempts},
        )
        written = (token, jnp.where(token == self._bound.eos, 0.0, mask))
        skill = tokens.join([written], self.length, self._bound.pad)
        kept = jax.tree.map(lambda old, new: jnp.where(solves, old, new), (state.token, state.mask), skill)
        return Skill(state.problem, state.turn + 1, success, *kept), reply

    def expert(self, state: Skill, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the start of a demonstration without mistakes as the skill, and the task's demonstration after it."""
        index, split = state.problem.index[None], state.problem.split
        token, mask = (x[0] for x in single.faultless(self.task).demonstrations(index, split, key))
        start = (jnp.cumsum(mask) < self.length) & (token != self._bound.eos)
        end = tokens.piece(np.asarray([self._bound.eos]))
        skill = tokens.join([tokens.masked((token, mask), start), end], self.turn_length, self._bound.pad)
        token, mask = self.task.demonstrations(index, split, key)
        solution = tokens.join([(token[0], mask[0])], self.turn_length, self._bound.pad)
        return jax.tree.map(lambda a, b: jnp.where(state.turn == 0, a, b), skill, solution)

    @property
    def _bound(self) -> tokenizers.Tokenizer:
        if self.tokenizer is None:
            raise ValueError(f"tokenizer: world {self.name!r} has none; call world.bind(tokenizer) first")
        return self.tokenizer


@environments.task
def extract(
    task: environments.Task,
    length: types.Count = 8,
    attempts: types.Count = 2,
    request: str = "skill:",
    instruction: str = "use:",
) -> Extract:
    """Write a skill for a problem (seat 0), then solve the problem with it (seat 1), several times.

    Each turn is a row. Seat 1 is paid the reward of each attempt, and seat 0 their mean; the part ``success`` is the
    share of correct attempts. A skill is cut at ``length`` tokens. Source: the two roles of Evolving-RL (2025), which
    extracts skills from earlier attempts; here the extractor reads the problem itself.

    The expert's skill is the start of a demonstration without mistakes (``slip``, ``noise``); its attempts have them.

    Args:
      task: a device task.
      length: the most tokens of a skill, its end included.
      attempts: rows that read each skill.
      request: follows the problem, and asks for the skill.
      instruction: follows the skill, and asks for the answer.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, or a text is empty.
    """
    for field, text in (("request", request), ("instruction", instruction)):
        if not text:
            raise ValueError(f"{field}: '' is empty; the seats are told apart by what their prompts end with")
    return Extract(single.device(task, "extract"), length, attempts, request, instruction)
