"""Verifiers and the pool of worker processes that run them."""

import math
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import pytest

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging, mathematics
from rljax.environments.workers import pool, process
from tests.environments.verifiers.rewards_cases import outcomes
from tests.support import orphans


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_row_is_scored_in_order(judge, workers):
    with judging.Verifiers(judge, VerifierConfig(workers=workers)) as verifiers:
        first = verifiers.submit([f"number {i}" for i in range(100)], [None] * 100)
        second = verifiers.submit(["equal abc", "equal abcd", "number 0", "number 0.25"], ["abc", "abc", None, None])
        third = verifiers.submit([], [])
        np.testing.assert_array_equal(second.result().reward, np.array([1, 0, 0, 0.25], np.float32))
        np.testing.assert_array_equal(first.result().reward, np.arange(100, dtype=np.float32))
        assert first.done()
        assert third.result().reward.shape == (0,)
    scored = second.result()  # also after the pool has closed
    assert outcomes(scored) == ["CORRECT", "WRONG", "WRONG", "UNJUDGED"]
    np.testing.assert_array_equal(scored.parts["length"], np.array([3, 4, 0, 0], np.float32))
    assert scored.errors == []
    verdict = scored.verdict()
    assert (verdict.reward.dtype, verdict.outcome.dtype) == (np.float32, np.int32)
    assert set(verdict.parts) == {"length"}


@pytest.mark.parametrize("workers", [0, 1])
def test_what_a_reward_may_not_do_crashes_its_row_alone(judge, workers):
    texts = [
        "number 1",
        "raise luck",
        "exit",
        "return None",
        "return 'good'",
        "return float('nan')",
        "return {'format': 1.0}",
        "return {'reward': 1, 'outcome': 'great'}",
        "return {'reward': 1, 'style': 'fine'}",
        "return {'reward': 1, 'outcome': 'unparseable', 'style': True}",
        "number 2",
        "return 1e39",
        "return {'reward': 1, 'style': -1e39}",
        "return 1e15",
        "return {'outcome': 'crashed'}",
        "return {'reward': 1, 'outcome': 'timed_out', 'style': 1}",
    ]
    with judging.Verifiers(judge, VerifierConfig(workers=workers), parts=["format"]) as verifiers:
        scored = verifiers.submit(texts, [None] * len(texts)).result()
    last = ["CRASHED", "CRASHED", "UNJUDGED", "CRASHED", "TIMED_OUT"]
    assert outcomes(scored) == ["CORRECT", *["CRASHED"] * 8, "UNPARSEABLE", "UNJUDGED", *last]
    np.testing.assert_array_equal(scored.reward, np.array([1] + [0] * 8 + [1, 2, 0, 0, 1e15, 0, 0], np.float32))
    np.testing.assert_array_equal(scored.parts["style"], np.float32([0] * 9 + [1] + [0] * 6))
    assert list(scored.parts) == ["format", "style"]  # the declared name is there though no valid row gave it
    assert [row for row, _ in scored.errors] == [*range(1, 9), 11, 12, 14, 15]
    errors = dict(scored.errors)
    for row, words in {
        1: "no such luck",
        2: "SystemExit",
        3: "NoneType",
        4: "'good'",
        5: "nan",
        6: "without 'reward'",
        7: "unparseable, timed_out",
        8: "'style'",
        11: "at most 1e+15 in size",
        12: "'style' is -1e+39",
        14: "returned outcome 'crashed'",
        15: "returned outcome 'timed_out'",
    }.items():
        assert words in errors[row]
    assert "in judge" in errors[1]  # the traceback, down to the line


def test_a_hung_row_times_out_and_the_rest_are_scored(judge):
    texts = ["number 1", "hang", *[f"number {i}" for i in range(2, 40)], "hang", "sleep 0.2"]
    with judging.Verifiers(judge, VerifierConfig(workers=2, timeout=1.0, threshold=0.5)) as verifiers:
        start = time.monotonic()
        scored = verifiers.submit(texts, [None] * len(texts)).result()
        assert time.monotonic() - start < 20
        assert [name for name in outcomes(scored) if name != "CORRECT"] == ["TIMED_OUT", "TIMED_OUT"]
        assert [row for row, _ in scored.errors] == [1, 40]
        assert "1 s" in scored.errors[0][1]
        np.testing.assert_array_equal(scored.reward[2:40], np.arange(2, 40, dtype=np.float32))
        assert verifiers.submit(["number 7"], [None]).result().reward[0] == 7


@pytest.mark.full
def test_the_limit_is_for_one_row_not_for_a_chunk(judge):
    with judging.Verifiers(judge, VerifierConfig(workers=1, timeout=0.8)) as verifiers:
        texts = ["sleep 0.3"] * 4 + ["number 1"] * 60  # the first chunk of 16 takes 1.2 s
        assert outcomes(verifiers.submit(texts, [None] * 64).result()) == ["CORRECT"] * 64


@pytest.mark.full
def test_a_hung_row_takes_the_processes_it_started_along(judge, tmp_path):
    note = tmp_path / "pid"
    with judging.Verifiers(judge, VerifierConfig(workers=1, timeout=1.0)) as verifiers:
        assert outcomes(verifiers.submit(["brood"], [str(note)]).result()) == ["TIMED_OUT"]
    assert orphans.gone(int(note.read_text()))


def test_a_row_that_kills_its_worker_is_tried_twice(judge, tmp_path):
    texts = ["number 1", "die", "number 2", "die-once", "number 3"]
    with judging.Verifiers(judge, VerifierConfig(workers=1)) as verifiers:
        scored = verifiers.submit(texts, [str(tmp_path / "mark")] * 5).result()
    assert outcomes(scored) == ["CORRECT", "CRASHED", "UNJUDGED", "CORRECT", "UNJUDGED"]
    np.testing.assert_array_equal(scored.reward, np.array([1, 0, 2, 1, 3], np.float32))
    assert [row for row, _ in scored.errors] == [1]
    assert "SIGKILL" in scored.errors[0][1]


def test_a_worker_killed_from_outside_is_replaced(judge):
    with judging.Verifiers(judge, VerifierConfig(workers=1)) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        pending = verifiers.submit(["sleep 0.5", "pid"], [None] * 2)
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)  # busy
        scored = pending.result()
        assert outcomes(scored) == ["CORRECT", "UNJUDGED"]
        second = int(scored.reward[1])
        assert second != worker
        os.kill(second, signal.SIGKILL)  # idle
        assert orphans.gone(second)
        assert outcomes(verifiers.submit(["number 1"], [None]).result()) == ["CORRECT"]


def test_closing_ends_the_workers_and_says_what_was_not_scored(judge):
    with judging.Verifiers(judge, VerifierConfig(workers=2, timeout=60)) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        pending = verifiers.submit(["hang"] * 5, [None] * 5)
        time.sleep(0.1)
    assert orphans.gone(worker)
    with pytest.raises(RuntimeError, match="5 of 5 completions"):
        pending.result()
    with pytest.raises(RuntimeError, match="with Verifiers"):
        verifiers.submit(["number 1"], [None])
    with verifiers:  # and it may be opened again
        assert verifiers.submit(["number 1"], [None]).result().reward[0] == 1


@pytest.mark.parametrize("busy", [False, True])
def test_workers_end_with_a_killed_parent(judge, tmp_path, busy):
    code = f"""
        import os, signal, time
        import judges_of_test_rewards as judges
        from rljax.environments.config import VerifierConfig
        from rljax.environments.verifiers import judging
        limits = VerifierConfig(workers=1, timeout=60.0)
        verifiers = judging.Verifiers(judges.judge, limits).__enter__()
        print(int(verifiers.submit(["pid"], [None]).result().reward[0]), flush=True)
        if {busy}:
            verifiers.submit(["brood"], [{str(tmp_path / "child")!r}])
            time.sleep(0.3)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False).stdout
    assert orphans.gone(int(output))
    assert not busy or orphans.gone(int((tmp_path / "child").read_text()))


@pytest.mark.full
def test_rewards_that_workers_cannot_import():
    with pytest.raises(ValueError, match=r"lambda.*workers=0"):
        judging.Verifiers(lambda text, target: 1.0)
    with judging.Verifiers(lambda text, target: 1.0, VerifierConfig(workers=0)) as verifiers:
        assert verifiers.submit(["a"], [None]).result().reward[0] == 1

    code = """
        from rljax.environments.verifiers import judging
        def local_reward(text, target):
            return 1.0
        try:
            judging.Verifiers(local_reward)
        except ValueError as error:
            print(error)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
    assert "local_reward" in output
    assert "__main__" in output
    assert "workers=0" in output


def test_a_reward_whose_module_fails_in_the_worker(judge, tmp_path):
    source = tmp_path / "judges_of_test_rewards.py"
    source.write_text("raise OSError('licence server down')")
    with pytest.raises(ValueError, match="licence server down"), judging.Verifiers(judge):
        pass


def test_arguments_are_checked(judge):
    for field, value in (("workers", -1), ("timeout", 0), ("timeout", math.inf), ("memory", math.nan)):
        with pytest.raises(ValueError, match=f"{field}={value}"):
            VerifierConfig(**{field: value})
    with judging.Verifiers(judge, VerifierConfig(workers=1)) as verifiers:
        with pytest.raises(ValueError, match="2 texts and 1 targets"):
            verifiers.submit(["number 1", "number 2"], [None])
        with pytest.raises(ValueError, match=r"targets\[1\] of type function"):
            verifiers.submit(["number 1", "number 2"], [None, lambda: None])


@pytest.mark.full
def test_speed_of_512_rows():
    start = time.perf_counter()
    with judging.Verifiers(mathematics.numeric_answer, VerifierConfig(workers=2)) as verifiers:
        ready = time.perf_counter()
        texts = [f"Thus\n#### {i}" if i % 2 else f"#### {2 * i}/2 clips" for i in range(512)]
        scored = verifiers.submit(texts, [str(i) for i in range(512)]).result()
        end = time.perf_counter()
    print(
        f"\nworkers ready in {ready - start:.2f} s; 512 rows, half of them symbolic: {512 / (end - ready):.0f} rows/s"
    )
    assert outcomes(scored) == ["CORRECT"] * 512


def test_a_stopped_worker_does_not_block_and_stopping_ends_the_wait(judge, monkeypatch):
    monkeypatch.setattr(process, "_SEND_LIMIT", 0.2)
    monkeypatch.setattr(judging, "_GRACE", 0.1)
    stop = threading.Event()
    with judging.Verifiers(judge, VerifierConfig(workers=1, timeout=600), interrupted=stop.is_set) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        os.kill(worker, signal.SIGSTOP)
        large = verifiers.submit(["number 1" + " " * 10**6], [None])  # more than the pipe's buffer holds
        assert outcomes(large.result()) == ["CORRECT"]  # by another worker
        assert orphans.gone(worker)
        pending = verifiers.submit(["hang"], [None])
        stop.set()
        with pytest.raises(pool.Interrupted):
            pending.result()
