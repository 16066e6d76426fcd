"""Contest: two seats answer a problem, and a third one says whose answer is better, in words of its own."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.environments import worlds as contract
from rljax.environments.worlds import single, tokens
from rljax.environments.worlds.shipped.social import panel

Array = types.Array
WORDS = "first", "second"  # the last word of a verdict


@dataclasses.dataclass(frozen=True)
class Contest(panel.Answering):
    """The world that ``contest`` builds; ``inner`` is its ``task`` as a world."""

    mark: str
    request: str
    verdict_length: int

    name = "contest"
    seats = 3

    @property
    def turn_length(self) -> int:
        """T of the task, or the tokens of a verdict if these are more."""
        return max(self.verdict_length, self.inner.completion_length)

    @property
    def recalled_length(self) -> int:
        """The most tokens of both answers, their marks, and the request."""
        return super().recalled_length + tokens.width(self.request)

    @property
    def parts(self) -> tuple[str, ...]:
        """The task's parts, ``solved``, ``preferred`` and ``verdict``."""
        return (*self.inner.parts, "solved", "preferred", "verdict")

    def texts(self) -> Sequence[tuple[str, str]]:
        """Return what follows an answer."""
        return (("mark", self.mark),)

    def corpus(self) -> Iterator[str]:
        """Yield the texts of the task, the request, and the words of a verdict."""
        yield from super().corpus()
        yield from (self.request, *WORDS)

    def prompt(self, state: panel.Answers, seat: Array) -> tokens.Piece:
        """Return the prompt of the task; for seat 2 both answers and the request behind it."""
        judges = seat == 2
        answers = tokens.masked((state.token, state.mask), judges)
        request = tokens.masked(self.piece("request", self.request), judges)
        return self.join([self.inner.prompt(state.problem, seat), answers, request], self.prompt_length, side="left")

    def step(
        self, state: panel.Answers, seat: Array, token: Array, mask: Array, key: types.Key
    ) -> tuple[panel.Answers, contract.Reply]:
        """Judge an answer by the task, or read the verdict and pay all seats."""
        last, both = state.turn == 2, jnp.arange(3) < 2
        after, judged = self.answered(state, seat, (token, mask), key)
        solved = state.parts["solved"].at[seat].set(judged.reward[0])
        after = after.replace(parts=after.parts | {"solved": solved})
        after = jax.tree.map(lambda new, old: jnp.where(last, old, new), after, state).replace(turn=state.turn + 1)
        said = tokens.last_word(self, (token, mask), WORDS, "request")
        preferred = jnp.where(last & (said >= 0), (jnp.arange(3) == said) & both, False)
        solved = after.parts["solved"]
        ahead = jnp.where(said == 0, 1, -1) * (solved[0] - solved[1])
        true = jnp.where(said < 0, 0.0, jnp.where(ahead == 0, 0.5, ahead > 0))
        missed = jnp.where(said < 0, types.Outcome.UNPARSEABLE, types.Outcome.WRONG)
        outcome = after.outcome.at[2].set(jnp.where(true > 0.5, types.Outcome.CORRECT, missed))
        reply = tokens.told(
            self,
            None,
            reward=last * jnp.where(both, preferred, true),
            outcome=outcome,
            valid=jnp.where(last, 1.0, judged.valid),
            domain=judged.domain,
            done=last,
            next_seat=jnp.minimum(state.turn + 1, 2),
            parts=after.parts | {"preferred": preferred, "verdict": true * last * ~both},
        )
        return after, reply

    def expert(self, state: panel.Answers, seat: Array, key: types.Key) -> tokens.Piece:
        """Write the task's demonstration, mistakes included, and a true verdict."""
        answer = self.join([self.inner.expert(state.problem, seat, key)], self.turn_length)
        second = state.parts["solved"][0] < state.parts["solved"][1]
        verdict = tokens.one_word(self, second.astype(jnp.int32), WORDS, "request")
        return jax.tree.map(lambda a, b: jnp.where(seat == 2, b, a), answer, verdict)


@environments.task
def contest(
    task: environments.Task, mark: str = "/", request: str = "better:", verdict_length: types.Count = 8
) -> Contest:
    """Answer a problem in two seats that do not see each other; a third one says which answer is better.

    Each turn is a row. Seat 2 reads the problem, both answers with ``mark`` behind each, and ``request``; it may write
    what it likes, and its last word is ``first`` or ``second``. The seat that it prefers is paid 1, the other one 0; it
    is itself paid 1 if the task's verifier agrees, 1/2 if the answers are equally good, and 0 else. Outcomes of seats 0
    and 1 are the task's. Parts: ``solved``, what the task pays for the answer; ``preferred``; ``verdict``, what seat 2
    is paid. So a generative judge pays a policy: as a frozen module, as the policy itself, or trained beside it
    (``config.world.players``). Source: the pairwise generative reward model of Writing-Zero (arXiv 2506.00103), which
    writes principles and a critique before its verdict, on texts that have no verifier.

    Args:
      task: a device task.
      mark: follows each answer in the prompt of the judge.
      request: asks for the verdict.
      verdict_length: the most tokens of a verdict, its end included.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: the task is judged on the host or has several turns, a text is empty, or verdicts are too short.
    """
    for field, text in (("mark", mark), ("request", request)):
        if not text:
            raise ValueError(f"{field}: '' is empty; it keeps the texts of a judge's prompt apart")
    tokens.check_room("verdict_length", verdict_length, WORDS[1])
    return Contest(single.one_turn(task, "contest"), mark, request, verdict_length)
