"""Does a higher upper clip keep entropy, and does it help?

python -m experiments.clip_higher.study
"""

from experiments import arms


def config():
    """Return sums with 16 gradient steps for each rollout, so that ratios reach the clip."""
    c = arms.sums(minibatches=8)
    c.phase.main.learner.epochs = 2
    c.log.diagnostics = ("clip",)
    return c


STUDY = arms.Study(
    config=config,
    arms={f"high {high:g}": {"algorithm.high": high} for high in (0.2, 0.28, 0.4)},
    claims=(
        arms.Claim("0.28 ends with more entropy than 0.2", "high 0.28", "high 0.2", "entropy"),
        arms.Claim("0.4 ends with more entropy than 0.2", "high 0.4", "high 0.2", "entropy"),
        arms.Claim("0.28 has a higher pass@1 than 0.2", "high 0.28", "high 0.2", "pass@1"),
        arms.Claim("0.28 has a higher pass@32 than 0.2", "high 0.28", "high 0.2", "pass@32"),
    ),
    quantities=("pass@1", "pass@32", "entropy", "clipped_positive", "clipped_negative"),
    curves=("accuracy", "entropy", "clipped_positive"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
