"""Watch the metrics of a run for causes of failure, and say what each means and what to change."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping

Metrics = Mapping[str, float]
_MISSING = float("nan")  # compares false, so a phase without a metric has no symptom of it


@dataclasses.dataclass(frozen=True)
class Symptom:
    """What is reported once for each phase after ``steps`` steps in a row."""

    name: str
    steps: int
    holds: Callable[[Callable[[str], float]], bool]  # of a function from a metric's name to its value, NaN if absent
    message: str  # what it means and what to change


SYMPTOMS = (
    Symptom(
        "no valid rows",
        3,
        lambda m: m("valid_rows") == 0,
        "every row is invalid, so nothing is learned: with source dynamic(), no group has differing rewards; otherwise "
        "the verifier crashes on every row. Look at the rollouts (rollouts.jsonl) and at outcome/crashed.",
    ),
    Symptom(
        "equal rewards",
        10,
        lambda m: m("reward_std") <= 1e-6 and m("valid_rows") > 1,
        "all rewards of a step are equal, so advantages that are relative to a baseline are 0. If the reward is low, "
        "start from a warmer policy or an easier task; if it is high, the task is solved: stop, or take a harder one.",
    ),
    Symptom(
        "no informative group",
        10,
        lambda m: m("flat_groups") >= 1 and m("advantage_abs") <= 1e-6 and m("reward_std") > 1e-6,
        "in every group the samples have equal rewards, so their advantages are 0. Raise config.batch.samples or "
        "config.sampler.temperature, change the difficulty of the task, or oversample with config.seam.source="
        "'dynamic()'.",
    ),
    Symptom(
        "everything clipped",
        5,
        lambda m: m("clipped") >= 0.9,
        "the clip removes the gradient of nearly all tokens. Widen its bounds, lower the learning rate, or lower "
        "config.learner.epochs and config.learner.minibatches.",
    ),
    Symptom(
        "all rows truncated",
        5,
        lambda m: m("truncated") >= 0.99,
        "nearly every completion reaches the length limit, so most answers are never written. Raise the task's "
        "completion_length, check the stop tokens (config.sampler.stop, the chat template), or penalize length. In a "
        "world, episodes end by their budget of turns or tokens (see turns and length), not by the world: allow more "
        "turns, or begin with a phase on demonstrations.",
    ),
    Symptom(
        "entropy collapsed",
        10,
        lambda m: m("entropy") < 0.01,
        "the policy has nearly no entropy (below 0.01 nats), so the samples of a prompt are nearly equal. Lower the "
        "learning rate, raise the upper clip bound or config.sampler.temperature, or add penalty.kl() or "
        "penalty.entropy().",
    ),
    Symptom(
        "divergence from the reference",
        3,
        lambda m: m("kl") > 10,
        "the KL to the reference exceeds 10 nats per token: the policy has left the distribution it started from. "
        "Lower the learning rate, or raise the coefficient of penalty.kl().",
    ),
    Symptom(
        "unparseable",
        10,
        lambda m: m("outcome/unparseable") >= 0.9,
        "the verifier cannot read 9 answers in 10, whatever their content. Compare a completion (rollouts.jsonl) with "
        "the format that the task expects; change the prompt, or start with a phase on demonstrations.",
    ),
    Symptom(
        "failing verifier",
        3,
        lambda m: m("outcome/timed_out") + m("outcome/crashed") >= 0.5,
        "the verifier times out or crashes on half of the rows, which do not count as wrong answers. Raise "
        "config.verifier.timeout or config.verifier.memory, or call the verifier on a completion of rollouts.jsonl.",
    ),
    Symptom(
        "idle source",
        20,
        lambda m: m("fired") == 0,
        "the source (config.seam.source, or the recipe's) acted on no prompt and no row. A memory of prompts acts when "
        "a prompt comes again, which takes an epoch: problems of the task / config.batch.prompts steps. A second pass "
        "or a filter acts when its condition holds: compare it with accuracy and flat_groups.",
    ),
    Symptom(
        "no gradient",
        10,
        lambda m: m("gradient_norm") == 0 and m("advantage_abs") > 1e-6,
        "the gradient is 0 although there are advantages: a clip, weight or mask removes every token. Remove the "
        "pieces of config.seam.weight and config.seam.prepare one by one.",
    ),
)


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
