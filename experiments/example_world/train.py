"""Nim against random moves: imitation of faulty demonstrations, then GRPO on won games.

Command:   python -m rljax --config experiments/example_world/train.py
Hardware:  two CPU cores, no accelerator.
Time:      about 2 min, compilation and evaluations included.
Score:     README.md of this folder.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs a few steps."""
    config = rljax.default_config()
    config.name = "example_world"
    config.task = "experiments.example_world.nim.nim(slip=0.7)"
    config.algorithm = "grpo(kl=0.0)"
    config.model.update({"layers": 2, "width": 64, "heads": 2, "kv_heads": 1, "hidden": 192})
    config.batch.update({"prompts": 32, "samples": 8})
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=100,
        batch={"prompts": 128},
        optimizer="adamw(learning_rate=5e-3, weight_decay=0.0)",
        warmup=10,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=60, optimizer="adamw(learning_rate=1e-3, weight_decay=0.0)", warmup=2, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 18, "final_samples": 32})
    if arg == "quick":
        config.phase.warm.update({"steps": 2, "warmup": 1})
        config.phase.main.update({"steps": 2, "warmup": 1})
    elif arg:
        raise ValueError(f"example_world:{arg}: the only variant is 'quick'.")
    return config
