"""How much of RL does one example give?

python -m experiments.one_example.study
"""

from experiments import arms


def _task(count: int) -> dict[str, str]:
    return {"task": f"experiments.one_example.task.few(count={count})"}


WHY = "the base is not pretrained"


STUDY = arms.Study(
    config=arms.sums,
    arms={
        "all 9,000": {},
        "1 example": _task(1),
        "16 examples": _task(16),
    },
    claims=(
        arms.Claim("1 example raises held-out pass@1 over the base", "1 example", "base", "pass@1", untestable=WHY),
        arms.Claim("1 example loses at most 2 points", "1 example", "all 9,000", "pass@1", -0.02, untestable=WHY),
        arms.Claim("16 examples raise held-out pass@1 over the base", "16 examples", "base", "pass@1", untestable=WHY),
        arms.Claim("16 examples lose at most 2 points", "16 examples", "all 9,000", "pass@1", -0.02, untestable=WHY),
    ),
    quantities=("pass@1", "pass@32", "accuracy", "entropy"),
    curves=("accuracy", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
