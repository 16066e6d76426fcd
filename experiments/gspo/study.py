"""Is one ratio for a sequence steadier than one for each token?

python -m experiments.gspo.study
"""

import numpy as np

from experiments import arms
from rljax.run import loop


def config():
    """Return sums with 8 gradient steps for each rollout."""
    c = arms.sums(minibatches=8)
    c.log.diagnostics = ("clip",)
    return c


def measure(result: loop.Result) -> dict[str, float]:
    """Return the standard deviation over the mean of the gradient's norm over the second half of the run."""
    norms = [row["gradient_norm"] for row in result.history][-40:]
    return {"variation": float(np.std(norms) / np.mean(norms))}


STUDY = arms.Study(
    config=config,
    arms={"GRPO": {"algorithm": "grpo(kl=0.0)"}, "GSPO": {"algorithm": "gspo()"}},
    claims=(
        arms.Claim("GSPO has a higher pass@1", "GSPO", "GRPO", "pass@1"),
        arms.Claim("GSPO clips more tokens", "GSPO", "GRPO", "clipped"),
        arms.Claim("GSPO's gradient norm varies less", "GSPO", "GRPO", "variation", below=True),
    ),
    quantities=("pass@1", "pass@32", "clipped", "variation", "length"),
    curves=("accuracy", "clipped", "gradient_norm"),
    measure=measure,
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
