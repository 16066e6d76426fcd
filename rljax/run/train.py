"""Train: run a config.

    python -m rljax --config configs/quickstart.py [--workdir DIR] [--config.algorithm="rloo()"]
    python -m rljax --config quickstart --set algorithm.kl=0.01
    python -m rljax --config quickstart --seeds 0:4     # a run for each seed, in one program, and a table of all
    python -m rljax --config quickstart --seeds 0:4 --sweep "algorithm.high=[0.2, 0.28]"
    python -m rljax --config quickstart --check         # print what would run; no device is used

A shipped config can be named without its path. The default work directory is runs/NAME-CHANGES-DIGEST, with the fields
that differ from the file, and a digest of the config and of the code outside rljax that it names. To resume a run, run
the same command again; to start it anew, add --fresh. On SIGTERM a run saves its state and exits with code 75, which
means that it is unfinished and should be started again; on Ctrl-C it saves its state and exits with code 130.

On several hosts, run the same command on each, in a shared folder. On TPU slices and in SLURM steps the processes find
each other; elsewhere set --coordinator HOST:PORT --num_processes N --process_id I, or RLJAX_COORDINATOR,
RLJAX_NUM_PROCESSES and RLJAX_PROCESS_ID. If one process dies, the others exit with code 75 or are aborted by JAX.
"""

import contextlib
import functools
import itertools
import pathlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from absl import flags
from ml_collections import config_flags

from rljax import data
from rljax.config import files, page, resolve, schema
from rljax.language import messages, parse


def _shipped(argv: Sequence[str]) -> list[str]:
    """Return the arguments with the name of a shipped config replaced by its path."""
    out = list(argv)
    for i, word in enumerate(out):
        if word in ("--config", "-config") and i + 1 < len(out):
            out[i + 1] = _path(out[i + 1])
        elif word.startswith(("--config=", "-config=")):
            head, _, value = word.partition("=")
            out[i] = f"{head}={_path(value)}"
    return out


def _path(value: str) -> str:
    name, colon, argument = value.partition(":")
    files.load(name, argument)  # reports errors of the file in one line
    return files.find(name) + colon + argument


def parse_flags(argv: Sequence[str], values: flags.FlagValues = flags.FLAGS) -> list[str]:
    """Parse flags; an override of an unknown field is reported like other errors of a config."""
    try:
        return values(_shipped(argv))
    except (AttributeError, KeyError, TypeError) as error:
        _explain(argv)
        cause = error.args[0]  # the config library's KeyError, with the nearest name in its second line
        lines = str(cause.args[0] if isinstance(cause, KeyError) else cause).splitlines()
        raise ValueError(f"--config: no field {'. '.join(lines)}") from None


def _explain(argv: Sequence[str]) -> None:
    """Raise ValueError if a flag sets an unknown field of the config."""
    fields = [word.lstrip("-").removeprefix("config.").partition("=")[0] for word in argv if "-config." in word]
    paths = [word.partition("=")[2] for word in _shipped(argv) if word.lstrip("-").startswith("config=")]
    paths += [value for word, value in itertools.pairwise(_shipped(argv)) if word in ("--config", "-config")]
    config = files.load(*paths[-1].split(":", 1))
    for field in fields:
        files.check(config, field)


def after_help() -> None:
    """Print what follows the flags of ``--help``: the fields of ``--config.FIELD``."""
    print("\nFields of --config.FIELD=VALUE; more in configs/README.md:")
    page.show()


def define_flags(values: flags.FlagValues = flags.FLAGS, argv: Sequence[str] | None = None) -> None:
    """Define the flags of this command, which ``argv`` sets; None: ``sys.argv``."""
    text, number, switch, texts = (
        functools.partial(define, flag_values=values)
        for define in (flags.DEFINE_string, flags.DEFINE_integer, flags.DEFINE_bool, flags.DEFINE_multi_string)
    )
    which = "Path of a config file, or name of a shipped config."
    config_flags.DEFINE_config_file(
        "config", help_string=which, flag_values=values, sys_argv=None if argv is None else list(argv)
    )
    text("workdir", None, "Folder for all files of the run; default: runs/NAME-CHANGES-DIGEST.")
    text("seeds", "", "Seeds to run beside each other, such as 0:4 (0 to 3) or 0,3,5.")
    texts("sweep", [], "FIELD=[VALUE, ...]: a run for each value (and for each seed), see --seeds.")
    width = "With --seeds or --sweep: runs that a device computes at a time; 0: 1 on a CPU, else all."
    number("width", 0, width, lower_bound=0)
    switch("check", False, "Check the run and print what it would do, on no device; trains nothing.")
    number(
        "devices",
        0,
        "With --check: number of devices to assume; 0: config.cpu_devices, else the devices of the mesh.",
        lower_bound=0,
    )
    switch("allow_config_change", False, "Continue a work directory with a changed config or code.")
    text("init", None, "Begin with the parameters of another run: RUN@STEP, RUN@PHASE or RUN.")
    switch("fresh", False, "Start anew; an earlier run in the work directory is renamed to NAME.old-1.")
    switch("next", True, "Print the commands that look at the run when it ends.")
    switch("allow_log_gap", False, "Continue a work directory whose logs lack earlier records.")
    texts("set", [], "field=value; the field may be an argument of a call: algorithm.kl=0.01")
    text("coordinator", None, "With several processes: HOST:PORT of process 0.")
    number("num_processes", None, "Number of processes; 1 disables the search for others.")
    number("process_id", None, "Number of this process, from 0.")
    number("heartbeat_seconds", 100, "Seconds without a heartbeat after which a process is considered dead.")
    flags.mark_flag_as_required("config", values)


def config_of(given: flags.FlagValues) -> schema.ConfigDict:
    """Return the config that the flags name, with the changes that they make."""
    config = given.config
    for edit in given.set:
        files.override(config, *parse.setting(edit))
    if given.init is not None:
        config.checkpoint.init = given.init
    return config


def main(argv: Sequence[str]) -> None:
    """Train and print the results and the work directory."""
    if len(argv) > 1:
        raise ValueError(f"unexpected argument {argv[1]!r}")
    config = config_of(flags.FLAGS)
    resolved = resolve.run(config)

    import jax

    # imported after the checks, so that errors of the config appear immediately
    from rljax.host import backends, processes
    from rljax.run import loop
    from rljax.run.members import sweep
    from rljax.run.records import checkpoints, forks, identity

    workdir = flags.FLAGS.workdir
    if not workdir:
        base = files.load(*config_flags.get_config_filename(flags.FLAGS["config"]).split(":", 1))
        workdir = identity.default_workdir(forks.complete(config), resolved.code, base)
    checkpoints.hide_tracebacks()
    several = sweep.of_flags(flags.FLAGS.seeds, flags.FLAGS.sweep) if flags.FLAGS.seeds or flags.FLAGS.sweep else []
    if several:
        workdir = flags.FLAGS.workdir or f"{workdir}-{'sweep' if flags.FLAGS.sweep else 'seeds'}"
    if flags.FLAGS.check:
        _check(config, several, workdir)
        return
    try:
        backends.start(resolved.settings.cpu_devices, len(several) or resolve.parallel(resolved.config))
        processes.initialize(
            flags.FLAGS.coordinator, flags.FLAGS.num_processes, flags.FLAGS.process_id, flags.FLAGS.heartbeat_seconds
        )
    except RuntimeError as error:  # the other processes may start later
        print(f"error: {messages.printable(error)} Run the same command again on every host.", file=sys.stderr)
        sys.exit(loop.RESUMABLE)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(data.cache_folder() / "xla"))
    try:
        if several:
            _train_many(config, several, workdir)
        else:
            _train(resolve.run(forks.complete(config)) if config.checkpoint.init else resolved, workdir)
    except Exception as error:
        if processes.lost(error):
            message = messages.shown(str(error))
            print(
                f"error: another process of this run is gone ({message}). Run the same command again on every host to "
                "resume from the newest checkpoint.",
                file=sys.stderr,
            )
            processes.leave(loop.RESUMABLE)
        raise


def _check(config: schema.ConfigDict, several: list[dict[str, Any]], workdir: str | pathlib.Path) -> None:
    """Print what a run, or each program of several runs, would do."""
    from rljax.run import preview
    from rljax.run.members import cohorts, sweep

    places, devices = [(config, workdir)], flags.FLAGS.devices or config.cpu_devices
    if several:
        planned = cohorts.plan(sweep.expand(several, config, workdir))
        print("\n".join(f"program {number}: {cohort.describe()}" for number, cohort in enumerate(planned, 1)))
        places = [(cohort.runs[0].config, cohort.runs[0].workdir) for cohort in planned]
        devices = flags.FLAGS.devices  # members are split over devices, each on those of its mesh
    for one, place in places:
        print("\n".join(preview.lines(one, place, devices, flags.FLAGS.allow_config_change)))


def _train_many(config: schema.ConfigDict, several: list[dict[str, Any]], workdir: str | pathlib.Path) -> None:
    """Train several runs; of several processes, process 0 prints."""
    from rljax.host import processes
    from rljax.run.members import many, results

    with _resumable():
        out = many.train_many(
            config,
            several,
            workdir,
            width=flags.FLAGS.width,
            allow_config_change=flags.FLAGS.allow_config_change,
            allow_log_gap=flags.FLAGS.allow_log_gap,
            fresh=flags.FLAGS.fresh,
        )
    if not processes.leader():
        return
    trained = [(run.fields, {e["name"]: e for e in run.result.evaluations}) for run in out if run.result is not None]
    results.table(trained)
    if flags.FLAGS.next:
        print(f"next: python -m rljax compare {shlex.quote(str(workdir))}")
    if failed := [f"{run.name}: {run.failure}" for run in out if run.failure]:
        raise ValueError(f"{len(failed)} of {len(out)} runs failed:\n  " + "\n  ".join(failed))


@contextlib.contextmanager
def _resumable() -> Iterator[None]:
    """Exit with the code of an unfinished run, and the command that resumes it, if the block is interrupted."""
    from rljax.data import storage
    from rljax.host import processes
    from rljax.run import loop
    from rljax.run.records import events

    try:
        yield
    except (loop.Interrupted, storage.Unavailable, KeyboardInterrupt) as stopped:
        if processes.leader():
            print(f"{stopped} To resume, run the same command again:\n  {shlex.join(events.command())}")
        sys.exit(loop.INTERRUPTED if isinstance(stopped, KeyboardInterrupt) else loop.RESUMABLE)


def _train(resolved: resolve.Resolved, workdir: str | pathlib.Path) -> None:
    """Train; of several processes, process 0 prints."""
    from rljax.data import storage
    from rljax.host import processes
    from rljax.run import loop
    from rljax.run.evaluation import evaluate
    from rljax.run.reports import facts

    log = print if processes.leader() else lambda *_, **__: None
    log(f"work directory: {workdir}", flush=True)  # before what goes to stderr
    with _resumable():
        changed, gap, fresh = flags.FLAGS.allow_config_change, flags.FLAGS.allow_log_gap, flags.FLAGS.fresh
        result = loop.train(resolved, workdir, allow_config_change=changed, allow_log_gap=gap, fresh=fresh)
    if processes.leader():
        evaluate.table(result.evaluations)
        print(f"written to {workdir}: " + ", ".join(storage.names(workdir)))
        if flags.FLAGS.next:
            print("next:" + "".join(f"\n  {command}" for command in facts.following(workdir, resolved.code)))
