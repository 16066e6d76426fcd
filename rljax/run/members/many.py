"""Several runs in one program: seeds, and values of numbers, beside each other.

    python -m rljax --config quickstart --seeds 0:8
    python -m rljax --config quickstart --seeds 0:4 --sweep "algorithm.positive=[0.05, 0.1, 0.3]"

Every member has the files of a run alone, in a folder of its own, so that all commands on runs read it. Members share
the loop, and each step is one program for all of them (``training.members``). What is structural becomes programs of
their own, one after another, in the same command; so do members beyond those that fit into memory. Where rows come
through the host, runs follow each other; those that differ in their seed alone share a program and its workers.
"""

import collections
import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from rljax.config import resolve, schema
from rljax.data import storage, tokenizers
from rljax.host import backends, processes, profiles
from rljax.run import conductor, loop, programs, session
from rljax.run.members import cohorts, sweep, together
from rljax.run.records import checkpoints, forks

_WORD = "rljax.train_many"


@dataclasses.dataclass(frozen=True)
class _Call:
    """A call of ``train_many``: what its cohorts share."""

    width: int
    memory: int | None
    devices: tuple[Any, ...]
    options: loop.Options


def train_many(
    config: schema.ConfigDict,
    runs: Mapping[str, Sequence[Any]] | Sequence[sweep.Fields],
    workdir: str | os.PathLike[str] | None = None,
    *,
    most: int | None = None,
    width: int = 0,
    memory: int | None = None,
    allow_config_change: bool = False,
    allow_log_gap: bool = False,
    fresh: bool = False,
    progress: bool = True,
    devices: Sequence[Any] | None = None,
) -> list[sweep.Run]:
    """Run a config with several seeds and values of its fields, as many beside each other as one program can compute.

    On a CPU, JAX is started with a device for each core, unless it has started or ``config.cpu_devices`` is set. Later
    calls of ``rljax.train`` then find these devices.

    Args:
      config: see ``config.default``; ``mesh`` is that of one device.
      runs: values by field, of which every combination is a run, such as ``{"seed": range(8)}``; or the fields of each
        run, from ``sweep.product``. Fields may be arguments of calls: "algorithm.positive".
      workdir: folder of the runs' work directories; None keeps everything in memory.
      most: the most programs to compile; None: any number.
      width: members that a device computes at a time; 0: one on a CPU, all of them elsewhere.
      memory: the most bytes that a program may need on all devices together; None: what is free.
      allow_config_change: as in ``rljax.train``, for each run.
      allow_log_gap: as in ``rljax.train``, for each run.
      fresh: as in ``rljax.train``, for each run.
      progress: whether to show the plan and the progress line.
      devices: the devices over which members are split; None: all devices.

    Returns:
      The runs, in order. A run that failed does not stop the others.

    Raises:
      ValueError: an invalid field or value, two equal runs, more programs than ``most``, or what ``rljax.train``
        refuses.
      Interrupted: the process received SIGTERM; every run is saved. The same call resumes.
      KeyboardInterrupt: Ctrl-C, which saves like SIGTERM.
    """
    fields = sweep.grid(runs) if isinstance(runs, Mapping) else [dict(run) for run in runs]
    if not fields:
        raise ValueError(f"{_WORD}: no runs.")
    if width < 0:
        raise ValueError(f"{_WORD}(width={width}): must be at least 0.")
    expanded = sweep.expand(fields, config, None if workdir is None else storage.path(workdir))
    for run in expanded:
        if run.config.checkpoint.init:
            run.resolved = resolve.run(forks.complete(run.config))
    backends.start(config.cpu_devices, len(expanded))
    for run in expanded:  # before any of them begins; with ``fresh``, an earlier run is moved aside
        with contextlib.ExitStack() as stack:
            place = session.claim(stack, run.resolved, run.workdir, allow_change=allow_config_change, fresh=fresh)
            run.tokenizer = place.tokenizer
    options = loop.Options(allow_config_change, allow_log_gap, progress)
    call = _Call(width, memory, tuple(jax.devices() if devices is None else devices), options)
    todo, structural, done = cohorts.plan(expanded), (), 0
    _check_count(todo, most)
    while todo:
        cohort, *rest = todo
        if progress and processes.leader():
            print(f"program {done + 1} of {done + len(todo)}: {cohort.describe()}", flush=True)
        try:
            _train(cohort, call)
        except together.Structural as error:
            structural = (*structural, *error.fields)
            todo = cohorts.plan([run for c in todo for run in c.runs], structural)
            if progress:
                print(f"{', '.join(error.fields)}: structural, so that each value is a program of its own ({error})")
            _check_count(todo, most)
            continue
        todo, done = rest, done + 1
        if todo:
            jax.clear_caches()  # else the programs of a long sweep use up the memory maps that a process may have
    return expanded


def _check_count(planned: Sequence[cohorts.Cohort], most: int | None) -> None:
    """Raise ValueError if the runs need more programs than allowed."""
    if most is not None and len(planned) > most:
        lines = "\n  ".join(cohort.describe() for cohort in planned)
        count = f"{_WORD}(most={most}): the runs need {len(planned)} programs"
        raise ValueError(f"{count}, since fields are structural:\n  {lines}")


# --- a cohort ------------------------------------------------------------------------------------


def _train(cohort: cohorts.Cohort, call: _Call) -> None:
    """Run the members of a cohort: in parts of as many as fit, or one after another."""
    program, reason = None, _alone(cohort.runs[0].resolved)
    if not reason and len(cohort.runs) > 1:
        program = programs.build(cohort.runs[0].resolved, _tokenizer(cohort), call.devices[:1])
        reason = "their rows come through the host" * any(step.fused is None for step in program.steps)
    if reason and len(cohort.runs) > 1 and call.options.progress:
        print(f"one run after another: {reason}", flush=True)
    if program is None or reason:
        here = list(_devices(cohort.runs[0].config, call.devices)) == list(call.devices[:1])
        _train_series(cohort, program if here else None, call)  # else it is of fewer devices than a run alone has
        return
    compiled = together.Programs(cohort, program, call.devices, call.width)
    by_step: dict[int, list[int]] = collections.defaultdict(list)
    for number, run in enumerate(cohort.runs):
        by_step[_step(run, compiled.members[number])].append(number)
    with loop.signals() as stopping, profiles.explain_out_of_memory(None, lambda: "a step of several runs"):
        for step, numbers in sorted(by_step.items()):
            size, line = compiled.fitting(len(numbers), step, call.memory)
            for start in range(0, len(numbers), size):
                if call.options.progress and line:
                    print(f"{line}, runs {start + 1} to {min(start + size, len(numbers))}", flush=True)
                _train_part(compiled, numbers[start : start + size], size, call, stopping)


def _train_series(cohort: cohorts.Cohort, program: programs.Program | None, call: _Call) -> None:
    """Run the members of a cohort one after another; those with equal traced numbers share a program."""
    values = list(zip(*cohort.traced.values(), strict=True)) or [()] * len(cohort.runs)
    groups: dict[tuple[float, ...], list[sweep.Run]] = collections.defaultdict(list)
    for run, numbers in zip(cohort.runs, values, strict=True):
        groups[numbers].append(run)
    for runs in groups.values():
        with loop.Series(_devices(runs[0].config, call.devices), call.options, program) as series:
            for run in runs:
                if call.options.progress and processes.leader():
                    print(run.name, flush=True)
                try:
                    run.result = series.train(run.resolved, run.workdir)
                except session.NonFinite as error:
                    run.failure = str(error)
        program = None  # of the first run's numbers


def _devices(config: schema.ConfigDict, devices: Sequence[Any]) -> Sequence[Any]:
    """Return the devices of a run that is computed alone."""
    sizes = [size for axis, size in config.mesh.items() if axis != "rollout"]
    if -1 not in sizes or (devices[0].platform == "cpu" and not config.cpu_devices):  # the others are for members
        return devices[: math.prod(max(1, size) for size in sizes) + config.mesh.rollout]
    return devices


def _tokenizer(cohort: cohorts.Cohort) -> tokenizers.Tokenizer | None:
    """Return the tokenizer of the runs of a cohort that have one; ValueError if they differ."""
    names: dict[bytes, str] = {}  # of the first run with each tokenizer
    for run in cohort.runs:
        if run.tokenizer is not None:
            names.setdefault(run.tokenizer, run.name)
    if len(names) > 1:
        one, other, *_ = names.values()
        raise ValueError(
            f"{_WORD}: the runs {one} and {other} have different tokenizers, so they cannot share a program."
        )
    return tokenizers.load(next(iter(names))) if names else None


def _train_part(
    compiled: together.Programs, numbers: Sequence[int], size: int, call: _Call, stopping: Callable[[int], bool]
) -> None:
    """Run the members of a cohort with these numbers, padded to ``size`` by copies of the last one."""
    part = [compiled.cohort.runs[number] for number in numbers]
    with contextlib.ExitStack() as stack:
        sessions = []
        for number, run in zip(numbers, part, strict=True):
            program, allowed = compiled.members[number], call.options.allow_config_change
            place = session.claim(stack, program.resolved, run.workdir, allow_change=allowed)
            opened = session.Session(program, place, call.options.allow_log_gap, f"{run.name}: ")
            sessions.append(stack.enter_context(opened))
        padded = [*numbers, *[numbers[-1]] * (size - len(numbers))]
        states = conductor.conduct(together.Stacked(compiled, sessions, padded), stopping, call.options.progress)
        for run, ended, state in zip(part, sessions, states, strict=True):
            if ended.failure is None:
                run.result = loop.finished(ended, state)
            else:
                run.failure = str(ended.failure)


def _step(run: sweep.Run, program: programs.Program) -> int:
    """Return the step from which a run goes on: of its newest checkpoint, or of the phases that a fork skips."""
    newest = run.workdir and checkpoints.Checkpointer(run.workdir / "checkpoints").latest_step()
    if newest is not None:
        return newest
    skipped = forks.skipped(program) if program.settings.checkpoint.init else 0
    return program.phases[skipped - 1].last if skipped else 0


def _alone(resolved: resolve.Resolved) -> str:
    """Return why the runs of a config cannot be members of one program; "" if they can."""
    if processes.several():
        return "several processes compute each of them"
    config = resolved.config
    if any(phase.settings.run.lag or phase.settings.mesh.rollout for phase in resolved.phases):
        return "their rollouts run ahead of updates, or on devices of their own (run.lag, mesh.rollout)"
    sizes = {axis: size for axis, size in config.mesh.items() if size > 1}
    if sizes:
        return f"each is split over devices ({', '.join(f'mesh.{a}={s}' for a, s in sizes.items())})"
    if any(phase.settings.learner.offload for phase in resolved.phases):
        return "their optimizer state is in the host's memory (learner.offload)"
    if config.profile:
        return f"config.profile={config.profile!r} traces one run"
    return ""
