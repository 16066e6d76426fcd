"""Work directories, checkpoints, data and weights on gs://, against an emulator behind a proxy that fails on demand."""

import concurrent.futures
import functools
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import gcsfs.retry
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rich.console
from orbax.checkpoint._src.serialization import tensorstore_utils

from rljax.config import files, schema
from rljax.data import storage, tokenizers
from rljax.environments.questions import published
from rljax.host import owners, workdirs
from rljax.models import architectures, parameters
from rljax.models.checkpoints import weights
from rljax.run import loop, programs
from rljax.run.evaluation import loading
from rljax.run.records import checkpoints, forks, metrics
from rljax.run.reports import report, show_rollouts
from rljax.run.reports.comparison import compare
from rljax.run.reports.pages import plots
from tests.data import flaky
from tests.run import kills
from tests.run.reports import test_compare
from tests.support import compiler, tiny

pytest.importorskip("gcp_storage_emulator")

# Tensorstore's threads may still answer to an event loop that orbax closed after the first error.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")

ONE = jax.devices()[:1]
ROOT = pathlib.Path(__file__).parents[2]
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


UNREACHABLE = """
import concurrent.futures
from rljax.data import storage
from rljax.run.records import checkpoints
storage.PATIENCE = 0.0
place = "gs://somewhere/run"
calls = {
    "exists": storage.exists,
    "is_dir": storage.is_dir,
    "names": storage.names,
    "read": storage.read,
    "write": lambda place: storage.write(place, b"x"),
    "all_steps": lambda place: checkpoints.Checkpointer(place).all_steps(),
}
with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
    for name, answer in {name: threads.submit(call, place) for name, call in calls.items()}.items():
        try:
            print(name, "answered", answer.result())
        except storage.Unavailable as error:
            print(name, "unavailable", str(error).partition(":")[0] == "gs")
"""


@pytest.fixture(scope="module", autouse=True)
def unreachable(store):
    """Start a process that asks a store which is not there; it waits half a minute for gcsfs to give up."""
    nowhere = {"STORAGE_EMULATOR_HOST": "http://127.0.0.1:1", "PYTHONPATH": str(ROOT)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", UNREACHABLE], env={**os.environ, **nowhere}, **pipes)
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def quick(monkeypatch):
    """Let tensorstore begin its pauses with a hundredth of a second; a number of retries may be given."""

    def set_(**options):
        for context in (tensorstore_utils._BASE_TS_CONTEXT, tensorstore_utils._DEFAULT_OCDBT_TS_CONTEXT):
            monkeypatch.setitem(context, "gcs_request_retries", {"initial_delay": "10ms", **options})

    set_()
    return set_


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


@pytest.mark.full
def test_every_kind_of_failure_is_tried_again_reading_and_writing(store):
    content = bytes(range(256)) * 400
    store.plan(*(flaky.Fault(kind, f"POST.*many/{kind}") for kind in KINDS))
    in_parallel(*(lambda k=kind: storage.write(f"{BUCKET}/many/{k}", content + k.encode()) for kind in KINDS))
    assert [fault.hits for fault in store.faults] == [1] * len(KINDS)
    store.plan(*(flaky.Fault(kind, f"GET /down.*many/{kind}") for kind in KINDS))
    contents = in_parallel(*(lambda k=kind: storage.read(f"{BUCKET}/many/{k}") for kind in KINDS))
    assert [fault.hits for fault in store.faults] == [1] * len(KINDS)
    assert contents == [content + kind.encode() for kind in KINDS]


def failing(times, error):
    """Return a function that raises ``error`` so many times, and then returns "done"."""
    left = [error] * times

    def call():
        if left:
            raise left.pop()
        return "done"

    return call


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
    with pytest.warns(storage.StorageWarning, match=r"gs://b/file: attempt \d failed \(.*trying again") as caught:
        assert storage.retry(failing(7, error), "gs://b/file") == "done"
    said = [str(each.message) for each in caught if each.category is storage.StorageWarning]
    assert [f"attempt {i}" in text for i, text in enumerate(said, start=1)] == [True] * 7
    longest = [1, 2, 4, 8, 16, 30, 30]
    assert all(most / 2 <= pause <= most for pause, most in zip(pauses, longest, strict=True))
    with pytest.raises(storage.Unavailable, match=r"gs://b/file: attempt 1 failed .*gave up") as error_:
        storage.retry(failing(1, error), "gs://b/file", patience=0.0)
    assert storage.transient(error_.value) and error_.value.__cause__ is error


def test_what_will_not_change_is_raised_at_once():
    for error in (
        gcsfs.retry.HttpError({"code": 403, "message": "no"}),
        ValueError("NOT_FOUND: no such key"),
    ):
        with pytest.raises(type(error)) as caught:
            storage.retry(failing(1, error), "gs://b/file")
        assert caught.value is error and error.__cause__ is None and not storage.transient(error)
    for error, kind in ((FileNotFoundError("http"), FileNotFoundError), (OSError("Forbidden: http"), PermissionError)):
        with pytest.raises(kind, match=r"^gs://b/file: "):
            storage.retry(failing(1, error), "gs://b/file")


def test_a_folder_made_in_a_browser_is_one_like_any_other(store, tmp_path):
    store.make_folder("made")
    store.make_folder("made/deep")
    put("made", ["a", "deep/b"])
    folder = f"{BUCKET}/made"
    assert storage.is_dir(folder) and storage.names(folder) == ["a", storage.COMMITTED, "deep"]
    assert storage.names(f"{folder}/deep") == ["b"] and storage.names(f"{folder}/a") == []
    assert (storage.stage(folder, tmp_path) / "deep" / "b").read_bytes() == b"deep/b"
    storage.move(folder, f"{folder}-again")
    assert content(store, "made-again") == {"a", "deep/b", storage.COMMITTED}


# --- folders: whole or not there, wherever it stops ----------------------------------------------------


def put(folder, names):
    for name in (*names, storage.COMMITTED):
        storage.write(f"{BUCKET}/{folder}/{name}", name.encode())


def content(store, folder):
    return {n.removeprefix(f"{folder}/") for n in store.names() if n.startswith(f"{folder}/")}


@pytest.mark.full
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


@pytest.mark.full
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
    return {"step": jnp.int32(step), "noise": noise, **{f"w{i}": jnp.full((50,), step + i / 8) for i in range(4)}}


LIKE = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), make(0))


def same(left, right):
    jax.tree.map(np.testing.assert_array_equal, left, right)


def write(directory, steps, **options):
    with checkpoints.Checkpointer(directory, **{"max_to_keep": 9, **options}) as saver:
        for step in steps:
            saver.save(step, make(step), {"step": step})


@pytest.mark.full
def test_a_checkpoint_survives_failures_of_every_request_of_its_life(store, quick):
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
    with checkpoints.Checkpointer(directory, max_to_keep=1) as saver:
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
    state, extras, step = checkpoints.Checkpointer(directory).restore(LIKE)
    assert [fault.hits for fault in store.faults] == [1] * 4, store.faults
    assert (extras, step) == ({"step": 2}, 2)
    same(state, make(2))


@pytest.mark.full
def test_keeps_the_newest_and_the_best_and_moves_the_corrupt_aside(store):
    directory = f"{BUCKET}/keeps"
    with checkpoints.Checkpointer(directory, max_to_keep=1) as saver:
        for step, accuracy in ((1, 0.9), (2, 0.1), (3, 0.2)):
            saver.save(step, make(step), {}, {"accuracy": accuracy})
    assert saver.all_steps() == [1, 3] and saver.best_step() == 1
    assert content(store, "keeps/2") == set()
    arrays = [f"gs://{flaky.BUCKET}/{name}" for name in store.names() if "keeps/3/state/d/" in name]
    largest = max(arrays, key=storage.size)
    bits = bytearray(storage.read(largest))
    bits[len(bits) // 2] ^= 0x10
    storage.write(largest, bytes(bits))
    damaged = content(store, "keeps/3")
    with checkpoints.Checkpointer(directory, max_to_keep=1) as saver:
        with pytest.warns(checkpoints.CheckpointWarning, match="step 3.*step 1"):
            state, _, _ = saver.restore(LIKE)
        same(state, make(1))
        saver.save(3, make(3), {})
    assert content(store, "keeps/corrupt-3") == damaged
    assert saver.all_steps() == [1, 3]
    with checkpoints.Checkpointer(directory, max_to_keep=1) as saver:  # what lies aside is no half-written save
        same(saver.restore(LIKE)[0], make(3))
        saver.save(4, make(4), {})
    assert content(store, "keeps/corrupt-3") == damaged and saver.all_steps() == [1, 4]


@pytest.mark.full
@pytest.mark.parametrize(("kind", "error"), [("403", checkpoints.CheckpointError), ("503", storage.Unavailable)])
def test_a_store_that_does_not_take_a_checkpoint_fails_the_save_and_leaves_the_others(store, kind, error, quick):
    quick(max_retries=2)
    directory = f"{BUCKET}/down-{kind}"
    write(directory, [2])
    store.plan(flaky.Fault(kind, f"POST.*down-{kind}/3/state/(d|ocdbt)", 10**6))
    saver = checkpoints.Checkpointer(directory)
    saver.restore(LIKE)
    with pytest.raises(error, match=rf"step 3 in {directory} was not written .*older checkpoints are intact") as caught:
        saver.save(3, make(3), {})
        saver.wait()
    assert "\n" not in str(caught.value)
    saver.close()
    store.plan()
    half = content(store, f"down-{kind}/3")
    assert half and storage.COMMITTED not in half
    assert checkpoints.Checkpointer(directory).all_steps() == [2]
    with checkpoints.Checkpointer(directory) as saver:
        state, _, step = saver.restore(LIKE)
        assert step == 2
        same(state, make(2))
        saver.save(3, make(3), {})
    assert saver.all_steps() == [2, 3]
    same(saver.restore(LIKE)[0], make(3))


@pytest.mark.full
def test_a_store_that_does_not_answer_is_no_reason_to_fall_back(store, quick):
    quick(max_retries=1)
    write(f"{BUCKET}/mute", [1, 2])
    store.plan(flaky.Fault("503", "GET.*mute/2/state/(d|ocdbt)", 10**6))
    with pytest.raises(storage.Unavailable):
        checkpoints.Checkpointer(f"{BUCKET}/mute").restore(LIKE)
    store.plan()
    assert checkpoints.Checkpointer(f"{BUCKET}/mute").restore(LIKE)[2] == 2


# --- work directories --------------------------------------------------------------------------------


def test_the_logs_of_a_remote_work_directory_are_mirrored(store, tmp_path):
    place, events = f"{BUCKET}/mirrored", "tensorboard/events"
    directory = workdirs.WorkDirectory(place, seconds=0.05)
    directory.open()
    log = metrics.StepLog(directory.logs / "metrics.jsonl")
    store.plan(flaky.Fault("403", "POST.*mirrored/metrics"))
    with pytest.warns(storage.StorageWarning, match=r"mirrored: the logs were not uploaded .*trying again later"):
        log.append({"step": 1})
        deadline = time.monotonic() + 30
        while "mirrored/metrics.jsonl" not in store.names() and time.monotonic() < deadline:
            time.sleep(0.05)
    assert storage.read(f"{place}/metrics.jsonl") == b'{"step": 1}\n'  # nobody asked for it
    (directory.logs / "tensorboard").mkdir()
    (directory.logs / events).write_bytes(b"event")
    log.append({"step": 2})
    directory.upload()
    assert storage.read(f"{place}/metrics.jsonl") == b'{"step": 1}\n{"step": 2}\n'
    assert storage.read(f"{place}/{events}") == b"event"
    store.plan(flaky.Fault("403", "POST.*mirrored/metrics", 10**6))
    log.append({"step": 3})
    with pytest.raises(PermissionError, match="mirrored"):
        directory.upload()
    store.plan()
    directory.close()
    assert storage.read(f"{place}/metrics.jsonl").count(b"\n") == 3
    assert storage.names(directory.path) == ["metrics.jsonl", "tensorboard"]


def test_every_log_that_a_run_appends_to_comes_back_to_another_machine():
    folder = pathlib.Path(workdirs.__file__).parents[1]
    named = {name for f in folder.rglob("*.py") for name in re.findall(r'logs / "(\w+\.jsonl)"', f.read_text())}
    assert "arrived.jsonl" in named and named <= set(workdirs.LOGS)


def test_a_resumed_run_knows_its_number_at_weights_and_biases(store):
    for start in range(2):  # the second one on another machine
        directory = workdirs.WorkDirectory(f"{BUCKET}/numbered")
        directory.open()
        marker = directory.logs / "wandb.id"
        assert start == 0 or marker.read_text() == "1234abcd"
        marker.write_text("1234abcd")
        directory.close()
        marker.unlink()


def test_a_log_left_here_counts_where_the_remote_one_is_its_beginning(store):
    def open_(place):
        directory = workdirs.WorkDirectory(place)
        directory.open()
        directory.close()
        return directory

    directory = open_(f"{BUCKET}/left")
    log = directory.logs / "verdicts.jsonl"
    for there, here, expected in (
        (None, b"1\n", None),  # the run's first log never got there, or the run was deleted
        (b"1\n", b"1\n2\n", b"1\n2\n"),
        (b"1\n2\n3\n", b"1\n2\n", b"1\n2\n3\n"),  # another machine went on
        (b"1\n2b\n", b"1\n2a\n3\n", b"1\n2b\n"),
    ):
        if there is not None:
            storage.write(f"{BUCKET}/left/verdicts.jsonl", there)
        log.write_bytes(here)
        (directory.logs / "other").write_bytes(b"")
        open_(f"{BUCKET}/left")
        assert (log.read_bytes() if log.exists() else None) == expected
        assert not (directory.logs / "other").exists()


def owner(place, lock):
    return owners.Owner(storage.path(place), lock)


@pytest.mark.full
def test_a_remote_work_directory_has_one_owner(store, tmp_path, monkeypatch):
    place, record = f"{BUCKET}/owned", f"{BUCKET}/owned/.owner"
    monkeypatch.setattr(owners, "_BEAT", 0.05)
    monkeypatch.setattr(owners, "_STALE", 1.0)
    store.plan(flaky.Fault("forget", "POST.*owned/.owner"))  # created, but the response is lost
    first = owner(place, tmp_path / "one.lock")
    first.acquire()
    assert store.faults[0].hits == 1
    facts = json.loads(storage.read(record))
    for lock in ("two.lock", "one.lock"):  # on another machine; on the same
        with pytest.raises(ValueError, match=rf"{place} is used by process {os.getpid()} on {facts['host']}, started"):
            owner(place, tmp_path / lock).acquire()
    first.check()
    first.release()
    assert storage.names(place) == [] and not (tmp_path / "one.lock").exists()
    monkeypatch.setattr(owners, "_BEAT", 60.0)
    first.acquire()
    second = owner(place, tmp_path / "two.lock")
    second.acquire()  # the first does not rewrite its record, as if it was killed
    with pytest.raises(OSError, match=r"owned is now used by process .*; this run stops"):
        first.check()
    first.release()  # leaves the record of the other
    second.check()
    storage.delete(record, storage.generation(record))
    with pytest.raises(OSError, match=r"owned was deleted during the run"):
        second.check()
    second.release()


def test_a_killed_owner_of_the_same_machine_is_replaced_at_once(store, tmp_path):
    place, lock = f"{BUCKET}/killed-owner", tmp_path / "a.lock"
    content = json.dumps({"host": "x", "pid": 1, "started": "then", "id": "1"}).encode()
    storage.write(f"{place}/.owner", content)
    lock.write_bytes(content)
    start = time.monotonic()
    successor = owner(place, lock)
    successor.acquire()
    assert time.monotonic() - start < owners._STALE / 2
    successor.release()
    assert storage.names(place) == []


@pytest.mark.full
def test_two_that_find_a_dead_owner_at_once_do_not_both_become_it(store, tmp_path, monkeypatch):
    monkeypatch.setattr(owners, "_BEAT", 0.05)
    monkeypatch.setattr(owners, "_STALE", 2.0)
    place = f"{BUCKET}/contested"
    storage.write(f"{place}/.owner", b"{}")

    def acquire(number):
        candidate = owner(place, tmp_path / f"{number}.lock")
        try:
            candidate.acquire()
        except ValueError as error:
            return str(error)
        return candidate

    outcomes = in_parallel(*(functools.partial(acquire, i) for i in range(3)))
    (winner,) = (x for x in outcomes if not isinstance(x, str))
    assert all("contested is used by " in x for x in outcomes if isinstance(x, str))
    winner.check()
    winner.release()


CONFIG = """
from tests.support import tiny


def get_config(arg=""):
    config = tiny.config("grpo(kl=0.01)", phase__main__steps=6, phase__main__evaluate="result", checkpoint__every=2)
    config.evaluation.final_prompts = 4
    return config
"""


def command(*arguments):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": compiler.QUICK}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen([sys.executable, "-m", "rljax", *arguments], env=environment, **pipes)


@pytest.fixture(scope="module")
def runs(store, tmp_path_factory):
    """Return (an undisturbed run's local folder, the place of one that was killed and resumed through failures)."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "tiny_config.py").write_text(CONFIG)
    config = files.load(str(folder / "tiny_config.py"), "")
    place = f"{BUCKET}/runs/killed"
    store.plan(flaky.Fault("hold", "POST.*runs/killed/checkpoints/4/state/d/"))
    process = command("--config", str(folder / "tiny_config.py"), "--workdir", place)
    loop.train(config, folder / "whole", progress=False, devices=ONE)  # meanwhile
    assert store.held.wait(240), process.communicate()[0]
    process.send_signal(signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL, output
    half = content(store, "runs/killed/checkpoints/4")
    assert half and storage.COMMITTED not in half
    assert checkpoints.Checkpointer(f"{place}/checkpoints").all_steps() == [2]
    logged = storage.read(f"{place}/metrics.jsonl").splitlines()
    assert [json.loads(line)["step"] for line in logged][:4] == [1, 2, 3, 4]  # there before its checkpoint
    store.plan(
        flaky.Fault("cut", "GET.*download.*killed/metrics.jsonl"),
        flaky.Fault("429", "GET.*killed/checkpoints/2/state/manifest"),
        flaky.Fault("refuse", "DELETE.*killed/checkpoints/4/"),
        flaky.Fault("503", "POST.*killed/checkpoints/4/state/ocdbt"),
        flaky.Fault("forget", "POST.*killed/checkpoints/6/state/manifest"),
        flaky.Fault("forget", "POST.*killed/metrics.jsonl"),
    )
    loop.train(config, place, progress=False, devices=ONE)
    assert [fault.hits for fault in store.faults] == [1] * 6, store.faults
    store.plan()
    return folder / "whole", place


@pytest.mark.full
def test_killed_in_a_save_and_resumed_through_failures_a_run_ends_bit_for_bit_the_same(runs):
    whole, place = runs
    for name in ("metrics.jsonl", "evaluations.jsonl", "rollouts.jsonl", "algorithm.txt", "tokenizer.model"):
        assert storage.read(f"{place}/{name}") == (whole / name).read_bytes(), name
    assert json.loads(storage.read(f"{place}/config.json")) == json.loads((whole / "config.json").read_text())
    leaves = kills.leaves(whole, 6)
    same(*(checkpoints.Checkpointer(f"{run}/checkpoints").restore(leaves, 6)[0] for run in runs))
    assert storage.names(place) == sorted(os.listdir(whole))
    assert storage.names(f"{place}/checkpoints") == sorted(os.listdir(whole / "checkpoints"))


@pytest.mark.full
def test_a_run_in_a_store_can_be_forked_but_not_renamed(runs):
    _, place = runs
    config = tiny.config("grpo(kl=0.01)", phase__main__steps=6, checkpoint__init=f"{place}@main")
    config.phase.more = schema.phase(steps=1)

    def start(*phases, **fields):
        config.phases = phases
        config.model.update(fields)
        complete = forks.complete(config)
        assert complete.checkpoint.init == f"{place}@6"
        return forks.load(programs.build(complete, tokenizers.load(forks.tokenizer(complete)), ONE))

    _, params, _ = loading.load(place)
    after = start("main", "more")
    assert after.state is not None and after.step == int(after.state.step) == 6
    same(after.state.params["policy"], params)
    before = start("more")  # no phase in common
    assert before.state is None and before.step == 0
    same(before.initial["policy"], params)
    with pytest.raises(ValueError, match=r"all phases had ended by step 6, so there is nothing to run"):
        start("main")
    with pytest.raises(ValueError, match=r"params/policy/embedding: saved \(\(17, 32\), .*expected \(\(17, 64\)"):
        start("more", width=64)
    with pytest.raises(ValueError, match=r"--fresh: .*killed contains a run, and an object store cannot rename it"):
        loop.train(config, place, fresh=True, progress=False, devices=ONE)


@pytest.mark.full
def test_what_reads_a_work_directory_reads_a_remote_one(runs):
    _, place = runs
    process = command("sample", place, "--prompt", "3+4=", "--samples", "2")
    shown = io.StringIO()
    show_rollouts.show(place, count=1, console=rich.console.Console(file=shown))  # meanwhile
    assert "step 6: 1 of" in shown.getvalue()
    report.write(place)
    assert b"Step 6 of 6, finished, started 2 times" in storage.read(f"{place}/report.html")
    history = [json.loads(line) for line in storage.read(f"{place}/metrics.jsonl").splitlines()]
    plots.learning_curve(history, storage.path(place) / "learning_curve.png")
    assert storage.read(f"{place}/learning_curve.png")[:4] == b"\x89PNG"
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0 and "step 6" in output and output.count("3+4=") >= 2, output


def test_a_work_directory_that_cannot_be_is_refused_before_anything_is_made():
    with pytest.raises(ValueError, match=r"gs://no-such-bucket/run: cannot be written to \(no such bucket\)"):
        loop.train(schema.default(), "gs://no-such-bucket/run", progress=False, devices=ONE)


# --- data and weights --------------------------------------------------------------------------------


@pytest.mark.full
def test_problems_on_gs_are_read_as_files_here_are(store, tmp_path):
    for name in ("train.jsonl", "test.jsonl"):
        lines = [json.dumps({"question": f"{name} {i}?", "answer": f"so #### {i}"}) for i in range(50)]
        (tmp_path / name).write_text("\n".join(lines))
        storage.write(f"{BUCKET}/data/{name}", (tmp_path / name).read_bytes())
    store.plan(flaky.Fault("cut", "GET.*download.*data/train"))
    there, here = published.gsm8k(f"{BUCKET}/data"), published.gsm8k(tmp_path)
    assert [fault.hits for fault in store.faults] == [1]
    for split in ("train", "heldout"):
        assert there.size(split) == 50
        assert [there.text(i, split) for i in range(50)] == [here.text(i, split) for i in range(50)]
    for missing, heldout in ((f"{BUCKET}/none", "test.jsonl"), (f"{BUCKET}/data", "absent.jsonl")):
        with pytest.raises(FileNotFoundError, match=r"gs://.*no such file"):
            published.gsm8k(missing, heldout=heldout)


def test_staging_is_complete_or_absent_and_several_may_do_it_at_once(store, tmp_path):
    for name in ("a", "deep/b"):
        storage.write(f"{BUCKET}/set/{name}", name.encode() * 1000)
    store.plan(flaky.Fault("403", "GET.*download.*set/deep"))
    with pytest.raises(PermissionError):
        storage.stage(f"{BUCKET}/set", tmp_path)
    assert list(tmp_path.iterdir()) == []
    places = set(in_parallel(*[lambda: storage.stage(f"{BUCKET}/set", tmp_path)] * 4))
    (place,) = places
    assert (place / "deep" / "b").read_bytes() == b"deep/b" * 1000 and list(tmp_path.iterdir()) == [place]
    store.plan()
    assert storage.stage(f"{BUCKET}/set", tmp_path) == place and not [x for x in store.seen if "download" in x]
    storage.write(f"{BUCKET}/set/a", b"A" * 1000)  # as long as before
    assert (storage.stage(f"{BUCKET}/set", tmp_path) / "a").read_bytes() == b"A" * 1000
    assert storage.stage(tmp_path, tmp_path) == tmp_path  # what is local stays where it is
    with pytest.raises(FileNotFoundError, match=r"gs://.*none: empty, or no such folder"):
        storage.stage(f"{BUCKET}/none", tmp_path)


@pytest.mark.full
def test_weights_and_tokenizers_come_and_go_through_failures(store):
    architecture = architectures.Architecture(vocabulary=40, layers=2, width=16, heads=2, kv_heads=1, hidden=32)
    params = parameters.init(architecture, jax.random.key(0))
    folder = f"{BUCKET}/weights"
    store.plan(flaky.Fault("503", "POST.*weights/model-"))
    weights.save(folder, architecture, params, shard_bytes=3000)
    assert [fault.hits for fault in store.faults] == [1]
    assert len(storage.names(folder)) > 3
    store.plan(flaky.Fault("cut", "GET.*download.*weights/model-00002", 1, 2))  # after size and header
    same(weights.load(folder, architecture), params)
    assert [fault.hits for fault in store.faults] == [1]
    made = tokenizers.make("char", ["some text"])
    storage.write(f"{BUCKET}/words/tokenizer.model", made.serialized)
    store.plan(flaky.Fault("cut", "GET.*download.*words/"))
    assert tokenizers.load(f"{BUCKET}/words") == made == tokenizers.load(f"{BUCKET}/words/tokenizer.model")
    with pytest.raises(FileNotFoundError, match=r"gs://.*nothing"):
        tokenizers.load(f"{BUCKET}/nothing")


@pytest.mark.full
def test_runs_are_compared_where_they_are(store, tmp_path):
    for seed in range(2):
        test_compare.write(tmp_path / f"seed={seed}", seed=seed)
    for file in [path for path in tmp_path.rglob("*") if path.is_file()]:
        storage.write(f"{BUCKET}/study/{file.relative_to(tmp_path)}", file.read_bytes())
    remote, local = compare.compare([f"{BUCKET}/study/seed=?"]), compare.compare([tmp_path])
    assert remote.table == local.table and len(remote.runs) == 2
    assert compare.compare(f"{BUCKET}/study").table == local.table


@pytest.mark.full
def test_a_store_that_does_not_answer_is_not_an_empty_one(unreachable):
    output, errors = unreachable.communicate(timeout=240)
    names = ("exists", "is_dir", "names", "read", "write", "all_steps")
    assert output.splitlines() == [f"{name} unavailable True" for name in names], errors
