"""Several runs in one program: seeds, and values of numbers, beside each other.

    python -m rljax --config quickstart --seeds 0:8
    python -m rljax --config quickstart --seeds 0:4 --sweep "algorithm.positive=[0.05, 0.1, 0.3]"

Every member has the files of a run alone, in a folder of its own, so that all commands on runs read it. Members share
the loop, and each step is one program for all of them (``training.members``). What is structural becomes programs of
their own, one after another, in the same command; so do members beyond those that fit into memory. Where rows come
through the host, runs follow each other.
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
from rljax.host import backends, processes, profiles, workdirs
from rljax.run import checkpoints, cohorts, events, forks, identity, loop, programs, session, sweep, together

_WORD = "rljax.train_many"


@dataclasses.dataclass
class Member:
    """A run among several.

    Attributes:
      name: its fields and values, and its folder.
      fields: the fields of the sweep and its values.
      workdir: its work directory; None: it was kept in memory.
      result: what ``rljax.train`` returns; None if it failed.
      failure: why it failed, else "".
    """

    name: str
    fields: dict[str, Any]
    workdir: storage.Path | None
    result: loop.Result | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True)
class _Options:
    """The arguments of ``train_many`` that do not say what runs."""

    workdir: storage.Path | None
    width: int
    memory: int | None
    devices: tuple[Any, ...]
    allow_config_change: bool
    allow_log_gap: bool
    progress: bool


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
) -> list[Member]:
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
    expanded = [
        dataclasses.replace(run, config=forks.complete(resolve.complete(run.config)))
        for run in sweep.expand(fields, config)
    ]
    backends.start(config.cpu_devices, len(expanded))
    place = None if workdir is None else storage.path(workdir)
    listed = tuple(jax.devices() if devices is None else devices)
    options = _Options(place, width, memory, listed, allow_config_change, allow_log_gap, progress)
    out = {run.index: Member(run.name, run.fields, place and place / run.name) for run in expanded}
    _claim(expanded, out, options, fresh)
    todo, structural, done = cohorts.plan(expanded), (), 0
    _check_count(todo, most)
    while todo:
        cohort, *rest = todo
        if progress and processes.leader():
            print(f"program {done + 1} of {done + len(todo)}: {cohort.describe()}", flush=True)
        try:
            _train(cohort, out, options)
        except together.Structural as error:
            structural = (*structural, *error.fields)
            todo = cohorts.plan([run for c in todo for run in c.runs], structural)
            if progress:
                print(f"{', '.join(error.fields)}: structural, so that each value is a program of its own ({error})")
            _check_count(todo, most)
            continue
        todo, done = rest, done + 1
    return [out[run.index] for run in expanded]


def _claim(runs: Sequence[sweep.Run], out: Mapping[int, Member], options: _Options, fresh: bool) -> None:
    """Check the work directories of all runs before any of them begins; with ``fresh``, move earlier runs aside."""
    if options.workdir is None or processes.several():
        return
    for run in runs:
        directory = workdirs.WorkDirectory(out[run.index].workdir or "")
        try:
            allowed = options.allow_config_change
            identity.claim(directory, run.config, resolve.code(run.config), allow_change=allowed, fresh=fresh)
        finally:
            directory.close()


def _check_count(planned: Sequence[cohorts.Cohort], most: int | None) -> None:
    """Raise ValueError if the runs need more programs than allowed."""
    if most is not None and len(planned) > most:
        lines = "\n  ".join(cohort.describe() for cohort in planned)
        count = f"{_WORD}(most={most}): the runs need {len(planned)} programs"
        raise ValueError(f"{count}, since fields are structural:\n  {lines}")


# --- a cohort ------------------------------------------------------------------------------------


def _train(cohort: cohorts.Cohort, out: Mapping[int, Member], options: _Options) -> None:
    """Run the members of a cohort, in parts of as many as fit."""
    first, program = cohort.runs[0].config, None
    reason = _alone(first)
    if not reason and len(cohort.runs) > 1:
        program = programs.build(first, _tokenizer(cohort, out), options.devices[:1])
        reason = "their rows come through the host" * any(step.fused is None for step in program.steps)
    if reason and len(cohort.runs) > 1 and options.progress:
        print(f"one run after another: {reason}", flush=True)
    if program is None or reason:
        for run in cohort.runs:
            _train_alone(run, out[run.index], options)
        return
    compiled = together.Programs(cohort, program, options.devices, options.width)
    by_step: dict[int, list[int]] = collections.defaultdict(list)
    for number, run in enumerate(cohort.runs):
        by_step[_step(out[run.index], compiled.members[number])].append(number)
    with loop.signals() as stopping, profiles.explain_out_of_memory(None, lambda: "a step of several runs"):
        for step, numbers in sorted(by_step.items()):
            size, line = compiled.fitting(len(numbers), step, options.memory)
            for start in range(0, len(numbers), size):
                if options.progress and line:
                    print(f"{line}, runs {start + 1} to {min(start + size, len(numbers))}", flush=True)
                _train_part(compiled, numbers[start : start + size], size, out, options, stopping)


def _tokenizer(cohort: cohorts.Cohort, out: Mapping[int, Member]) -> tokenizers.Tokenizer | None:
    """Return the tokenizer that the runs of a cohort have stored, or that of the runs from which they begin.

    Raises:
      ValueError: they differ.
    """
    names: dict[bytes, str] = {}  # of the first run with each tokenizer
    for run in cohort.runs:
        place = out[run.index].workdir
        stored = None if place is None else workdirs.WorkDirectory(place).read("tokenizer.model")
        if stored is None and run.config.checkpoint.init:
            stored = forks.tokenizer(run.config)
        if stored is not None:
            names.setdefault(stored, run.name)
    if len(names) > 1:
        one, other, *_ = names.values()
        raise ValueError(
            f"{_WORD}: the runs {one} and {other} have different tokenizers, so they cannot share a program."
        )
    return tokenizers.load(next(iter(names))) if names else None


def _train_part(
    compiled: together.Programs,
    numbers: Sequence[int],
    size: int,
    out: Mapping[int, Member],
    options: _Options,
    stopping: Callable[[int], bool],
) -> None:
    """Run the members of a cohort with these numbers, padded to ``size`` by copies of the last one."""
    part = [out[compiled.cohort.runs[number].index] for number in numbers]
    with contextlib.ExitStack() as stack:
        pairs = zip(numbers, part, strict=True)
        sessions = [_session(stack, compiled.members[number], member, options) for number, member in pairs]
        padded = [*numbers, *[numbers[-1]] * (size - len(numbers))]
        states = together.run(compiled, sessions, padded, stopping, options.progress)
        for member, run, state in zip(part, sessions, states, strict=True):
            member.failure = "" if run.failure is None else str(run.failure)
            if not member.failure:
                member.result = loop.Result(run.program, state, run.logger.history, run.logger.evaluations)
                member.result.draw(run)


def _session(
    stack: contextlib.ExitStack, program: programs.Program, member: Member, options: _Options
) -> session.Session:
    """Open the files of a member."""
    code = resolve.code(program.config)
    directory = None if member.workdir is None else workdirs.WorkDirectory(member.workdir)
    happened = stack.enter_context(events.Events())
    if directory is not None:
        stack.callback(directory.close)
        identity.claim(directory, program.config, code, allow_change=options.allow_config_change)
    given = program, code, directory, happened, False, options.allow_log_gap, f"{member.name}: "
    return stack.enter_context(session.Session(*given))


def _step(member: Member, program: programs.Program) -> int:
    """Return the step from which a member goes on: of its newest checkpoint, or of the phases that a fork skips."""
    place = None if member.workdir is None else storage.path(member.workdir) / "checkpoints"
    newest = None if place is None else checkpoints.Checkpointer(place).latest_step()
    if newest is not None:
        return newest
    skipped = forks.skipped(program) if program.settings.checkpoint.init else 0
    return program.phases[skipped - 1].last if skipped else 0


def _alone(config: schema.ConfigDict) -> str:
    """Return why the runs of a config cannot be members of one program; "" if they can."""
    if processes.several():
        return "several processes compute each of them"
    sizes = {axis: size for axis, size in config.mesh.items() if size > 1}
    if sizes:
        return f"each is split over devices ({', '.join(f'mesh.{a}={s}' for a, s in sizes.items())})"
    if any(phase.settings.learner.offload for phase in resolve.phases(config)):
        return "their optimizer state is in the host's memory (learner.offload)"
    if config.profile:
        return f"config.profile={config.profile!r} traces one run"
    return ""


def _train_alone(run: sweep.Run, member: Member, options: _Options) -> None:
    """Run one member as ``rljax.train`` does."""
    sizes, devices = run.config.mesh.values(), options.devices
    if -1 not in sizes or (devices[0].platform == "cpu" and not run.config.cpu_devices):  # the others are for members
        devices = devices[: math.prod(max(1, size) for size in sizes)]
    flags = {name: getattr(options, name) for name in ("allow_config_change", "allow_log_gap", "progress")}
    if options.progress and processes.leader():
        print(run.name, flush=True)
    try:
        member.result = loop.train(run.config, member.workdir, devices=devices, **flags)
    except session.NonFinite as error:
        member.failure = str(error)
