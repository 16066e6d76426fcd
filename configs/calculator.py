"""Calculator: a policy that mostly guesses learns by GRPO to call a tool, twice for each answer.

Command:   python -m rljax --config configs/calculator.py
Hardware:  two CPU cores, no accelerator; 1.5 GiB.
Time:      about 2 min alone, 8 min on cores shared with ten processes.
Score:     256 held-out questions x 16, means of seeds 0 to 2: pass@1 18 % to 92 %, greedy 0 % to
           93 %; calls of the tool per answer 0.4 to 1.94, where 2 are needed (experiments/worlds).

A question is ``37*82+15=``. The policy may call the calculator, ``37*82``, is told ``3034``, calls it again with
``3034+15``, and answers ``=3049``. One demonstration in four does that; the others answer at once by a random number.
The conversation is part of the compiled program.
"""

import rljax


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs every part of it and is too short to learn (see quickstart:quick)."""
    config = rljax.default_config()
    config.name = "calculator"
    config.task = "calculator(digits=2, terms=3, skill=0.25, length=28)"
    config.algorithm = "grpo(kl=0.0)"
    config.model.layers = 2
    config.model.width = 128
    config.batch.prompts = 32
    config.batch.samples = 8
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=350,
        batch={"prompts": 128},
        optimizer="adamw(learning_rate=3e-3, weight_decay=0.0)",
        warmup=30,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=120, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=20, evaluate="result"
    )
    config.evaluation.update({"final_prompts": 256, "final_samples": 16})
    if arg == "quick":
        config.model.layers = 1
        config.phase.warm.update({"steps": 4, "evaluate": ""})
        config.phase.main.steps = 3
        config.evaluation.update({"final_prompts": 16, "final_samples": 4})
    elif arg:
        raise ValueError(f"calculator:{arg}: the only variant is 'quick'.")
    return config
