"""Reasoning: RL on word problems of several steps, from a base that ships with the project.

Command:   python -m rljax --config configs/reasoning.py
Hardware:  two CPU cores, no accelerator; 2 GiB.
Time:      6 min 8 s, of which 40 s for each of the two evaluations; the first step ends after 75 s.
Score:     seed 0, 128 held-out problems x 16 samples: pass@1 45 % to 54 %, pass@16 83 % to 90 %, greedy 59 % to 63 %.

``V=5, N=V-2, D=N*6, D?`` is answered modulo 11 by a step for each quantity that is needed, ``V=5;N=V-2=5-2=3;...;7``,
in 20 to 105 characters. An answer counts only behind steps that compute it (``strict``), in any order. The base,
``reasoning_base/``, has 3.5 million parameters; its page says what it has seen and what it can do.

``:hard`` trains on problems of six operations, of which the base has seen at most five. ``:base`` trains the base, in
72 minutes of two cores beside other work. The phases of the shipped file were separate runs, one after the other, so
that their random numbers differ. ``python -m rljax convert RUN --target=FOLDER --dtype=bfloat16`` writes the result as
a folder for ``model.weights``.
"""

import pathlib

import rljax

BASE = pathlib.Path(__file__).parent.resolve() / "reasoning_base"
DIGEST = "f4171144e3343667c49c74c5ca87c923b6327bd3b44175cbb229cd7dde339ff4"
TASK = "reasoning(names='letters', modulus=11, {})"
FORMULAS = TASK.format("operations=(2, 5), distractors=1, wording='formula'")
TASKS = {
    "": TASK.format("operations=(4, 6), distractors=1, wording='formula', strict=True"),
    "hard": TASK.format("operations=6, distractors=1, wording='formula', strict=True"),
}
OTHERS = [
    TASK.format("operations=(2, 5), distractors=1, wording='formula', slip=0.1, noise=0.03"),
    TASK.format("operations=2, distractors=1"),
    "arithmetic(operands=2, digits=2)",
    "sorting()",
]
TWO = TASK.format("operations=2, distractors=1, wording='formula'")
# of the base: task, demonstrations of a step, steps, factor of the rate at the start and at the end
PHASES = {
    "two": (TWO, 128, 150, 1.0, 1.0),
    "small": (TWO, 32, 136, 0.5, 0.5),
    "formulas": (FORMULAS, 48, 734, 0.7, 0.7),
    "mixed": (f"mixture({', '.join([FORMULAS, *OTHERS])}, weights=(6, 1, 1, 1, 1))", 50, 950, 0.8, 0.024),
}


def get_config(arg: str = ""):
    """Return the config; ``arg``: "hard", "base", or "quick", a small policy that is trained too briefly to learn."""
    config = rljax.default_config()
    config.name = "reasoning"
    config.algorithm = "grpo(kl=0.0)"
    config.batch.update({"prompts": 16, "samples": 8})
    config.evaluation.update({"final_prompts": 128, "final_samples": 16})
    if arg in TASKS:
        config.task = TASKS[arg]
        config.model.update({"weights": str(BASE), "digest": DIGEST})
        config.phase.main = rljax.phase(
            steps=80,
            optimizer="adamw(learning_rate=1e-4, weight_decay=0.0)",
            warmup=5,
            before="base",
            evaluate="result",
        )
    elif arg == "base":
        config.task = TASKS[""]
        config.tokenizer.path = str(BASE)
        config.model.update({"layers": 5, "width": 256, "heads": 8, "kv_heads": 4, "hidden": 640})
        config.phases = tuple(PHASES)
        for name, (task, prompts, steps, first, last) in PHASES.items():
            rate = f"cosine_decay_schedule({first}, {steps}, {last / first:g})"
            config.phase[name] = rljax.phase(
                algorithm="sft()",
                task=task,
                batch={"prompts": prompts},
                steps=steps,
                optimizer=f"muon(learning_rate=1e-2, adam_learning_rate=3e-3) | scale_by_schedule({rate})",
                warmup=30,
            )
        config.phase.mixed.evaluate = "base"
    elif arg == "quick":
        config.task = TASK.format("operations=2, distractors=0, wording='formula', strict=True")
        config.model.update({"layers": 1, "width": 32, "heads": 2, "kv_heads": 1, "hidden": 64})
        config.batch.update({"prompts": 4, "samples": 2})
        config.phases = ("warm", "main")
        config.phase.warm = rljax.phase(algorithm="sft()", steps=4, warmup=2)
        config.phase.main = rljax.phase(steps=2, warmup=1, before="base", evaluate="result")
        config.evaluation.update({"final_prompts": 4, "final_samples": 2})
    else:
        raise ValueError(f"reasoning:{arg}: the only variants are 'hard', 'base' and 'quick'.")
    return config
