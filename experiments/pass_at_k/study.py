"""Does training on pass@k raise pass@k, and what does it do to pass@1?

python -m experiments.pass_at_k.study
"""

from experiments import arms


def config():
    """Return sums with prompts for dynamic sampling, which samples twice as many."""
    c = arms.sums()
    c.batch.prompts = 8
    return c


STUDY = arms.Study(
    config=config,
    arms={
        "DAPO, k = 1": {"algorithm": "dapo(oversample=2)"},
        "k = 2": {"algorithm": "pass_at_k(k=2, oversample=2)"},
        "k = 4": {"algorithm": "pass_at_k(k=4, oversample=2)"},
    },
    claims=(
        arms.Claim("k = 4 has a higher pass@32 than DAPO", "k = 4", "DAPO, k = 1", "pass@32"),
        arms.Claim("k = 4 has a higher pass@4 than DAPO", "k = 4", "DAPO, k = 1", "pass@4"),
        arms.Claim("k = 4 loses at most 2 points of pass@1", "k = 4", "DAPO, k = 1", "pass@1", margin=-0.02),
        arms.Claim("k = 4 raises pass@32 over the base", "k = 4", "base", "pass@32"),
        arms.Claim("k = 4 ends with more entropy than DAPO", "k = 4", "DAPO, k = 1", "entropy"),
    ),
    quantities=("pass@1", "pass@4", "pass@32", "entropy"),
    curves=("accuracy", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
