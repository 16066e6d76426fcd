"""A Python interpreter as a tool: cells of code in the sandbox of ``verifiers``."""

import dataclasses
import inspect
import json
import time
from collections.abc import Callable

from rljax.environments.verifiers.sandbox import cells, start
from rljax.environments.worlds.host import calls

_SLACK = 1 << 16  # bytes that a cell may write past its standard output


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """A tool with a state: ``begin`` returns the function of an episode.

    A cell sees the names of earlier ones. There is no process that lives between calls: each call runs the earlier
    cells of the episode again, without their output, in a new box of the sandbox, so an episode that is replayed has
    the same state. A cell that is ended from outside (time, memory, exit) is forgotten.
    """

    seconds: float = 3.0  # wall time of a call, the earlier cells included
    memory: float = 0.5  # GiB of address space
    longest: int = 2000  # characters of output
    unsafe: bool = False  # run without namespaces if the kernel refuses them

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range."""
        for field, value in (("seconds", self.seconds), ("memory", self.memory), ("longest", self.longest)):
            if not 0 < value < 1e5:
                raise ValueError(f"{field}={value}: must be above 0 and below 100000")

    def begin(self) -> Callable[[str], str]:
        """Return the tool of a new episode."""
        kept: list[str] = []

        def python(code: str) -> str:
            """Run Python code. Names stay defined for later calls. The output is what it prints and its last value.

            Args:
                code: The code.
            """
            text, status = self._run([*kept, code])
            if status in (cells.FINISHED, cells.RAISED):
                kept.append(code)
            if status != cells.FINISHED:
                raise calls.ToolError(text)
            return text

        return python

    def _run(self, every: list[str]) -> tuple[str, int | None]:
        """Return what the last cell writes, and the exit status."""
        deadline = time.monotonic() + self.seconds
        job = {"kind": "run", "source": inspect.getsource(cells)}
        job["input"] = json.dumps({"cells": every, "most": self.longest})
        limits = start.Limits(cpu=int(self.seconds) + 1, memory=int(self.memory * 2**30))
        with start.begin(job, limits, self.unsafe) as running:
            try:
                written = running.output(deadline, 4 * self.longest + _SLACK).decode(errors="replace").rstrip("\n")
                status = running.status(deadline)
            except TimeoutError:
                return f"the code was stopped after {self.seconds:g} s; its names are lost", None
            except EOFError:
                return "the code was stopped because it wrote too much; its names are lost", None
        if status in (cells.FINISHED, cells.RAISED):
            return written, status
        return f"the code ended the interpreter (status {status}); its names are lost", status
