"""rljax: policy optimization of language models, native to JAX.

    import rljax

    config = rljax.get_config("quickstart")
    config.algorithm = "rloo()"
    result = rljax.train(config)

On arrays, ``rljax.objective("grpo(kl=0.0)", rollout, rljax.Scores(logp=logp))`` is a differentiable loss, with
``rollout = rljax.rollout_from_arrays(mask=mask, reward=reward, group=group, behaviour_logp=logp)``.

Four floors; a file imports from the floors below its own, and of its own floor what
tests/repository/test_architecture.py lists:

    run/                    host: one run. train, loop, conductor, programs, session, preview, sharding, convert
        producers/              rows that pass through the host: verified, answered, shown, from_files
        members/                several runs: sweep, cohorts, many, results, commands; alone, together compute them
        evaluation/             evaluate, sample, loading, passk, intervals, episodes, trials, ranking
        games/                  play, matches, tournament, elo, nashconv
        records/                what a run writes and reads back: checkpoints, metrics, events, journals, identity
        reports/                a run on a page and in the terminal; comparison/ of runs; pages/ what pages are made of
        data/                   the command data
    config/  host/              files, resolve, compatible, effects  |  work directory, processes, devices, sinks/
    aot/  bench/                compiled for other machines  |  timed on this one
    training/               assembly: steps, phases, states, rows, sharding, checks, readings
        producers/              rows made in the program: completions, episodes, segments, turns, demonstrations, stored
        learning/               updates, gradients, optimizers, metrics of an update
    models/                 machinery: architectures, towers, parameters, adapters, layouts, precision, presets
        network/                transformer, layer, attention, gated, vision, caches
        scores/                 scoring, head, coarse, packing
        checkpoints/            public weights in and out
    sampling/  data/            decoding, conversations, chapters, segments  |  tokenizers, chat, files, rows/
    environments/               contracts of tasks and worlds, traits, the frame of characters
        problems/  questions/   numbered problems, shipped/ the tasks  |  tasks over rows of files, published sets
        worlds/                 the frame of worlds, and what stands around one; shipped/ the worlds, with games/
        worlds/host/            worlds on text in worker processes; shipped/ tools, search, textarena, adapters/
        verifiers/  workers/    reward functions, sandbox/  |  the pool of worker processes
    types.py  language/     mathematics: every record  |  the language of config strings, groups of settings
    transforms/                 pieces by seam; frame/ what stands around every piece
    algorithms/                 the table, its interpreter, arrays in hand; recipes/ the core; battery/
    methods/                    the collection: published recipes and pieces, in the same rooms as the core

A folder has at most 16 entries. The frame imports nothing of ``methods/`` or of a folder ``shipped/``.

Names are imported at first use, so that worker processes of verifiers do not import JAX.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_NAMES = {  # each public name, and the module that it is, or that defines it
    **{name: name for name in ("algorithms", "config", "environments", "models", "sampling", "transforms", "types")},
    "Algorithm": "types:Algorithm",
    "Objective": "types:Objective",
    "Rollout": "types:Rollout",
    "Scores": "types:Scores",
    "advantages": "algorithms.arrays:advantages",
    "check": "algorithms.battery:check",
    "compare": "run.reports.comparison.compare:compare",
    "default_config": "config.schema:default",
    "evaluate": "run.evaluation.evaluate",
    "get_config": "config.files:load",
    "load": "run.evaluation.loading:load",
    "make_program": "run.programs:build",
    "make_step": "training.steps:make_step",
    "module": "config.schema:module",
    "objective": "algorithms.arrays:objective",
    "penalty_terms": "algorithms.arrays:penalty_terms",
    "phase": "config.schema:phase",
    "plots": "run.reports.pages.plots",
    "rollout_from_arrays": "algorithms.arrays:rollout_from_arrays",
    "sample": "run.evaluation.sample",
    "sweep": "run.members.sweep",
    "train": "run.loop:train",
    "train_many": "run.members.many:train_many",
    "transform": "algorithms.arrays:transform",
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'rljax' has no attribute {name!r}")
    place, _, attribute = _NAMES[name].partition(":")
    module = importlib.import_module(f"rljax.{place}")
    return getattr(module, attribute) if attribute else module


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
