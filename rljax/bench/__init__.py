"""Benchmarks on this machine, measured side by side: ``python -m rljax bench``. README.md has the commands and results.

``__main__``  The command, and the table of its subjects: ``SUBJECTS``.
``parts``     A step that runs again and again, ``Runner``; its parts, ``split``, with ``flops``; ``ceilings``.
``choices``   Every choice of the config, one at a time: ``choices``, ``CHOICES``; ``FIELDS`` for ``tune``.
``tune``      Fields of a config that make it faster on this machine: ``tune``, ``search``.
``workers``   Compile and run the parts of a step, here or in another process: ``Local``, ``Remote``, ``Work``.
``algebra``   The loss algebra: the update of the longest chain of pieces beside the shortest: ``algebra``;
              what a critic adds to an update: ``critic``, ``FORMS``.
``gap``       The sampler's log-probabilities beside the trainer's, by cause: ``gap``, ``CAUSES``.
``device``    The first measurements on a new accelerator: these commands, in order of worth, and a page.
``verifier``  Steps whose rows come slowly: ``verifier``, ``ahead``; ``sleepers`` has the rewards.
``tasks``     Verifications per second of the device tasks: ``tasks``, ``NAMES``.
``worlds``    Conversations in the compiled program beside the same on the host: ``worlds``.
``peers``     Other libraries on the same work: ``compare``, ``run``.
``shapes``    The work: model shapes by name, and a task of random tokens: ``SHAPES``, ``Filler``, ``work``.

This module has the two timers, ``interleaved`` and ``seconds``, and the comparison of times that ``compared`` returns.
"""

import pathlib
import statistics
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

TABLES: dict[str, Any] = tomllib.loads(pathlib.Path(__file__).with_name("tables.toml").read_text())
"""The tables of ``choices`` and ``device``."""


def interleaved(functions: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Time functions interleaved, in reverse order every other round; return the seconds of each call by name."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds):
        for name in list(functions)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
    return times


def seconds(function: Callable[[], None], repeats: int) -> list[float]:
    """Return the seconds of ``repeats`` calls of a function that blocks until its work is done."""
    return interleaved({"": function}, repeats)[""]


def milliseconds(times: Sequence[float]) -> dict[str, float]:
    """Return the median and the least of seconds, in ms."""
    return {"median_ms": 1e3 * statistics.median(times), "best_ms": 1e3 * min(times)}


def compared(base: Sequence[float], other: Sequence[float]) -> dict[str, Any]:
    """Compare two functions that were timed interleaved.

    Args:
      base: the seconds of the first, one for each round.
      other: the seconds of the second.

    Returns:
      "ratio", the median of other / base, its quartiles "ratio_quartiles", and "rounds_faster", the share of the rounds
      in which the second took less.
    """
    ratios = sorted(b / a for a, b in zip(base, other, strict=True))
    return {
        "ratio": statistics.median(ratios),
        "ratio_quartiles": [ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]],
        "rounds_faster": sum(r < 1 for r in ratios) / len(ratios),
    }
