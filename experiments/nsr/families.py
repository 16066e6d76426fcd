"""The task families, the arms and the configs of the study."""

import dataclasses
from typing import Any

import rljax
from experiments.arms import ADAM

CRITIC = "critic_epochs=2, critic_optimizer='" + ADAM.format(1e-3) + "'"


@dataclasses.dataclass(frozen=True)
class Family:
    """A task with the supervised warm start whose end is the base.

    Attributes:
      task: the task; its demonstrator makes mistakes.
      steps: of the warm start.
      layers: of the policy.
      rate: learning rate of the warm start.
      demonstrations: of each of its steps.
    """

    task: str
    steps: int
    layers: int = 1
    rate: float = 5e-3
    demonstrations: int = 128


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method in one setting.

    Attributes:
      algorithm: its recipe.
      positive: lambda, a field of the recipe that members of one program may differ in; None: none.
      oversample: prompts that are sampled for each that is trained on.
      minibatches: gradient steps for each rollout.
      seam: the pieces that replace those of the recipe.
    """

    algorithm: str
    positive: float | None = None
    oversample: int = 1
    minibatches: int = 4
    seam: tuple[tuple[str, str], ...] = ()

    @property
    def traced(self) -> dict[str, float]:
        """The fields of a run in which members of one program differ, beside seed, base and learning rate."""
        return {} if self.positive is None else {"algorithm.positive": self.positive}


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs."""

    seeds: tuple[int, ...] = tuple(range(8))
    tuning: tuple[int, ...] = (100, 101)  # seeds that choose learning rates
    pilot: tuple[int, ...] = (102, 103, 104)
    rates: tuple[float, ...] = (1e-4, 3e-4, 1e-3)
    steps: int = 80  # of RL
    prompts: int = 16  # of a step
    samples: int = 8  # of each prompt
    heldout: int = 96  # prompts of a measurement
    chosen: int = 48  # prompts of a measurement that chooses a learning rate, after those
    tries: int = 256  # samples of each prompt of a measurement
    width: int = 64
    families: tuple[str, ...] = ("countdown", "lists", "sums")
    arms: tuple[str, ...] = ()  # none: all
    varied: tuple[str, ...] = ("PSR", "NSR", "W-REINFORCE 0.1", "GRPO")  # arms that vary a factor, on the first family


FAMILIES = {
    "countdown": Family("countdown(numbers=3, highest=10, operators='+-*')", 1200),
    "lists": Family("lists(functions=2, length=3, slip=0.15, noise=0.05)", 300, layers=2, rate=4e-3),
    "sums": Family("arithmetic(operands=2, digits=2, slip=0.5, noise=0.2)", 450),
}

LAMBDAS = (0.05, 0.1, 0.3, 1.0)
ARMS = {
    "PSR": Arm("psr(entropy=0.0)"),
    "NSR": Arm("nsr(entropy=0.0)"),
    **{f"W-REINFORCE {x:g}": Arm("w_reinforce(entropy=0.0)", positive=x) for x in LAMBDAS},
    "REINFORCE": Arm("reinforce()"),
    "RLOO": Arm("rloo()"),
    "GRPO": Arm("grpo(kl=0.0)"),
    "Dr.GRPO": Arm("dr_grpo()"),
    "DAPO": Arm("dapo(oversample=2)", oversample=2),
    "PPO": Arm(f"ppo(kl=0.0, lam=1.0, {CRITIC})"),
    "RL-ZVP": Arm("rl_zvp()"),
    "pass@k": Arm("pass_at_k(k=4, oversample=2)", oversample=2),
}

# Minutes on one core: too few seeds and steps to answer the question.
QUICK = Size(
    seeds=(102, 103),
    rates=(3e-4,),
    steps=40,
    heldout=32,
    tries=64,
    families=("countdown",),
    arms=("PSR", "NSR", "W-REINFORCE 0.1", "GRPO"),
    varied=(),
)


def varied(name: str) -> dict[str, Arm]:
    """Return the arms that differ from an arm in one factor, by the name of the change."""
    arm = ARMS[name]
    reduce = "mean over tokens" if name == "GRPO" else "mean over sequences"
    piece = "mean_over_tokens()" if name == "GRPO" else "mean_over_rows()"
    return {
        "no clip": dataclasses.replace(arm, seam=(("surrogate", "unclipped()"),)),
        "1 minibatch": dataclasses.replace(arm, minibatches=1),
        reduce: dataclasses.replace(arm, seam=(("reduce", piece),)),
        "KL, k3": dataclasses.replace(arm, seam=(("penalty", "kl('k3', 0.04)"),)),
    }


def base_config(family: Family, size: Size) -> Any:
    """Return the config of the warm start, a run of the phase "warm"."""
    c = rljax.default_config()
    c.task = family.task
    c.model.update({"layers": family.layers, "width": size.width, "heads": 2, "kv_heads": 2, "hidden": 3 * size.width})
    c.model.remat = "none"
    c.mesh.data = 1
    c.log.update({"rollout_rows": 0, "report": False, "sinks": "none"})
    c.checkpoint.max_to_keep = 1
    c.phases = ("warm",)
    c.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=family.steps,
        batch={"prompts": family.demonstrations},
        optimizer=ADAM.format(family.rate),
        warmup=min(20, family.steps),
    )
    return c


def config(family: Family, arm: Arm, size: Size) -> Any:
    """Return the config of an arm, whose warm start a fork skips."""
    c = base_config(family, size)
    c.algorithm = arm.algorithm
    c.phases = ("warm", "main")
    c.batch.update({"prompts": size.prompts // arm.oversample, "samples": size.samples})
    c.checkpoint.every = max(1, size.steps // 2)
    c.phase.main = rljax.phase(
        steps=size.steps,
        optimizer=ADAM.format(size.rates[0]),
        warmup=min(5, size.steps),
        learner={"minibatches": arm.minibatches},
        seam=dict(arm.seam),
    )
    return c
