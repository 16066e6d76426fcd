"""Commands of rljax.

    python -m rljax --config configs/quickstart.py --workdir runs/first    trains
    python -m rljax COMMAND --help                                         explains a command

Commands:
"""

import atexit
import importlib
import os
import pathlib
import signal
import sys
import threading
import warnings
from collections.abc import Sequence
from typing import Any, NoReturn

# Name: (module, one line of help), from commands.txt. A module defines ``main(argv)``, where argv[0] is the program's
# name, and optionally ``define_flags()``, ``parse_flags(argv)`` in place of absl's parser, and ``after_help()``, which
# adds to ``--help``; without ``define_flags``, ``main`` reads the words itself, all but ``--help``.
# A mistake of the user is an error that they raise; ``run`` reports those of all commands alike.
_TEXT = pathlib.Path(__file__).with_name("commands.txt").read_text()
COMMANDS = {name: (module, line) for name, module, line in (row.split(maxsplit=2) for row in _TEXT.splitlines())}
_format_warning = warnings.formatwarning
_HELP = ("-h", "-help", "--help", "--helpshort", "--helpfull")


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


def warning_text(message: Any, category: type[Warning], *place: Any) -> str:
    """Return the text of a warning, as ``warnings.formatwarning`` does; a warning of rljax names no line of code."""
    ours = category.__module__.startswith("rljax.")
    return f"warning: {message}\n" if ours else _format_warning(message, category, *place)


def _run(name: str, arguments: Sequence[str]) -> None:
    from absl import app, flags, logging

    warnings.formatwarning = warning_text

    def main(argv: Sequence[str]) -> None:
        logging.set_verbosity(logging.WARNING)  # libraries log much at level INFO
        module.main(argv)

    module = importlib.import_module(COMMANDS[name][0])
    argv = [f"python -m rljax {name}", *("--help" if word in _HELP else word for word in arguments)]
    reads_flags = hasattr(module, "define_flags")
    if reads_flags:
        module.define_flags()
    if "--help" in argv:
        print(module.__doc__)
        if reads_flags:
            print("flags:")
            for defining in sorted(d for d in flags.FLAGS.flags_by_module_dict() if d.startswith("rljax.")):
                print(flags.FLAGS.module_help(defining).strip().partition("\n")[2])  # without the module's name
        if hasattr(module, "after_help"):
            module.after_help()
        return
    if not reads_flags:  # the command reads its words itself
        module.main(argv)
        return
    app.run(main, argv=argv, flags_parser=getattr(module, "parse_flags", flags.FLAGS))


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


def _stop(number: int, *_: Any) -> None:
    """Exit with code 75 or 130: until a run handles the signal itself, there is nothing to save."""
    name, code = (b"Ctrl-C", 130) if number == signal.SIGINT else (b"SIGTERM", os.EX_TEMPFAIL)
    os.write(2, name + b": to resume, run the same command again.\n")
    os._exit(code)


def _stop_on_second_interrupt() -> None:
    """Exit with code 130 on the second Ctrl-C, even while the main thread compiles and handles no signal."""
    receiver, sender = os.pipe()
    os.set_blocking(sender, False)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)

    def watch() -> None:
        count = 0
        while count < 2:
            count += os.read(receiver, 1)[0] == signal.SIGINT
        os._exit(130)

    threading.Thread(target=watch, name="interrupts", daemon=True).start()


def _end_within(seconds: float, code: int) -> None:
    """Exit with ``code`` after ``seconds``: Python joins all threads at exit, and some threads may never end."""

    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    training = not sys.argv[1:] or sys.argv[1] == "train" or sys.argv[1].startswith("-")
    if training:
        # runs after all other callbacks, before Python restores the default action, which would change the exit code
        atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _stop)  # before the imports of the command, which take seconds
        if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:  # a background job ignores it
            signal.signal(signal.SIGINT, _stop)
            _stop_on_second_interrupt()
    code: Any = 1
    try:
        main(sys.argv[1:])
        code = 0
    except SystemExit as error:
        code = error.code or 0
        raise
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        if training:  # the state is saved, the logs are written, and the exit code is known
            if code:
                _end_within(10.0, code if isinstance(code, int) else 1)
            signal.signal(signal.SIGTERM, lambda *_: os._exit(code if isinstance(code, int) else 1))
