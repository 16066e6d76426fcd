"""Do prompts whose samples are all right or all wrong have something to teach?

python -m experiments.zero_variance.study
"""

from experiments import arms


def config():
    """Return sums with an early base and 4 samples of each prompt, so that most groups are flat."""
    c = arms.sums()
    c.phase.warm.steps = 250
    c.batch.update({"prompts": 32, "samples": 4})
    return c


STUDY = arms.Study(
    config=config,
    arms={
        "GRPO": {"algorithm": "grpo(kl=0.0)"},
        "RL-ZVP": {"algorithm": "rl_zvp()"},
        "LENS": {"algorithm": "lens()"},
        "dynamic sampling": {
            "algorithm": "grpo(kl=0.0)",
            "seam.source": "dynamic(oversample=2)",
            "phase.main.batch.prompts": 16,
        },
    },
    claims=(
        arms.Claim("RL-ZVP has a higher pass@1 than GRPO", "RL-ZVP", "GRPO", "pass@1"),
        arms.Claim("RL-ZVP has a higher pass@1 than dynamic sampling", "RL-ZVP", "dynamic sampling", "pass@1"),
        arms.Claim("LENS has a higher pass@1 than GRPO", "LENS", "GRPO", "pass@1"),
        arms.Claim("LENS has a higher pass@32 than GRPO", "LENS", "GRPO", "pass@32"),
    ),
    quantities=("pass@1", "pass@32", "flat_groups", "entropy"),
    curves=("accuracy", "flat_groups", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
