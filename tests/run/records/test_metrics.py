"""Logs that are truncated, torn, deleted or on a full disk, and TensorBoard."""

import contextlib
import json
import os
import pathlib
import resource
import shutil

import jax.numpy as jnp
import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from rljax import __main__
from rljax.data import storage
from rljax.host import sinks
from rljax.run.producers import verified
from rljax.run.records import metrics


def read_events(directory):
    """Return (file order, event) of TensorBoard files: length u64, crc u32, event, crc u32 each."""
    events = []
    for file in sorted(pathlib.Path(directory).iterdir(), key=lambda f: int(f.name.rsplit(".", 1)[1])):
        data, at = file.read_bytes(), 0
        while at < len(data):
            size = int.from_bytes(data[at : at + 8], "little")
            events.append(event_pb2.Event.FromString(data[at + 12 : at + 12 + size]))
            at += size + 16
    return events


def test_a_log_returns_the_appended_records(tmp_path):
    log = metrics.StepLog(tmp_path / "deep" / "a.jsonl")
    assert log.read() == []
    log.cut(3)  # nothing to cut: no file is created
    assert not (tmp_path / "deep").exists()
    records = [{"step": 1, "text": "a\u2028b é\n"}, {"step": 2, "x": [0.1, -0.0, 1e-45]}, {"step": 2, "n": None}]
    for record in records:
        log.append(record)
        assert log.read()[-1] == record  # flushed line by line
    assert (tmp_path / "deep" / "a.jsonl").read_bytes().count(b"\n") == 3
    log.append({"step": np.int64(3), "x": np.float32(0.5), "y": jnp.arange(2), "bad": "\udc80"})
    assert log.read()[-1] == {"step": 3, "x": 0.5, "y": [0, 1], "bad": "\udc80"}


def test_cut_removes_later_steps_in_any_order_and_appending_continues(tmp_path):
    path = tmp_path / "a.jsonl"
    log = metrics.StepLog(path)
    for step in (1, 3, 2, 5):
        log.append({"step": step})
    log.cut(2)
    assert [r["step"] for r in log.read()] == [1, 2]
    log.append({"step": 4})
    assert [r["step"] for r in metrics.StepLog(path).read()] == [1, 2, 4]
    inode = path.stat().st_ino
    log.cut(4)
    assert path.stat().st_ino == inode  # nothing to remove: the file is unchanged
    assert os.listdir(tmp_path) == ["a.jsonl"]


@pytest.mark.parametrize("torn", [b'{"step": 3, "x', b'{"step": 3}', b"\x00\x00"])
def test_a_torn_last_line_is_dropped_by_read_append_and_cut(tmp_path, torn):
    complete = b'{"step": 1}\n{"step": 2}\n'
    path = tmp_path / "a.jsonl"
    path.write_bytes(complete + torn)
    log = metrics.StepLog(path)
    assert [r["step"] for r in log.read()] == [1, 2]
    assert path.read_bytes() == complete + torn
    log.append({"step": 3})
    assert path.read_bytes() == complete + b'{"step": 3}\n'
    path.write_bytes(complete + torn)
    metrics.StepLog(path).cut(9)
    assert path.read_bytes() == complete


def test_a_broken_line_elsewhere_is_an_error_and_bad_records_are_refused(tmp_path):
    path = tmp_path / "a.jsonl"
    for line in ("{", "[1]", '{"step": 1.5}', "{}", "7"):
        path.write_text('{"step": 0}\n' + line + '\n{"step": 2}\n')
        for use in (lambda: metrics.StepLog(path).read(), lambda: metrics.StepLog(path).cut(0)):
            with pytest.raises(ValueError, match=r"a\.jsonl: line 2"):
                use()
        assert path.read_text().endswith('{"step": 2}\n')
    log = metrics.StepLog(tmp_path / "b.jsonl")
    for record in ({"x": 1}, {"step": 1.0}, {"step": 1, "x": {1, 2}}):
        with pytest.raises(ValueError, match=r"b\.jsonl: a record needs an integer 'step'"):
            log.append(record)
    assert not (tmp_path / "b.jsonl").exists()


def test_metrics_are_sorted_exact_and_free_of_clocks(tmp_path):
    for name in ("a", "b"):
        logger = metrics.Logger(tmp_path / name)
        logger.step(1, "sft", {"reward": jnp.float32(0.1), "accuracy": 0.25}, {"seconds": 1.0 if name == "a" else 2.0})
        logger.step(2, "grpo", {"reward": float("nan"), "count": np.int32(3)})
        logger.close()
    # float32 0.1 is 0.100000001490116119..., written with the digits that restore that double
    lines = (tmp_path / "a" / "metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"step": 1, "phase": "sft", "accuracy": 0.25, "reward": 0.10000000149011612}',
        '{"step": 2, "phase": "grpo", "count": 3, "reward": NaN}',
    ]
    assert (tmp_path / "a" / "metrics.jsonl").read_bytes() == (tmp_path / "b" / "metrics.jsonl").read_bytes()
    assert json.loads((tmp_path / "b" / "timings.jsonl").read_text()) == {"step": 1, "phase": "sft", "seconds": 2.0}


BOARD = sinks.build("tensorboard()", "test")


def run_steps(logger, first, last):
    for step in range(first, last + 1):
        logger.rollouts([{"step": step, "prompt": "1+1=", "completion": str(step), "reward": 1.0}])
        logger.step(step, "grpo", {"reward": step / 3}, {"seconds": 0.5})
        if step % 2 == 0:
            logger.evaluation({"step": step, "name": "training", "pass_at_k": {"1": [0.5, 0.4, 0.6]}})


def test_a_resumed_run_leaves_the_files_and_history_of_an_uninterrupted_one(tmp_path):
    whole = metrics.Logger(tmp_path / "whole", resume_step=0)
    run_steps(whole, 1, 6)
    whole.close()
    killed = metrics.Logger(tmp_path / "resumed", resume_step=0)
    run_steps(killed, 1, 5)
    with (tmp_path / "resumed" / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "ph')
    resumed = metrics.Logger(tmp_path / "resumed", resume_step=3)
    assert [r["step"] for r in resumed.history] == [1, 2, 3]
    run_steps(resumed, 4, 6)
    resumed.close()
    for name in ("metrics", "evaluations", "rollouts", "timings"):
        file = f"{name}.jsonl"
        assert (tmp_path / "resumed" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    assert resumed.history == whole.history == [{"step": s, "phase": "grpo", "reward": s / 3} for s in range(1, 7)]
    assert resumed.evaluations == whole.evaluations
    assert [e["step"] for e in whole.evaluations] == [2, 4, 6]


def test_a_resumed_run_notices_what_its_logs_lack(tmp_path):
    logger = metrics.Logger(tmp_path)
    run_steps(logger, 1, 4)
    written = logger.sync()  # with the checkpoint of step 4
    run_steps(logger, 5, 6)
    logger.close()
    for name in ("metrics", "timings", "evaluations", "rollouts"):
        path = tmp_path / f"{name}.jsonl"
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        for damaged in (None, b"", b"".join(lines[:1]), b"".join(lines[1:]), whole.replace(b"2", b"3", 1)):
            path.unlink() if damaged is None else path.write_bytes(damaged)
            before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
            with pytest.raises(
                ValueError, match=rf"{name}\.jsonl: records from before the checkpoint of step 4 are .*gap"
            ):
                metrics.Logger(tmp_path, resume_step=4, written=written)
            assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
        path.write_bytes(whole)
    (tmp_path / "metrics.jsonl").unlink()
    allowed = metrics.Logger(tmp_path, resume_step=4)
    assert allowed.history == [] and [e["step"] for e in allowed.evaluations] == [2, 4]
    allowed.close()


def test_a_log_that_is_deleted_or_replaced_during_the_run_is_noticed(tmp_path):
    for deed in (lambda f: f.unlink(), lambda f: f.replace(f.with_suffix(".moved")), lambda f: shutil.rmtree(f.parent)):
        folder = tmp_path / "run"
        logger = metrics.Logger(folder, resume_step=0)
        run_steps(logger, 1, 2)
        logger.sync()
        deed(folder / "metrics.jsonl")
        run_steps(logger, 3, 4)
        with pytest.raises(OSError, match=r"metrics\.jsonl was deleted or replaced during the run"):
            logger.sync()
        logger.close()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def full_disk(size):
    """Let no file of this process grow beyond ``size`` bytes; a write stops there and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_is_an_error_that_names_the_file_and_leaves_it_complete(tmp_path):
    path = tmp_path / "a.jsonl"
    log = metrics.StepLog(path)
    log.append({"step": 1})
    with full_disk(len(b'{"step": 1}\n') + 5):
        with pytest.raises(OSError, match=r"\[Errno \d+\].*a\.jsonl"):
            log.append({"step": 2})
        log.close()
    assert path.read_bytes() == b'{"step": 1}\n'
    log.append({"step": 3})
    assert [r["step"] for r in log.read()] == [1, 3]
    with full_disk(5), pytest.raises(OSError, match=r"\[Errno \d+\].*/b'"):
        storage.write(tmp_path / "b", b"content")
    assert os.listdir(tmp_path) == ["a.jsonl"]
    board = BOARD[0](sinks.Run(tmp_path, "run", 0, {}, {}))
    with full_disk(500):  # the events are written by this thread, so that it sees the error
        with pytest.raises(OSError, match=r"\[Errno \d+\].*tensorboard"):
            for step in range(1000):
                board.scalars("metrics", step, "main", {"reward": 1.0})
        board.close()


def test_a_new_run_removes_the_records_of_a_killed_one(tmp_path):
    run_steps(metrics.Logger(tmp_path), 1, 2)
    new = metrics.Logger(tmp_path)
    assert new.history == [] and new.evaluations == []
    assert (tmp_path / "metrics.jsonl").read_bytes() == b""


def test_tensorboard_gets_scalars_and_purges_on_resume(tmp_path):
    logger = metrics.Logger(tmp_path, openers=BOARD)
    run_steps(logger, 1, 2)
    logger.close()
    logger = metrics.Logger(tmp_path, openers=BOARD, resume_step=1)
    run_steps(logger, 2, 2)
    logger.close()
    events = read_events(tmp_path / "tensorboard")
    scalars = [(e.step, v.tag, v.simple_value) for e in events for v in e.summary.value]
    assert scalars.count((1, "reward", np.float32(1 / 3))) == 1
    assert scalars.count((2, "reward", np.float32(2 / 3))) == 2
    assert scalars.count((2, "time/seconds", 0.5)) == 2
    assert scalars.count((2, "evaluation/pass_at_1", 0.5)) == 2
    # TensorBoard hides earlier events at or after the step of a START mark: 0 in a new run, 2 when resumed after 1.
    assert [e.step for e in events if e.session_log.status] == [0, 2]


def test_without_a_directory_all_stays_in_memory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    logger = metrics.Logger(None)
    run_steps(logger, 1, 2)
    logger.close()
    assert [r["step"] for r in logger.history] == [1, 2]
    assert [r["step"] for r in logger.evaluations] == [2]
    assert os.listdir(tmp_path) == []


def test_bad_metrics_are_refused_by_name(tmp_path):
    logger = metrics.Logger(None)
    for values, pattern in (
        ({"reward": np.zeros(2)}, r"reward: got .*must be one number"),
        ({"reward": "high"}, r"reward: got 'high'"),
        ({"step": 1.0}, r"metrics: \['step'\] is reserved"),
    ):
        with pytest.raises(ValueError, match=pattern):
            logger.step(1, "sft", values)
    with pytest.raises(ValueError, match=r"evaluations\.jsonl: a record needs"):
        logger.evaluation({"name": "final"})
    assert logger.history == [] and logger.evaluations == []


def test_a_warning_of_rljax_names_no_line_of_its_code():
    place = ("/a/file.py", 7, "warnings.warn(text)")
    assert __main__.warning_text("set x", verified.VerifierWarning, *place) == "warning: set x\n"
    assert "/a/file.py:7" in __main__.warning_text("set x", UserWarning, *place)
