"""Work directories, checkpoints, data and weights on gs://, against an emulator behind a proxy that fails on demand."""

import concurrent.futures
import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("gcp_storage_emulator")

import gcsfs.retry
from orbax.checkpoint._src.serialization import tensorstore_utils

from rljax import checkpoint, storage
from tests import flaky

# Tensorstore's threads may still answer to an event loop that orbax closed after the first error.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ONE = jax.devices()[:1]
ROOT = pathlib.Path(__file__).parent.parent
BUCKET = f"gs://{flaky.BUCKET}"
KINDS = ("429", "503", "refuse", "forget", "cut")


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Return the store; no other test file of this process may have opened gs:// before."""
    with flaky.store() as running, pytest.MonkeyPatch.context() as patch:
        for name, value in {**running.environment, "RLJAX_CACHE": str(tmp_path_factory.mktemp("cache"))}.items():
            patch.setenv(name, value)
        yield running


@pytest.fixture(autouse=True)
def _no_faults(store):
    store.plan()
    yield
    store.plan()


def in_parallel(*calls):
    """Return what calls return; those that wait for another attempt wait at the same time."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        return [future.result() for future in [threads.submit(call) for call in calls]]


# --- files -------------------------------------------------------------------------------------------


def test_paths_keep_their_slashes_and_files_are_found(store, tmp_path):
    for folder in (f"{BUCKET}/files", str(tmp_path / "files")):
        if not storage.remote(folder):
            os.mkdir(folder)
        assert str(storage.path(folder)) == folder
        file = storage.path(folder) / "a.bin"
        assert not storage.exists(file) and not storage.is_dir(file) and storage.names(file.parent / "none") == []
        storage.write(file, b"0123456789")
        storage.write(file, "åß")  # again, shorter
        assert storage.exists(file) and not storage.is_dir(file) and storage.is_dir(folder)
        assert storage.read(file) == "åß".encode() and storage.size(file) == 4
        assert storage.read(file, 1, 3) == "åß".encode()[1:3] and storage.read(file, 2) == "ß".encode()
        assert storage.names(folder) == ["a.bin"]  # no temporary file
        with pytest.raises(FileNotFoundError):
            storage.read(file.parent / "b")


def test_every_kind_of_failure_is_tried_again_reading_and_writing(store):
    content = bytes(range(256)) * 400
    store.plan(*(flaky.Fault(kind, f"POST.*many/{kind}") for kind in KINDS))
    in_parallel(*(lambda k=kind: storage.write(f"{BUCKET}/many/{k}", content + k.encode()) for kind in KINDS))
    assert [fault.hits for fault in store.faults] == [1] * len(KINDS)
    store.plan(*(flaky.Fault(kind, f"GET /down.*many/{kind}") for kind in KINDS))
    found = in_parallel(*(lambda k=kind: storage.read(f"{BUCKET}/many/{k}") for kind in KINDS))
    assert [fault.hits for fault in store.faults] == [1] * len(KINDS)
    assert found == [content + kind.encode() for kind in KINDS]


def failing(times, error):
    left = [error] * times
    return lambda: left.pop() and None if False else (_raise(left.pop()) if left else "done")


def _raise(error):
    raise error


@pytest.mark.parametrize(
    "error",
    [
        gcsfs.retry.HttpError({"code": 503, "message": "Service Unavailable"}),
        gcsfs.retry.HttpError({"code": 429, "message": "slow down"}),
        ConnectionResetError("reset by peer"),
        TimeoutError("timed out"),
        ValueError("UNAVAILABLE: CURL error[7] Couldn't connect to server"),  # as tensorstore says it
    ],
    ids=repr,
)
def test_what_may_pass_is_tried_again_and_said(error, monkeypatch):
    pauses = []
    monkeypatch.setattr(storage.time, "sleep", pauses.append)
    with pytest.warns(storage.StorageWarning, match=r"gs://b/file: attempt \d failed \(.*trying again") as said:
        assert storage.retry(failing(7, error), "gs://b/file") == "done"
    assert [f"attempt {i}" in str(w.message) for i, w in enumerate(said, start=1)] == [True] * 7
    longest = [1, 2, 4, 8, 16, 30, 30]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    with pytest.raises(storage.Unavailable, match=r"gs://b/file: attempt 1 failed .*gave up") as error_:
        storage.retry(failing(1, error), "gs://b/file", patience=0.0)
    assert storage.transient(error_.value) and error_.value.__cause__ is error


def test_what_will_not_change_is_raised_at_once():
    for error in (
        FileNotFoundError("gs://b/file"),
        OSError("Forbidden: gs://b/file"),
        gcsfs.retry.HttpError({"code": 403, "message": "no"}),
        ValueError("NOT_FOUND: no such key"),
    ):
        with pytest.raises(type(error)) as caught:
            storage.retry(failing(1, error), "gs://b/file")
        assert caught.value is error


# --- folders: whole or not there, wherever it stops ----------------------------------------------------


def put(folder, names):
    for name in (*names, storage.COMMITTED):
        storage.write(f"{BUCKET}/{folder}/{name}", name.encode())


def content(store, folder):
    return {n.removeprefix(f"{folder}/") for n in store.names() if n.startswith(f"{folder}/")}


def test_a_move_or_removal_that_stops_anywhere_leaves_no_half_of_a_folder(store):
    names = ["state/d/a", "state/d/b", "record"]
    whole = {*names, storage.COMMITTED}
    stopped = 0
    for skip in range(20):
        put(f"stop/{skip}/7", names)
        store.plan(flaky.Fault("403", "^(POST|PUT|DELETE)", 10**6, skip))
        try:
            storage.move(f"{BUCKET}/stop/{skip}/7", f"{BUCKET}/stop/{skip}/aside-7")
            done = True
        except OSError:
            done, stopped = False, stopped + 1
        store.plan()
        finished = storage.finished(f"{BUCKET}/stop/{skip}")
        assert finished, "one of the two is whole"
        for name in finished:
            assert content(store, f"stop/{skip}/{name}") == whole
        if done:
            assert finished == ["aside-7"] and content(store, f"stop/{skip}/7") == set()
            break
    assert done and stopped >= 2 * len(whole)  # it was stopped before every copy and every deletion
    for skip in range(20):
        put(f"gone/{skip}/7", names)
        store.plan(flaky.Fault("403", "^DELETE", 10**6, skip))
        try:
            storage.remove(f"{BUCKET}/gone/{skip}/7")
            break
        except OSError:
            left = content(store, f"gone/{skip}/7")
            assert storage.finished(f"{BUCKET}/gone/{skip}") == (["7"] if left == whole else [])
        finally:
            store.plan()
    assert skip == len(whole) and content(store, f"gone/{skip}/7") == set()


def test_move_and_removal_survive_failures(store):
    put("passing/7", ["a", "b"])
    store.plan(
        flaky.Fault("503", "POST.*rewriteTo.*passing/8/a"),
        flaky.Fault("forget", "POST.*rewriteTo.*passing/8/b"),
        flaky.Fault("forget", "DELETE.*passing/7/a"),
        flaky.Fault("429", f"DELETE.*{storage.COMMITTED}"),
    )
    storage.move(f"{BUCKET}/passing/7", f"{BUCKET}/passing/8")
    assert [fault.hits for fault in store.faults] == [1] * 4
    assert storage.finished(f"{BUCKET}/passing") == ["8"]
    assert content(store, "passing/8") == {"a", "b", storage.COMMITTED}


# --- checkpoints -------------------------------------------------------------------------------------


def make(step):
    noise = jax.random.bits(jax.random.key(step), (64, 64))
    return {"step": jnp.int32(step), "noise": noise, **{f"w{i}": jnp.full((50,), step + i / 8) for i in range(20)}}


LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make(0))


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def write(directory, steps, **options):
    with checkpoint.Checkpointer(directory, **{"max_to_keep": 9, **options}) as saver:
        for step in steps:
            saver.save(step, make(step), {"step": step})


def test_a_checkpoint_survives_failures_of_every_request_of_its_life(store):
    directory = f"{BUCKET}/survives"
    write(directory, [1])
    store.plan(
        flaky.Fault("503", "POST.*survives/2/state/ocdbt"),  # tensorstore
        flaky.Fault("429", "POST.*survives/2/state/d/"),
        flaky.Fault("refuse", "POST.*survives/2/state/_sharding"),
        flaky.Fault("forget", "POST.*survives/2/state/manifest.ocdbt"),
        flaky.Fault("503", "POST.*survives/2/record/metadata"),  # gcsfs
        flaky.Fault("forget", "POST.*survives/2/state/_METADATA"),
        flaky.Fault("forget", "POST.*survives/2/commit_success.*upload_id"),
        flaky.Fault("refuse", "DELETE.*survives/1/commit_success"),
    )
    with checkpoint.Checkpointer(directory, max_to_keep=1) as saver:
        saver.restore(LIKE)
        saver.save(2, make(2), {"step": 2})
    assert [fault.hits for fault in store.faults] == [1] * 8, store.faults
    assert saver.all_steps() == [2] and content(store, "survives/1") == set()
    store.plan(
        flaky.Fault("cut", "GET.*survives/2/state/d/"),
        flaky.Fault("503", "GET.*survives/2/state/manifest"),
        flaky.Fault("cut", "GET.*download.*survives/2/record/metadata"),
        flaky.Fault("429", "GET.*/o.*prefix=survives/&"),
    )
    state, extras, step = checkpoint.Checkpointer(directory).restore(LIKE)
    assert [fault.hits for fault in store.faults] == [1] * 4, store.faults
    assert (extras, step) == ({"step": 2}, 2)
    same(state, make(2))


def test_keeps_the_newest_and_the_best_and_moves_the_corrupt_aside(store):
    directory = f"{BUCKET}/keeps"
    with checkpoint.Checkpointer(directory, max_to_keep=2) as saver:
        for step, accuracy in ((1, 0.5), (2, 0.9), (3, 0.1), (4, 0.2)):
            saver.save(step, make(step), {}, {"accuracy": accuracy})
    assert saver.all_steps() == [2, 3, 4] and saver.best_step() == 2
    assert content(store, "keeps/1") == set()
    array = max(
        (n for n in store.names() if "keeps/4/state/d/" in n), key=lambda n: storage.size(f"gs://{flaky.BUCKET}/{n}")
    )
    bits = bytearray(storage.read(f"{BUCKET}/{array}"))
    bits[len(bits) // 2] ^= 0x10
    storage.write(f"{BUCKET}/{array}", bytes(bits))
    damaged = content(store, "keeps/4")
    with checkpoint.Checkpointer(directory, max_to_keep=2) as saver:
        with pytest.warns(checkpoint.CheckpointWarning, match="step 4.*step 3"):
            state, _, step = saver.restore(LIKE)
        same(state, make(3))
        saver.save(4, make(4), {})
    assert content(store, "keeps/corrupt-4") == damaged
    assert saver.all_steps() == [2, 3, 4]
    same(checkpoint.Checkpointer(directory).restore(LIKE)[0], make(4))
    with checkpoint.Checkpointer(directory) as saver:  # what lies aside is no half-written save to clean up
        saver.restore(LIKE)
        saver.save(5, make(5), {})
    assert content(store, "keeps/corrupt-4") == damaged


@pytest.mark.parametrize(("kind", "error"), [("403", checkpoint.CheckpointError), ("503", storage.Unavailable)])
def test_a_store_that_does_not_take_a_checkpoint_fails_the_save_and_leaves_the_others(store, kind, error, monkeypatch):
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        monkeypatch.setitem(context, "gcs_request_retries", {"max_retries": 2, "initial_delay": "10ms"})
    directory = f"{BUCKET}/down-{kind}"
    write(directory, [1, 2])
    store.plan(flaky.Fault(kind, f"POST.*down-{kind}/3/state/(d|ocdbt)", 10**6))
    saver = checkpoint.Checkpointer(directory)
    saver.restore(LIKE)
    with pytest.raises(error, match=rf"step 3 in {directory} was not written .*those before it stand") as caught:
        saver.save(3, make(3), {})
        saver.wait()
    assert "\n" not in str(caught.value)
    saver.close()
    store.plan()
    half = content(store, f"down-{kind}/3")
    assert half and storage.COMMITTED not in half
    assert checkpoint.Checkpointer(directory).all_steps() == [1, 2]
    with checkpoint.Checkpointer(directory) as saver:
        state, _, step = saver.restore(LIKE)
        assert step == 2
        same(state, make(2))
        saver.save(3, make(3), {})
    assert saver.all_steps() == [2, 3]
    same(saver.restore(LIKE)[0], make(3))


def test_a_store_that_does_not_answer_is_no_reason_to_fall_back(store, monkeypatch):
    for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
        monkeypatch.setitem(context, "gcs_request_retries", {"max_retries": 1, "initial_delay": "10ms"})
    write(f"{BUCKET}/mute", [1, 2])
    store.plan(flaky.Fault("503", "GET.*mute/2/state/(d|ocdbt)", 10**6))
    with pytest.raises(storage.Unavailable):
        checkpoint.Checkpointer(f"{BUCKET}/mute").restore(LIKE)
    store.plan()
    assert checkpoint.Checkpointer(f"{BUCKET}/mute").restore(LIKE)[2] == 2
