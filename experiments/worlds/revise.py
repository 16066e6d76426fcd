r"""Does SCoRe make the second answer better than the first? On the world ``revise``, against GRPO.

    python -m rljax sweep experiments/worlds/revise.py --config experiments/worlds/revise.py --workdir runs/revise | sh
    python experiments/worlds/curves.py runs/revise --by phase.main.algorithm --labels GRPO,"SCoRe 10","SCoRe 1" \
        --metric reward/first,reward/second,"reward/second - reward/first" --out experiments/worlds/revise.png

The policy answers a sum, is told "check:" and answers it again. In the demonstrations both answers have mistakes, drawn
apart, so that neither is better. SCoRe trains in two stages of equal length (``first``, ``main``); GRPO is paid
the second answer in both. The second arm of SCoRe has the bonus alpha = 1 in place of 10.
"""

import rljax
from rljax.run.members import sweep

LAST = "only_turn(1)"
GRPO = {
    f"phase.{phase}.{field}": value
    for phase in ("first", "main")
    for field, value in (("algorithm", "grpo(kl=0.0)"), ("seam.reward", LAST))
}
SCORE = [
    {"phase.first.algorithm": "score_initial()", "phase.main.algorithm": f"score(alpha={alpha})"}
    for alpha in (10.0, 1.0)
]


def get_sweep():
    """Return the runs of the study: GRPO, and SCoRe with two bonuses, three seeds each."""
    return sweep.product([GRPO, *SCORE], sweep.grid({"seed": range(3)}))


def get_config(arg: str = ""):
    """Return the config; ``arg`` "quick" runs every part of it and is too short to learn."""
    config = rljax.default_config()
    config.name = "revise"
    config.task = "revise(arithmetic(operands=2, digits=1, working=False, noise=0.5), mended=0.0)"
    config.model.layers = 2
    config.model.width = 64
    config.batch.prompts = 32
    config.batch.samples = 8
    config.phases = ("warm", "first", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=150,
        batch={"prompts": 128},
        optimizer="adamw(learning_rate=4e-3, weight_decay=0.0)",
        warmup=20,
        evaluate="base",
    )
    for name in ("first", "main"):
        config.phase[name] = rljax.phase(
            steps=30, optimizer="adamw(learning_rate=5e-4, weight_decay=0.0)", warmup=5, evaluate=name
        )
    config.phase.first.algorithm = "score_initial()"
    config.phase.main.algorithm = "score()"
    config.evaluation.update({"final_prompts": 256, "final_samples": 8})
    config.log.update({"report": False, "sinks": "none", "rollouts": 0})
    if arg == "quick":
        config.model.layers = 1
        config.phase.warm.update({"steps": 2, "evaluate": ""})
        config.phase.first.update({"steps": 2, "evaluate": ""})
        config.phase.main.steps = 2
        config.evaluation.update({"final_prompts": 8, "final_samples": 2})
    elif arg:
        raise ValueError(f"revise:{arg}: the only variant is 'quick'.")
    return config
