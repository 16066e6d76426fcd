"""Does sampling with int8 weights harm, and do importance weights mend it?

python -m experiments.int8_sampler.study
"""

from experiments import arms

INT8 = {"model.decode_weights": "int8"}

STUDY = arms.Study(
    config=arms.sums,
    arms={
        "float": {"algorithm": "grpo(kl=0.0, aggregate=mean_over_tokens())"},
        "int8": {"algorithm": "grpo(kl=0.0, aggregate=mean_over_tokens())", **INT8},
        "int8, TIS": {"algorithm": "tis()", **INT8},
        "int8, IcePop": {"algorithm": "icepop()", **INT8},
    },
    claims=(
        arms.Claim("int8 without correction lowers pass@1", "int8", "float", "pass@1", below=True),
        arms.Claim("TIS has a higher pass@1 than no correction", "int8, TIS", "int8", "pass@1"),
        arms.Claim("IcePop has a higher pass@1 than no correction", "int8, IcePop", "int8", "pass@1"),
    ),
    quantities=("pass@1", "pass@32", "sampler_gap", "entropy"),
    curves=("accuracy", "sampler_gap", "entropy"),
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
