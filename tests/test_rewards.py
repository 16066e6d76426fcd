"""Verifiers and the worker processes that run them."""

import functools
import math
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest

from rljax import types
from rljax.environments.verifiers import answers, mathematics, pool

# Workers import this from a file: a test module would bring jax along.
MODULE = """
    import os, pathlib, signal, subprocess, sys, time

    def judge(text, target):
        verb, _, rest = text.partition(" ")
        if verb == "number":
            return float(rest)
        if verb == "equal":
            return {"reward": float(rest == target), "length": len(rest)}
        if verb == "raise":
            raise KeyError("no such " + rest)
        if verb == "exit":
            sys.exit(3)
        if verb == "hang":
            time.sleep(600)
        if verb == "brood":  # hangs in a child process
            subprocess.run(["sh", "-c", "echo $$ > " + target + "; sleep 600; :"])
        if verb == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if verb == "die-once":
            mark = pathlib.Path(target)
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return 1.0
        if verb == "sleep":
            time.sleep(float(rest))
            return 1.0
        if verb == "pid":
            return float(os.getpid())
        if verb == "return":
            return eval(rest)
        raise AssertionError(text)
"""


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "judges_of_test_rewards.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    import judges_of_test_rewards  # pyright: ignore[reportMissingImports]

    yield judges_of_test_rewards.judge
    del sys.modules["judges_of_test_rewards"]


def outcomes(scored):
    return [types.Outcome(code).name for code in scored.outcome]


# --- numeric_answer ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("completion", "target", "outcome"),
    [
        ("48 / 2 = 24\n#### 72", "72", "correct"),
        ("#### 71", "72", "wrong"),
        ("#### 5\nno, wait\n#### 72\nDone, 3 steps.", "72", "correct"),  # last mark, its line only
        ("#### 72\n#### 5", "72", "wrong"),
        ("####72", "72", "correct"),
        ("#### $1,200.", "1200", "correct"),
        ("#### 1200", "1,200", "correct"),
        ("#### -$3.50", "-3.5", "correct"),
        ("#### .5", "0.50", "correct"),
        ("#### 3", "-3", "wrong"),
        ("#### 100000000000000000000000000001", "100000000000000000000000000002", "wrong"),  # equal as floats
        ("#### 1/2", "0.5", "correct"),
        ("#### $\\frac{1}{2}$", "0.5", "correct"),
        ("#### 72 clips", "72", "correct"),
        ("#### 71 clips", "72", "wrong"),
        ("the answer is 72", "72", "unparseable"),  # no mark
        ("72 ####", "72", "unparseable"),  # nothing after it
        ("#### \n", "72", "unparseable"),
        ("#### many", "72", "unparseable"),
        ("", "72", "unparseable"),
    ],
)
def test_numeric_answer(completion, target, outcome):
    assert mathematics.numeric_answer(completion, target) == {
        "reward": 1.0 if outcome == "correct" else 0.0,
        "format": 0.0 if outcome == "unparseable" else 1.0,
        "outcome": outcome,
    }


@pytest.mark.parametrize(
    ("completion", "target", "outcome"),
    [
        (r"so \boxed{\frac12}", r"\frac{1}{2}", "correct"),
        (r"\boxed{0.5}", r"\frac{1}{2}", "correct"),
        (r"\boxed{\frac{\sqrt{2}}{2}} is it", r"\frac{1}{\sqrt{2}}", "correct"),
        (r"\boxed{3}, no, \boxed{1,000}", "1000", "correct"),
        (r"\fbox{7}", "7.0", "correct"),
        (r"\boxed 7.", "7", "correct"),
        (r"\boxed{x^2+2x+1}", "(x+1)^2", "correct"),
        (r"\boxed{\text{Friday}}", r"\text{Friday}", "correct"),
        (r"\boxed{\text{Monday}}", r"\text{Friday}", "wrong"),
        (r"\boxed{(0,1)}", "[0,1)", "wrong"),
        (r"\boxed{3} then \boxed{4}", "3", "wrong"),
        ("7", "7", "unparseable"),
        (r"\boxed{7", "7", "unparseable"),
        (r"\boxed{}", "7", "unparseable"),
    ],
)
def test_boxed_answer(completion, target, outcome):
    verdict = mathematics.boxed_answer(completion, target)
    assert verdict["outcome"] == outcome
    assert (verdict["reward"], verdict["format"]) == (outcome == "correct", outcome != "unparseable")


CHAT = ("marked", "boxed", "stated", "bold")


@pytest.mark.parametrize(
    ("completion", "outcome"),
    [
        ("**72**", "correct"),
        ("So she sold **72 clips** in all.", "correct"),
        ("**Total: $72.**", "correct"),
        ("**Answer:** 72", "correct"),
        ("### Final answer: 72", "correct"),
        ("The answer is $72$.", "correct"),
        ("the final answer is:\n\n\\[72\\]\n\nGood luck!", "correct"),
        (r"The final answer is $\boxed{72}$.", "correct"),
        (r"\boxed{72 clips}", "correct"),
        ("#### 72\n\n**73**", "correct"),  # the format that the task asks for goes before the others
        ("#### Step 72\n**71 clips**", "wrong"),  # a heading is no mark
        ("The answer is -72.", "wrong"),
        ("The answer is 0.72.", "wrong"),
        ("The answer is 72.5.", "wrong"),
        ("The answer is 72,000.", "wrong"),
        (r"The answer is $\frac{72}{5}$.", "wrong"),
        ("**72** or **73**", "wrong"),
        # what changes the number, or takes it back
        ("The answer is not 72.", "unparseable"),
        ("The answer is between 71 and 72.", "unparseable"),
        ("The answer is 72 or 73.", "unparseable"),
        ("The answer is 72 million.", "unparseable"),
        ("The answer is 72/5.", "unparseable"),
        ("The answer is 72 - x.", "unparseable"),
        (r"The answer is 72 \pi.", "unparseable"),
        ("The answer is 72. Wait, it is 73.", "unparseable"),
        ("The answer is **72**... no: 73.", "unparseable"),
        ("**Step 72: add**", "unparseable"),
        ("**72. Add the clips**", "unparseable"),
        ("She sold 72 clips.", "unparseable"),
        ("72", "unparseable"),
    ],
)
def test_answers_as_models_write_them(completion, outcome):
    assert mathematics.numeric_answer(completion, "72", CHAT)["outcome"] == outcome


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("48 - 24 = 24", "24"),
        ("(-5)", "-5"),
        ("$1,200.", "$1,200"),
        ("3x4=12", "12"),
        ("of 7.50, or .5.", ".5"),
        ("", ""),
    ],
)
def test_the_last_number(completion, answer):
    assert answers.read(completion, ("last",))[1] == answer


def test_formulas_in_prose():
    formats = answers.formats(None, "boxed", several=True)
    assert formats == ("boxed", "marked", "stated", "bold")
    for text in (r"The answer is $\frac12$.", r"**\(0.5\)**", r"#### \frac{1}{2}", "The answer is 0.5"):
        assert mathematics.boxed_answer(text, r"\frac{1}{2}", formats)["outcome"] == "correct"
        assert mathematics.boxed_answer(text, r"\frac{1}{3}", formats)["outcome"] == "wrong"
        assert mathematics.boxed_answer(text, r"\frac{1}{2}")["outcome"] == "unparseable"


def test_numeric_answer_refuses_a_reference_it_cannot_read():
    with pytest.raises(ValueError, match="'plenty'"):
        mathematics.numeric_answer("#### 72", "plenty")


def test_workers_code_imports_no_jax():
    code = "import sys; from rljax.environments.verifiers import mathematics, worker; sys.exit('jax' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the pool ------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_every_row_is_scored_in_order(judge, workers):
    with pool.Verifiers(judge, workers=workers) as verifiers:
        first = verifiers.submit([f"number {i}" for i in range(100)], [None] * 100)
        second = verifiers.submit(["equal abc", "equal abcd", "number 0", "number 0.25"], ["abc", "abc", None, None])
        third = verifiers.submit([], [])
        np.testing.assert_array_equal(second.result().reward, np.array([1, 0, 0, 0.25], np.float32))
        np.testing.assert_array_equal(first.result().reward, np.arange(100, dtype=np.float32))
        assert first.done()
        assert third.result().reward.shape == (0,)
    scored = second.result()  # also after the pool has closed
    assert outcomes(scored) == ["CORRECT", "WRONG", "WRONG", "CORRECT"]
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
    ]
    with pool.Verifiers(judge, workers=workers, parts=["format"]) as verifiers:
        scored = verifiers.submit(texts, [None] * len(texts)).result()
    assert outcomes(scored) == ["CORRECT", *["CRASHED"] * 8, "UNPARSEABLE", "CORRECT"]
    np.testing.assert_array_equal(scored.reward, np.array([1] + [0] * 8 + [1, 2], np.float32))
    assert list(scored.parts) == ["format", "style"]  # the declared name is there though no valid row gave it
    assert [row for row, _ in scored.errors] == list(range(1, 9))
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
    }.items():
        assert words in errors[row]
    assert "in judge" in errors[1]  # the traceback, down to the line


def test_a_hung_row_times_out_and_the_rest_are_scored(judge):
    texts = ["number 1", "hang", *[f"number {i}" for i in range(2, 40)], "hang", "sleep 0.2"]
    with pool.Verifiers(judge, workers=2, timeout=1.0) as verifiers:
        start = time.monotonic()
        scored = verifiers.submit(texts, [None] * len(texts)).result()
        assert time.monotonic() - start < 20
        assert [name for name in outcomes(scored) if name != "CORRECT"] == ["TIMED_OUT", "TIMED_OUT"]
        assert [row for row, _ in scored.errors] == [1, 40]
        assert "1 s" in scored.errors[0][1]
        np.testing.assert_array_equal(scored.reward[2:40], np.arange(2, 40, dtype=np.float32))
        assert verifiers.submit(["number 7"], [None]).result().reward[0] == 7


def test_the_limit_is_for_one_row_not_for_a_chunk(judge):
    with pool.Verifiers(judge, workers=1, timeout=0.8) as verifiers:
        texts = ["sleep 0.3"] * 4 + ["number 1"] * 60  # the first chunk of 16 takes 1.2 s
        assert outcomes(verifiers.submit(texts, [None] * 64).result()) == ["CORRECT"] * 64


def test_a_hung_row_takes_the_processes_it_started_along(judge, tmp_path):
    note = tmp_path / "pid"
    with pool.Verifiers(judge, workers=1, timeout=1.0) as verifiers:
        assert outcomes(verifiers.submit(["brood"], [str(note)]).result()) == ["TIMED_OUT"]
    assert gone(int(note.read_text()))


def test_a_row_that_kills_its_worker_is_tried_twice(judge, tmp_path):
    texts = ["number 1", "die", "number 2", "die-once", "number 3"]
    with pool.Verifiers(judge, workers=1) as verifiers:
        scored = verifiers.submit(texts, [str(tmp_path / "mark")] * 5).result()
    assert outcomes(scored) == ["CORRECT", "CRASHED", "CORRECT", "CORRECT", "CORRECT"]
    np.testing.assert_array_equal(scored.reward, np.array([1, 0, 2, 1, 3], np.float32))
    assert [row for row, _ in scored.errors] == [1]
    assert f"status {-signal.SIGKILL}" in scored.errors[0][1]


def test_a_worker_killed_from_outside_is_replaced(judge):
    with pool.Verifiers(judge, workers=1) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        pending = verifiers.submit(["sleep 0.5", "pid"], [None] * 2)
        time.sleep(0.2)
        os.kill(worker, signal.SIGKILL)  # busy
        scored = pending.result()
        assert outcomes(scored) == ["CORRECT", "CORRECT"]
        second = int(scored.reward[1])
        assert second != worker
        os.kill(second, signal.SIGKILL)  # idle
        assert gone(second)
        assert outcomes(verifiers.submit(["number 1"], [None]).result()) == ["CORRECT"]


def test_closing_ends_the_workers_and_says_what_was_not_scored(judge):
    with pool.Verifiers(judge, workers=2, timeout=60) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        pending = verifiers.submit(["hang"] * 5, [None] * 5)
        time.sleep(0.1)
    assert gone(worker)
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
        from rljax.environments.verifiers import pool
        pool._ORPHAN_GRACE = 0.2
        verifiers = pool.Verifiers(judges.judge, workers=1, timeout=1.0).__enter__()
        print(int(verifiers.submit(["pid"], [None]).result().reward[0]), flush=True)
        if {busy}:
            verifiers.submit(["hang"], [None])
            time.sleep(0.2)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False).stdout
    assert gone(int(output))


def test_rewards_that_workers_cannot_import():
    with pytest.raises(ValueError, match=r"lambda.*workers=0"):
        pool.Verifiers(lambda text, target: 1.0)
    with pool.Verifiers(lambda text, target: 1.0, workers=0) as verifiers:
        assert verifiers.submit(["a"], [None]).result().reward[0] == 1

    code = """
        from rljax.environments.verifiers import pool
        def local_reward(text, target):
            return 1.0
        try:
            pool.Verifiers(local_reward)
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
    with pytest.raises(ValueError, match="licence server down"), pool.Verifiers(judge):
        pass


def test_arguments_are_checked(judge):
    for field, verifiers in {
        "workers": functools.partial(pool.Verifiers, judge, workers=-1),
        "timeout": functools.partial(pool.Verifiers, judge, timeout=0),
        "timeout=inf": functools.partial(pool.Verifiers, judge, timeout=math.inf),
    }.items():
        with pytest.raises(ValueError, match=field):
            verifiers()
    with pool.Verifiers(judge, workers=1) as verifiers:
        with pytest.raises(ValueError, match="2 texts and 1 targets"):
            verifiers.submit(["number 1", "number 2"], [None])
        with pytest.raises(ValueError, match=r"targets\[1\] of type function"):
            verifiers.submit(["number 1", "number 2"], [None, lambda: None])


def test_speed_of_512_rows():
    start = time.perf_counter()
    with pool.Verifiers(mathematics.numeric_answer, workers=2) as verifiers:
        ready = time.perf_counter()
        texts = [f"Thus\n#### {i}" if i % 2 else f"#### {2 * i}/2 clips" for i in range(512)]
        scored = verifiers.submit(texts, [str(i) for i in range(512)]).result()
        end = time.perf_counter()
    print(
        f"\nworkers ready in {ready - start:.2f} s; 512 rows, half of them symbolic: {512 / (end - ready):.0f} rows/s"
    )
    assert outcomes(scored) == ["CORRECT"] * 512


def gone(pid):
    """Wait for a process to end; a zombie, which some containers never reap, has."""
    for _ in range(100):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False
