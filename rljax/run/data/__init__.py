"""Look at data as a run will use it, and prepare files.

    python -m rljax data inspect SUBJECT                 lengths, solutions that fail, duplicates, overlap
    python -m rljax data show SUBJECT                    examples exactly as the model sees them
    python -m rljax data prepare FILE ... --to FOLDER    rows as array_record, in a random order, without duplicates
    python -m rljax data record RUN --to FILE.npz        steps of a control world by the policy of a run

SUBJECT is a config ("configs/gsm8k.py", --config works too), a task ("gsm8k('DIR')"), or, for inspect, a file. RUN is a
work directory, or with --policy random or expert a task or a config.
"""

from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from rljax.language import parse

_COMMANDS = ("inspect", "show", "prepare", "record")


def define_flags() -> None:
    """Define the flags of this command."""
    flags.DEFINE_string("config", "", "Config file, or name of a shipped config, and :argument.")
    flags.DEFINE_multi_string("set", [], "field=value, such as tokenizer.path=DIR.")
    flags.DEFINE_string("format", "", "Format of the files; default: by their names.")
    flags.DEFINE_multi_string("against", [], "inspect: another evaluation set, a file or a task; may be repeated.")
    flags.DEFINE_string("column", "", "inspect: column of the prompts in files; default: prompt, question or problem.")
    flags.DEFINE_integer("ngram", 13, "inspect: words of the n-grams that are compared.", lower_bound=1)
    flags.DEFINE_integer("most", 20_000, "inspect: prompts of a split that are read.", lower_bound=1)
    flags.DEFINE_integer("count", 3, "inspect, show: examples.", lower_bound=1)
    flags.DEFINE_integer("index", 0, "show: the first example.", lower_bound=0)
    flags.DEFINE_enum("split", "train", ["train", "heldout"], "show: the split.")
    flags.DEFINE_string("to", "", "prepare, record: folder or file to write, local or gs://.")
    flags.DEFINE_list("unique", [], "prepare: columns; of rows that are equal in them, the first one is kept.")
    flags.DEFINE_enum("policy", "run", ["run", "random", "expert"], "record: who acts.")
    flags.DEFINE_integer("steps", 10_000, "record: steps.", lower_bound=1)
    flags.DEFINE_integer("step", None, "record: step of the checkpoint; default: the newest.")
    flags.DEFINE_float("temperature", 1.0, "record: of the actions; 0: the most probable.", lower_bound=0.0)
    flags.DEFINE_integer("seed", 0, "record: of the problems and the actions.", lower_bound=0)
    flags.DEFINE_integer("shuffle", None, "prepare: seed of a random order; default: the order of the files.")


def main(argv: Sequence[str]) -> None:
    """Run a subcommand."""
    logging.set_verbosity(logging.WARNING)
    command, *given = [*argv[1:]] or [""]
    if command not in _COMMANDS:
        raise ValueError(f"data: {command!r} is not a subcommand.{parse.nearest(command, _COMMANDS)}")
    if command == "prepare":
        _prepare(given)
        return
    from rljax.run.data import inspect, show  # here: they import jax
    from rljax.run.reports.pages import terminal

    f = flags.FLAGS
    given += [f.config] if f.config else []
    if command == "record":
        from rljax.run.data import record

        if len(given) != 1 or not f.to:
            raise ValueError("data record: expected one run, task or config, and --to FILE.npz")
        options = {"temperature": f.temperature, "seed": f.seed, "changes": f.set}
        print(record.command(given[0], f.to, f.steps, f.policy, f.step, **options))
        return
    if len(given) != 1:
        raise ValueError(f"data {command}: expected one config, task" + (" or file" if command == "inspect" else ""))
    names = ("format", "against", "column", "ngram", "most", "count")
    names = names if command == "inspect" else ("split", "index", "count")
    options: dict[str, Any] = {name: f[name].value for name in names}
    function = inspect.report if command == "inspect" else show.examples
    function(given[0], terminal.console(), changes=f.set, **options)


def _prepare(paths: Sequence[str]) -> None:
    from rljax.data.rows import prepare

    f = flags.FLAGS
    if not paths or not f.to:
        raise ValueError("data prepare: expected files and --to FOLDER")
    done = prepare.prepare(paths, f.to, format=f.format, unique=f.unique, shuffle=f.shuffle)
    dropped = f", {done.read - done.written:,} duplicates left out" if f.unique else ""
    written = "already has" if done.existed else "has"
    print(f"{done.folder} {written} {done.written:,} of {done.read:,} rows{dropped}")
    print(f"next: python -m rljax data inspect {done.folder}")
