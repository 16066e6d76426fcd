"""Questions about pictures that are drawn in the program: cloning of noisy answers, then GRPO.

Command:   python -m rljax --config configs/pictures.py
Hardware:  two CPU cores, no accelerator; 2 GiB.
Time:      3 min, compilation and evaluations included.
Score:     held-out pass@1 55 % to 99.9 %; with blank pictures 5 %, with another question's 23 % (seed 0,
           notebooks/see_and_reason.ipynb). Guessing without looking: at most 27 %.

The policy reads the height of the highest bar of a chart: ``max?`` after the 16 tokens of a picture of 32 x 32 pixels.
Charts with the heights of a held-out one, from left to right, never occur in training. Nine of 20 demonstrations are
wrong. ``configs/pictures.py:redraw`` writes what draws a picture again: held-out pass@1 16 % to 59 %, 500 steps of
cloning first (seed 0). Other tasks, of which no score was measured: ``:counting``, ``:screen``, ``:maze``, a world that
is seen anew in each turn. ``:charts_twin`` and the like have a text in place of the picture.
"""

import rljax

TASKS = {
    "charts": "charts(ask='max', noise=0.45)",
    "counting": "counting(noise=0.5)",
    "screen": "screen(ask='box', partial=True, noise=0.1)",
    "redraw": "redraw(noise=0.2)",
    "maze": "maze(side=4, pixels=32, moves=1)",
}


def get_config(arg: str = "charts"):
    """Return the config; ``arg`` is a task, ``NAME_twin`` its twin in text, or "quick", which is too short to learn."""
    name, twin = arg.removesuffix("_twin") or "charts", arg.endswith("_twin")
    if name not in (*TASKS, "quick") or (twin and name in ("maze", "quick")):
        raise ValueError(f"pictures:{arg}: choose one of {', '.join(TASKS)}, but for maze also with _twin, or 'quick'.")
    config = rljax.default_config()
    config.name = "pictures"
    config.task = TASKS.get(name, TASKS["charts"])
    config.algorithm = {"screen": "gui_g1()", "redraw": "msrl(first=60)"}.get(name, "grpo(kl=0.0)")
    config.model.update({"layers": 2, "width": 128})
    if twin:
        config.task = config.task.removesuffix(")") + ", twin=True)"
    else:
        config.model.vision.update({"layers": 2, "width": 64})
    config.batch.update({"prompts": 64, "samples": 8})
    config.phases = ("warm", "main")
    config.phase.warm = rljax.phase(
        algorithm="sft()",
        steps=500 if name == "redraw" else 350,
        batch={"prompts": 128},
        optimizer="adamw(learning_rate=2e-3, weight_decay=0.0)",
        warmup=50,
        evaluate="base",
    )
    config.phase.main = rljax.phase(
        steps=120, optimizer="adamw(learning_rate=3e-4, weight_decay=0.0)", warmup=20, evaluate="result"
    )
    if name == "quick":
        config.model.width = 32
        config.model.vision.update({"layers": 1, "width": 16})
        config.batch.update({"prompts": 8, "samples": 4})
        config.phase.warm.update({"steps": 6, "warmup": 2, "batch": {"prompts": 16}})
        config.phase.main.update({"steps": 3, "warmup": 1})
        config.evaluation.update({"final_prompts": 16, "final_samples": 4})
    return config
