"""What does a lag of the sampler cost in a world, and which losses keep the cost small?

python -m experiments.staleness.world.study
"""

import dataclasses

from experiments import arms
from experiments.staleness import study


def config():
    """Return a world in which a wrong answer may be tried again, with four gradient steps for each rollout."""
    c = arms.sums(task="retry(found=0.3, turns=5, persistence=0.1)")
    c.log.diagnostics = ("clip",)
    return c


STUDY = dataclasses.replace(study.STUDY, config=config, arms=study.lagged(segment=12, oversample=3))

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
