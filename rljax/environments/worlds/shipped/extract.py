"""Extract and solve: one seat writes a skill, the other one solves the same problem, or others, with it."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from rljax import environments, types
from rljax.environments import Split
from rljax.environments import worlds as contract
from rljax.environments.worlds import around, single, tokens

Array = types.Array
_STRIDE = 7919  # between the problems of an episode; a prime


class Skill(flax.struct.PyTreeNode):
    """What has been written so far."""

    problem: Any  # states of the world of one turn, [1 + attempts, ...]: what seat 0 reads, then of each attempt
    episode: Any  # token and mask [L], what seat 0 reads beside its problem
    turn: Array  # int32, turns that have ended
    success: Array  # float32, correct attempts
    token: Array  # [length] int32, the skill
    mask: Array  # [length] float32


@dataclasses.dataclass(frozen=True)
class Extract(tokens.Derived, around.Around):
    """The world that ``extract`` builds; fields are its arguments, and ``inner`` is a world of one turn."""

    length: int
    attempts: int
    request: str
    instruction: str
    others: bool

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
        return max(self.length, self.inner.completion_length)

    @property
    def prompt_length(self) -> int:
        """L: the problem, the texts and the skill; or the problem and its episode."""
        skill = self.length + tokens.width(self.instruction)
        episode = self.inner.completion_length * self.others
        return self.inner.prompt_length + tokens.width(self.request) + max(skill, episode)

    @property
    def completion_length(self) -> int:
        """T of a row, which is one turn."""
        return self.turn_length

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what the prompts end with."""
        return (("request", self.request), ("instruction", self.instruction))

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` of seat 0 as text."""
        return self.inner.text(index, split) + self.request

    def begin(self, index: Array, split: Split, key: types.Key) -> Skill:
        """Return a state without a skill."""
        indices = index + jnp.arange(self.max_turns) * _STRIDE * self.others
        problems = jax.vmap(lambda i: self.inner.begin(i, split, key))(indices % self.inner.size(split))
        first = jax.tree.map(lambda x: x[0], problems)
        token, mask = self.inner.expert(first, jnp.int32(0), jax.random.fold_in(key, 1))
        return Skill(
            problem=problems,
            episode=tokens.masked((token, jnp.where(token == self.bound.eos, 0.0, mask)), jnp.bool_(self.others)),
            turn=jnp.int32(0),
            success=jnp.float32(0),
            token=jnp.zeros((self.length,), jnp.int32),
            mask=jnp.zeros((self.length,)),
        )

    def prompt(self, state: Skill, seat: Array) -> tokens.Piece:
        """Return the problem, its episode and ``request``; for seat 1 the skill and ``instruction``, and no episode."""
        request, instruction = (self.piece(*text) for text in self.texts())
        solves = seat == 1
        pieces = [self.inner.prompt(_now(state), seat), tokens.masked(state.episode, ~solves), request]
        pieces += [tokens.masked((state.token, state.mask), solves), tokens.masked(instruction, solves)]
        return self.join(pieces, self.prompt_length, side="left")

    def step(
        self, state: Skill, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[Skill, contract.Reply]:
        """Note the skill, or judge an answer and pay both seats."""
        limit = self.inner.turn_length
        _, judged = self.inner.step(_now(state), seat, token[:limit], mask[:limit], key)
        solves = state.turn > 0
        correct = solves & (judged.outcome[0] == types.Outcome.CORRECT)
        success = state.success + correct
        some = jnp.where(success > 0, types.Outcome.CORRECT, types.Outcome.WRONG)
        reply = tokens.told(
            self,
            None,
            reward=jnp.where(solves, judged.reward[0], 0.0) * jnp.asarray([1 / self.attempts, 1.0]),
            outcome=some,
            valid=jnp.where(solves, judged.valid, 1.0),
            domain=judged.domain,
            done=state.turn == self.attempts,
            next_seat=1,
            parts={"success": success / self.attempts},
        )
        written = (token, jnp.where(token == self.bound.eos, 0.0, mask))
        skill = self.join([written], self.length)
        kept = jax.tree.map(lambda old, new: jnp.where(solves, old, new), (state.token, state.mask), skill)
        return Skill(state.problem, state.episode, state.turn + 1, success, *kept), reply

    def expert(self, state: Skill, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the start of a demonstration without mistakes as the skill, and the task's demonstration after it."""
        token, mask = single.faultless(self.inner).expert(_now(state), seat, key)
        start = (jnp.cumsum(mask) < self.length) & (token != self.bound.eos)
        end = tokens.piece(np.asarray([self.bound.eos]))
        skill = self.join([tokens.masked((token, mask), start), end], self.turn_length)
        solution = self.join([self.inner.expert(_now(state), seat, key)], self.turn_length)
        return jax.tree.map(lambda a, b: jnp.where(state.turn == 0, a, b), skill, solution)


def _now(state: Skill) -> Any:
    """Return the problem of the turn."""
    return jax.tree.map(lambda x: x[jnp.minimum(state.turn, x.shape[0] - 1)], state.problem)


@environments.task
def extract(
    task: environments.Task,
    length: types.Count = 8,
    attempts: types.Count = 2,
    request: str = "skill:",
    instruction: str = "use:",
    others: bool = False,
) -> Extract:
    """Write a skill for a problem (seat 0), then solve the problem, or other ones, with it (seat 1), several times.

    Each turn is a row. Seat 1 is paid the reward of each attempt, and seat 0 their mean; the part ``success`` is the
    share of correct attempts. A skill is cut at ``length`` tokens. Source: the two roles of Evolving-RL (2025). With
    ``others``, as there, the extractor reads a problem with an episode, which is a demonstration of the task, and each
    attempt is at another problem of the split. The paper retrieves similar ones; here they are at fixed distances, and
    share a skill only if all problems of the task do.

    The expert's skill is the start of a demonstration without mistakes (``slip``, ``noise``); its attempts have them.

    Args:
      task: a device task.
      length: the most tokens of a skill, its end included.
      attempts: rows that read each skill.
      request: follows the problem, and asks for the skill.
      instruction: follows the skill, and asks for the answer.
      others: whether attempts are at other problems than the one that the extractor read.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, or a text is empty.
    """
    for field, text in (("request", request), ("instruction", instruction)):
        if not text:
            raise ValueError(f"{field}: '' is empty; the seats are told apart by what their prompts end with")
    return Extract(single.one_turn(task, "extract"), length, attempts, request, instruction, others)
