"""What things cost on this machine, measured side by side: ``python -m rljax bench``. See ``SPEED.md``."""

import time
from collections.abc import Callable, Mapping


def interleaved(functions: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Time functions turn about, the order turned round every other time; seconds of each call."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for i in range(rounds):
        for name in list(functions)[:: 1 if i % 2 else -1]:
            start = time.perf_counter()
            functions[name]()
            times[name].append(time.perf_counter() - start)
    return times


def seconds(function: Callable[[], None], repeats: int) -> list[float]:
    """Time calls of a function that returns when its work is done."""
    return interleaved({"": function}, repeats)[""]
