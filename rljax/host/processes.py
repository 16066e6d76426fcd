"""Several processes that run one program: initialization, communication and shutdown.

Every process runs the same steps over one mesh of all devices. Process 0, the leader, writes the logs; the host
verifier of each process judges the rows stored on that process's devices. Functions that communicate must be called
by every process, in the same order.
"""

import contextlib
import os
import pathlib
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import jax
import numpy as np
from etils import epath
from jax.experimental import multihost_utils

from rljax import types
from rljax.data import storage

T = TypeVar("T")

COORDINATOR, NUM_PROCESSES, PROCESS_ID = "RLJAX_COORDINATOR", "RLJAX_NUM_PROCESSES", "RLJAX_PROCESS_ID"
"""Environment variables with the meaning of the flags --coordinator, --num_processes and --process_id."""

HEARTBEAT_SECONDS = 100
"""Seconds without a heartbeat after which a process is considered dead."""

_VISIBLE_SECONDS = 30.0  # within which a file of process 0 must be visible to all
_LOST = ("gloo", "connection closed", "connection reset", "heartbeat", "coordination service", "unavailable", "barrier")


# --- initialization -----------------------------------------------------------------------------


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
) -> None:
    """Connect this process to the other processes of the run. Call it before jax uses a device.

    The processes are determined by the first that applies: the arguments, or the variables RLJAX_COORDINATOR,
    RLJAX_NUM_PROCESSES and RLJAX_PROCESS_ID; the tasks of a SLURM step; the hosts of one or several TPU slices, on
    GKE or on TPU VMs. Otherwise, and with ``num_processes=1``, the run has this process only and nothing is started.

    Args:
      coordinator: address of process 0 as "host:port", reachable from every process.
      num_processes: number of processes.
      process_id: index of this process, from 0.
      heartbeat_seconds: seconds without a heartbeat after which a process is considered dead and the others exit.

    Raises:
      ValueError: an argument or variable is missing, malformed or out of range; the message names it.
      RuntimeError: the other processes cannot be reached.
    """
    if heartbeat_seconds < 1:
        raise ValueError(f"--heartbeat_seconds={heartbeat_seconds}: must be at least 1")
    options = arguments(os.environ, coordinator, num_processes, process_id)
    if options is None or jax.distributed.is_initialized():
        return
    _configure_cpu_collectives()
    # The leader draws the plots after the others have finished.
    options |= {"heartbeat_timeout_seconds": heartbeat_seconds, "shutdown_timeout_seconds": max(heartbeat_seconds, 60)}
    try:
        jax.distributed.initialize(**options)
    except ValueError as error:  # jax detects no cluster although the environment names one
        raise RuntimeError(
            f"the environment names hosts of a TPU slice, but jax does not detect it ({error}). Is jax[tpu] installed? "
            "Set --coordinator, --num_processes and --process_id, or --num_processes=1 to run on this host alone."
        ) from error
    if jax.default_backend() == "cpu":  # a cached program would run in several threads despite the flag
        jax.config.update("jax_enable_compilation_cache", False)


def _configure_cpu_collectives() -> None:
    """Use gloo for collectives between CPU processes, and one thread for each device.

    gloo matches collectives by their order alone. With several threads, the order in which independent collectives
    start may differ between hosts, which deadlocks. Other platforms are not affected.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"


def arguments(
    environment: Mapping[str, str], coordinator: str | None, num_processes: int | None, process_id: int | None
) -> dict[str, Any] | None:
    """Return the keyword arguments of ``jax.distributed.initialize``; jax detects those that are absent.

    Args:
      environment: environment variables.
      coordinator: as in ``initialize``.
      num_processes: as in ``initialize``.
      process_id: as in ``initialize``.

    Returns:
      The keyword arguments, or None if the run has one process.

    Raises:
      ValueError: an argument or variable is missing, malformed or out of range.
    """
    values: dict[str, Any] = {
        f"--coordinator ({COORDINATOR})": coordinator or environment.get(COORDINATOR),
        f"--num_processes ({NUM_PROCESSES})": _integer(num_processes, environment, NUM_PROCESSES),
        f"--process_id ({PROCESS_ID})": _integer(process_id, environment, PROCESS_ID),
    }
    address, count, number = values.values()
    if count is not None and count < 1:
        raise ValueError(f"--num_processes ({NUM_PROCESSES}) is {count}: must be at least 1")
    if count == 1 and not number:
        return None
    missing = [name for name, value in values.items() if value is None]
    if address is not None and count is not None and number is not None:
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"--coordinator ({COORDINATOR}) is {address!r}: must be HOST:PORT, such as 10.0.0.2:8476")
        if not 0 <= number < count:
            raise ValueError(
                f"--process_id ({PROCESS_ID}) is {number}: must be from 0 to {count - 1}, which is --num_processes - 1"
            )
        every = {"coordinator_address": address, "num_processes": count, "process_id": number}
        return {**every, "cluster_detection_method": "deactivate"}
    if len(missing) < len(values):
        present = [name for name in values if name not in missing]
        raise ValueError(f"{' and '.join(present)} set, but not {' and '.join(missing)}: set all three or none")
    return _slurm(environment) or _tpu(environment)


def _integer(value: int | None, environment: Mapping[str, str], name: str) -> int | None:
    if value is not None or name not in environment:
        return value
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name}={environment[name]!r}: must be an integer") from None


def _slurm(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments in a job step of several tasks, otherwise None; a batch script is in no step."""
    if not {"SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID"} <= environment.keys():
        return None
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
    if tasks == 1:
        return None
    options: dict[str, Any] = {"num_processes": tasks, "cluster_detection_method": "slurm"}
    # One task per node uses all devices of the node; of several, each uses the device of its local id, as in jax.
    one_per_node = tasks == int(environment.get("SLURM_STEP_NUM_NODES") or 0)
    return {**options, "local_device_ids": []} if one_per_node else options


def _tpu(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments on a TPU host that is, or may be, one of several; otherwise None.

    GKE names the hosts in the environment. On a TPU VM, jax queries the metadata server. On a machine without TPU
    chips, importing jax sets TPU_SKIP_MDS_QUERY.
    """
    if "tpu" not in (environment.get("JAX_PLATFORMS") or "tpu"):
        return None
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if hosts or "TPU_PROCESS_ADDRESSES_PATH" in environment:
        slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
        alone = hosts is not None and len(hosts.split(",")) * slices == 1
        return None if alone else {}
    return None if "TPU_SKIP_MDS_QUERY" in environment else {}


# --- communication ------------------------------------------------------------------------------


def several() -> bool:
    """Return whether the run has several processes. With one process, no device is initialized by this call."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def leader() -> bool:
    """Return whether this is process 0, which writes the files of the run."""
    return not several() or jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Return the values of all processes, ordered by process, on every process. Values must be small and picklable."""
    if not several():
        return [value]
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(content.size, np.int32))
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)  # powers of two: few compiled programs
    padded[: content.size] = content
    rows = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def together(action: Callable[[], T]) -> T:
    """Return ``action()``; if it fails on one process, it fails on all. ``action`` must not communicate.

    Raises:
      ValueError: the action failed on another process, which raises the original error.
      storage.Unavailable: the action failed with this error on another process.
    """
    if not several():
        return action()
    value, error = None, None
    try:
        value = action()
    except Exception as caught:
        error = caught
    messages = gather(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for process, text in enumerate(messages):
        if text is not None:
            kind = storage.Unavailable if text.startswith(storage.Unavailable.__name__) else ValueError
            raise kind(f"process {process} of {len(messages)}: {text}")
    return value  # pyright: ignore[reportReturnType]  None only if action() returned None


def from_leader(read: Callable[[], T]) -> T:
    """Return ``read()`` of process 0 on every process; only process 0 calls it. If it fails, it fails on all."""
    if not several():
        return read()
    value = together(lambda: read() if leader() else None)
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    size = int(multihost_utils.broadcast_one_to_all(np.array(content.size, np.int32)))
    padded = np.zeros(1 << (size - 1).bit_length(), np.uint8)
    if leader():
        padded[:size] = content
    return pickle.loads(multihost_utils.broadcast_one_to_all(padded)[:size].tobytes())


def check_shared(path: epath.Path | pathlib.Path) -> None:
    """Check that every process sees ``path``, a file that process 0 has written.

    Waits up to 30 seconds, as a network file system may show a file late.

    Raises:
      ValueError: a process does not see the file; raised on every process.
    """

    def look() -> None:
        deadline = time.monotonic() + _VISIBLE_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise ValueError(f"{path}, written by process 0, is not visible here: all hosts must share the folder")
            time.sleep(0.5)

    if several():
        gather(None)  # returns after process 0 has written the file
        together(look)


# --- rows ---------------------------------------------------------------------------------------


def fetch(tree: types.Tree) -> types.Tree:
    """Return the arrays of a tree as complete NumPy arrays, on every process."""

    def full(leaf: Any) -> np.ndarray:
        distributed = isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        return multihost_utils.process_allgather(leaf, tiled=True) if distributed else np.asarray(leaf)

    return jax.tree.map(full, tree) if several() else jax.device_get(tree)


def local_rows(arrays: Sequence[types.Array], sharding: jax.sharding.Sharding) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the rows that belong to this process. Each row belongs to exactly one process.

    Args:
      arrays: each ``[B, ...]``, distributed over all processes or equal on all.
      sharding: assigns rows to devices; of several copies of a row, the first device's counts.

    Returns:
      The indices of the n rows of this process, ``[n]`` int64, and for each array its rows, ``[n, ...]``.
    """
    count = arrays[0].shape[0]
    if not several():
        return np.arange(count), jax.device_get(list(arrays))
    owner: dict[tuple[int, ...], Any] = {}
    for device, rows in sharding.devices_indices_map((count,)).items():
        owner.setdefault((rows or (slice(None),))[0].indices(count), device)
    spans = sorted(span for span, device in owner.items() if device.process_index == jax.process_index())
    index = np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)])

    def local(array: types.Array) -> np.ndarray:
        if not isinstance(array, jax.Array) or array.is_fully_addressable:
            return np.asarray(array)[index]
        shards = {s.index[0].indices(count): s.data for s in jax.device_put(array, sharding).addressable_shards}
        return np.concatenate([np.zeros((0, *array.shape[1:]), array.dtype), *(shards[span] for span in spans)])

    return index, [local(array) for array in arrays]


def global_rows(read: Callable[[np.ndarray], types.Tree], count: int, sharding: jax.sharding.Sharding) -> types.Tree:
    """Return ``read(arange(count))`` as arrays over all processes, each of which reads only the rows of its devices.

    Args:
      read: maps row indices ``[n]`` to a tree of arrays ``[n, ...]``.
      count: number of rows over all processes.
      sharding: assigns rows to devices.

    Returns:
      A tree of arrays ``[count, ...]`` laid out by ``sharding``.
    """
    spans = sharding.addressable_devices_indices_map((count,)).values()
    held = np.unique(np.concatenate([np.arange(count)[span] for span in spans if span is not None]))

    def assemble(leaf: Any) -> jax.Array:
        def shard(index: Any) -> np.ndarray:
            return np.asarray(leaf)[np.searchsorted(held, np.arange(count)[index[0]])]

        return jax.make_array_from_callback((count, *leaf.shape[1:]), sharding, shard)

    return jax.tree.map(assemble, read(held))


# --- shutdown -----------------------------------------------------------------------------------


_received: list[int] = []  # the signals that were received within ``notice``


@contextlib.contextmanager
def notice() -> Iterator[Callable[[int], bool]]:
    """Yield a function from a step number to whether the run must stop after that step, for SIGTERM or Ctrl-C.

    Call the function once at every step. With several processes, jax watches for SIGTERM, and a handler installed
    here would disable that; jax then reports the same step to all processes, and Ctrl-C is passed on as SIGTERM. With
    one process, signal handlers are installed if this is the main thread. A second Ctrl-C has its earlier effect.
    """
    several = jax.distributed.is_initialized()
    asked = multihost_utils.reached_preemption_sync_point if several else lambda step: bool(_received)
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    background = signal.getsignal(signal.SIGINT) == signal.SIG_IGN  # such a job ignores Ctrl-C
    numbers = [*([] if background else [signal.SIGINT]), *([] if several else [signal.SIGTERM])]
    previous: dict[int, Any] = {number: signal.getsignal(number) for number in numbers}

    def receive(number: int, frame: Any) -> None:
        if number == signal.SIGINT:
            signal.signal(number, previous[number])
            os.write(2, b"\nCtrl-C: stopping after this step; press it again to stop at once.\n")
            if several:
                os.kill(os.getpid(), signal.SIGTERM)
                return
        _received.append(number)

    try:
        for number in numbers:
            signal.signal(number, receive)
        yield asked
    finally:
        for number in numbers:
            signal.signal(number, previous[number])
        _received.clear()


def received() -> str:
    """Return "SIGTERM" or "Ctrl-C", received within ``notice``, else ""; always "" if several processes decide."""
    return "Ctrl-C" if signal.SIGINT in _received else "SIGTERM" if _received else ""


def lost(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, says that another process was lost."""
    while error is not None:
        text = f"{type(error).__name__}: {error}"  # an error of another type may quote a JaxRuntimeError
        if "JaxRuntimeError" in text and any(word in text.lower() for word in _LOST):
            return several()
        error = error.__cause__ or error.__context__
    return False


def leave(code: int) -> NoReturn:
    """Exit at once with ``code``. An ordinary exit waits for the other processes and hangs if one was lost."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
