"""Do the few tokens of high entropy carry the whole gradient?

python -m experiments.forking_tokens.study
"""

from experiments import arms

LOW = "+ experiments.forking_tokens.pieces.low_entropy(share=0.8)"


def config():
    """Return sums with DAPO, which samples twice the prompts that it trains on."""
    c = arms.sums()
    c.algorithm, c.batch.prompts = "dapo(oversample=2)", 8
    return c


STUDY = arms.Study(
    config=config,
    arms={
        "all tokens": {},
        "highest 20 %": {"algorithm": "forking_tokens(share=0.2)"},
        "lowest 80 %": {"seam.weight": LOW},
    },
    claims=(
        arms.Claim("the highest 20 % alone lose no pass@1", "highest 20 %", "all tokens", "pass@1", margin=-0.02),
        arms.Claim("the highest 20 % alone have a higher pass@1", "highest 20 %", "all tokens", "pass@1"),
        arms.Claim("the lowest 80 % alone have a lower pass@1", "lowest 80 %", "all tokens", "pass@1", below=True),
        arms.Claim("the highest 20 % alone end with more entropy", "highest 20 %", "all tokens", "entropy"),
    ),
    quantities=("pass@1", "pass@32", "entropy", "length"),
    curves=("accuracy", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
