"""Do wrong answers grow longer with GRPO, and not with Dr.GRPO?

python -m experiments.dr_grpo.study
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments import arms
from rljax import types
from rljax.run import loop
from rljax.run.evaluation import evaluate

PROMPTS, TRIES = 128, 32


def config():
    """Return countdown, whose answers may have any parentheses, with room for long ones."""
    return arms.sums(steps=160, task="countdown(numbers=3, highest=10, operators='+-*', completion_length=32)")


def measure(result: loop.Result) -> dict[str, float]:
    """Return the mean length of wrong and of right completions of held-out prompts, tokens, at temperature 1."""
    step = result.program.steps[-1]
    sampler = dataclasses.replace(step.setup.settings.sampler, **evaluate.SAMPLED)
    index = np.arange(PROMPTS, dtype=np.int32)
    rows, keys = evaluate.rows_of(index, TRIES, jax.random.key(1, impl="threefry2x32"))
    out = step.generate(result.params, step.setup.task.prompts(jnp.asarray(index), "heldout"), keys, TRIES, sampler)
    right = np.asarray(step.verify(jnp.asarray(rows), "heldout", out.token, out.mask).outcome == types.Outcome.CORRECT)
    length = np.asarray((out.mask > 0).sum(axis=1))
    return {"length of wrong": float(length[~right].mean()), "length of right": float(length[right].mean())}


STUDY = arms.Study(
    config=config,
    arms={
        "GRPO": {"algorithm": "grpo(kl=0.0)"},
        "Dr.GRPO": {"algorithm": "dr_grpo()"},
        "GRPO, fixed length": {"algorithm": "grpo(kl=0.0, aggregate=fixed_length())"},
    },
    claims=(
        arms.Claim("wrong answers are longer with GRPO than with Dr.GRPO", "GRPO", "Dr.GRPO", "length of wrong"),
        arms.Claim("and longer than with the fixed length alone", "GRPO", "GRPO, fixed length", "length of wrong"),
        arms.Claim("Dr.GRPO loses at most 2 points of pass@1", "Dr.GRPO", "GRPO", "pass@1", margin=-0.02),
    ),
    quantities=("pass@1", "pass@32", "length of wrong", "length of right"),
    curves=("accuracy", "length"),
    measure=measure,
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
