"""Do wrong answers alone train a policy, and which pass@k do they raise?

python -m experiments.nsr.study --workdir runs/nsr

Bases are trained first, then every arm chooses its learning rate on seeds of its own, then all arms run, family by
family; at last four arms vary one factor at a time. Runs that differ in their seed and in numbers are members of one
program. What a run gave is stored when it ends, so that the same command resumes at any moment. Tables, figures and
``results.json`` have all that is there; ``--page`` writes them without running anything.
"""

import argparse
import collections
import dataclasses
import itertools
import json
import pathlib
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from experiments.arms import RATE, binned, fill, pack
from experiments.nsr import page
from experiments.nsr.families import ARMS, FAMILIES, QUICK, Arm, Size, base_config, config, varied
from rljax import types
from rljax.data import storage
from rljax.host import backends
from rljax.run import loop, programs
from rljax.run.evaluation import evaluate
from rljax.training import steps

PILOT = ("countdown", "NSR", "PSR")  # a family and two arms
COMPARED = ("PSR", "GRPO", "PPO")  # arms that also run at the learning rate of NSR
BINS = 10  # parts of a run whose metrics are averaged


# --- one run ---------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, order=True)
class Run:
    """A run: what it belongs to, and what its program does not fix."""

    stage: str  # "base", "tune", "pilot", "main", "factor" or "equal"
    family: str
    arm: str
    seed: int
    rate: float = 0.0  # learning rate

    def file(self, workdir: pathlib.Path) -> pathlib.Path:
        """Return the file of its result."""
        name = f"{self.seed}" if self.stage in ("base", "main", "factor") else f"{self.seed}-{self.rate:g}"
        return workdir / "results" / self.stage / self.family / self.arm / f"{name}.json"


def measure(step: steps.Step, params: types.Tree, seed: int, prompts: range, tries: int) -> dict[str, Any]:
    """Sample held-out prompts at temperature 1 and return what the study reads of the completions.

    Args:
      step: of any phase of the family.
      params: of the policy.
      seed: of the run.
      prompts: numbers of the held-out prompts.
      tries: completions of each prompt.

    Returns:
      "tries"; "correct", right completions of each prompt, see ``arms.pack``; "distinct", different ones among them,
      the mean over prompts; "entropy", of the distribution of a token, the mean over tokens, nats; "length", in tokens.
    """
    task, key = step.setup.task, jax.random.key(seed, impl="threefry2x32")
    sampler = dataclasses.replace(step.setup.settings.sampler, **evaluate.SAMPLED)
    correct, distinct, entropy, tokens = [], [], 0.0, 0
    for part in evaluate.parts_of(np.asarray(prompts, np.int32), tries):
        rows, keys = evaluate.rows_of(part, tries, key)
        out = step.generate(params, task.prompts(jnp.asarray(part), "heldout"), keys, tries, sampler)
        outcome = step.verify(jnp.asarray(rows), "heldout", out.token, out.mask).outcome
        right = np.asarray(outcome == types.Outcome.CORRECT).reshape(len(part), tries)
        written = np.where(np.asarray(out.mask) > 0, np.asarray(out.token), -1).reshape(len(part), tries, -1)
        correct += right.sum(axis=1).tolist()
        distinct += [len(np.unique(texts[good], axis=0)) for texts, good in zip(written, right, strict=True)]
        entropy += float((out.entropy * out.mask).sum())
        tokens += int((written >= 0).sum())
    count = len(prompts)  # the last part is padded
    rows = len(evaluate.parts_of(np.asarray(prompts), tries)) * len(part) * tries
    return {
        "tries": tries,
        "correct": pack(correct[:count]),
        "distinct": float(np.mean(distinct[:count])),
        "entropy": entropy / tokens,
        "length": tokens / rows,
    }


def curves(history: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return metrics of the steps of RL, averaged over parts of the run."""
    return {name: binned([row[name] for row in history], BINS) for name in ("entropy", "reward", "length")}


def store(file: pathlib.Path, record: Mapping[str, Any]) -> None:
    """Write a record; a kill leaves the whole of it or nothing."""
    file.parent.mkdir(parents=True, exist_ok=True)
    storage.write(file, json.dumps(record))


# --- runs that one program computes ----------------------------------------------------------------


class Study:
    """The runs of a study in a work directory."""

    def __init__(self, size: Size, workdir: pathlib.Path):
        self.size, self.workdir = size, workdir
        self._steps: dict[str, steps.Step] = {}

    def step(self, family: str) -> steps.Step:
        """Return the step that measures the policies of a family."""
        if family not in self._steps:
            backends.start()
            program = programs.build(base_config(FAMILIES[family], self.size), devices=jax.devices()[:1])
            self._steps[family] = program.steps[0]
        return self._steps[family]

    def base(self, family: str, seed: int) -> pathlib.Path:
        """Return the work directory of a base."""
        return self.workdir / "bases" / family / f"seed={seed}"

    def bases(self, family: str, seeds: Sequence[int]) -> None:
        """Train the bases of a family that are missing."""
        runs = [Run("base", family, "base", seed) for seed in seeds]
        missing = [run for run in runs if not run.file(self.workdir).exists()]
        if missing:
            c = base_config(FAMILIES[family], self.size)
            self._train(c, missing, [{"seed": run.seed} for run in missing], self.base(family, 0).parent)

    def train(self, arms: Mapping[str, Arm], runs: Sequence[Run]) -> None:
        """Train the runs that are missing, of arms of one program, from the bases of their seeds."""
        missing = [run for run in runs if not run.file(self.workdir).exists()]
        if not missing:
            return
        first = missing[0]
        c = config(FAMILIES[first.family], arms[first.arm], self.size)
        fields = [
            {"seed": run.seed, "checkpoint.init": f"{self.base(run.family, run.seed)}@warm", RATE: run.rate}
            | arms[run.arm].traced
            for run in missing
        ]
        folder = self.workdir / "runs" / first.stage / first.family / "+".join(arms)
        self._train(c, missing, fields, folder)
        shutil.rmtree(folder)  # what the page needs is stored

    def _train(self, c: Any, runs: Sequence[Run], fields: Sequence[dict[str, Any]], folder: pathlib.Path) -> None:
        """Train and measure runs; store each."""
        names = ", ".join(dict.fromkeys(run.arm for run in runs))
        print(f"{runs[0].stage}, {runs[0].family}: {names} ({len(runs)} runs)", flush=True)
        started = time.process_time()
        members = rljax.train_many(c, fields, folder, progress=False)
        trained, size = time.process_time() - started, self.size
        for run, member in zip(runs, members, strict=True):
            record: dict[str, Any] = dataclasses.asdict(run) | {"cpu_seconds": trained / len(runs)}
            if member.result is None:
                record["failure"] = member.failure
            else:
                first, count = (size.heldout, size.chosen) if run.stage == "tune" else (0, size.heldout)
                before = time.process_time()
                history = [x for x in member.result.history if x["step"] > FAMILIES[run.family].steps]
                record |= self._measured(run, member.result.params, range(first, first + count))
                record |= {} if run.stage == "base" else {"curves": curves(history)}
                record["cpu_seconds"] += time.process_time() - before
            store(run.file(self.workdir), record)
        print(f"  {trained:.0f} s of processor time to train, {time.process_time() - started:.0f} s in all", flush=True)

    def _measured(self, run: Run, params: types.Tree, prompts: range) -> dict[str, Any]:
        return measure(self.step(run.family), params, run.seed, prompts, self.size.tries)

    # --- stages ---

    def programs_of(self, arms: Mapping[str, Arm]) -> list[dict[str, Arm]]:
        """Return the arms by program: those that differ in lambda alone are together."""
        groups: dict[Arm, dict[str, Arm]] = collections.defaultdict(dict)
        for name, arm in arms.items():
            groups[dataclasses.replace(arm, positive=None)][name] = arm
        return list(groups.values())

    def tune(self, family: str) -> None:
        """Run the arms of a family with every learning rate on the seeds that choose one."""
        self.bases(family, self.size.tuning)
        for arms in self.programs_of(self.arms()):
            grid = itertools.product(arms, self.size.tuning, self.size.rates)
            self.train(arms, [Run("tune", family, *values) for values in grid])

    def main(self, family: str) -> None:
        """Run the arms of a family at their learning rates."""
        self.bases(family, self.size.seeds)
        rates = self.rates(family)
        for arms in self.programs_of(self.arms()):
            self.train(arms, [Run("main", family, a, s, rates[a]) for a in arms for s in self.size.seeds])

    def factors(self, family: str) -> None:
        """Run the arms that vary one factor, at the learning rate of the arm that they vary."""
        rates = self.rates(family)
        for name in self.size.varied:
            for change, arm in varied(name).items():
                called = f"{name}, {change}"
                self.train({called: arm}, [Run("factor", family, called, s, rates[name]) for s in self.size.seeds])

    def equal_rates(self, family: str) -> None:
        """Run arms at the learning rate of NSR, where theirs is another."""
        rates = self.rates(family)
        for name in [name for name in COMPARED if rates[name] != rates["NSR"]]:
            runs = [Run("equal", family, name, s, rates["NSR"]) for s in self.size.seeds]
            self.train({name: ARMS[name]}, runs)

    def pilot(self, family: str, names: Sequence[str], rate: float) -> None:
        """Run arms on the seeds of the pilot, which measures costs and the deviation between seeds."""
        self.bases(family, self.size.pilot)
        for name in names:
            self.train({name: ARMS[name]}, [Run("pilot", family, name, s, rate) for s in self.size.pilot])

    def arms(self) -> dict[str, Arm]:
        """Return the arms of the study."""
        return {name: ARMS[name] for name in self.size.arms or ARMS}

    def rates(self, family: str) -> dict[str, float]:
        """Return the learning rate of each arm: see ``page.choose``."""
        size = self.size
        if len(size.rates) == 1:
            return dict.fromkeys(self.arms(), size.rates[0])
        records = stored(self.workdir)
        return {name: page.choose(records, family, name) for name in self.arms()}

    def all(self) -> None:
        """Run everything that is missing."""
        for family in self.size.families:
            if len(self.size.rates) > 1:
                self.tune(family)
            self.main(family)
        if self.size.varied:
            self.factors(self.size.families[0])
            for family in self.size.families:
                self.equal_rates(family)


# --- results ---------------------------------------------------------------------------------------


def stored(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """Return the results of the runs that have ended."""
    return [json.loads(file.read_text()) for file in sorted(workdir.glob("results/*/*/*/*.json"))]


def claim(workdir: pathlib.Path, size: Size) -> None:
    """Write the size of the study to its work directory.

    Raises:
      ValueError: the directory has results of another size.
    """
    settings = json.loads(json.dumps(dataclasses.asdict(size)))  # tuples as lists
    settings["tasks"] = {name: dataclasses.asdict(FAMILIES[name]) for name in size.families}
    file = workdir / "size.json"
    before = json.loads(file.read_text()) if file.exists() else settings
    if before != settings:
        differ = ", ".join(name for name in settings if before.get(name) != settings[name])
        raise ValueError(f"{workdir}: has results of a study of another size ({differ}). Set another --workdir.")
    store(file, settings)


def write(records: Sequence[dict[str, Any]], size: Size, out: pathlib.Path) -> str:
    """Write the results, the figures and the page to a folder; return the tables."""
    store(out / "results.json", {"runs": [_short(r) for r in records]})
    names, families = list(size.arms or ARMS), size.families
    page.draw_passk(records, families, out / "passk.png")
    page.draw_arms(records, families, names, out / "arms.png")
    page.draw_entropy(records, families, out / "entropy.png")
    text = tables(records, size)
    fill(out / "README.md", text)
    return text


def tables(records: Sequence[dict[str, Any]], size: Size) -> str:
    """Return the tables of the page, with titles."""
    names, families = list(size.arms or ARMS), size.families
    changed = [f"{name}, {change}" for name in size.varied for change in varied(name)]
    parts = {"Bases": page.bases(records, families, size.seeds), "Claims": page.claims(records, families)}
    parts |= {f"Arms on {family}, minus the base": page.table(records, family, names) for family in families}
    if changed:
        parts[f"One factor at a time, on {families[0]}"] = page.table(records, families[0], changed, "factor")
        parts["Claim 5 in each setting"] = page.settings(records, families[0], list(varied("NSR")))
        parts["NSR minus others at its learning rate"] = page.equal(records, families, COMPARED)
    if len(size.rates) > 1:
        parts["Learning rates: pass@1, pass@256 on seeds 100 and 101"] = page.rates(records, families, names)
    failed = [
        f"- {r['stage']}, {r['family']}, {r['arm']}, seed {r['seed']}: {r['failure']}"
        for r in records
        if "failure" in r
    ]
    spent = f"{len(records)} runs, {sum(r['cpu_seconds'] for r in records) / 60:.0f} minutes of processor time."
    return "\n\n".join([*(f"### {title}\n\n{table}" for title, table in parts.items()), spent, *failed])


def _short(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a record with what the page reads of it, in four digits."""
    values = {name: round(x, 4) if isinstance(x, float) else x for name, x in record.items()}
    if "curves" in record:
        values["curves"] = {"entropy": [round(x, 4) for x in record["curves"]["entropy"]]}
    return values


def main(arguments: Sequence[str]) -> None:
    """Run the study, or a part of it, and write what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="four arms on countdown, too short to answer the question")
    parser.add_argument("--workdir", type=pathlib.Path, default=pathlib.Path("runs/nsr"), help="results of runs")
    parser.add_argument("--out", type=pathlib.Path, help="folder of the results and figures; by default --workdir")
    parser.add_argument(
        "--page",
        action="store_true",
        help="run nothing: write figures and tables, from --out's results.json if --workdir has no runs",
    )
    parser.add_argument("--pilot", action="store_true", help="run the pilot alone and print the smallest differences")
    given = parser.parse_args(arguments)
    size = QUICK if given.quick else Size()
    workdir, out = given.workdir.absolute(), given.out or given.workdir
    if given.page and not stored(workdir) and (out / "results.json").exists():
        print(write(json.loads((out / "results.json").read_text())["runs"], size, out))
        return
    claim(workdir, size)
    try:
        if given.pilot:
            Study(size, workdir).pilot(PILOT[0], PILOT[1:], 3e-4)
            print(page.pilot(stored(workdir), *PILOT, seeds=len(size.seeds)))
            return
        if not given.page:
            Study(size, workdir).all()
    except loop.Interrupted as error:
        print(f"{error} The same command resumes.")
        sys.exit(75)
    print(write(stored(workdir), size, out))


if __name__ == "__main__":
    main(sys.argv[1:])
