"""Strictness for every test: eight devices, no silent rank promotion, our own warnings are errors."""

import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import jax

_CACHE = pathlib.Path(os.environ.get("RLJAX_CACHE", pathlib.Path.home() / ".cache" / "rljax")) / "xla-tests"


def pytest_configure(config):
    """Set what jax must know before the first computation."""
    jax.config.update("jax_numpy_rank_promotion", "raise")
    jax.config.update("jax_compilation_cache_dir", str(_CACHE))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.3)
    config.addinivalue_line("markers", "full: slow; run before an issue is closed with pytest -m full")
    config.addinivalue_line("filterwarnings", "error:::rljax")
