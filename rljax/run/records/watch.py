"""Watch the metrics of a run for causes of failure, and say what each means and what to change."""

import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping

Metrics = Mapping[str, float]
Condition = Callable[[Callable[[str], float]], bool]  # of a function from a metric's name to its value, NaN if absent
_MISSING = float("nan")  # compares false, so a phase without a metric has no symptom of it


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What is reported once for each phase after ``steps`` steps in a row."""

    name: str
    steps: int
    holds: Condition
    message: str  # what it means and what to change


_HOLDS: dict[str, tuple[int, Condition]] = {
    "no valid rows": (3, lambda m: m("valid_rows") == 0),
    "equal rewards": (10, lambda m: m("reward_std") <= 1e-6 and m("valid_rows") > 1),
    "no informative group": (
        10,
        lambda m: m("flat_groups") >= 1 and m("advantage_abs") <= 1e-6 and m("reward_std") > 1e-6,
    ),
    "everything clipped": (5, lambda m: m("clipped") >= 0.9),
    "all rows truncated": (5, lambda m: m("truncated") >= 0.99),
    "entropy collapsed": (10, lambda m: 0 <= m("entropy") < 0.01),
    "divergence from the reference": (3, lambda m: m("kl") > 10),
    "unparseable": (10, lambda m: m("outcome/unparseable") >= 0.9),
    "failing verifier": (3, lambda m: m("outcome/timed_out") + m("outcome/crashed") >= 0.5),
    "idle source": (20, lambda m: m("fired") == 0),
    "no gradient": (10, lambda m: m("gradient_norm") == 0 and m("advantage_abs") > 1e-6),
}


def _symptoms() -> Iterator[Symptom]:
    """Yield the symptoms of symptoms.txt: on one line the name, on the next what it means and what to change."""
    lines = pathlib.Path(__file__).with_name("symptoms.txt").read_text().splitlines()
    for name, message in zip(lines[::2], lines[1::2], strict=True):
        yield Symptom(name, *_HOLDS[name], message.strip())


SYMPTOMS = tuple(_symptoms())


class Watcher:
    """Counts for each symptom the steps in a row in which it holds."""

    def __init__(self) -> None:
        self._phase, self._streaks, self._reported = "", dict.fromkeys(SYMPTOMS, 0), set()

    def step(self, step: int, phase: str, metrics: Metrics) -> Iterator[str]:
        """Yield a message for each symptom that has just held for long enough, once for each phase.

        Args:
          step: the step, from 1.
          phase: the name of its phase.
          metrics: its metrics by name.

        Yields:
          One sentence or more: phase, step and symptom, what it means, and what to change.
        """
        if phase != self._phase:
            self._phase, self._streaks = phase, dict.fromkeys(SYMPTOMS, 0)
        for symptom in SYMPTOMS:
            held = symptom.holds(lambda name: metrics.get(name, _MISSING))
            self._streaks[symptom] = self._streaks[symptom] + 1 if held else 0
            if self._streaks[symptom] == symptom.steps and (phase, symptom.name) not in self._reported:
                self._reported.add((phase, symptom.name))
                yield f"step {step} (phase {phase!r}): {symptom.name} for {symptom.steps} steps: {symptom.message}"
