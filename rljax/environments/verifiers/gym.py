"""Scores of reasoning-gym's own scorers, in worker processes. Imports reasoning-gym, and not jax."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import reasoning_gym
from reasoning_gym import composite
from reasoning_gym.utils import extract_answer

TAG = "answer"

Weighted = tuple[tuple[str, float, tuple[tuple[str, Any], ...]], ...]


def dataset(generators: Weighted, seed: int, size: int) -> Any:
    """Return the problems of weighted generators.

    Args:
      generators: the name, weight and knobs of each.
      seed: problem ``i`` depends on the seeds of the generators plus ``i``.
      size: the number of problems.

    Returns:
      A ``reasoning_gym.composite.CompositeDataset``.
    """
    specs = [composite.DatasetSpec(name, weight, dict(knobs)) for name, weight, knobs in generators]
    return reasoning_gym.create_dataset("composite", seed=seed, size=size, datasets=specs)


@dataclasses.dataclass(frozen=True, eq=False)
class Scorer:
    """A reward function: the fraction that the scorer of a problem's generator gives; correct is a full score.

    Unparseable: no answer between tags, or a scorer raises an exception for a text that it cannot read.
    """

    generators: Weighted
    tagged: bool  # whether the answer is between tags, or the whole completion

    def __call__(self, completion: str, reference: Any, *, entry: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the reward, in [0, 1], and the outcome of a completion; ``entry`` is the problem."""
        answer = extract_answer(completion, TAG) if self.tagged else completion.strip()
        if not answer:
            return {"reward": 0.0, "outcome": "unparseable"}
        try:
            score = float(self._dataset.score_answer(answer, dict(entry)))
        except Exception:
            return {"reward": 0.0, "outcome": "unparseable"}
        return {"reward": score, "outcome": "correct" if score >= 1 else "wrong"}

    @functools.cached_property
    def _dataset(self) -> Any:
        return dataset(self.generators, seed=0, size=1)  # the problems of its own are not used
