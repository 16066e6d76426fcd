"""Sweeps: a file of fields and values becomes independent runs with separate work directories.

    python -m rljax sweep FILE --config CONFIG --workdir BASE [--config.FIELD=VALUE ...] [--set FIELD=VALUE ...]
        prints the command of each run, one per line
        --count      prints the number of runs
        --index N    runs number N in this process, for array jobs

Further flags are those of ``train``, for every run. The file has ``get_sweep()``, which returns a list with the fields
of each run:

    from rljax.run.members import sweep

    def get_sweep():
        return sweep.product(
            sweep.grid({"algorithm": ["grpo()", "rloo()"], "batch.samples": [8, 16]}),
            sweep.grid({"seed": range(3)}),
        )

Fields are those of ``--set``, including arguments of calls (``algorithm.kl``). Start the runs with a shell, GNU
parallel, SLURM arrays or XPK; see tpu/README.md.
"""

import itertools
import os
import shlex
import sys
from collections.abc import Sequence

from absl import flags

from rljax.run import train
from rljax.run.members import sweep


def of_sweep(words: Sequence[str]) -> tuple[flags.FlagValues, list[list[str]]]:
    """Return the flags of the sweep, and the arguments of ``python`` for each run.

    Raises:
      ValueError: an error in the command line, the sweep file or one of its runs.
      flags.Error: a flag is missing, or its value is of another type.
    """
    given, of_runs = flags.FlagValues(), flags.FlagValues()
    flags.DEFINE_string("workdir", "", "Folder of the runs' work directories.", flag_values=given)
    flags.DEFINE_integer("index", None, "The run to execute, from 0.", lower_bound=0, flag_values=given)
    flags.DEFINE_bool("count", False, "Print the number of runs.", flag_values=given)
    common = given(["sweep", *words], known_only=True)
    train.define_flags(of_runs, common)
    _, *files = train.parse_flags(common, of_runs)
    if len(files) != 1:
        raise ValueError(f"expected one sweep file, got {files or 'none'}.")
    if not given.workdir:
        raise ValueError("--workdir missing: the work directories of the runs are subfolders of --workdir.")
    runs = sweep.expand(sweep.load(files[0]), train.config_of(of_runs), given.workdir)
    if given.index is not None and given.index >= len(runs):
        raise ValueError(f"--index {given.index}: the sweep has {len(runs)} runs, 0 to {len(runs) - 1}.")
    pairs = itertools.pairwise(common)  # a file may have both the config and the sweep
    place = next(n for n, (before, word) in enumerate(pairs, 1) if word == files[0] and before.lstrip("-") != "config")
    shared = ["-m", "rljax", *common[1:place], *common[place + 1 :]]
    sets = ([word for setting in run.settings for word in ("--set", setting)] for run in runs)
    return given, [[*shared, *edits, "--workdir", str(run.workdir)] for edits, run in zip(sets, runs, strict=True)]


def main(argv: Sequence[str]) -> None:
    """Print the commands or their number, or execute one of them."""
    given, runs = of_sweep(argv[1:])
    if given.count:
        print(len(runs))
    elif given.index is not None:  # replaces this process, so that the run receives its signals
        os.execv(sys.executable, [sys.executable, *runs[given.index]])
    else:
        print("\n".join(shlex.join(["python", *run]) for run in runs))
