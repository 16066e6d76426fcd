"""Programs judged by tests in a sandbox. Does not import jax: worker processes load this module.

A program does not share a process with what is expected of it. With input and output, the worker compares the output.
With assertions, the tests run in a box of their own; a call of a function of the program goes to the program's box, and
its value comes back as plain data or as a mirror of an object. The argument ``together`` gives this up.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.environments.verifiers import listings
from rljax.environments.verifiers.sandbox import programs, start

_LONGEST = 1 << 20  # bytes of an answer of a box
_GRACE = 1.0  # seconds for tests to end after the program
_LOST = json.dumps(["raise", ["RuntimeError"], ["list", ["the program has ended"]], None, ""]).encode()


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What became of a program."""

    passed: int = 0
    total: int = 1
    unparseable: bool = False
    timed_out: bool = False


@dataclasses.dataclass(frozen=True)
class Judge:
    """A reward function: the program of a completion passes all tests.

    A program that exceeds its time is wrong, and counted as ``timed_out``: a row without a reward would not teach the
    policy to avoid it.
    """

    seconds: float = 3.0  # wall time for all tests of a program
    memory: float = 0.5  # GiB of address space of each process
    partial: bool = False  # the reward is the fraction of tests that pass
    unsafe: bool = False
    together: bool = False  # tests and program in one box, where the program can change what tests find

    @property
    def longest(self) -> float:
        """The most seconds that a call takes; verifier.timeout must be longer."""
        return self.seconds + _GRACE

    def __call__(
        self,
        completion: str,
        reference: Any,
        *,
        prompt: str = "",
        entry_point: str = "",
        test_setup_code: str = "",
        test_imports: Sequence[str] = (),
    ) -> Mapping[str, float | str]:
        """Judge a completion.

        Args:
          completion: text with a program, the last fenced block or all of it.
          reference: as ``listings.read`` takes it.
          prompt: the beginning of the program, where ``entry_point`` is given.
          entry_point: the function that ``check`` of the tests gets.
          test_setup_code: code before the program and the tests.
          test_imports: imports, likewise.

        Returns:
          ``reward``; ``outcome``, "correct" if all tests pass, "wrong" or "unparseable"; ``passed``, the fraction of
          tests; ``timed_out``, 1.0 if the program was stopped at its time limit.

        Raises:
          ValueError: the tests cannot be used, or the kernel refuses namespaces.
        """
        tests = listings.read(reference)
        setup = "\n".join([*(test_imports or ()), test_setup_code or ""])
        before = prompt if entry_point and listings.parses(prompt) else ""
        source = listings.program(completion, prompt if entry_point else "", entry_point)
        if not source.strip():
            verdict = Verdict(unparseable=True)
        elif tests.pairs:
            verdict = self._outputs(source, tests.pairs)
        else:
            verdict = self._calls(source, setup, tests.code, f"{setup}\n{before}", entry_point)
        fraction = verdict.passed / verdict.total
        outcome = "unparseable" if verdict.unparseable else "correct" if fraction == 1 else "wrong"
        reward = fraction if self.partial else float(fraction == 1)
        return {"reward": reward, "outcome": outcome, "passed": fraction, "timed_out": float(verdict.timed_out)}

    def _start(self, **job: Any) -> start.Box:
        limits = start.Limits(cpu=int(self.seconds) + 1, memory=int(self.memory * 2**30))
        return start.begin(job, limits, self.unsafe)

    def _outputs(self, source: str, pairs: Sequence[tuple[str, str]]) -> Verdict:
        deadline, passed = time.monotonic() + self.seconds, 0
        for given, expected in pairs:
            with self._start(kind="run", source=source, input=given) as running:
                try:
                    written = running.output(deadline, max(_LONGEST, 2 * len(expected)))
                    status = running.status(deadline)
                except EOFError:  # endless output
                    continue
                except TimeoutError:
                    return Verdict(passed, len(pairs), timed_out=True)
            if status == programs.SYNTAX:
                return Verdict(unparseable=True)
            passed += status == 0 and listings.words(written.decode(errors="replace")) == listings.words(expected)
        return Verdict(passed, len(pairs))

    def _calls(self, source: str, setup: str, tests: Sequence[str], prelude: str, entry_point: str) -> Verdict:
        program = {"source": source, "setup": setup}
        judged = {"tests": tests, "prelude": prelude, "entry_point": entry_point}
        return self._together({**program, **judged}) if self.together else self._apart(program, judged)

    def _apart(self, program: Mapping[str, Any], judged: Mapping[str, Any]) -> Verdict:
        deadline, timed_out = time.monotonic() + self.seconds, False
        with self._start(kind="serve", **program) as running, self._start(kind="test", **judged) as testing:

            def exchange(message: bytes) -> bytes:
                nonlocal timed_out
                try:
                    if message:
                        running.send(message, deadline)
                    return running.line(deadline, _LONGEST)
                except TimeoutError:
                    timed_out = True
                except (EOFError, OSError):
                    pass
                return b""

            alive = bool(exchange(b""))
            if not (alive or timed_out):
                try:
                    if running.status(deadline) == programs.SYNTAX:
                        return Verdict(unparseable=True)
                except TimeoutError:  # it has closed or flooded its end of the socket, and runs on
                    return Verdict(timed_out=True)
            try:
                while not (message := testing.line(deadline + _GRACE, _LONGEST)).startswith(b'["result"'):
                    answer = exchange(message) if alive else b""
                    if not answer and alive:
                        alive = False
                        running.end()
                    testing.send(answer or _LOST, deadline + _GRACE)
            except (EOFError, OSError):  # a test is too slow or too large for what the program returned
                return Verdict(timed_out=timed_out)
        return _verdict(message, timed_out)

    def _together(self, job: Mapping[str, Any]) -> Verdict:
        deadline = time.monotonic() + self.seconds
        with self._start(kind="both", **job) as running:
            try:
                message = running.line(deadline, _LONGEST)
            except TimeoutError:
                return Verdict(timed_out=True)
            except (EOFError, OSError):
                try:
                    return Verdict(unparseable=running.status(deadline) == programs.SYNTAX)
                except TimeoutError:
                    return Verdict(timed_out=True)
        return _verdict(message, False)


def _verdict(message: bytes, timed_out: bool) -> Verdict:
    """Return the verdict of a result of ``assertions.judge``; ValueError if the tests could not be run."""
    try:
        _, passed, total, error = json.loads(message)
        if not 0 <= passed <= total:
            raise ValueError
    except (TypeError, ValueError, RecursionError):  # a program that shares the box of the tests has written it
        return Verdict(timed_out=timed_out)
    if error:
        raise ValueError(f"the tests cannot be run: {error}")
    return Verdict(passed, max(total, 1), timed_out=timed_out)
