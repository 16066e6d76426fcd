"""Which KL estimators restrain a policy: in the loss, and in the reward?

python -m experiments.kl_placement.study
"""

from experiments import arms

COEFFICIENT = 0.1


def config():
    """Return sums with the exact KL to the base in the logs."""
    c = arms.sums()
    c.log.diagnostics = ("kl",)
    return c


def _loss(estimator: str, coefficient: float = COEFFICIENT) -> dict[str, str]:
    return {"seam.penalty": f"kl('{estimator}', {coefficient})"}


STUDY = arms.Study(
    config=config,
    arms={
        "none": _loss("k3", 1e-9),  # the reference is only measured
        **{f"{estimator} in the loss": _loss(estimator) for estimator in ("k1", "k2", "k3")},
        "k1 in the reward": {"seam.advantage": f"+ charge_kl('k1', {COEFFICIENT})"},
        "k3 in the reward": {"seam.advantage": f"+ charge_kl('k3', {COEFFICIENT})"},
    },
    claims=(
        arms.Claim("k1 in the loss restrains", "k1 in the loss", "none", "kl_exact", below=True),
        arms.Claim("k2 in the loss restrains", "k2 in the loss", "none", "kl_exact", below=True),
        arms.Claim("k3 in the loss restrains", "k3 in the loss", "none", "kl_exact", below=True),
        arms.Claim("k1 in the reward restrains", "k1 in the reward", "none", "kl_exact", below=True),
        arms.Claim("k3 in the reward restrains", "k3 in the reward", "none", "kl_exact", below=True),
        arms.Claim("k1 in the reward, above k3 in the loss in pass@1", "k1 in the reward", "k3 in the loss", "pass@1"),
    ),
    quantities=("pass@1", "pass@32", "kl_exact", "entropy"),
    curves=("accuracy", "kl_exact", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
