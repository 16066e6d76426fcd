"""Two-digit addition: supervised warm start on faulty demonstrations, then GRPO on verified sums.

Command:   python -m rljax --config configs/quickstart.py
Hardware:  two CPU cores, no accelerator; 1.5 GiB.
Time:      about 2 min, compilation and evaluations included.
Score:     held-out pass@1 35 % to 96 % and greedy 54 % to 98 %, means of seeds 0, 1 and 2
           (experiments/quickstart).

Demonstrations add column by column: ``37+48=`` is followed by ``7+8=15;3+4+1=8;85``. They omit three carries in five
(``slip=0.6``) and one column in four is wrong (``noise=0.25``). After imitation about one answer in three is correct.
The verifier reads only the answer after the last semicolon.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" is a small model that learns on easier demonstrations in half a minute."""
    config = rljax.default_config()
    config.name = "quickstart"
    config.task = "arithmetic(operands=2, digits=2, slip=0.6, noise=0.25)"
    config.algorithm = "grpo(kl=0.0)"
    config.model.layers = 2
    config.model.width = 128
    config.batch.prompts = 64
    config.batch.samples = 8
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=300,
        batch={"prompts": 256},
        optimizer="adamw(learning_rate=2e-3, weight_decay=0.0)",
        warmup=50,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=120, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=20, evaluate="result"
    )
    if arg == "quick":  # seed 0: held-out pass@1 from 20 % to 43 %
        config.task = "arithmetic(operands=2, digits=2, noise=0.1)"
        config.model.width = 64
        config.batch.prompts = 32
        config.phase.warm.update({"steps": 80, "batch": {"prompts": 128}, "warmup": 10})
        config.phase.warm.optimizer = "adamw(learning_rate=5e-3, weight_decay=0.0)"
        config.phase.main.update({"steps": 30, "warmup": 2})
        config.phase.main.optimizer = "adamw(learning_rate=5e-4, weight_decay=0.0)"
        config.evaluation.update({"final_prompts": 64, "final_samples": 8})
    elif arg:
        raise ValueError(f"quickstart:{arg}: the only variant is 'quick'.")
    return config
