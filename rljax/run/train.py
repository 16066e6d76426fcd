"""Train: run a config.

    python -m rljax --config configs/quickstart.py [--workdir DIR] [--config.algorithm="rloo()"]
    python -m rljax --config quickstart --set algorithm.kl=0.01

A shipped config may be given by name. The work directory is runs/<name>-<digest of the config> unless
--workdir says otherwise; run the same command again and it goes on where it stopped. SIGTERM saves and
exits with code 75, which means: unfinished, run me again.

Several hosts run the same command each, in a folder they share. On TPU slices and in SLURM steps they find each
other; elsewhere give --coordinator HOST:PORT --num_processes N --process_id I, or RLJAX_COORDINATOR,
RLJAX_NUM_PROCESSES, RLJAX_PROCESS_ID. When one of them dies the others end with code 75 too, or are aborted by jax.
"""

import hashlib
import itertools
import pathlib
import sys
from collections.abc import Sequence

from absl import app, flags, logging
from ml_collections import config_flags

from rljax import data
from rljax.config import files, resolve, schema
from rljax.language import parse


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
    files.load(name, argument)  # a mistake there shows here, in one line
    return files.find(name) + colon + argument


def _fail(error: Exception) -> None:
    """End with the message alone: a mistake in a config needs no traceback."""
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)


def parse_flags(argv: list[str]) -> list[str]:
    """Parse flags; an override of a field that is not there is a mistake like any other."""
    try:
        return app.parse_flags_with_usage(_shipped(argv))
    except ValueError as error:
        _fail(error)
        raise
    except AttributeError as error:
        _explain(argv)
        cause = error.args[0]  # the config library's KeyError, with the nearest name in its second line
        lines = str(cause.args[0] if isinstance(cause, KeyError) else cause).splitlines()
        _fail(ValueError(f"--config: no field {'. '.join(lines)}"))
        raise


def _explain(argv: Sequence[str]) -> None:
    """End with an error where a flag sets a field of the config that is not there."""
    fields = [word.lstrip("-").removeprefix("config.").partition("=")[0] for word in argv if "-config." in word]
    paths = [word.partition("=")[2] for word in _shipped(argv) if word.lstrip("-").startswith("config=")]
    paths += [after for word, after in itertools.pairwise(_shipped(argv)) if word in ("--config", "-config")]
    try:
        config = files.load(*paths[-1].split(":", 1))
        for field in fields:
            files.check(config, field)
    except ValueError as error:
        _fail(error)


def default_workdir(config: schema.ConfigDict) -> pathlib.Path:
    """Return runs/<name>-<digest>: the same config finds its run again, another one gets its own."""
    return pathlib.Path("runs") / f"{config.name}-{hashlib.sha256(files.dumps(config).encode()).hexdigest()[:8]}"


def define_flags() -> None:
    """Define the flags of this command."""
    config_flags.DEFINE_config_file("config", help_string="Path of a config file, or name of a shipped one.")
    flags.DEFINE_string("workdir", None, "Where everything is written; made from the config when not given.")
    flags.DEFINE_bool("allow_config_change", False, "Continue a work directory under a changed config.")
    flags.DEFINE_multi_string("set", [], "field=value, for arguments of calls too: algorithm.kl=0.01")
    flags.DEFINE_string("coordinator", None, "Of several processes: HOST:PORT of process 0.")
    flags.DEFINE_integer("num_processes", None, "How many processes there are; 1 looks for no others.")
    flags.DEFINE_integer("process_id", None, "Which of the processes this is, from 0.")
    flags.DEFINE_integer("heartbeat_seconds", 100, "A process silent for so long is taken for dead.")
    flags.mark_flag_as_required("config")


def main(argv: Sequence[str]) -> None:
    """Train, then print where everything is."""
    if len(argv) > 1:
        raise app.UsageError(f"unexpected argument {argv[1]!r}")
    logging.set_verbosity(logging.WARNING)  # the checkpoint library tells of every file otherwise
    config = flags.FLAGS.config
    try:
        for edit in flags.FLAGS.set:
            files.override(config, *parse.setting(edit))
        settings = resolve.check(config)
        resolve.phases(config)
    except ValueError as error:
        _fail(error)
    workdir = flags.FLAGS.workdir or default_workdir(config)

    import jax

    from rljax.host import processes, profiles

    # after the checks: a mistake shows at once
    from rljax.run import checkpoints, loop, programs

    try:
        programs.start_devices(settings.cpu_devices)
        processes.initialize(
            flags.FLAGS.coordinator, flags.FLAGS.num_processes, flags.FLAGS.process_id, flags.FLAGS.heartbeat_seconds
        )
    except ValueError as error:
        _fail(error)
    except RuntimeError as error:  # the others may come yet
        print(f"error: {error} Run the same command again on every host.", file=sys.stderr)
        sys.exit(loop.RESUMABLE)
    if jax.config.values["jax_compilation_cache_dir"] is None:
        jax.config.update("jax_compilation_cache_dir", str(data.cache_folder() / "xla"))
    try:
        _train(config, workdir)
    except Exception as error:
        if processes.lost(error):
            told = " ".join(str(error).split())[:200]
            print(
                f"error: another process of this run is gone ({told}). Run the same command again on every host: "
                "it goes on from the newest checkpoint.",
                file=sys.stderr,
            )
            processes.leave(loop.RESUMABLE)
        mistakes = ValueError, loop.NonFinite, loop.Recompiled, checkpoints.CheckpointError, profiles.OutOfMemory
        if isinstance(error, mistakes):
            _fail(error)
        raise


def _train(config: schema.ConfigDict, workdir: str | pathlib.Path) -> None:
    """Train; of several processes the first one speaks."""
    from rljax.data import storage
    from rljax.host import processes
    from rljax.run import evaluate, loop

    say = print if processes.leader() else lambda *_: None
    say(f"work directory: {workdir}")
    try:
        result = loop.train(config, workdir, allow_config_change=flags.FLAGS.allow_config_change)
    except (loop.Interrupted, storage.Unavailable) as stopped:
        command = " ".join(["python -m rljax", *sys.argv[1:]])
        say(f"{stopped} To resume, run the same command again:\n  {command}")
        sys.exit(loop.RESUMABLE)
    if processes.leader():
        evaluate.table(result.evaluations)
        print(f"written to {workdir}: " + ", ".join(storage.names(workdir)))
