"""Strictness for every test: eight devices, no silent rank promotion, our own warnings are errors."""

import gc
import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # XLA's errors and what ends a process, without its warnings
from tests.support import compiler

os.environ["XLA_FLAGS"] = " ".join(
    (os.environ.get("XLA_FLAGS", ""), "--xla_force_host_platform_device_count=8", compiler.QUICK)
)

from rljax import data

# subprocesses of tests read these too
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(data.cache_folder() / "xla-tests"))
# 0: small programs are kept too, which each worker and each tier would compile again
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")

import jax
import pytest

from tests.support import memory, tiers


@pytest.fixture(autouse=True)
def _little_memory(request):
    """Drop compiled programs once there are very many; a file may set ``MEBIBYTES``."""
    yield
    memory.forget_programs(mebibytes=getattr(request.module, "MEBIBYTES", memory.MEBIBYTES))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Mark the cases of the full tier, and start with the files that take longest.

    The files that take longest come first so that no worker is left with one of them at the end.
    """
    tiers.mark(config, items)
    long = (
        *(
            "recipes_run",
            "multihost",
            "loop",
            "algorithms",
            "step",
            "extremes",
            "enumeration",
            "storage",
            "notebooks",
            "readme",
        ),
        *("advantage_pieces", "sharding", "decoding", "packing", "properties", "profile", "partial", "adapters"),
    )
    place = {f"test_{name}": number for number, name in enumerate(long)}
    items.sort(
        key=lambda item: min(
            (n for stem, n in place.items() if f"{item.path.stem}_".startswith(f"{stem}_")), default=len(long)
        )
    )


def pytest_configure(config):
    """Set what jax must know before the first computation."""
    gc.set_threshold(100_000, 20, 100)  # tracing makes very many objects: Python's own limits cost 6 % of the time
    jax.config.update("jax_numpy_rank_promotion", "raise")
    config.addinivalue_line("markers", "full: slow; run before an issue is closed with pytest -m full")
    config.addinivalue_line("markers", "default_tier(cases): the other cases of a parametrized test are full")
    config.addinivalue_line("filterwarnings", "error:::rljax")
    # tests ask that layouts change nothing, also where they are no use
    config.addinivalue_line("filterwarnings", "ignore::rljax.run.programs.SharedWorkWarning")
