"""Rewards and worker processes that misbehave harm no row but their own."""

import importlib
import textwrap

import numpy as np
import pytest

from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging
from rljax.environments.workers import pool, process
from tests.environments.verifiers.rewards_cases import outcomes
from tests.support import orphans

# Each function is the reward of one row; its target is a folder in which the row may leave a file.
HOSTILE = r"""
    import ctypes, enum, json, os, pathlib, resource, shutil, signal, subprocess, sys, threading, time

    class Pickled:
        def __reduce__(self):
            return os.mkdir, (os.path.join(os.environ["HOSTILE_FOLDER"], "unpickled"),)

    class Evil(Pickled, float):
        def act(self, *_):
            raise SystemExit(9)
        __repr__ = __str__ = __eq__ = __hash__ = __bool__ = __gt__ = act

    class Equal(Pickled):  # equal to every outcome
        def __eq__(self, other):
            return True
        __hash__ = None

    class Names(str, enum.Enum):
        CORRECT = "correct"
        STYLE = "style"

    class NoFloat:
        def __float__(self):
            raise RuntimeError("no float")

    class Endless(dict):
        def __iter__(self):
            return iter(int, 1)
        def __len__(self):
            return 1 << 60

    class Loud(Exception):
        def __str__(self):
            raise SystemExit(9)

    class Base(BaseException):
        pass

    def refuse(*_):
        raise RuntimeError("cannot be unpickled")

    class Target:
        def __reduce__(self):
            return refuse, ()

    def recurse(n=0):
        return recurse(n + 1) + 1

    def brood(count, detached=False):
        for _ in range(count):
            subprocess.Popen(["sleep", "600"], start_new_session=detached)

    def double_fork():  # a daemon, whose parent ends at once
        if not os.fork():
            os.setsid()
            if os.fork():
                os._exit(0)
            time.sleep(600)

    def bomb(depth=3):
        for _ in range(2):
            if depth and not os.fork():
                bomb(depth - 1)
                time.sleep(600)

    def to_every_file(data):
        for number in range(3, 1024):
            try:
                os.write(number, data)
            except OSError:
                pass

    def fill():
        kept = []
        while True:
            kept.append(bytes(1 << 24))

    def do(*actions):
        return 1.0

    def spin():
        while True:
            pass

    def deaf():
        for number in range(1, 32):
            if number not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(number, signal.SIG_IGN)

    def judge(text, target):
        if text.startswith("raise "):
            raise eval(text[6:])
        return eval(text, globals(), {"target": target})
"""


ENDED = "and so did the one before"


CASES = {  # what a reward does: (outcome, words of the error)
    "'unpickled'": ("CRASHED", "cannot be unpickled"),  # the first row: no row before it has harmed its worker
    # values
    "None": ("CRASHED", "NoneType"),
    "float('nan')": ("CRASHED", "is nan"),
    "float('-inf')": ("CRASHED", "is -inf"),
    "1e39": ("CRASHED", "at most 1e+15"),
    "10**400": ("CRASHED", "at most 1e+15"),
    "1j": ("CRASHED", "type complex"),
    "[1.0]": ("CRASHED", "type list"),
    "'1' * 10**8": ("CRASHED", "type str"),
    "b'1'": ("CRASHED", "type bytes"),
    "NoFloat()": ("CRASHED", "no float"),
    "Evil(1)": ("CORRECT", None),
    "{'reward': Evil(1), 'part': Evil(1)}": ("CORRECT", None),
    "{'reward': 1, 'outcome': Evil(1)}": ("CRASHED", "SystemExit"),
    "{'reward': 1, Evil(1): 1}": ("CRASHED", "SystemExit"),
    "{'reward': 1, 'outcome': Equal()}": ("CRASHED", "returned outcome"),
    "{'reward': 1, 'outcome': Names.CORRECT, Names.STYLE: 1}": ("CORRECT", None),
    "{'reward': 1, 'outcome': 5}": ("CRASHED", "returned outcome 5"),
    "{'reward': 1, 'outcome': None}": ("CRASHED", "returned outcome None"),
    "{'reward': 1, 'outcome': 'x' * 10**7}": ("CRASHED", "returned outcome 'xxx"),
    "{'outcome': 'crashed'}": ("CRASHED", "returned outcome 'crashed'"),
    "{'outcome': 'timed_out'}": ("TIMED_OUT", "returned outcome 'timed_out'"),
    "{'reward': 1, 'part': 1e39}": ("CRASHED", "'part'"),
    "{'reward': 1, 7: 1}": ("CRASHED", "part named 7"),
    "{'reward': 1, '\\x1b[2J': 1}": ("CRASHED", "part named"),
    "{'reward': 1, 'x' * 10**7: 1}": ("CRASHED", "part named"),
    "{'reward': 1, **{str(i): 1 for i in range(10**5)}}": ("CRASHED", "100000 parts"),
    "Endless(reward=1)": ("CRASHED|TIMED_OUT", ""),
    # exceptions
    "raise Base()": ("CRASHED", "Base"),
    "raise SystemExit(0)": ("CRASHED", "SystemExit"),
    "raise KeyboardInterrupt()": ("CRASHED", "KeyboardInterrupt"),
    "raise GeneratorExit()": ("CRASHED", "GeneratorExit"),
    "raise Loud()": ("CRASHED", "Loud"),
    "raise Exception('\\x1b[2J' * 10**6)": ("CRASHED", "?[2J?[2J"),
    "recurse()": ("CRASHED", "RecursionError"),
    "fill()": ("CRASHED", "MemoryError"),
    "bytearray(10**12)": ("CRASHED", "MemoryError"),
    # ends of the process
    "os._exit(0)": ("CRASHED", ENDED),
    "os._exit(255)": ("CRASHED", "status 255"),
    "os.kill(os.getpid(), signal.SIGKILL)": ("CRASHED", "SIGKILL"),
    "ctypes.string_at(0)": ("CRASHED", "SIGSEGV"),
    "os.abort()": ("CRASHED", "SIGABRT"),
    "os.kill(0, signal.SIGKILL)": ("CRASHED", ENDED),
    "do(os.kill(os.getppid(), signal.SIGKILL), time.sleep(600))": ("CRASHED", ENDED),
    "os.execvp('sleep', ['sleep', '600'])": ("CRASHED", ENDED),
    # the pipe
    "os.closerange(3, 1000)": ("CRASHED", ENDED),
    "to_every_file(b'garbage\\n')": ("CRASHED", ENDED),
    "to_every_file(b'[' * 10**5 + b'\\n')": ("CRASHED", ENDED),
    'to_every_file(b\'[0, 1e999, "correct", {}, ""]\\n\')': ("CRASHED", ENDED),
    "to_every_file(b'x' * 2**25)": ("CRASHED", "too long"),
    "do(setattr(json, 'dumps', None))": ("CRASHED", ENDED),
    # processes, threads, handlers
    "do(brood(31), os._exit(1))": ("CRASHED", "status 1"),
    "do(brood(5, detached=True), os._exit(1))": ("CRASHED", "status 1"),
    "do(double_fork(), os._exit(1))": ("CRASHED", "status 1"),
    "do(bomb(), os._exit(1))": ("CRASHED", "status 1"),
    "do(double_fork())": ("CORRECT", None),
    "do(bomb())": ("CORRECT", None),
    "do(os.fork())": ("CORRECT", None),  # both processes return
    "do(threading.Thread(target=time.sleep, args=(600,)).start())": ("CORRECT", None),
    "do(deaf())": ("CORRECT", None),
    "do(deaf(), brood(2), time.sleep(600))": ("TIMED_OUT", "its worker was killed"),
    "spin()": ("TIMED_OUT", "its worker was killed"),
    "os.kill(os.getpid(), signal.SIGSTOP)": ("TIMED_OUT", "its worker was killed"),
    "do(os.kill(0, signal.SIGSTOP))": ("TIMED_OUT", "its worker was killed"),
    # what it shares with the run
    "open('/proc/self/oom_score_adj').read() == '1000\\n'": ("CORRECT", None),
    "do(os.write(1, b'x' * 10**8), os.write(2, b'x' * 10**8))": ("CORRECT", None),
    "do(os.makedirs(target + '/here'), os.chdir(target + '/here'), os.rmdir(target + '/here'))": ("CORRECT", None),
    "do(sys.modules.clear(), sys.path.clear())": ("CORRECT", None),
}


def attacked(folder, cases, concurrency):
    """Return (outcome and error by case, rewards of the rows between them, files left, processes left)."""
    (folder / "hostile_rewards.py").write_text(textwrap.dedent(HOSTILE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("HOSTILE_FOLDER", str(folder))  # also marks the processes
        import hostile_rewards  # pyright: ignore[reportMissingImports]

        texts = [text for case in cases for text in (case, "2.0")]
        targets = [hostile_rewards.Target() if "unpickled" in text else str(folder) for text in texts]
        limits = VerifierConfig(workers=2, timeout=1.5, memory=0.5, concurrency=concurrency)
        with judging.Verifiers(hostile_rewards.judge, limits) as verifiers:
            scored = verifiers.submit(texts, targets).result()
    errors = dict(scored.errors)
    rows = {
        case: (name, errors.get(2 * row))
        for row, (case, name) in enumerate(zip(cases, outcomes(scored)[::2], strict=True))
    }
    return rows, scored.reward[1::2], sorted(path.name for path in folder.iterdir()), orphans.marked(str(folder))


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    return attacked(tmp_path_factory.mktemp("hostile"), CASES, 1)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_a_hostile_reward_fails_in_its_row_alone(hostile, case):
    outcome, error = hostile[0][case]
    expected, words = CASES[case]
    assert outcome in expected.split("|"), error
    if words is None:
        assert error is None
    else:
        assert words in error
        assert len(error) < 5000 and all(c.isprintable() or c == "\n" for c in error)


@pytest.mark.full
def test_hostile_rewards_harm_no_other_row_and_leave_no_process(hostile):
    _, others, left, processes = hostile
    np.testing.assert_array_equal(others, 2.0)
    assert "unpickled" not in left
    assert processes == []


@pytest.mark.full
def test_rewards_that_attack_the_pipe_of_a_worker_with_several_calls_fail_alone(tmp_path):
    cases = [case for case, (_, words) in CASES.items() if words in (ENDED, "too long")]
    cases.remove("os.closerange(3, 1000)")  # the threads that wait for a file keep it open, so it times out
    rows, others, _, processes = attacked(tmp_path, cases, 4)
    assert {case: outcome for case, (outcome, _) in rows.items()} == dict.fromkeys(cases, "CRASHED")
    assert all(CASES[case][1] in error for case, (_, error) in rows.items())
    np.testing.assert_array_equal(others, 2.0)
    assert processes == []


START = """
    import os, pathlib, signal

    def judge(text, target):
        if text == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        return 1.0

    if "PYTEST_VERSION" not in os.environ:
        with pathlib.Path(__file__).with_name("starts").open("ab", buffering=0) as starts:
            starts.write(b".")
            if starts.tell() in {deadly}:
                os.kill(os.getpid(), signal.SIGKILL)
"""


def starting(folder, patch, deadly):
    """Return a reward whose import kills its worker in the starts ``deadly``, counted from 1."""
    name = f"starting_rewards_{folder.name}"
    (folder / f"{name}.py").write_text(textwrap.dedent(START).format(deadly=deadly))
    patch.syspath_prepend(folder)
    patch.setattr(process, "_BACKOFF", 0.01)
    reward = importlib.import_module(name).judge
    patch.delenv("PYTEST_VERSION", raising=False)  # not for the workers
    return reward


@pytest.mark.full
def test_workers_killed_while_they_start_are_replaced_and_lose_no_row(tmp_path, monkeypatch):
    reward = starting(tmp_path, monkeypatch, deadly="{1, 2, 4, 5, 6, 7, 8}")  # at first; after the row that dies
    with judging.Verifiers(reward, VerifierConfig(workers=1)) as verifiers:
        scored = verifiers.submit(["1"] * 5 + ["die"] + ["1"] * 60, [None] * 66).result()
    assert [i for i, name in enumerate(outcomes(scored)) if name != "CORRECT"] == [5]
    assert (tmp_path / "starts").stat().st_size == 10  # the row ends workers 3 and 9


@pytest.mark.full
def test_workers_that_cannot_be_kept_alive_end_in_one_clear_error(tmp_path, monkeypatch):
    reward = starting(tmp_path, monkeypatch, deadly="range(2, 100)")
    with judging.Verifiers(reward, VerifierConfig(workers=1)) as verifiers:
        scored = verifiers.submit(["die"] + ["1"] * 20, [None] * 21).result()
    assert outcomes(scored) == ["CRASHED"] * 21
    assert "in a row ended while starting" in scored.errors[0][1] and "SIGKILL" in scored.errors[0][1]
    with (
        pytest.raises(pool.VerifierError, match="6 in a row ended while starting"),
        judging.Verifiers(reward, VerifierConfig(workers=2)),
    ):
        pass
