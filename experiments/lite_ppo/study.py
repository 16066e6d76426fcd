"""Is the mean of the group with the deviation of the batch, and a mean over tokens, better than GRPO?

python -m experiments.lite_ppo.study
"""

from experiments import arms

STUDY = arms.Study(
    config=arms.sums,
    arms={
        "GRPO": {"algorithm": "grpo(kl=0.0)"},
        "Lite PPO": {"algorithm": "lite_ppo()"},
        "batch deviation alone": {"algorithm": "lite_ppo()", "seam.reduce": "mean_over_rows()"},
        "DAPO": {"algorithm": "dapo(oversample=2)", "phase.main.batch.prompts": 8},
    },
    claims=(
        arms.Claim("Lite PPO has a higher pass@1 than GRPO", "Lite PPO", "GRPO", "pass@1"),
        arms.Claim("Lite PPO has a higher pass@1 than DAPO", "Lite PPO", "DAPO", "pass@1"),
        arms.Claim("the batch's deviation alone raises pass@1", "batch deviation alone", "GRPO", "pass@1"),
    ),
    quantities=("pass@1", "pass@32", "entropy", "length"),
    curves=("accuracy", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
