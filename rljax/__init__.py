"""rljax: policy optimization of language models, native to JAX.

    import rljax

    config = rljax.get_config("quickstart")
    config.algorithm = "rloo()"
    result = rljax.train(config)

On arrays, ``rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=logp))`` is a differentiable loss, with
``rollout = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, behaviour_logp=logp)``.

Four floors; a file imports only from the floors below its own:

    run/  config/  host/  aot/  bench/            host: the loop, settings, processes, compiled elsewhere, timed here
    training/                                     assembly: step, rollout, update, state, optimizer, sharding
    models/  sampling/  environments/  data/      machinery: networks, decoding, tasks and verifiers, text and files
    types.py  language/  transforms/  algorithms/ mathematics: records, the language of configs, pieces, recipes

Names are imported at first use, so that worker processes of verifiers do not import JAX.
"""

import importlib
import importlib.abc
import sys
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "Algorithm": "types:Algorithm",
    "Objective": "types:Objective",
    "Rollout": "types:Rollout",
    "Scores": "types:Scores",
    "advantages": "algorithms.arrays:advantages",
    "check": "algorithms.battery:check",
    "compare": "run.reports.compare:compare",
    "default_config": "config.schema:default",
    "get_config": "config.files:load",
    "load": "run.evaluate:load",
    "make_program": "run.programs:build",
    "make_step": "training.steps:make_step",
    "module": "config.schema:module",
    "objective": "algorithms.arrays:objective",
    "penalty_terms": "algorithms.arrays:penalty_terms",
    "phase": "config.schema:phase",
    "rollout_from_arrays": "algorithms.arrays:rollout_from_arrays",
    "train": "run.loop:train",
    "train_many": "run.many:train_many",
    "transform": "algorithms.arrays:transform",
}
_MODULES = {
    **{name: name for name in ("algorithms", "config", "environments", "models", "sampling", "transforms", "types")},
    **{name: f"run.{name}" for name in ("evaluate", "plots", "sample", "sweep")},
}
_MOVED = {  # new locations of modules of earlier versions
    **{
        name: f"run.{name}" for name in ("evaluate", "sample", "sweep", "metrics", "plots", "passk", "progress", "loop")
    },
    **{"tasks": "environments", "rewards": "environments.verifiers", "ahead": "aot", "schema": "config.schema"},
    **{"losses": "algorithms.interpreter", "arrays": "algorithms.arrays", "seams": "algorithms.seams"},
    **{"ops": "transforms.ops", "parse": "language.parse", "storage": "data.storage", "program": "run.programs"},
    **{"step": "training.steps", "rollout": "training.rollouts", "state": "training.states"},
    **{"update": "training.updates", "optimizer": "training.optimizers", "sharding": "training.sharding"},
    **{"distributed": "host.processes", "workdir": "host.workdirs", "profile": "host.profiles"},
    **{"collect": "run.host_rollouts", "checkpoint": "run.checkpoints"},
}


class _Moved(importlib.abc.MetaPathFinder):
    """Raises ImportError with the new location of a module of an earlier version."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> None:
        package, _, name = fullname.partition(".")
        if package != "rljax" or name not in _MOVED:
            return
        from rljax import __main__

        location = f"rljax.{_MOVED[name]}"
        command = f" The command is now 'python -m rljax {name}'." if name in __main__.COMMANDS else ""
        raise ImportError(f"no module named {fullname!r}: it is now {location!r}.{command}")


sys.meta_path.append(_Moved())


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        module, _, attribute = _NAMES[name].partition(":")
        return getattr(importlib.import_module(f"rljax.{module}"), attribute)
    if name in _MODULES:
        return importlib.import_module(f"rljax.{_MODULES[name]}")
    hint = f": it is now 'rljax.{_MOVED[name]}'" if name in _MOVED else ""
    raise AttributeError(f"module 'rljax' has no attribute {name!r}{hint}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES, *_MODULES})
