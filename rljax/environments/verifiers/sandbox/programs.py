"""What runs in a box: ``run`` reads the job, takes on its limits and does one of the four kinds of work.

=========  ==================================================================================================
"run"      a program with standard input and output
"serve"    a program whose functions are called: it gets names and arguments, and never what is expected
"test"     tests, in another box than the program; see ``assertions.py``
"both"     a program and its tests in one box: nothing protects the tests from the program
=========  ==================================================================================================
"""

import atexit
import builtins
import contextlib
import functools
import io
import json
import os
import random
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from rljax.environments.verifiers.sandbox import assertions, kernel, mirrors, values

SYNTAX = 86  # exit status: the source is no program
PROGRAM = "program"  # the module of the program

_CHANNEL = 3  # the number of the socket in a box
_HANDLES = 4096  # more than a box has inherited
_MOST_PRINTED = 1 << 16  # characters with each answer


def run(channel: int, settle: Callable[[int], None]) -> NoReturn:
    """Do the job that comes through a socket.

    Args:
      channel: the socket; first a line of JSON, the job.
      settle: called with the size of the folder in bytes, before any limit is set.
    """
    with os.fdopen(os.dup(channel), "rb") as reader:  # the worker sends no more until it is asked
        job = json.loads(reader.readline())
    settle(job["folder"])
    os.dup2(channel, _CHANNEL)
    for handle in range(_CHANNEL):
        os.dup2(os.open(os.devnull, os.O_RDWR), handle)
    os.closerange(_CHANNEL + 1, _HANDLES)
    for name in [name for name in sys.modules if name.partition(".")[0] == "rljax"]:
        del sys.modules[name]
    sys.path[:] = sys.path[1:]
    sys.argv[:] = ["program.py"]
    random.seed(0)  # a verdict must not depend on chance
    kernel.limit(**job["limits"])
    {"run": _run, "serve": _serve, "test": _test, "both": _both}[job["kind"]](job)
    os._exit(0)


def _execute(source: str, name: str, setup: str = "") -> dict[str, Any]:
    """Execute a program as a module, and return its names; setup that needs the program is left to the tests."""
    try:
        code = compile(source, "program.py", "exec")
    except Exception:  # also RecursionError and MemoryError, of programs that are made to break the compiler
        os._exit(SYNTAX)
    module = types.ModuleType(name)
    sys.modules[name] = sys.modules["__main__"] = module
    with contextlib.suppress(Exception):
        exec(setup, module.__dict__)
    exec(code, module.__dict__)
    return module.__dict__


def _run(job: Mapping[str, Any]) -> None:
    with open(".input", "w+b", buffering=0) as file:
        os.unlink(".input")
        file.write(job["input"].encode("utf-8", "replace"))
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.dup2(_CHANNEL, 1)
    os.close(_CHANNEL)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    status = 0
    try:
        _execute(job["source"], "__main__")
    except SystemExit as ending:
        status = int(ending.code not in (None, 0))
    atexit._run_exitfuncs()  # pyright: ignore[reportAttributeAccessIssue]
    sys.stdout.flush()
    os._exit(status)


def _serve(job: Mapping[str, Any]) -> None:
    names = _execute(job["source"], PROGRAM, job["setup"])
    sys.stdout = printed = _Printed()
    transfer = _connection()
    peer = mirrors.Peer(transfer, names, PROGRAM, guarded=False, raised=_raised, printed=printed.taken)
    builtins.input = functools.partial(peer.ask, "input")  # which tests may replace
    request = transfer(["ready"])
    while True:
        request = transfer(peer.answer(request))


def _test(job: Mapping[str, Any]) -> None:
    lookup = assertions.connected(_connection(), job["tests"])
    _send(["result", *assertions.judge(job, lookup)])


def _both(job: Mapping[str, Any]) -> None:
    names = _execute(job["source"], PROGRAM, job["setup"])
    _send(["result", *assertions.judge(job, names.__getitem__)])


def _connection() -> Callable[[Any], Any]:
    """Return a function that sends a message and returns the next one."""
    reader = open(_CHANNEL, "rb", closefd=False)

    def transfer(message: Any) -> Any:
        _send(message)
        line = reader.readline()
        if not line:
            os._exit(0)
        return json.loads(line)

    return transfer


def _raised(names: Sequence[str], args: Sequence[Any], _: Any) -> Exception:
    return values.exception(names, args)


class _Printed(io.StringIO):
    """What a program prints, until it is taken."""

    def taken(self) -> str:
        """Return the first characters of what was printed, and forget all of it."""
        text = self.getvalue()[:_MOST_PRINTED]
        if text:
            self.seek(0)
            self.truncate()
        return text


def _send(message: Any) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(_CHANNEL, data) :]
