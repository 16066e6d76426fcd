"""What runs in a box: ``run`` reads the job, takes on its limits and does one of the three kinds of work.

=========  ==================================================================================================
"run"      a program with standard input and output
"serve"    a program whose functions are called: it gets names and arguments, and never what is expected
"test"     tests, in another box than the program; see ``assertions.py``
=========  ==================================================================================================
"""

import atexit
import json
import os
import random
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from rljax.environments.verifiers.sandbox import assertions, kernel, values

SYNTAX = 86  # exit status: the source is no program

_CHANNEL = 3  # the number of the socket in a box
_HANDLES = 4096  # more than a box has inherited


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
    {"run": _run, "serve": _serve, "test": _test}[job["kind"]](job)
    os._exit(0)


def _execute(source: str, name: str) -> dict[str, Any]:
    """Execute a program as a module, and return its names."""
    try:
        code = compile(source, "program.py", "exec")
    except Exception:  # also RecursionError and MemoryError, of programs that are made to break the compiler
        os._exit(SYNTAX)
    module = types.ModuleType(name)
    sys.modules[name] = sys.modules["__main__"] = module
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
    names = _execute(job["source"], "program")
    objects: list[Any] = []

    def keep(value: Any) -> int:
        objects.append(value)
        return len(objects) - 1

    _send(["ready"])
    for target, attribute, args, kwargs in map(json.loads, open(_CHANNEL, "rb", closefd=False)):
        try:
            value = names[target] if isinstance(target, str) else objects[target]
            if attribute == "__iter__":
                value = list(value)
            else:
                function = getattr(value, attribute) if attribute else value
                taken = {name: values.decode(data, objects.__getitem__) for name, data in kwargs.items()}
                value = function(*(values.decode(data, objects.__getitem__) for data in args), **taken)
            answer = ["value", values.encode(value, keep)]
        except Exception as error:
            answer = ["raise", type(error).__name__, str(error)[:200]]
        _send(answer)


def _test(job: Mapping[str, Any]) -> None:
    reader = open(_CHANNEL, "rb", closefd=False)

    def ask(*call: Any) -> Any:  # not an iterator: no answer may raise StopIteration, which would end a loop of a test
        _send(["call", *call])
        return json.loads(reader.readline())

    _send(["result", *assertions.judge(job, ask)])


def _send(message: Any) -> None:
    data = memoryview(json.dumps(message).encode() + b"\n")
    while data:
        data = data[os.write(_CHANNEL, data) :]
