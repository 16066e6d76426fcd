"""The devices of this process: set up before the first use of JAX."""

import contextlib
import glob
import os

import jax
from jax._src import xla_bridge  # public modules cannot leave out one platform and keep the order of the others

_TPU_FILES = ("/dev/accel*", "/dev/vfio/[0-9]*")  # a TPU's device files, up to v4 and from v5 on


def start(count: int = 0, parallel: int = 1) -> None:
    """Choose the platforms and the number of CPU devices that JAX creates.

    If libtpu is installed and this machine has no TPU, as is usual where libtpu only compiles (``rljax.aot``), its
    start prints errors. JAX then leaves out this platform, unless JAX_PLATFORMS is set.

    Args:
      count: number of CPU devices; 0 keeps the default.
      parallel: runs, or parts of rows, that can be computed at the same time. With several and no ``count``, there is a
        CPU device for each, at most one for each core, unless JAX has already started or somebody has chosen a number.

    Raises:
      ValueError: JAX is already initialized with another number.
    """
    # On a TPU VM, importing jax sets jax_platforms.
    if jax.config.values["jax_platforms"] is None and not any(map(glob.glob, _TPU_FILES)):
        register = getattr(xla_bridge, "register_backend_factory", None)
        if register is not None and not xla_bridge.backends_are_initialized():
            register("tpu", lambda: None)  # counts as a platform that is not available
    if count:
        try:
            jax.config.update("jax_num_cpu_devices", count)
        except RuntimeError:
            if jax.local_device_count() != count:
                raise ValueError(
                    f"config.cpu_devices={count}: JAX has already started with {jax.local_device_count()} devices. Set "
                    "it before the first use of JAX."
                ) from None
    chosen = jax.config.values["jax_num_cpu_devices"] > 0 or "device_count" in os.environ.get("XLA_FLAGS", "")
    if parallel > 1 and not chosen:
        with contextlib.suppress(RuntimeError):
            jax.config.update("jax_num_cpu_devices", min(parallel, cores()))


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
