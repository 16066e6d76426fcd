"""Several processes that run one program: how they find each other, and what one tells the others.

Every process runs the same steps over one mesh of all devices. Process 0, the leader, writes the logs; a host
verifier judges the rows that lie on its own host. Functions that communicate must be called by every process, in
the same order.
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
"""Environment variables that stand for the flags --coordinator, --num_processes and --process_id."""

HEARTBEAT_SECONDS = 100
"""How long a process may be silent before the others take it for dead."""

_SHOWN_SECONDS = 30.0
_LOST = ("gloo", "connection closed", "connection reset", "heartbeat", "coordination service", "unavailable", "barrier")


# --- finding each other -------------------------------------------------------------------------


def initialize(
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
    heartbeat_seconds: int = HEARTBEAT_SECONDS,
) -> None:
    """Join the other processes of this run, if there are any; call it before jax touches a device.

    They are found, in this order, by the arguments or the variables RLJAX_COORDINATOR, RLJAX_NUM_PROCESSES and
    RLJAX_PROCESS_ID; as the tasks of a SLURM step; as the hosts of a TPU slice, or of several, in GKE or on TPU
    VMs. Else, and with ``num_processes=1``, this process is alone and nothing is started.

    Args:
      coordinator: "host:port" of process 0, which every process can reach.
      num_processes: how many there are.
      process_id: which one this is, from 0.
      heartbeat_seconds: a process silent for so long is taken for dead, and the others end.

    Raises:
      ValueError: an argument or variable is missing, malformed or out of range; it is named.
      RuntimeError: the other processes could not be reached.
    """
    if heartbeat_seconds < 1:
        raise ValueError(f"--heartbeat_seconds={heartbeat_seconds}: must be at least 1")
    found = arguments(os.environ, coordinator, num_processes, process_id)
    if found is None or jax.distributed.is_initialized():
        return
    _let_cpus_speak()
    # the leader still draws its plots when the others are done
    found |= {"heartbeat_timeout_seconds": heartbeat_seconds, "shutdown_timeout_seconds": max(heartbeat_seconds, 60)}
    try:
        jax.distributed.initialize(**found)
    except ValueError as error:  # jax found no cluster where the environment names one
        raise RuntimeError(
            f"the environment names hosts of a TPU slice, but jax does not find it ({error}). Is jax[tpu] installed? "
            "Give --coordinator, --num_processes and --process_id, or --num_processes=1 to run on this host alone."
        ) from error
    if jax.default_backend() == "cpu":  # a program that was compiled before runs in several threads all the same
        jax.config.update("jax_enable_compilation_cache", False)


def _let_cpus_speak() -> None:
    """Let processes of CPUs communicate, by gloo; other platforms have their own ways.

    gloo tells one collective from another by their order alone, so each device must run its program in one thread: in
    several, a gather and a loop that reduces start in an order of their own on every host, and all wait for ever.
    """
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"


def arguments(
    environment: Mapping[str, str], coordinator: str | None, num_processes: int | None, process_id: int | None
) -> dict[str, Any] | None:
    """Return what ``jax.distributed.initialize`` is to be given, None where this process is alone.

    What is left out of it jax finds by itself. Raises as ``initialize``.
    """
    given: dict[str, Any] = {
        f"--coordinator ({COORDINATOR})": coordinator or environment.get(COORDINATOR),
        f"--num_processes ({NUM_PROCESSES})": _whole(num_processes, environment, NUM_PROCESSES),
        f"--process_id ({PROCESS_ID})": _whole(process_id, environment, PROCESS_ID),
    }
    address, count, number = given.values()
    if count is not None and count < 1:
        raise ValueError(f"--num_processes ({NUM_PROCESSES}) is {count}: must be at least 1")
    if count == 1 and not number:
        return None
    missing = [name for name, value in given.items() if value is None]
    if address is not None and count is not None and number is not None:
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"--coordinator ({COORDINATOR}) is {address!r}: must be HOST:PORT, such as 10.0.0.2:8476")
        if not 0 <= number < count:
            raise ValueError(
                f"--process_id ({PROCESS_ID}) is {number}: must be from 0 to {count - 1}, one less than --num_processes"
            )
        every = {"coordinator_address": address, "num_processes": count, "process_id": number}
        return {**every, "cluster_detection_method": "deactivate"}
    if len(missing) < len(given):
        there = [name for name in given if name not in missing]
        raise ValueError(f"{' and '.join(there)} given, but not {' and '.join(missing)}: give all three or none")
    return _slurm(environment) or _tpu(environment)


def _whole(value: int | None, environment: Mapping[str, str], name: str) -> int | None:
    if value is not None or name not in environment:
        return value
    try:
        return int(environment[name])
    except ValueError:
        raise ValueError(f"{name}={environment[name]!r}: must be a whole number") from None


def _slurm(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments in a job step of several tasks; a batch script itself is in no step."""
    if not {"SLURM_STEP_NODELIST", "SLURM_JOB_ID", "SLURM_PROCID", "SLURM_LOCALID"} <= environment.keys():
        return None
    tasks = int(environment.get("SLURM_STEP_NUM_TASKS") or environment.get("SLURM_NTASKS") or 1)
    if tasks == 1:
        return None
    found: dict[str, Any] = {"num_processes": tasks, "cluster_detection_method": "slurm"}
    # One task a node has all of the node's devices; of several each has the one of its local number, as jax has it.
    return {**found, "local_device_ids": []} if tasks == int(environment.get("SLURM_STEP_NUM_NODES") or 0) else found


def _tpu(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Return the arguments on a host of TPUs that is one of several, or may be.

    GKE names the hosts in the environment; a TPU VM asks its metadata server, which is there only where TPU chips
    are: where it finds none, importing jax has set TPU_SKIP_MDS_QUERY.
    """
    if "tpu" not in (environment.get("JAX_PLATFORMS") or "tpu"):
        return None
    hosts = environment.get("TPU_PROCESS_ADDRESSES") or environment.get("TPU_WORKER_HOSTNAMES")
    if hosts or "TPU_PROCESS_ADDRESSES_PATH" in environment:
        slices = int(environment.get("MEGASCALE_NUM_SLICES") or 1)
        alone = hosts is not None and len(hosts.split(",")) * slices == 1
        return None if alone else {}
    return None if "TPU_SKIP_MDS_QUERY" in environment else {}


# --- telling each other -------------------------------------------------------------------------


def several() -> bool:
    """Tell whether this process is one of several. One alone has touched no device when this returns."""
    return jax.distributed.is_initialized() and jax.process_count() > 1


def leader() -> bool:
    """Tell whether this is process 0, which writes what the run writes."""
    return not several() or jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Return the value of every process, in their order, on each of them; any value that pickles, small."""
    if not several():
        return [value]
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    sizes = multihost_utils.process_allgather(np.array(content.size, np.int32))
    padded = np.zeros(1 << int(sizes.max() - 1).bit_length(), np.uint8)  # few sizes, so few programs
    padded[: content.size] = content
    rows = multihost_utils.process_allgather(padded)
    return [pickle.loads(row[:size].tobytes()) for row, size in zip(rows, sizes, strict=True)]


def together(action: Callable[[], T]) -> T:
    """Return action(), which must not communicate; where it fails on one process, it fails on all.

    Raises:
      ValueError: it failed on another process, which raises its own error; storage.Unavailable where it was that.
    """
    if not several():
        return action()
    value, error = None, None
    try:
        value = action()
    except Exception as caught:
        error = caught
    told = gather(None if error is None else f"{type(error).__name__}: {error}")
    if error is not None:
        raise error
    for process, text in enumerate(told):
        if text is not None:
            kind = storage.Unavailable if text.startswith(storage.Unavailable.__name__) else ValueError
            raise kind(f"process {process} of {len(told)}: {text}")
    return value  # pyright: ignore[reportReturnType]  None only where action() is


def from_leader(read: Callable[[], T]) -> T:
    """Return read() of process 0 on every process; the others do not call it. Fails on all where it fails."""
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
    """Raise ValueError, on every process, unless all see this file, which process 0 has written.

    A network's file system may take a while to show it.
    """

    def look() -> None:
        deadline = time.monotonic() + _SHOWN_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise ValueError(f"{path}, which process 0 has written, is not there: all hosts must share the folder")
            time.sleep(0.5)

    if several():
        gather(None)  # written by now
        together(look)


# --- rows ---------------------------------------------------------------------------------------


def fetch(tree: types.Tree) -> types.Tree:
    """Return arrays as NumPy, whole on every process."""

    def whole(leaf: Any) -> np.ndarray:
        spread = isinstance(leaf, jax.Array) and not (leaf.is_fully_addressable or leaf.is_fully_replicated)
        return multihost_utils.process_allgather(leaf, tiled=True) if spread else np.asarray(leaf)

    return jax.tree.map(whole, tree) if several() else jax.device_get(tree)


def own_rows(arrays: Sequence[types.Array], sharding: jax.sharding.Sharding) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return (their places [n], the rows) that this process answers for: each row is one process's alone.

    ``arrays`` [B, ...] each, over all processes or equal on all; ``sharding`` says which row lies where, and of
    copies the first counts.
    """
    count = arrays[0].shape[0]
    if not several():
        return np.arange(count), jax.device_get(list(arrays))
    owner: dict[tuple[int, ...], Any] = {}
    for device, index in sharding.devices_indices_map((count,)).items():
        owner.setdefault((index or (slice(None),))[0].indices(count), device)
    spans = sorted(span for span, device in owner.items() if device.process_index == jax.process_index())
    place = np.concatenate([np.zeros(0, np.int64), *(np.arange(*span) for span in spans)])

    def mine(array: types.Array) -> np.ndarray:
        if not isinstance(array, jax.Array) or array.is_fully_addressable:
            return np.asarray(array)[place]
        shards = {s.index[0].indices(count): s.data for s in jax.device_put(array, sharding).addressable_shards}
        return np.concatenate([np.zeros((0, *array.shape[1:]), array.dtype), *(shards[span] for span in spans)])

    return place, [mine(array) for array in arrays]


def lay_rows(read: Callable[[np.ndarray], types.Tree], count: int, sharding: jax.sharding.Sharding) -> types.Tree:
    """Return read(arange(count)) as arrays over all processes; each calls it for the rows that its devices hold."""
    spans = sharding.addressable_devices_indices_map((count,)).values()
    held = np.unique(np.concatenate([np.arange(count)[span] for span in spans if span is not None]))

    def lay(leaf: Any) -> jax.Array:
        def piece(index: Any) -> np.ndarray:
            return np.asarray(leaf)[np.searchsorted(held, np.arange(count)[index[0]])]

        return jax.make_array_from_callback((count, *leaf.shape[1:]), sharding, piece)

    return jax.tree.map(lay, read(held))


# --- the end ------------------------------------------------------------------------------------


@contextlib.contextmanager
def notice() -> Iterator[Callable[[int], bool]]:
    """Yield what tells, asked once a step, whether to stop behind it: the platform gave notice (SIGTERM).

    jax watches for SIGTERM where it has joined processes, and a handler of ours would silence it; asked at every
    step, it names to all of them the same one, which none has passed. A process alone has a handler, if this is the
    main thread.
    """
    if jax.distributed.is_initialized():
        yield multihost_utils.reached_preemption_sync_point
        return
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False
        return
    before = signal.signal(signal.SIGTERM, lambda *_: event.set())
    try:
        yield lambda step: event.is_set()
    finally:
        signal.signal(signal.SIGTERM, before)


def lost(error: BaseException | None) -> bool:
    """Tell whether an error, or what caused it, says that another process is gone."""
    while error is not None:
        told = f"{type(error).__name__}: {error}"  # an error of another type may tell of one
        if "JaxRuntimeError" in told and any(word in told.lower() for word in _LOST):
            return several()
        error = error.__cause__ or error.__context__
    return False


def leave(code: int) -> NoReturn:
    """End this process at once: waiting for the others, as an ordinary exit does, would hang where one is gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
