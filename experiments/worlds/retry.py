r"""Does a payment for every repeated search make a policy search again? ReZero's reward on the world ``retry``.

    python -m rljax sweep experiments/worlds/retry.py --config experiments/worlds/retry.py --workdir runs/retry | sh
    python experiments/worlds/curves.py runs/retry --by seam.reward --labels plain,paid \
        --metric accuracy,reward/retries --out experiments/worlds/retry.png

A search finds the value in three of ten tries. After a search without a result, nine demonstrations in ten answer by a
random value. One arm is paid 0.2 for a repeated search, if an answer follows.
"""

import rljax
from rljax.run.members import sweep


def get_sweep():
    """Return the runs of the study: without and with the payment, three seeds each."""
    return sweep.product(
        sweep.grid({"seam.reward": ("", "add_parts((('retries', 0.2),))")}), sweep.grid({"seed": range(3)})
    )


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs every part of it and is too short to learn."""
    config = rljax.default_config()
    config.name = "retry"
    config.task = "retry(found=0.3, turns=5, persistence=0.1)"
    config.algorithm = "grpo(kl=0.0)"
    config.model.layers = 2
    config.model.width = 64
    config.batch.prompts = 16
    config.batch.samples = 8
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=250,
        batch={"prompts": 128},
        optimizer="adamw(learning_rate=4e-3, weight_decay=0.0)",
        warmup=20,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=60, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=5, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 256, "final_samples": 8})
    config.log.update({"report": False, "sinks": "none", "rollouts": 0})
    if arg == "quick":
        config.model.layers = 1
        config.phase.warm.update({"steps": 2, "evaluate": ""})
        config.phase.main.steps = 2
        config.evaluation.update({"final_prompts": 8, "final_samples": 2})
    elif arg:
        raise ValueError(f"retry:{arg}: the only variant is 'quick'.")
    return config
