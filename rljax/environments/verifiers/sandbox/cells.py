"""A program for a box: cells of an interpreter, which share their names. Its source is sent to the box.

Standard input is JSON, {"cells": [...], "most": characters}. All cells are executed in order; what the last one writes
goes to standard output, ended by the value of its last expression, or by its error.
"""

import ast
import io
import json
import os
import sys
import traceback
import types
from typing import Any

FINISHED, RAISED = 90, 91  # exit statuses once the last cell has been executed
_NAME = "<cell>"


class Cut(io.TextIOBase):
    """A text file that passes on the first characters and counts the others."""

    def __init__(self, file: Any, most: int):
        """Take a file and the number of characters."""
        self._file, self._most, self.written = file, most, 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, text: str) -> int:
        """Write a text, as far as there is room."""
        self._file.write(text[: max(self._most - self.written, 0)])
        self.written += len(text)
        return len(text)

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def execute(cell: str, names: dict[str, Any]) -> str:
    """Execute a cell, and print the value of its last expression; return its error, or ""."""
    try:
        tree = ast.parse(cell, _NAME)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, _NAME, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), _NAME, "eval"), names)
            if value is not None:
                print(repr(value))
    except BaseException as error:  # also SystemExit: the interpreter goes on
        return _described(error)
    return ""


def _described(error: BaseException) -> str:
    """Return the type, message and line of an error."""
    text = "".join(traceback.format_exception_only(error)).strip()
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _NAME]
    return f"{text} (line {lines[-1]})" if lines else text


def main() -> None:
    """Execute the cells of standard input; does not return."""
    job = json.loads(sys.stdin.read())
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    channel, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)  # also what subprocesses of earlier cells write
    sys.stdout = open(os.devnull, "w")
    *earlier, last = job["cells"]
    for cell in earlier:
        execute(cell, module.__dict__)
    os.dup2(channel, 1)
    out = open(1, "w", encoding="utf-8", errors="replace", closefd=False)
    sys.stdout = cut = Cut(out, job["most"])
    error = execute(last, module.__dict__)
    sys.stdout = out
    if cut.written > job["most"]:
        print(f"... ({cut.written - job['most']:,} more characters)")
    if error:
        print(error)
    out.flush()
    os._exit(RAISED if error else FINISHED)


if __name__ == "__main__":
    main()
