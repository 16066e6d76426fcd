"""Smaller bases than the shipped one: of width 64 and of width 128 in place of 256, with its depth, tasks and phases.

Command:   python -m rljax --config experiments/reasoning/scale/bases.py:128
Hardware:  two CPU cores, no accelerator.
Time:      of width 64, 35 minutes of one core beside other work.

The base of width 64 has three times as many steps of each phase: after as many as the others it still errs in half of
its sums. ``python -m rljax convert RUN --target=FOLDER --dtype=bfloat16`` writes the result as a folder for
``model.weights``.
"""

import pathlib

import rljax

FACTORS = {64: 3, 128: 1}  # of the steps, by width
DIGESTS = {  # SHA-256 of those that are here
    64: "fc945d222be6cbba4a21743e0a9156a7217496f71a5f2c455782617893d98e08",
    128: "e3676fd320b1201c98224ca2b467ee62ef8982b06d581fd5b422ca96fbc70b00",
}
FOLDER = pathlib.Path(__file__).parent.resolve()


def get_config(arg: str = "128"):
    """Return the config of a base; ``arg``: its width."""
    if arg not in map(str, FACTORS):
        raise ValueError(f"bases:{arg}: the only widths are {', '.join(map(str, FACTORS))}.")
    width = int(arg)
    config = rljax.get_config("reasoning", "base")
    config.name = f"base_{width}"
    config.model.update({"width": width, "heads": width // 32, "kv_heads": width // 64, "hidden": 5 * width // 2})
    for name in config.phases:
        phase = config.phase[name]
        steps = phase.steps * FACTORS[width]
        phase.optimizer = phase.optimizer.replace(f", {phase.steps}, ", f", {steps}, ")  # of its cosine
        phase.steps = steps
    return config


def model(width: int) -> dict[str, str]:
    """Return the fields of ``config.model`` that a run starts from a base by.

    Raises:
      ValueError: the base is not here.
    """
    if width not in DIGESTS:
        raise ValueError(f"the base of width {width} is not here: train it by this file's command")
    return {"weights": str(FOLDER / f"base_{width}"), "digest": DIGESTS[width]}
