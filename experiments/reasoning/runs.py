"""Runs of arms from the shipped base, and measurements of pass@k up to hundreds of samples.

A run is one seed of one arm. What it gave is stored when it ends, so that the same command resumes; arms and seeds run
one after another in one process, which compiles each arm once.
"""

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
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
from rljax.run.evaluation import evaluate, ranking

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
    """

    algorithm: str
    rate: float = 1e-4
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Size:
    """How much the study runs.

    Attributes:
      measured: steps after which a run is measured; the last is its length.
      prompts: held-out prompts of a measurement.
      tries: samples of each prompt that pass@1 is estimated from.
      limit: the most samples of a prompt that has no right one yet.
      compared: prompts and samples that the KL to the base is estimated from.
      batches: prompts and samples of a compiled batch, while a prompt has had fewer than ``few`` samples, and later.
      few: see ``batches``.
      variant: of ``configs/reasoning.py``.
    """

    measured: tuple[int, ...] = (40, 80)
    prompts: int = 512
    tries: int = 16
    limit: int = 256
    compared: tuple[int, int] = (128, 8)
    batches: tuple[tuple[int, int], tuple[int, int]] = ((32, 16), (8, 64))
    few: int = 64
    variant: str = ""


QUICK = Size((1, 2), 4, 2, 8, (4, 2), ((2, 2), (2, 4)), 4, "quick")


def config(arm: Arm, size: Size) -> Any:
    """Return the config of a run of an arm."""
    c = rljax.get_config("reasoning", size.variant)
    c.algorithm = arm.algorithm
    c.phases = ("main",)
    phase = rljax.phase(steps=size.measured[-1], optimizer=ADAM.format(arm.rate), warmup=5)
    phase.update(arm.fields)
    c.phase = {"main": phase}
    c.log.update({"report": False, "sinks": "none"})
    return c


# --- measuring -------------------------------------------------------------------------------------


def solve(step: Any, params: types.Tree, key: types.Key, size: Size) -> tuple[Ints, Ints]:
    """Sample held-out prompts, each until one of its completions is right.

    A prompt gets ``size.tries`` samples, and more, in batches, while none is right and it has fewer than
    ``size.limit``. Let T be the number of its first right sample: 1[T <= k] is an unbiased estimate of pass@k for each
    k up to the limit, and costs few samples where pass@k is near 1. That of pass@1 is the share of right ones among
    the first ``size.tries``.

    Args:
      step: of the run.
      params: of the policy.
      key: the root key of the run.
      size: the numbers of prompts and samples.

    Returns:
      Of each prompt T, 0 if no sample is right, and the number of right ones among the first ``size.tries``.
    """
    first, right = np.zeros(size.prompts, np.int64), np.zeros(size.prompts, np.int64)
    task, done = step.setup.task, 0
    sampler = dataclasses.replace(step.setup.settings.sampler, **evaluate.SAMPLED)
    unsolved = np.arange(size.prompts)
    while done < size.limit and len(unsolved):
        count, samples = size.batches[done >= size.few]
        for start in range(0, len(unsolved), count):
            part = np.resize(unsolved[start : start + count], count).astype(np.int32)  # the last one is padded
            rows, number = np.repeat(part, samples), np.tile(done + np.arange(samples, dtype=np.int32), count)
            keys = sampling.row_keys(key, 0, jnp.asarray(rows), jnp.asarray(number))
            out = step.generate(params, task.prompts(jnp.asarray(part), "heldout"), keys, samples, sampler)
            outcome = step.verify(jnp.asarray(rows), "heldout", out.token, out.mask).outcome
            correct = np.asarray(outcome == types.Outcome.CORRECT).reshape(count, samples)
            if done < size.tries:
                right[part] = correct[:, : size.tries].sum(axis=1)
            solved = correct.any(axis=1)
            first[part[solved]] = done + 1 + correct[solved].argmax(axis=1)
        done += samples
        unsolved = np.flatnonzero(first == 0)
    first[first > size.limit] = 0
    return first, right


def distance(step: Any, params: types.Tree, base: types.Tree, key: types.Key, size: Size) -> dict[str, float]:
    """Return what held-out completions say of a policy.

    Args:
      step: of the run.
      params: of the policy.
      base: of the base.
      key: the root key of the run.
      size: the numbers of prompts and samples.

    Returns:
      "kl", the estimate k3 of KL(policy || base) of a completion, nats, with its standard error "kl_error"; "entropy"
      of a token, nats; "length", tokens.
    """
    rows = ranking.sampled(step, params, key, *size.compared)
    scores = step.score("policy", params, rows, types.Needs(entropy=True))
    log_ratio = step.score("policy", base, rows, types.Needs(entropy=True)).logp - scores.logp
    kl = np.asarray(jnp.sum(rows.mask * (jnp.expm1(log_ratio) - log_ratio), axis=1))
    tokens = float(rows.mask.sum())
    return {
        "kl": float(kl.mean()),
        "kl_error": float(kl.std(ddof=1) / len(kl) ** 0.5),
        "entropy": float((scores.entropy * rows.mask).sum()) / tokens,
        "length": tokens / len(kl),
    }


def measure(step: Any, params: types.Tree, base: types.Tree, key: types.Key, size: Size) -> dict[str, Any]:
    """Return what is stored of a policy: "first" and "right", see ``solve`` and ``arms.pack``, and ``distance``."""
    first, right = solve(step, params, jax.random.fold_in(key, 1), size)
    apart = distance(step, params, base, jax.random.fold_in(key, 2), size)
    return {"first": pack(first.tolist()), "right": pack(right.tolist())} | {
        name: float(f"{x:.4g}") for name, x in apart.items()
    }


# --- running ---------------------------------------------------------------------------------------


class Runs:
    """The runs that a file stores, and those that are to be added.

    Args:
      size: how much a run does.
      file: JSON with the size and a record of each run, a line each.

    Raises:
      ValueError: the file has runs of another size.
    """

    def __init__(self, size: Size, file: pathlib.Path):
        self.size, self.file = size, file
        self._settings = json.loads(json.dumps(dataclasses.asdict(size)))  # tuples as lists
        stored = json.loads(file.read_text()) if file.exists() else {"size": self._settings, "runs": []}
        if stored["size"] != self._settings:
            differ = ", ".join(name for name in self._settings if stored["size"].get(name) != self._settings[name])
            raise ValueError(f"{file}: has runs of another size ({differ}). Set --results to another file.")
        self.records: list[dict[str, Any]] = stored["runs"]

    def _add(self, record: dict[str, Any], before: float) -> None:
        self.records.append(record | {"cpu_seconds": round(time.process_time() - before)})
        lines = ",\n".join(json.dumps(r) for r in self.records)
        storage.write(self.file, f'{{"size": {json.dumps(self._settings)},\n"runs": [\n{lines}\n]}}\n')

    def _has(self, arm: str, seed: int) -> bool:
        return any((r["arm"], r["seed"]) == (arm, seed) for r in self.records)

    def base(self) -> None:
        """Measure the base, if that is missing."""
        if not self._has("base", 0):
            before, (step, _, base) = time.process_time(), _built(Arm("grpo(kl=0.0)"), self.size)
            task, measured = step.setup.task, measure(step, base, base, seeds.key(0), self.size)
            domain = np.asarray(task.domain(jnp.arange(self.size.prompts), "heldout"))
            domains = {"domains": [*task.domain_names], "domain": "".join(map(str, domain))}
            self._add({"arm": "base", "seed": 0, "at": {"0": measured}} | domains, before)

    def run(self, arms: Mapping[str, Arm], numbers: Sequence[int]) -> Iterator[str]:
        """Run what is missing, all arms of a seed before the next seed; yield the name of each run that ends."""
        built: dict[str, tuple[Any, types.Tree, types.Tree]] = {}
        for seed in numbers:
            for name in [name for name in arms if not self._has(name, seed)]:
                before = time.process_time()
                if name not in built:
                    built[name] = _built(arms[name], self.size)
                record = {"arm": name, "seed": seed, "rate": arms[name].rate}
                self._add(record | self._one(*built[name], seed), before)
                yield f"{name}, seed {seed}"

    def _one(self, step: Any, initial: types.Tree, base: types.Tree, seed: int) -> dict[str, Any]:
        """Train one seed of an arm; return the measurements by step and the curves."""
        key, at, done = seeds.key(seed), {}, 0
        history: list[Mapping[str, Any]] = []
        state = step.begin(None, key, {"policy": jax.tree.map(jnp.copy, initial)})
        for stop in self.size.measured:
            state, _ = seeds.train(step, state, seed, stop - done, watch=history.append)
            at[str(stop)] = measure(step, state.params["policy"], base, key, self.size)
            done = stop
        columns = {name: [float(row[name]) for row in history] for name in CURVES if name in history[0]}
        return {"at": at, "curves": {k: [float(f"{x:.4g}") for x in binned(v, BINS)] for k, v in columns.items()}}


def _built(arm: Arm, size: Size) -> tuple[Any, types.Tree, types.Tree]:
    """Return the step of an arm, the parameters that it starts from, and those of the base."""
    backends.start()
    program = programs.build(config(arm, size), devices=jax.devices()[:1])
    step = program.steps[0]
    initial = program.initial().get("policy")
    if initial is None:  # without weights: a random policy stands for the base
        initial = step.begin(None, program.key, None).params["policy"]
    return step, initial, jax.tree.map(jnp.copy, initial)
