"""Tasks of numbered problems that take turns in one task, each a domain."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle, tokenizers
from rljax.environments import Split, traits
from rljax.environments.problems.task import Problems


@dataclasses.dataclass(frozen=True)
class Mixed:
    """The task that ``mix`` builds: prompt i is problem i // D of task i % D, its domain."""

    tasks: tuple[Problems, ...]  # D, of equal lengths
    domain_names: tuple[str, ...]

    host: bool = dataclasses.field(default=False, init=False)

    @property
    def name(self) -> str:
        """Name of the tasks."""
        return self.tasks[0].name

    @property
    def parts(self) -> tuple[str, ...]:
        """Names of the numbers of the verdict."""
        return self.tasks[0].parts

    @property
    def supplies(self) -> tuple[str, ...]:
        """What rows hold beyond the defaults."""
        return self.tasks[0].supplies

    @property
    def prompt_length(self) -> int:
        """L, tokens of the longest prompt."""
        return self.tasks[0].prompt_length

    @property
    def completion_length(self) -> int:
        """T, tokens of the longest completion."""
        return self.tasks[0].completion_length

    @property
    def pictures(self) -> traits.Pictures | None:
        """The pictures of a prompt, equal in all tasks that have some."""
        return next((task.pictures for task in self.tasks if task.pictures is not None), None)

    @property
    def domains(self) -> int:
        """D."""
        return len(self.tasks)

    def domain(self, index: types.Array, split: Split) -> jax.Array:
        """Return the domain of prompts ``index`` ``[n]``, ``[n]`` int32."""
        return self._place(index, split)[1]

    def corpus(self) -> Iterator[str]:
        """Yield the texts of all tasks."""
        for task in self.tasks:
            yield from task.corpus()

    def bind(self, tokenizer: tokenizers.Tokenizer) -> "Mixed":
        """Return a copy with the tokenizer; ValueError if it lacks a character."""
        return dataclasses.replace(self, tasks=tuple(task.bind(tokenizer) for task in self.tasks))

    def size(self, split: Split) -> int:
        """Return the number of prompts: D times the largest task's; the problems of smaller ones come again."""
        return shuffle.multiple(self.domains, max(task.size(split) for task in self.tasks))

    def prompts(self, index: types.Array, split: Split) -> types.Prompts:
        """Return prompts ``index`` ``[P]``: token and mask ``[P, L]``."""
        number, domain = self._place(index, split)
        prompts = [task.prompts(number, split) for task in self.tasks]
        images = [each.image for each in prompts if each.image is not None]
        if images:  # prompts of text have blank pictures and no placeholder for them
            blank = jnp.zeros_like(images[0])
            prompts = [each if each.image is not None else each.replace(image=blank) for each in prompts]
        return _of(domain, prompts).replace(index=index)

    def demonstrations(self, index: types.Array, split: Split, key: types.Key) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations, with the mistakes that each task makes; a row's depend on ``(key, index)`` only."""
        number, domain = self._place(index, split)
        keys = [jax.random.fold_in(key, d) for d in range(self.domains)]
        return _of(domain, [t.demonstrations(number, split, k) for t, k in zip(self.tasks, keys, strict=True)])

    def solutions(self, index: types.Array, split: Split) -> tuple[jax.Array, jax.Array]:
        """Return demonstrations without mistakes."""
        number, domain = self._place(index, split)
        return _of(domain, [task.solutions(number, split) for task in self.tasks])

    def verify(self, index: types.Array, split: Split, token: types.Array, mask: types.Array) -> types.Verdict:
        """Judge completions by the verifier of each task."""
        number, domain = self._place(index, split)
        return _of(domain, [task.verify(number, split, token, mask) for task in self.tasks])

    def text(self, index: int, split: Split) -> str:
        """Return prompt ``index`` as text."""
        index %= self.size(split)
        return self.tasks[index % self.domains].text(index // self.domains, split)

    def marks(self, index: int, split: Split, text: str) -> tuple[list[list[float]], list[list[float]]] | None:
        """Return the places that a completion writes, and those asked, by the task of the prompt."""
        index %= self.size(split)
        return self.tasks[index % self.domains].marks(index // self.domains, split, text)

    def _place(self, index: types.Array, split: Split) -> tuple[jax.Array, jax.Array]:
        index = jnp.asarray(index, jnp.int32) % self.size(split)
        return index // self.domains, index % self.domains


def mix(tasks: Sequence[Problems], names: tuple[str, ...]) -> Mixed:
    """Return a task in which the problems of ``tasks`` take turns, with the lengths of the longest.

    Raises:
      ValueError: pictures of two tasks differ in number, size or tokens.
    """
    kinds = {task.pictures: name for task, name in zip(tasks, names, strict=True) if task.pictures is not None}
    if len(kinds) > 1:
        (first, one), (second, other), *_ = kinds.items()
        raise ValueError(f"{one}: has {first}, but {other} has {second}; all pictures must be equal")
    prompt, completion = (max(getattr(t, f"{name}_length") for t in tasks) for name in ("prompt", "completion"))
    return Mixed(
        tuple(dataclasses.replace(t, prompt_length=prompt, completion_length=completion) for t in tasks), names
    )


def _of(domain: jax.Array, trees: Sequence[types.Tree]) -> types.Tree:
    """Return the rows ``[n, ...]`` of the tree of each row's domain."""
    return jax.tree.map(lambda *leaves: jnp.stack(leaves)[domain, jnp.arange(domain.size)], *trees)
