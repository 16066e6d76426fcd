"""Bases of other widths than the shipped one: of 64 and of 128 in place of 256, with its depth, tasks and phases.

Command:   python -m rljax --config experiments/reasoning/scale/bases.py:128
Hardware:  two CPU cores, no accelerator.

``python -m rljax convert RUN --target=FOLDER --dtype=bfloat16`` writes the result as a folder for ``model.weights``.
"""

import rljax

WIDTHS = (64, 128)


def get_config(arg: str = "128"):
    """Return the config of a base; ``arg``: its width."""
    if arg not in map(str, WIDTHS):
        raise ValueError(f"bases:{arg}: the only widths are {', '.join(map(str, WIDTHS))}.")
    width = int(arg)
    config = rljax.get_config("reasoning", "base")
    config.name = f"base_{width}"
    config.model.update({"width": width, "heads": width // 32, "kv_heads": width // 64, "hidden": 5 * width // 2})
    return config
