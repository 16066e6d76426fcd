"""Settings of verifiers on the host."""

import dataclasses
from typing import Annotated

from rljax.language import settings
from rljax.language.settings import Count, Positive, Size, setting
from rljax.types import Range


@dataclasses.dataclass(frozen=True)
class VerifierConfig:
    """The worker processes that judge completions of host tasks."""

    workers: Size = setting(2, "Worker processes; 0 judges in the process of the run.")
    timeout: Positive = setting(5.0, "Seconds that judging one completion may take.")
    memory: Annotated[float, Range(0, 1e6)] = setting(16.0, "GiB of address space of a worker process; 0: no limit.")
    chunks: Count = setting(2, "Parts of a batch: one is judged while the next is sampled.")

    __post_init__ = settings.check
