"""Runs of arms from the shipped base, and measurements of pass@k up to hundreds of samples.

A run is one seed of one arm. What it gave is stored when it ends, so that the same command resumes; arms and seeds run
one after another in one process, which compiles each arm once.
"""

import dataclasses
import functools
import json
import pathlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

import rljax
from experiments.arms import ADAM, binned, pack
from experiments.worlds import seeds
from rljax import sampling, types
from rljax.data import storage
from rljax.host import backends
from rljax.run import programs
from rljax.run.evaluation import evaluate
from rljax.run.producers import ahead

BINS = 10  # parts of a run whose metrics are averaged
CURVES = ("accuracy", "entropy", "length", "clipped", "gradient_norm")

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True)
class Arm:
    """A method and its learning rate.

    Attributes:
      algorithm: its recipe.
      rate: learning rate.
      fields: of the config, which differ from the defaults of the study.
      settings: of the task that it trains on, added to the study's.
      measured: steps after which it is measured, the last is its length; none: the study's.
    """

    algorithm: str
    rate: float = 1e-4
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    settings: str = ""
    measured: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs.

    Attributes:
      measured: steps after which a run is measured; the last is its length.
      prompts: held-out prompts of a measurement; each seed has others.
      tries: samples of each prompt that pass@1 is estimated from.
      limit: the most samples of a prompt that has no right one yet, at the end of a run and of the base.
      meanwhile: the same, of the other measurements.
      compared: prompts and samples that the KL to the base is estimated from.
      batches: prompts and samples of a compiled batch, while a prompt has had fewer than ``few`` samples, and later.
      few: see ``batches``.
      variants: of ``configs/reasoning.py``, whose problems are trained on, and measured.
    """

    measured: tuple[int, ...] = (40, 80)
    prompts: int = 256
    tries: int = 16
    limit: int = 256
    meanwhile: int = 64
    compared: tuple[int, int] = (128, 8)
    batches: tuple[tuple[int, int], tuple[int, int]] = ((32, 16), (8, 64))
    few: int = 64
    variants: tuple[str, str] = ("", "hard")


QUICK = Size((1, 2), 4, 2, 8, 4, (4, 2), ((2, 2), (2, 4)), 4, ("quick", "quick"))


def config(arm: Arm, size: Size, variant: str, base: Mapping[str, Any] | None = None) -> Any:
    """Return the config of a run of an arm, on the problems of a variant; ``base``: fields of its model."""
    c = rljax.get_config("reasoning", variant)
    c.model.update(base or {})
    c.algorithm = arm.algorithm
    if arm.settings:
        c.task = f"{c.task.removesuffix(')')}, {arm.settings})"
    c.phases = ("main",)
    phase = rljax.phase(steps=size.measured[-1], optimizer=ADAM.format(arm.rate), warmup=5)
    phase.update(arm.fields)
    c.phase = {"main": phase}
    c.log.update({"report": False, "sinks": "none"})
    return c


# --- measuring -------------------------------------------------------------------------------------


def solve(step: Any, params: types.Tree, key: types.Key, prompts: range, limit: int, size: Size) -> tuple[Ints, Ints]:
    """Sample held-out prompts, each until one of its completions is right.

    A prompt gets ``size.tries`` samples, and more, in batches, while none is right and it has fewer than ``limit``. Let
    T be the number of its first right sample: 1[T <= k] is an unbiased estimate of pass@k for each k up to the limit,
    and costs few samples where pass@k is near 1. That of pass@1 is the share of right ones among the first
    ``size.tries``.

    Args:
      step: whose task has the prompts.
      params: of the policy.
      key: a root key.
      prompts: numbers of the prompts.
      limit: the most samples of a prompt.
      size: the other numbers of samples.

    Returns:
      Of each prompt T, 0 if no sample is right, and the number of right ones among the first ``size.tries``.
    """
    first, right = np.zeros(len(prompts), np.int64), np.zeros(len(prompts), np.int64)
    sampler, done = dataclasses.replace(step.setup.settings.sampler, **evaluate.SAMPLED), 0
    unsolved = np.arange(len(prompts))
    while done < limit and len(unsolved):
        count, samples = size.batches[done >= size.few]
        for start in range(0, len(unsolved), count):
            part = np.resize(unsolved[start : start + count], count)  # the last one is padded
            index = (prompts.start + part).astype(np.int32)
            rows, number = np.repeat(index, samples), np.tile(done + np.arange(samples, dtype=np.int32), count)
            keys = sampling.row_keys(key, 0, jnp.asarray(rows), jnp.asarray(number))
            asked = step.setup.task.prompts(jnp.asarray(index), "heldout")
            out = step.generate(params, asked, keys, samples, sampler)
            outcome = step.verify(jnp.asarray(rows), "heldout", out.token, out.mask).outcome
            correct = np.asarray(outcome == types.Outcome.CORRECT).reshape(count, samples)
            if done < size.tries:
                right[part] = correct[:, : size.tries].sum(axis=1)
            solved = correct.any(axis=1)
            first[part[solved]] = done + 1 + correct[solved].argmax(axis=1)
        done += samples
        unsolved = np.flatnonzero(first == 0)
    first[first > limit] = 0
    return first, right


def distance(
    step: Any, params: types.Tree, base: types.Tree, key: types.Key, prompts: range, size: Size
) -> dict[str, float]:
    """Return what held-out completions say of a policy.

    Args:
      step: whose task has the prompts.
      params: of the policy.
      base: of the base.
      key: a root key.
      prompts: numbers of the prompts.
      size: how many of them, and how many samples of each.

    Returns:
      "kl", the estimate k3 of KL(policy || base) of a completion, nats, with its standard error "kl_error"; "entropy"
      of a token, nats; "length", tokens.
    """
    count, samples = size.compared
    index = jnp.repeat(jnp.arange(prompts.start, prompts.start + count, dtype=jnp.int32), samples)
    number = jnp.tile(jnp.arange(samples, dtype=jnp.int32), count)
    asked = step.setup.task.prompts(index[::samples], "heldout")
    keys = sampling.row_keys(key, 0, index, number)
    out = step.generate(params, asked, keys, samples, step.setup.settings.sampler)
    context = jax.tree.map(lambda x: jnp.repeat(x, samples, axis=0), asked.context)
    rows = types.Rollout(out.mask, jnp.zeros(len(index)), index, context)
    rows = rows.replace(action=types.Action(token=out.token, length=out.length), index=index)
    log_ratio = step.score("policy", base, rows, types.Needs()).logp - out.raw_logp
    kl = np.asarray(jnp.sum(out.mask * (jnp.expm1(log_ratio) - log_ratio), axis=1))
    tokens = float(out.mask.sum())
    return {
        "kl": float(kl.mean()),
        "kl_error": float(kl.std(ddof=1) / len(kl) ** 0.5),
        "entropy": float((out.entropy * out.mask).sum()) / tokens,
        "length": tokens / len(kl),
    }


# --- running ---------------------------------------------------------------------------------------


class Runs:
    """The runs that a file stores, and those that are to be added.

    Args:
      size: how much a run does.
      file: JSON with the size and a record of each run, a line each.
      base: fields of ``config.model`` by which another base than the shipped one is used.

    Raises:
      ValueError: the file has runs of another size.
    """

    def __init__(self, size: Size, file: pathlib.Path, base: Mapping[str, Any] | None = None):
        self.size, self.file, self.base = size, file, base
        self._settings = json.loads(json.dumps(dataclasses.asdict(size)))  # tuples as lists
        stored = json.loads(file.read_text()) if file.exists() else {"size": self._settings, "runs": []}
        if stored["size"] != self._settings:
            differ = ", ".join(name for name in self._settings if stored["size"].get(name) != self._settings[name])
            raise ValueError(f"{file}: has runs of another size ({differ}). Set --results to another file.")
        self.records: list[dict[str, Any]] = stored["runs"]
        self._built: dict[str, tuple[programs.Program, types.Tree]] = {}

    def _add(self, record: dict[str, Any], before: float) -> None:
        self.records.append(record | {"cpu_seconds": round(time.process_time() - before)})
        lines = ",\n".join(json.dumps(r) for r in self.records)
        storage.write(self.file, f'{{"size": {json.dumps(self._settings)},\n"runs": [\n{lines}\n]}}\n')

    def _has(self, arm: str, seed: int) -> bool:
        return any((r["arm"], r["seed"]) == (arm, seed) for r in self.records)

    def run(self, arms: Mapping[str, Arm], numbers: Sequence[int]) -> Iterator[str]:
        """Run what is missing, the base and all arms of a seed before the next seed; yield the name of each run."""
        for seed in numbers:
            for name in [name for name in ("base", *arms) if not self._has(name, seed)]:
                before = time.process_time()
                if name == "base":
                    record = {"at": {"0": self._measured(self._judge[1], seed, self.size.limit)}}
                else:
                    record = {"rate": arms[name].rate} | self._one(name, arms[name], seed)
                self._add({"arm": name, "seed": seed} | record, before)
                yield f"{name}, seed {seed}"

    @functools.cached_property
    def _judge(self) -> tuple[Any, types.Tree]:
        """The step whose task has the prompts of measurements, and the parameters of the base."""
        program, base = _built(config(Arm("grpo(kl=0.0)"), self.size, self.size.variants[1], self.base))
        return program.steps[0], base

    def _measured(self, params: types.Tree, seed: int, limit: int) -> dict[str, Any]:
        """Return what is stored of a policy: "first" and "right", see ``solve`` and ``arms.pack``, and ``distance``."""
        (step, base), key = self._judge, seeds.key(seed)
        prompts = range(self.size.prompts * seed, self.size.prompts * (seed + 1))
        first, right = solve(step, params, jax.random.fold_in(key, 1), prompts, limit, self.size)
        apart = distance(step, params, base, jax.random.fold_in(key, 2), prompts, self.size)
        numbers = {name: float(f"{x:.4g}") for name, x in apart.items()}
        return {"first": pack(first.tolist()), "right": pack(right.tolist())} | numbers

    def _one(self, name: str, arm: Arm, seed: int) -> dict[str, Any]:
        """Train one seed of an arm; return the measurements by step and the curves."""
        if name not in self._built:
            self._built[name] = _built(config(arm, self.size, self.size.variants[0], self.base))
        (program, initial), at, done = self._built[name], {}, 0
        step = program.steps[0]
        stops = [stop for stop in arm.measured if stop <= self.size.measured[-1]] or self.size.measured
        history: list[Mapping[str, Any]] = []
        state = step.begin(None, seeds.key(seed), {"policy": jax.tree.map(jnp.copy, initial)})
        rollout = _ahead(program, seed, state) if step.setup.apart else None
        for stop in stops:
            state, _ = seeds.train(step, state, seed, stop - done, watch=history.append, rollout=rollout)
            limit = self.size.limit if stop == stops[-1] else self.size.meanwhile
            at[str(stop)] = self._measured(state.params["policy"], seed, limit)
            done = stop
        columns = {name: [float(row[name]) for row in history] for name in CURVES if name in history[0]}
        return {"at": at, "curves": {k: [float(f"{x:.4g}") for x in binned(v, BINS)] for k, v in columns.items()}}


def _ahead(program: programs.Program, seed: int, state: types.TrainState) -> Callable[..., types.Rollout]:
    """Return the function that gives the rows of the next step, sampled ahead of its update (``run.lag``)."""
    resolved = dataclasses.replace(program.resolved, settings=dataclasses.replace(program.settings, seed=seed))
    sampled = ahead.Ahead(program.member(resolved), 0, None, state)

    def rollout(state: types.TrainState) -> types.Rollout:
        sampled.dispatch(state)
        return sampled(state)

    return rollout


def _built(config: Any) -> tuple[programs.Program, types.Tree]:
    """Return the program of a config and the parameters that it starts from; of ``quick``, random ones."""
    backends.start()
    program = programs.build(config, devices=jax.devices()[:1])
    return program, program.begin().params["policy"]
