"""Architectures of published models, from their config.json: ``config.model.update(models.preset("qwen3-8b"))``.

With ``config.model.weights`` no preset is needed: the checkpoint's folder defines the architecture. A preset is the
same network with random weights, for a first run, a benchmark or a compilation without the files.
"""

import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

from rljax.models.checkpoints import families

PRESETS: Mapping[str, Mapping[str, Any]] = tomllib.loads(pathlib.Path(__file__).with_name("presets.toml").read_text())


def preset(name: str) -> dict[str, Any]:
    """Return the fields of ``Architecture`` of a published model.

    Raises:
      ValueError: there is no preset of this name.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join(PRESETS)}")
    return families.read(PRESETS[name])
