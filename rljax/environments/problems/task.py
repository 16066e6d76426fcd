"""A device task whose problems are numbered: ``Problems``, made of ``Rules``."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments import Split, characters, traits, written
from rljax.environments.problems import numbering
from rljax.environments.problems import rules as rules_lib
from rljax.environments.problems.rules import Common, Rules
from rljax.transforms import ops


@dataclasses.dataclass(frozen=True)
class Problems(written.WrittenTask):
    """A task; ``build`` makes it."""

    rules: Rules
    common: Common
    prompt_length: int
    completion_length: int
    tokenizer: tokenizers.Tokenizer | None = None

    @property
    def name(self) -> str:
        """Name of the task."""
        return self.rules.name

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers of the verdict."""
        return "format", *getattr(self.rules, "parts", ()), *("answer",) * self.common.votes

    @property
    def supplies(self) -> tuple[str, ...]:
        """What rows hold beyond the defaults."""
        return ("token_reward",) if self.common.step_reward else ()

    @property
    def domain_names(self) -> tuple[str, ...]:
        """A text for each domain."""
        return getattr(self.rules, "domain_names", ("",))

    @property
    def domains(self) -> int:
        """How many there are."""
        return len(self.domain_names)

    def domain(self, index: types.Array, split: Split) -> jax.Array:
        """Return the domain of prompts ``index`` ``[n]``, ``[n]`` int32."""
        rules: Any = self.rules
        return rules.domain(self.values(index, split)) if self.domains > 1 else jnp.zeros(len(index), jnp.int32)

    def size(self, split: Split) -> int:
        """Return the number of problems of a split."""
        return numbering.size(self.rules.radices, self.common.heldout, split, self._leading)

    @property
    def pictures(self) -> traits.Pictures | None:
        """The pictures of a prompt."""
        return getattr(self.rules, "pictures", None)

    def images(self, index: types.Array, split: Split) -> jax.Array | None:
        """Draw the pictures of each prompt."""
        rules: Any = self.rules
        size = self.pictures
        if size is None:
            return None
        drawn = rules.picture(self.values(index, split))
        return drawn.reshape(-1, size.count, *drawn.shape[-3:])

    def values(self, index: types.Array, split: Split) -> jax.Array:
        """Return problems ``index`` ``[P]`` of a split as integers, ``[P, len(radices)]`` int32."""
        return numbering.values(self.rules.radices, self.common.heldout, index, split, self._leading)

    def marks(self, index: int, split: Split, text: str) -> tuple[list[list[float]], list[list[float]]] | None:
        """Return the places that a completion of a prompt writes, and those asked, or None; see ``traits.Marking``."""
        rules, size = self.rules, self.pictures
        if size is None or not isinstance(rules, rules_lib.Marked):
            return None
        asked = np.asarray(_targets(self, jnp.asarray([index], jnp.int32), split))[0].tolist()

        def scaled(box: list[int]) -> list[float]:  # a point is the middle of its pixel; right and bottom are inside
            ends = [x + (0.5 if len(box) == 2 else i > 1) for i, x in enumerate(box)]
            return [x / (size.width, size.height)[i % 2] for i, x in enumerate(ends)]

        return [*map(scaled, rules.places(text))], [scaled(box) for box in asked if box[0] >= 0]

    def write_prompts(self, index: types.Array, split: Split) -> jax.Array:
        """Write prompts."""
        return self.rules.prompt(self.values(index, split))

    def write_demonstrations(self, index: types.Array, split: Split, key: types.Key) -> jax.Array:
        """Write demonstrations with the slips and noise of the settings."""
        count, choices = self.rules.mistakes
        slip, off = numbering.mistakes(key, index, self.common.slip, self.common.noise, count, choices)
        return self._written(self.rules.solve(self.values(index, split), slip, off))

    def solutions(self, index: types.Array, split: Split) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations without mistakes."""
        return self.encode(self._written(rules_lib.solution(self.rules, self.values(index, split))))

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Judge the text between the last ``;`` and end-of-sequence; reward 1 if it is correct, else 0.

        Unparseable: no end-of-sequence, or not an answer in form. ``parts["format"]`` is 1 if parseable, else 0. The
        rules may measure more parts and another reward, 0 where it is unparseable. With ``strict`` the steps count
        too, and with ``step_reward`` tokens are paid, see ``_paid``. With ``votes`` the part "answer" is the ``number``
        of the answer.
        """
        text, value, rules = characters.read(self.bound, token, mask), self.values(index, split), self.rules
        final = characters.last(text.code, ";")
        parseable, correct = rules.judge(value, final)
        parseable, correct = parseable & text.ended, parseable & text.ended & correct
        steps = paid = None
        if isinstance(rules, rules_lib.Stepwise):
            steps = rules.judge_steps(value, text.code)
        elif self.common.strict or self.common.step_reward:
            steps = self._compared(value, text.code)
        if steps and self.common.strict:
            correct &= steps.complete & jnp.all(steps.right | ~steps.ends, axis=1)
        if steps and self.common.step_reward:
            paid = self._paid(steps, mask, correct)
        measured = isinstance(rules, rules_lib.Measured)
        reward, parts = rules.measure(value, final, parseable) if measured else (None, {})
        parts |= steps.parts if steps else {}
        parts |= {"answer": characters.number(final, final > 0)} if self.common.votes else {}
        verdict = written.verdict(parseable, correct, **parts).replace(token_reward=paid)
        return verdict if reward is None else verdict.replace(reward=jnp.where(parseable, reward, 0.0))

    def _compared(self, value: jax.Array, code: jax.Array) -> rules_lib.Steps:
        """Compare each step of the working, which ends at ``;``, with the step of the same number in the solution."""
        working = rules_lib.solution(self.rules, value).working
        ends, right = rules_lib.steps(code, working)
        return rules_lib.Steps(ends, right, jnp.sum(ends, 1) == jnp.sum(working == ord(";"), 1), {})

    def _paid(self, steps: rules_lib.Steps, mask: jax.Array, correct: jax.Array) -> jax.Array:
        """Return what is paid where a step ends, ``[B, T]``: ``step_reward`` if it is right, its negative if wrong.

        The last step ends with the row and is right if the answer is.
        """
        last = ops.last_token((mask > 0).astype(jnp.float32)) > 0
        right = jnp.where(last, correct[:, None], steps.right)
        return jnp.where(steps.ends | last, jnp.where(right, 1.0, -1.0), 0.0) * jnp.float32(self.common.step_reward)

    @property
    def alphabet(self) -> str:
        """Every character of prompts and demonstrations."""
        return self.rules.alphabet + (";" if self.common.working else "")

    @property
    def _leading(self) -> int | None:
        return getattr(self.rules, "leading", None)

    def _written(self, solution: rules_lib.Solution) -> jax.Array:
        return jnp.concatenate(solution, axis=1) if self.common.working else solution.answer


@functools.partial(jax.jit, static_argnums=(0, 2))
def _targets(problems: Problems, index: jax.Array, split: Split) -> jax.Array:
    rules: Any = problems.rules
    return rules.targets(problems.values(index, split))
