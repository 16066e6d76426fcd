"""Countdown: supervised warm start on partly wrong demonstrations, then GRPO on verified expressions.

Command:   python -m rljax --config configs/countdown.py
Hardware:  two CPU cores, no accelerator.
Time:      4 min 26 s of processor time, 6 min 41 s of wall time, measured on cores shared with other work.
           Estimate for two free cores: 3 to 4 minutes.
Score:     seed 0, 256 held-out prompts: pass@1 33 % to 67 %, greedy 57 % to 70 %, pass@64 99 % to 90 %. Training
           improves single answers and reduces diversity: from k = 8 on the base policy has the higher pass@k.

Write an expression of three numbers in [1, 15] with sums and differences that equals the target: ``10 4 3 > 9:`` is
answered by ``10+3-4``. Three demonstrations in ten are a random expression of the same numbers. Held-out prompts have
sets of numbers that do not occur in training.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs every part of it and is too short to learn (see quickstart:quick)."""
    config = rljax.default_config()
    config.name = "countdown"
    config.task = "countdown(numbers=3, highest=15, operators='+-', slip=0.3)"
    config.algorithm = "grpo(kl=0.0)"
    config.model.layers = 2
    config.model.width = 128
    config.batch.prompts = 32
    config.batch.samples = 16
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=180,
        batch={"prompts": 256},
        optimizer="adamw(learning_rate=2e-3, weight_decay=0.0)",
        warmup=50,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=150, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=20, evaluate="result"
    )
    if arg == "quick":
        config.phase.warm.steps = 4
        config.phase.main.steps = 3
        config.evaluation.final_prompts = 16
        config.evaluation.final_samples = 4
    elif arg:
        raise ValueError(f"countdown:{arg}: the only variant is 'quick'.")
    return config
