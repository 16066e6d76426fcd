"""Settings of verifiers on the host."""

import dataclasses
from typing import Annotated

from rljax.language import settings
from rljax.language.settings import Count, setting
from rljax.types import Range


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
    """The worker processes that judge completions of host tasks."""

    workers: Annotated[int, Range(0, 1024)] = setting(2, "Worker processes; 0 judges in the process of the run.")
    timeout: Annotated[float, Range(0, 86400, open_low=True)] = setting(
        5.0, "Seconds that judging one completion may take."
    )
    threshold: Annotated[float, Range(-1e6, 1e6)] = setting(
        0.0, "Smallest reward that counts as correct if the reward function returns no outcome; 0: exactly 1."
    )
    memory: Annotated[float, Range(0, 1e6)] = setting(
        16.0, "GiB of address space of a worker process, on Linux; 0: no limit."
    )
    concurrency: Count = setting(
        1, "Calls that a worker runs at once; above 1, random and numpy.random are not seeded for each."
    )
    chunks: Count = setting(2, "Parts of a batch: one is judged while the next is sampled.")

    __post_init__ = settings.check
