"""Do values by continuation credit the steps of an answer better than a critic, or than the group's mean?

python -m experiments.vine.study
"""

from experiments import arms

MORE = "GRPO, 9 times the samples"
STUDY = arms.Study(
    config=arms.sums,
    arms={
        "GRPO": {"algorithm": "grpo(kl=0.0)"},
        MORE: {"algorithm": "grpo(kl=0.0)", "phase.main.batch.samples": 72},
        "PPO": {"algorithm": "ppo(kl=0.0, lam=1.0)"},
        "VinePPO": {"algorithm": "vine_ppo(cuts=4, samples=4, kl=0.0)"},
    },
    claims=(
        arms.Claim("VinePPO has a higher pass@1 than PPO after equally many steps", "VinePPO", "PPO", "pass@1"),
        arms.Claim("VinePPO has a higher pass@1 than GRPO after equally many steps", "VinePPO", "GRPO", "pass@1"),
        arms.Claim("VinePPO has a higher pass@1 than GRPO after equally many tokens", "VinePPO", MORE, "pass@1"),
        arms.Claim("VinePPO keeps more entropy than GRPO", "VinePPO", "GRPO", "entropy"),
    ),
    quantities=("pass@1", "pass@32", "entropy", "length"),
    curves=("accuracy", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
