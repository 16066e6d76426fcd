"""Does what reinforcement learning improves on the text of a chart carry over to its picture, and the reverse?

python -m experiments.text_twin.study
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from experiments import arms
from rljax import environments
from rljax.run import loop
from rljax.run.evaluation import evaluate

PROMPTS, TRIES = 512, 8
TASK = "charts(ask='max', bars=3, highest=7, noise=0.4, heldout=0.25, twin=(False, True))"


def config():
    """Return a config: one policy is cloned on pictures and texts in turn, then trained on some of them."""
    c = arms.sums(steps=60, task=TASK)
    c.model.vision.update({"layers": 1, "width": 32, "heads": 2, "hidden": 64})
    c.phase.warm.optimizer = arms.ADAM.format(3e-3)
    return c


def measure(result: loop.Result) -> dict[str, float]:
    """Return pass@1 on held-out pictures and on held-out texts, at temperature 1 and of the most probable answers."""
    step, accuracy = result.program.steps[-1], {}
    index = np.arange(PROMPTS, dtype=np.int32)
    sampler = step.setup.settings.sampler
    for name, twin in (("pictures", False), ("texts", True)):
        task = environments.lookup("charts")(ask="max", bars=3, highest=7, heldout=0.25, twin=twin)
        task = task.bind(result.program.tokenizer)
        prompts = task.prompts(jnp.asarray(index), "heldout")
        for form, tries, temperature in (("", TRIES, 1.0), (", greedy", 1, 1e-3)):
            rows, keys = evaluate.rows_of(index, tries, jax.random.key(1, impl="threefry2x32"))
            config = dataclasses.replace(sampler, temperature=temperature)
            out = step.generate(result.params, prompts, keys, tries, config)
            verdict = task.verify(jnp.asarray(rows), "heldout", out.token, out.mask)
            accuracy[name + form] = float(verdict.reward.mean())
    return accuracy


STUDY = arms.Study(
    config=config,
    arms={
        "no RL": {"seam.weight": "+ constant(0.0)"},
        "RL on pictures": {"phase.main.seam.source": "mixed((1.0, 0.0), candidates=16384)"},
        "RL on texts": {"phase.main.seam.source": "mixed((0.0, 1.0), candidates=16384)"},
        "RL on both": {"phase.main.seam.source": "mixed((0.5, 0.5), candidates=16384)"},
    },
    claims=(
        arms.Claim("RL on texts raises pass@1 on pictures", "RL on texts", "no RL", "pictures"),
        arms.Claim("RL on pictures raises pass@1 on texts", "RL on pictures", "no RL", "texts"),
        arms.Claim("pictures gain more from RL on pictures", "RL on pictures", "RL on texts", "pictures"),
        arms.Claim("RL on both loses at most 2 points", "RL on both", "RL on pictures", "pictures", margin=-0.02),
    ),
    quantities=("pictures", "texts", "pictures, greedy", "texts, greedy", "entropy"),
    curves=("accuracy", "entropy"),
    seeds=tuple(range(6)),
    rates=(3e-4,),
    measure=measure,
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
