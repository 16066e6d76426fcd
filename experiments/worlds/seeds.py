"""Arms and seeds of a study in one process, so that each phase is compiled once for all seeds."""

import argparse
import dataclasses
import json
import pathlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib import figure

import rljax
from experiments.arms import text
from rljax import sampling, types
from rljax.data import storage
from rljax.host import backends
from rljax.run import programs
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots
from rljax.training import steps

Curve = list[tuple[int, float]]


@dataclasses.dataclass(frozen=True)
class Size:
    """How much a study runs."""

    seeds: int
    clone: int  # steps on demonstrations
    steps: int  # of each arm
    prompts: int  # of an evaluation
    layers: int = 2
    width: int = 64


QUICK = Size(seeds=2, clone=1, steps=2, prompts=4, layers=1, width=16)


def config(size: Size, task: str, arms: Mapping[str, str], learning_rate: float, samples: int = 8):
    """Return a config whose phases are ``clone``, on demonstrations, and one of each arm, by the name of the arm."""
    c = rljax.default_config()
    c.task = task
    heads, hidden = 2, 3 * size.width
    c.model.update({"layers": size.layers, "width": size.width, "heads": heads, "kv_heads": heads, "hidden": hidden})
    c.model.remat = "none"
    c.mesh.data = 1
    c.batch.update({"prompts": 16 if size.seeds > 2 else 4, "samples": samples})
    c.phases = ("clone", *arms)
    adam = "adamw(learning_rate={}, weight_decay=0.0)"
    clone = {"algorithm": "sft()", "steps": size.clone, "batch": {"prompts": 64 if size.seeds > 2 else 4}}
    c.phase.clone = rljax.phase(**clone, optimizer=adam.format(5e-3), warmup=min(10, size.clone))
    for name, algorithm in arms.items():
        optimizer = adam.format(learning_rate)
        c.phase[name] = rljax.phase(algorithm=algorithm, steps=size.steps, optimizer=optimizer, warmup=5)
    return c


def build(c) -> dict[str, steps.Step]:
    """Return the step of each phase of a config, by name, on one device."""
    backends.start()
    program = programs.build(c, devices=jax.devices()[:1])
    return dict(zip(c.phases, program.steps, strict=True))


def key(seed: int) -> types.Key:
    """Return the root key of a run."""
    return jax.random.key(seed, impl="threefry2x32")


def begin(step: steps.Step, previous: types.TrainState | None, seed: int) -> types.TrainState:
    """Return the state at the start of a phase; ``previous`` stays usable, though updates donate their state."""
    return step.begin(jax.tree.map(jnp.copy, previous), key(seed), None)


def train(
    step: steps.Step,
    state: types.TrainState,
    seed: int,
    count: int,
    measure: Callable[[types.TrainState], float] | None = None,
    every: int = 1,
    watch: Callable[[types.Metrics], None] | None = None,
    rollout: Callable[[types.TrainState], types.Rollout] | None = None,
) -> tuple[types.TrainState, Curve]:
    """Take ``count`` steps; return the state and what ``measure`` gives before, every so many steps, and at the end.

    ``watch`` is called with the metrics of every step. ``rollout`` gives the rows of a phase that no program computes
    with its update; None: the step's own function.
    """
    curve = [] if measure is None else [(0, measure(state))]
    for number in range(1, count + 1):
        if step.fused is None:
            rows = jax.device_put(step.rollout(state, key(seed))) if rollout is None else rollout(state)
            state, metrics = step.update(state, rows, key(seed))
        else:
            state, metrics = step.fused(state, key(seed))
        if watch is not None:
            watch(metrics)
        if measure is not None and (number % every == 0 or number == count):
            curve.append((number, measure(state)))
    return state, curve


def success(step: steps.Step, params: types.Tree, prompts: int, samples: int = 4) -> float:
    """Return the share of episodes of held-out problems that end well, at temperature 1; one seat, one row each."""
    index = jnp.arange(prompts, dtype=jnp.int32)
    rows = step.play(params, index, key(1_000_003), "heldout", samples, step.setup.settings.sampler)
    return float(np.mean(np.asarray(rows.outcome) == types.Outcome.CORRECT))


def answered(step: steps.Step, params: types.Tree, prompts: int, samples: int = 8) -> float:
    """Return the share of right answers to held-out problems of one turn, at temperature 1, from the task's prompt."""
    index = jnp.arange(prompts, dtype=jnp.int32)
    asked = step.setup.task.prompts(index, "heldout")
    of, number = jnp.repeat(index, samples), jnp.tile(jnp.arange(samples, dtype=jnp.int32), prompts)
    keys = sampling.row_keys(key(1_000_003), jnp.int32(0), of, number)
    out = step.generate(params, asked, keys, samples, step.setup.settings.sampler)
    return float(np.mean(np.asarray(step.verify(of, "heldout", out.token, out.mask).outcome) == types.Outcome.CORRECT))


def percent(values: Sequence[float]) -> str:
    """Return the mean over seeds in percent with Student's 95 % interval: other seeds, the same prompts."""
    return text(intervals.mean(values, bounds=intervals.UNIT))


def gap(first: Sequence[float], second: Sequence[float]) -> str:
    """Return the mean of ``second`` minus ``first``, paired by seed, in percentage points with its 95 % interval."""
    return text(intervals.difference(dict(enumerate(first)), dict(enumerate(second)), bounds=intervals.UNIT))


def draw(curves: Mapping[str, Sequence[Curve]], title: str, path: pathlib.Path, x_label: str = "step of RL") -> None:
    """Draw the curves of arms, in percent: a thin line for each seed, a thick one for their mean."""
    canvas = figure.Figure(figsize=(6, 3.6), layout="constrained")
    ax = canvas.subplots()
    for color, (name, seeds) in zip(plots.COLORS, curves.items(), strict=False):
        x = [step for step, _ in seeds[0]]
        values = np.array([[100 * v for _, v in curve] for curve in seeds])
        ax.plot(x, values.T, color=color, linewidth=0.8, alpha=0.4)
        ax.plot(x, values.mean(axis=0), color=color, linewidth=2.2, label=name)
    plots.decorate(ax, title, x_label, "%")
    if len(curves) > 4:  # too many to stand among the curves
        canvas.legend(frameon=False, fontsize=9, loc="outside right upper")
    else:
        ax.legend(frameon=False, fontsize=9)
    canvas.savefig(path, dpi=100)


def resumed(
    file: pathlib.Path,
    size: Any,
    numbers: Sequence[int],
    start: Callable[[], Callable[[int], Any]],
    what: str = "seeds",
) -> list[Any]:
    """Return what each seed gave, those of earlier runs included; store it after each seed.

    Args:
      file: what earlier runs stored, as JSON.
      size: a dataclass, how much a seed runs; its field ``seeds`` may differ from that of earlier runs.
      numbers: the seeds to run, where they are not stored.
      start: returns the function that runs a seed and returns what to store; called only if a seed is not stored.
      what: the name in the error of what is stored.

    Returns:
      What is stored of each seed, in the order of the seeds.

    Raises:
      ValueError: the file has seeds of another size.
    """
    settings = json.loads(json.dumps(dataclasses.asdict(size)))  # tuples as lists
    settings.pop("seeds")
    record = json.loads(file.read_text()) if file.exists() else {"size": settings, "seeds": {}}
    if record["size"] != settings:
        raise ValueError(f"{file}: has {what} of the size {record['size']}. Set --out to another folder.")
    missing = [seed for seed in numbers if str(seed) not in record["seeds"]]
    one = start() if missing else None
    for seed in missing:
        assert one is not None
        record["seeds"][str(seed)] = one(seed)
        storage.write(file, json.dumps(record))
    record = json.loads(json.dumps(record))  # what was run just now as it is read from the file
    return [result for _, result in sorted(record["seeds"].items(), key=lambda item: int(item[0]))]


def arguments(doc: str | None, parts: Iterable[str] = (), **flags: str) -> argparse.Namespace:
    """Return the arguments of a study: ``quick``, ``out``, ``only`` of its parts, and its ``flags`` with their help."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="run every part, too short to learn")
    here = pathlib.Path(sys.argv[0]).parent
    parser.add_argument("--out", type=pathlib.Path, default=here, help="folder of the figure")
    if names := list(parts):
        parser.add_argument("--only", nargs="*", default=names, choices=names, help="some parts of the study")
    for name, meaning in flags.items():
        parser.add_argument(f"--{name}", action="store_true", help=meaning)
    return parser.parse_args()
