"""rljax: policy optimisation of language models, native to JAX.

    import rljax

    config = rljax.get_config("quickstart")
    config.algorithm = "rloo()"
    result = rljax.train(config)

Names are imported when they are first used, so that a worker process that only checks answers does not
load jax.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "Algorithm": "types",
    "Objective": "types",
    "Rollout": "types",
    "Scores": "types",
    "advantages": "arrays",
    "default_config": "config",
    "get_config": "config",
    "make_program": "program",
    "make_step": "step",
    "objective": "arrays",
    "rollout_from_arrays": "arrays",
    "train": "loop",
}
_ALIAS = {"default_config": "default", "get_config": "load", "make_program": "build"}
_MODULES = ("algorithms", "config", "evaluate", "plots", "sample", "tasks", "transforms", "types")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"rljax.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'rljax' has no attribute {name!r}")
    return getattr(importlib.import_module(f"rljax.{_HOME[name]}"), _ALIAS.get(name, name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME, *_MODULES})
