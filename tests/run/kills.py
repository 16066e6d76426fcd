"""Kill runs at random moments, resume them, and compare them with runs that nothing disturbed, bit for bit.

    python -m tests.run.kills --kills 200 --terms 50 [--seed N] [--jobs N] [--folder DIR]

The signals are distributed evenly over five phases, in random order; the moment within a phase is drawn uniformly in
time. The phases are defined by what the process has written, so the phase of a kill is read off the work directory
after the death of the process, not off the plan:

* start-up: until the run has written its config (imports, checks, workers, restoring a checkpoint);
* compile: until its first record in ``metrics.jsonl``;
* step: from then on, while no checkpoint is being written;
* save: an unfinished checkpoint is in ``checkpoints/``;
* exit: the last checkpoint is finished; plots, tables and the end of the interpreter remain.

A SIGTERM is sent once the process handles the signal (``/proc/PID/status``); before this it has executed none of this
package. Several signals, one after another, hit one run; after the last it runs to its end. It must then have the same
logs and final state as the undisturbed run, no temporary files, and no process may be left.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import itertools
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from rljax.run.records import checkpoints
from tests.support import compiler

ROOT = pathlib.Path(__file__).parents[2]
PHASES = ("start-up", "compile", "step", "save", "exit")
STEPS, EVERY = 12, 3
MARK = "RLJAX_KILLS"  # environment variable of a run's processes
EQUAL = ("metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl", "verdicts.jsonl")
EQUAL += ("algorithm.txt", "config.json", "tokenizer.model")
SECONDS = 240  # limit of one process

CONFIG = """
from tests.support import control, tiny


def get_config(task):
    if task in ("control", "chain"):  # windows of trajectories, observations normalised; two discounts
        config = control.config("pendulum(horizon=10)", "ppo(kl=0.0, value_clip=None)", log__rollouts=2,
                                phase__main__steps={steps}, checkpoint__every={every}, log__report={report},
                                phase__main__evaluate={evaluate!r}, seam__source="unrolled(4)")
        config.model.mlp.normalise = True
        if task == "chain":
            config.algorithm = "diffusion_ppo()"
            config.model.denoising.update({{"steps": 2, "noise": "sde", "positions": "step"}})
        return config
    config = tiny.config("grpo(kl=0.01)", phase__main__steps={steps}, checkpoint__every={every},
                         phase__main__evaluate={evaluate!r}, log__rollouts=2, log__report={report})
    config.seam.penalty = "+ entropy(0.1)"  # every update changes the policy
    if task in ("ahead", "talk"):  # rows of the host
        config.run.lag = 2
    if task in ("host", "ahead"):
        config.task = "gsm8k(path={folder!r}, prompt_length=40, completion_length=8)"
        config.verifier.workers = 1
    if task in ("talk", "carried"):
        settings = {{"secrets": [7, 1, 4, 4, 9, 0, 3, 5], "turns": 3}}
        config.task = (
            f"world('tests.support.talking:Guess', {{settings}}, max_turns=3, turn_length=4, reply_length=1, "
            "prompt_length=5, examples=8)"
        )
        config.verifier.workers = 1
        config.sampler.slots = 8
    if task == "carried":
        config.seam.source = "partial(segment=3, oversample=2)"
    if task == "world":
        config.task = "tests.support.worlds.two_turns()"
        config.seam.source = "partial(segment=2, oversample=2)"
    return config
"""


class Different(AssertionError):
    """A run that was killed and resumed differs from the undisturbed one."""


@dataclasses.dataclass
class Signal:
    """One signal that was sent: the phase that was drawn, the phase it fell in, and how the process ended."""

    sign: signal.Signals
    drawn: str
    fell: str
    code: int


@dataclasses.dataclass
class Whole:
    """An undisturbed run, and how long its phases take."""

    task: str
    workdir: pathlib.Path
    seconds: dict[str, float]  # by phase; of "save" and "step" for one occurrence
    arrays: dict[str, np.ndarray]


class Run:
    """One process of a run, and the phase it is in."""

    def __init__(self, folder: pathlib.Path, task: str, workdir: pathlib.Path):
        self.workdir = workdir
        self.before = {name: _state(workdir / name) for name in ("config.json", "metrics.jsonl")}
        self.left = self.unfinished()  # by a process that was killed; removed by the next save
        self.mark = f"{workdir}-{time.monotonic_ns()}"
        environment = {
            **os.environ,
            **{"PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": compiler.QUICK, MARK: self.mark},
            **{"JAX_COMPILATION_CACHE_DIR": str(cache(folder)), "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"},
        }
        command = [sys.executable, "-m", "rljax", "--config", f"{folder / 'kills_config.py'}:{task}"]
        self._output = folder / f"{workdir.name}.out"
        self.start = time.monotonic()
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                [*command, "--workdir", str(workdir)], env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    def phase(self) -> str:
        """Return the phase, from the files of the work directory."""
        if _state(self.workdir / "config.json") == self.before["config.json"]:
            return "start-up"
        if self.unfinished() - self.left:
            return "save"
        if (self.workdir / "checkpoints" / str(STEPS)).exists():
            return "exit"
        return "compile" if _state(self.workdir / "metrics.jsonl") == self.before["metrics.jsonl"] else "step"

    def unfinished(self) -> set:
        """Return the unfinished checkpoints, each with what changes when it is written."""
        return {(e.name, _state(e)) for e in _entries(self.workdir / "checkpoints") if not e.name.isdigit()}

    def steps(self) -> int:
        """Return the number of complete records in ``metrics.jsonl``."""
        log = self.workdir / "metrics.jsonl"
        return log.read_bytes().count(b"\n") if log.exists() else 0

    def wait(self, condition) -> bool:
        """Wait until a condition holds; return False if the process ends before."""
        while time.monotonic() - self.start < SECONDS:
            if self.process.poll() is not None:
                return False
            if condition():
                return True
            time.sleep(0.001)
        self.process.kill()
        raise Different(f"{self.workdir}: no end after {SECONDS} s:\n{self.output()}")

    def output(self) -> str:
        """Return what the process has printed."""
        return self._output.read_text()

    def end(self) -> int:
        """Wait for the end of the process; return its exit code. None of its children may outlive it by 20 seconds."""
        self.wait(lambda: False)
        deadline = time.monotonic() + 20
        while orphans := self.alive():
            if time.monotonic() > deadline:
                raise Different(f"{self.workdir}: processes {orphans} are left")
            time.sleep(0.05)
        return self.process.returncode

    def alive(self) -> list[int]:
        """Return the processes that this one has started and that still run."""
        pids = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    marked = f"{MARK}={self.mark}".encode() in (entry / "environ").read_bytes().split(b"\0")
                    if marked and " Z " not in (entry / "stat").read_text():
                        pids.append(int(entry.name))
                except OSError:
                    continue
        return pids


def cache(folder: pathlib.Path) -> pathlib.Path:
    """Return the compilation cache of all runs: that of the environment, or a new one."""
    return pathlib.Path(os.environ.get("JAX_COMPILATION_CACHE_DIR") or folder / "xla")


def handles(pid: int, sign: signal.Signals) -> bool:
    """Return whether a process has a handler for a signal."""
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
    return bool(caught >> (sign - 1) & 1)


def _state(path: pathlib.Path) -> tuple[int, ...] | None:
    """Return what changes when a file is written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_ino, status.st_size, status.st_mtime_ns


def _entries(folder: pathlib.Path) -> list[pathlib.Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def final_state(workdir: pathlib.Path, step: int = STEPS) -> dict[str, np.ndarray]:
    """Return the arrays of the checkpoint of a step, verified against their digests."""
    return jax.device_get(checkpoints.Checkpointer(workdir / "checkpoints").restore(leaves(workdir, step), step)[0])


def leaves(workdir: pathlib.Path, step: int) -> dict[str, jax.ShapeDtypeStruct]:
    """Return the shapes and types of the arrays of the checkpoint of a step."""
    record = json.loads((workdir / "checkpoints" / str(step) / "record" / "metadata").read_text())
    return {n: jax.ShapeDtypeStruct(shape, np.dtype(dtype)) for n, (shape, dtype, _) in record["leaves"].items()}


def prepare(folder: pathlib.Path, task: str, report: bool = True) -> Whole:
    """Run without disturbance to measure the phases; with a new compilation cache, once more before."""
    sizes = {"steps": STEPS, "every": EVERY, "report": report, "evaluate": "result" if report else ""}
    (folder / "kills_config.py").write_text(CONFIG.format(**sizes, folder=str(folder)))
    for split, name in (("train", "Ann"), ("test", "Ben")):
        lines = [{"question": f"{name} has {i} pens.", "answer": f"#### {i}"} for i in range(16)]
        (folder / f"{split}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name in ("whole",) if "JAX_COMPILATION_CACHE_DIR" in os.environ else ("cold", "whole"):
        workdir = folder / f"{name}-{task}"
        run, spent, counts = Run(folder, task, workdir), collections.Counter(), collections.Counter()
        last, since = "start-up", run.start

        def watch(run=run, spent=spent, counts=counts):
            nonlocal last, since
            now, phase = time.monotonic(), run.phase()
            spent[last] += now - since
            counts[phase] += phase != last
            last, since = phase, now
            return False

        run.wait(watch)
        if run.end() != 0:
            raise Different(f"the undisturbed run failed:\n{run.output()}")
    counts["start-up"] = 1
    seconds = {phase: spent[phase] / max(counts[phase], 1) for phase in PHASES}
    return Whole(task, workdir, seconds, final_state(workdir))


def disturb(folder: pathlib.Path, whole: Whole, sign: signal.Signals, drawn: str, rng, workdir) -> Signal:
    """Start or resume a run and send it one signal in a phase; return what happened."""
    finished = (workdir / "checkpoints" / str(STEPS)).exists()
    run = Run(folder, whole.task, workdir)
    if sign == signal.SIGTERM:
        run.wait(lambda: handles(run.process.pid, sign))
    steps = run.steps()
    target = int(rng.integers(steps, STEPS)) if drawn in ("step", "save") and steps < STEPS else 0
    if run.wait(lambda: run.phase() in (drawn, "exit") and (drawn != "start-up" and run.steps()) >= target):
        pause = rng.uniform(0, whole.seconds[drawn])
        if drawn == "start-up":
            pause -= time.monotonic() - run.start
        time.sleep(max(pause, 0.0))
    if run.process.poll() is None:
        run.process.send_signal(sign)
        sent = run.phase()
    else:
        sent = "ended"
    code = run.end()
    fell = run.phase() if code == -signal.SIGKILL else sent
    early = sign == signal.SIGTERM and fell in ("start-up", "compile") and not finished  # steps are left: not 0
    if code not in ({-signal.SIGKILL, 0} if sign == signal.SIGKILL else {75, *(() if early else (0,))}):
        raise Different(f"{sign.name} in {fell}: exit code {code}\n{run.output()}")
    if code == 75 and "to resume, run the same command again" not in run.output().lower():
        raise Different(f"no word on how to resume:\n{run.output()}")
    return Signal(sign, drawn, fell, code)


def compare(whole: Whole, workdir: pathlib.Path) -> None:
    """Raise Different unless a run that was resumed to its end equals the undisturbed one."""
    for name in EQUAL:
        one, other = whole.workdir / name, workdir / name
        if one.exists() != other.exists() or (one.exists() and one.read_bytes() != other.read_bytes()):
            raise Different(f"{other} differs from {one}")
    state = final_state(workdir)
    if state.keys() != whole.arrays.keys():
        raise Different(f"{workdir}: other arrays")
    for name, array in whole.arrays.items():
        if state[name].dtype != array.dtype or state[name].tobytes() != array.tobytes():
            raise Different(f"{workdir}: {name} differs")
    names = [sorted(f.name for f in folder.iterdir() if f.name != "tensorboard") for folder in (whole.workdir, workdir)]
    if names[0] != names[1]:
        raise Different(f"{workdir}: files {names[1]} in place of {names[0]}")
    if left := [e.name for e in _entries(workdir / "checkpoints") if not e.name.isdigit()]:
        raise Different(f"{workdir}/checkpoints: {left} left")


def chain(folder: pathlib.Path, whole: Whole, signs: list[tuple[signal.Signals, str]], seed: int) -> list[Signal]:
    """Send signals, each in a phase, to one run, resume it after each, and compare it at its end."""
    rng = np.random.default_rng(seed)
    workdir, signals = folder / f"run-{seed}", []
    for sign, phase in signs:
        while True:  # a process that ended before its signal does not count
            signals.append(disturb(folder, whole, sign, phase, rng, workdir))
            if (workdir / "checkpoints" / str(STEPS)).exists():
                _finish(folder, whole, workdir)
            if signals[-1].fell != "ended":
                break
    if workdir.exists():
        _finish(folder, whole, workdir)
    return [s for s in signals if s.fell != "ended"]


def _finish(folder: pathlib.Path, whole: Whole, workdir: pathlib.Path) -> None:
    """Resume a run to its end, compare it, and delete it."""
    run = Run(folder, whole.task, workdir)
    if run.end() != 0:
        raise Different(f"the resumed run failed:\n{run.output()}")
    compare(whole, workdir)
    shutil.rmtree(workdir)


def campaign(
    folder: pathlib.Path, kills: int, terms: int, seed: int, jobs: int, tasks=("device", "host"), length=5, report=True
):
    """Send so many signals; return the signals sent and the failures, in text.

    Args:
      folder: an empty folder for everything.
      kills: number of SIGKILLs.
      terms: number of SIGTERMs.
      seed: of the moments.
      jobs: number of runs at a time.
      tasks: some of "device", "host", "ahead", which is "host" with a lag, "control" and "chain", and "world", whose
        conversations are sampled in segments.
      length: number of signals that hit one run.
      report: whether the runs end with an evaluation, a report and pictures.

    Returns:
      The signals and the failures.
    """
    wholes = [prepare(folder, task, report) for task in tasks]
    for whole in wholes:
        print(f"{whole.task}: " + ", ".join(f"{p} {s:.2f} s" for p, s in whole.seconds.items()), flush=True)
    rng = np.random.default_rng(seed)
    phases = itertools.cycle(rng.permutation(PHASES).tolist())
    signs = [(sign, next(phases)) for sign in [signal.SIGKILL] * kills + [signal.SIGTERM] * terms]
    signs = [signs[i] for i in rng.permutation(len(signs))]
    pieces = [signs[i : i + length] for i in range(0, len(signs), length)]
    signals, failures = [], []
    with concurrent.futures.ThreadPoolExecutor(jobs) as executor:
        work = {
            executor.submit(chain, folder, wholes[i % len(wholes)], piece, seed * 10_000 + i): i
            for i, piece in enumerate(pieces)
        }
        for future in concurrent.futures.as_completed(work):
            try:
                signals += future.result()
            except Exception as error:
                failures.append(f"chain {work[future]}: {error}")
                print(failures[-1], flush=True)
            print(f"{len(signals)} signals, {len(failures)} failures", flush=True)
    return signals, failures


def table(signals: list[Signal]) -> str:
    """Return the counts of signals by phase."""
    lines = [f"{'':10}" + "".join(f"{phase:>10}" for phase in PHASES) + f"{'total':>10}"]
    for sign in (signal.SIGKILL, signal.SIGTERM):
        fell = collections.Counter(s.fell for s in signals if s.sign == sign)
        lines.append(f"{sign.name:10}" + "".join(f"{fell[p]:>10}" for p in PHASES) + f"{fell.total():>10}")
    codes = collections.Counter(s.code for s in signals if s.sign == signal.SIGTERM)
    return "\n".join(lines) + f"\nexit codes after SIGTERM: {dict(sorted(codes.items()))}"


def main() -> None:
    """Run a campaign and print the counts; exit with 1 if a run differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="number of SIGKILLs")
    parser.add_argument("--terms", type=int, default=50, help="number of SIGTERMs")
    parser.add_argument(
        "--tasks", default="device,host", help="some of device, host, ahead, talk, carried, world, control, chain"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
    parser.add_argument("--folder", help="folder of the runs, which is kept; default: a temporary one")
    options = parser.parse_args()
    jax.config.update("jax_platforms", "cpu")
    folder = pathlib.Path(options.folder or tempfile.mkdtemp(prefix="kills-"))
    folder.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    tasks = options.tasks.split(",")
    signals, failures = campaign(folder, options.kills, options.terms, options.seed, options.jobs, tasks)
    print(table(signals))
    print(f"{len(failures)} failures, {time.monotonic() - start:.0f} s")
    if failures:
        sys.exit(1)
    if not options.folder:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
