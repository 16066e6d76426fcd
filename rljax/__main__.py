"""Commands of rljax.

    python -m rljax --config configs/quickstart.py --workdir runs/first    trains
    python -m rljax COMMAND --help                                         explains a command

Commands:
"""

import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

# Name: (module, one line of help). A module defines ``main(argv)``, where argv[0] is the program's name, and optionally
# ``define_flags()``, ``parse_flags(argv)`` in place of absl's parser, and ``after_help()``, which adds to ``--help``.
# A mistake of the user is an error that they raise; ``run`` reports those of all commands alike.
COMMANDS = {
    "train": ("rljax.run.train", "Train a config; the default command."),
    "evaluate": ("rljax.run.evaluate", "pass@k and greedy accuracy of a checkpoint."),
    "sample": ("rljax.run.sample", "Complete a prompt with a checkpoint."),
    "metrics": ("rljax.run.metrics", "Show the rollouts that a run has logged."),
    "sweep": ("rljax.run.sweep", "Print the commands of many runs, from a file of fields and values."),
    "config": ("rljax.config.page", "List the fields of a config, with defaults, allowed values and meaning."),
    "algorithms": ("rljax.algorithms.__main__", "List the recipes, print one in full, or compare two."),
    "check": (
        "rljax.algorithms.battery.command",
        "Check a recipe or a piece on arrays: gradients, masks, splits, extremes.",
    ),
    "sharding": ("rljax.run.sharding", "Print the sharding of a config's train state over a mesh."),
    "convert": ("rljax.run.convert", "Convert a run's policy to a public checkpoint, or the reverse."),
    "data": ("rljax.run.data", "Inspect, show and prepare data."),
    "bench": ("rljax.bench.__main__", "Time a step, its parts, alternative settings and other libraries."),
}


def overview() -> str:
    """Return the text of ``python -m rljax --help``."""
    return (__doc__ or "") + "\n" + "\n".join(f"    {name:<12}{line}" for name, (_, line) in COMMANDS.items())


def run(name: str, arguments: Sequence[str]) -> None:
    """Run a command. A mistake of the user is reported in one line on stderr, with exit code 2.

    Such a mistake is an error that a statement of rljax raises; an error inside a piece or a task has notes with the
    traceback, and any other exception is not caught.

    Args:
      name: a key of ``COMMANDS``.
      arguments: the command-line arguments after the command's name.
    """
    from absl import flags

    try:
        _run(name, arguments)
    except Exception as error:
        from rljax.language import errors

        ours = type(error).__module__.startswith("rljax.")
        if not ours and not isinstance(error, OSError | flags.Error) and not errors.is_message(error):
            raise
        fail(error, getattr(error, "__notes__", ()) if ours else ())  # JAX adds notes to errors of others


def fail(error: Exception | str, notes: Sequence[str] = ()) -> NoReturn:
    """Exit with code 2 and an error's message in one line, followed by notes such as a traceback of a user's code."""
    from rljax.language import messages

    print(f"error: {messages.printable(error)}", file=sys.stderr)
    for note in notes:
        for line in note.splitlines():
            indent = line[: len(line) - len(line.lstrip(" "))]
            print(indent + messages.printable(line), file=sys.stderr)
    sys.exit(2)


def _run(name: str, arguments: Sequence[str]) -> None:
    from absl import app, flags

    module = importlib.import_module(COMMANDS[name][0])
    argv = [f"python -m rljax {name}", *arguments]
    if not hasattr(module, "define_flags"):
        module.main(argv)
        return
    module.define_flags()
    flags.adopt_module_key_flags(module)  # --help lists the flags of the main module
    sys.modules["__main__"].__doc__ = module.__doc__  # and begins with its docstring
    try:
        app.run(module.main, argv=argv, flags_parser=getattr(module, "parse_flags", flags.FLAGS))
    except SystemExit:
        if "--help" in arguments and hasattr(module, "after_help"):
            module.after_help()
        raise


def main(arguments: Sequence[str]) -> None:
    """Run the command that the first argument names, or ``train`` if it is a flag."""
    if not arguments or arguments[0] in ("-h", "--help", "-help", "help"):
        print(overview())
        return
    name, rest = arguments[0], arguments[1:]
    if name.startswith("-"):
        name, rest = "train", arguments
    if name not in COMMANDS:
        from rljax.language import messages, parse

        fail(f"unknown command {messages.shown(name)}.{parse.nearest(name, COMMANDS)}")
    run(name, rest)


def _stop(*_: Any) -> None:
    """Exit with code 75: until a run handles SIGTERM itself, there is nothing to save."""
    os.write(2, b"SIGTERM: to resume, run the same command again.\n")
    os._exit(os.EX_TEMPFAIL)


if __name__ == "__main__":
    training = not sys.argv[1:] or sys.argv[1] == "train" or sys.argv[1].startswith("-")
    if training:
        signal.signal(signal.SIGTERM, _stop)  # before the imports of the command, which take seconds
    code: Any = 1
    try:
        main(sys.argv[1:])
        code = 0
    except SystemExit as error:
        code = error.code or 0
        raise
    finally:
        if training:  # the state is saved and the exit code is known
            signal.signal(signal.SIGTERM, lambda *_: os._exit(code if isinstance(code, int) else 1))
