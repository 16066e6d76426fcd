"""Verifiers and the worker processes that run them."""

import functools
import importlib
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

from rljax import types
from rljax.environments.verifiers import answers, equality, mathematics, pool, process
from tests import grammar, orphans

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
        (r"\boxed{30}", "30_8", "correct"),  # the question asks for the base
        (r"\boxed{36_8}", "30", "correct"),
        (r"\boxed{30_9}", "30_8", "wrong"),
        (r"\boxed{30_8}", "30", "wrong"),
        (r"\boxed{24}", "30_8", "wrong"),
        (r"\boxed{0.\overline{36}}", r"\frac{4}{11}", "correct"),
        (r"\boxed{2.\overline{4}}", r"\frac{22}{7}", "wrong"),
        (r"\boxed{|A \cup B| = 4}", "4", "correct"),
        (r"\boxed{|x| = 4}", "4", "wrong"),
        (r"\boxed{\textbf{(B)}\ 27}", "27", "correct"),
        (r"\boxed{\textbf{(B)}\ 27}", "28", "wrong"),
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
        ("**72.** Add the clips.", "unparseable"),
        ("The answer is 72π.", "unparseable"),
        ("The answer is 72½.", "unparseable"),
        ("The answer is 72 plus three.", "unparseable"),
        ("#### 72\n#### Note", "correct"),
        ("#### \u221272", "wrong"),
        ("She sold 72 clips.", "unparseable"),
        ("72", "unparseable"),
    ],
)
def test_answers_as_models_write_them(completion, outcome):
    assert mathematics.numeric_answer(completion, "72", CHAT)["outcome"] == outcome


@pytest.mark.parametrize("text", ["#### 3{}x1", "**3{}", "The answer is 3{}x"])
def test_reading_an_answer_takes_linear_time(text):
    assert mathematics.numeric_answer(text.format(" " * 10**6), "72", CHAT)["outcome"] != "correct"


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


@pytest.mark.parametrize("target", ["", "$$", r"\,"])
def test_a_reference_that_cannot_be_read_is_an_error(target):
    with pytest.raises(ValueError, match="reference"):
        mathematics.numeric_answer(r"#### 2\sqrt{2}", target)


ALGEBRA = [  # reference, right forms, wrong forms
    (
        "p - q",
        ["-q+p", "p-q", "(p-q)", "-(q-p)", "p + (-q)", "$p-q$"],
        ["p + q", "p/q", "pq", "q - p", "p", "q", "P+q", "p*q", "p^q"],
    ),
    ("pq", ["qp", "p q", "p \\cdot q", "p*q"], ["p+q", "p/q", "p-q", "p^q"]),
    (
        "2ab",
        ["2ba", "ab \\cdot 2", "2 a b", "2a \\cdot b"],
        ["2", "2a", "2b", "2ac", "2abc", "ab", "2 cm", "3ab", "2(a+b)"],
    ),
    ("3xy", ["3yx", "3x y"], ["3", "3xz", "3x", "3x+y"]),
    ("a^2 + 2ab + b^2", ["(a+b)^2", "b^2+2ab+a^2"], ["a^2+2ac+b^2", "a^2 + b^2", "a^2+2ab-b^2", "a^2 - 2ab + b^2"]),
    ("x - y + z", ["z-y+x", "x+z-y"], ["x+y+z", "xyz", "x-y-z", "x y z"]),
    ("ab - c", [], ["abc", "ab+c", "ab/c", "a-bc"]),
    ("a b", ["ba", "ab"], ["a+b", "a-b"]),
    ("AB - CD", [], ["AB+CD", "ABCD"]),
    ("x + 2yz", ["2yz+x"], ["x+2", "x+2y", "x + 2zw"]),
    ("x-axis", ["x axis", "\\text{x-axis}"], ["y-axis", "x+axis"]),
    ("\\text{no}", ["no", "No."], ["on", "yes"]),
    ("\\frac{p}{q}", ["p/q"], ["pq", "p+q", "q/p", "p-q"]),
    ("-q", ["-1q"], ["q", "+q"]),
    (
        "1",
        [
            "\\implies x = 1",
            "2x = 2 \\implies x = 1",
            "x-1=0 \\Rightarrow x = 1",
            "1 \\checkmark",
            "1\\ \\checkmark",
            "x = \\phantom{0}1",
            "\\phantom{-}1",
            "1\\hphantom{0}",
        ],
        ["1 \\implies x = 2", "\\checkmark", "1\\phantom{2}3"],
    ),
    (
        "27",
        ["27\\text{ (integer)}", "27{.}0", "27 \\; \\checkmark", "\uff12\uff17", "27_{10}"],
        [
            "27\\text{k}",
            "27_{7}",
            "27_7",
            "27k",
            "27_{8}",
            "27\\text{ K}",
            "27\\text{bn}",
            "27\\text{ (not an integer)}",
            "27M",
        ],
    ),
    (
        "1.5",
        ["1{.}5", "\\nicefrac{3}{2}", "\\sfrac32", "\uff11\uff0e\uff15", "\\nicefrac32"],
        ["15", "\\nicefrac{2}{3}"],
    ),
    ("\\frac{3}{4}", ["\\nicefrac{3}{4}", "\\tfrac34", "3/4", "0.75", "75\\%"], ["75"]),
    (
        "5",
        ["5", "5.0", "5 cm", "5\\text{ m}"],
        ["5\\%", "5%", "5 percent", "5\\text{ percent}", "0.05", "500\\%x", "5\\text{ per cent}"],
    ),
    ("5\\%", ["5\\%", "5%", "5 percent", "0.05", "5"], ["6\\%", "50"]),
    ("0.05", ["5\\%", "5 \\text{ percent}"], ["5"]),
    ("2pq", ["2 q p"], ["2", "2pr", "2p"]),
    ("4 cm", ["4", "4\\text{ cm}"], ["4k", "5 cm"]),
    ("xyz", ["x y z", "zyx", "x \\cdot y \\cdot z"], ["x+y+z", "xy-z", "xy"]),
    ("\\text{even}", ["Even"], ["odd", "e+v+e+n"]),
    ("n - 1", ["-1+n"], ["n+1", "n1"]),
    ("e - 1", ["-1+e"], ["e+1"]),
    ("t", ["t"], ["2t", "-t", "T+t"]),
]


@pytest.mark.parametrize(("reference", "right", "wrong"), ALGEBRA, ids=[row[0] for row in ALGEBRA])
def test_letters_are_variables_and_marks_are_presentation(reference, right, wrong):
    assert [text for text in right if equality.compare(text, reference) != "correct"] == []
    assert [text for text in wrong if equality.compare(text, reference) == "correct"] == []


def test_a_percent_sign_is_a_unit_where_golds_have_none():
    for text, target, number, boxed in (
        (r"\boxed{20\%}", "20", "correct", "wrong"),
        (r"\boxed{20\%}", "0.2", "correct", "correct"),
        (r"\boxed{2\%}", "20", "wrong", "wrong"),
        (r"\boxed{0.2}", "20", "wrong", "wrong"),
        (r"\boxed{20}", r"20\%", "correct", "correct"),
    ):
        assert mathematics.numeric_answer(text, target, ("boxed",))["outcome"] == number, (text, target)
        assert mathematics.boxed_answer(text, target)["outcome"] == boxed, (text, target)


def test_rewritings_are_paid_and_corruptions_are_not():
    """The whole grammar on one reference of each kind; ``python -m tests.grammar`` measures it on many."""
    every = grammar.references(None, len(grammar.TEMPLATES))[-len(grammar.TEMPLATES) - 4 :]
    assert {r.kind for r in every} == {"number", *grammar.TEMPLATES}
    failed = [case for case in grammar.measure(every, ("boxed",)) if (case[-1] == "correct") != (case[3] == "right")]
    assert failed == []


@pytest.mark.full
def test_no_answer_pays_for_every_reference_and_hostile_ones_are_judged_in_time(judge):
    every = grammar.references(None, 2 * len(grammar.TEMPLATES))
    assert grammar.universal(every) == []
    one = [*{r.kind: r.text for r in every}.values()]  # of each kind
    answered = [f"\\boxed{{{text}}}" for text in grammar.HOSTILE for _ in one]
    with pool.Verifiers(mathematics.boxed_answer, workers=2, timeout=5.0) as verifiers:
        scored = verifiers.submit(answered, one * len(grammar.HOSTILE)).result()
    assert set(outcomes(scored)) <= {"WRONG", "UNPARSEABLE"} and scored.errors == []


@pytest.mark.full
def test_a_broken_library_fails_when_workers_start(tmp_path, monkeypatch):
    (tmp_path / "math_verify.py").write_text("def parse(*_, **__): return []")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ValueError, match="math-verify does not work here"), pool.Verifiers(mathematics.boxed_answer, 1):
        pass


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
    with pool.Verifiers(judge, workers=workers, parts=["format"]) as verifiers:
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
    with pool.Verifiers(judge, workers=2, timeout=1.0, threshold=0.5) as verifiers:
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
    assert orphans.gone(int(note.read_text()))


def test_a_row_that_kills_its_worker_is_tried_twice(judge, tmp_path):
    texts = ["number 1", "die", "number 2", "die-once", "number 3"]
    with pool.Verifiers(judge, workers=1) as verifiers:
        scored = verifiers.submit(texts, [str(tmp_path / "mark")] * 5).result()
    assert outcomes(scored) == ["CORRECT", "CRASHED", "UNJUDGED", "CORRECT", "UNJUDGED"]
    np.testing.assert_array_equal(scored.reward, np.array([1, 0, 2, 1, 3], np.float32))
    assert [row for row, _ in scored.errors] == [1]
    assert "SIGKILL" in scored.errors[0][1]


def test_a_worker_killed_from_outside_is_replaced(judge):
    with pool.Verifiers(judge, workers=1) as verifiers:
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
    with pool.Verifiers(judge, workers=2, timeout=60) as verifiers:
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
        from rljax.environments.verifiers import pool
        verifiers = pool.Verifiers(judges.judge, workers=1, timeout=60.0).__enter__()
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
        "memory": functools.partial(pool.Verifiers, judge, memory=math.nan),
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


# --- rewards and processes that misbehave -----------------------------------------------------------

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
    "'unpickled'": ("CRASHED", "cannot be unpickled"),
    "do(sys.modules.clear(), sys.path.clear())": ("CORRECT", None),
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Return (outcome and error by case, rewards of the rows between them, files left, processes left)."""
    folder = tmp_path_factory.mktemp("hostile")
    (folder / "hostile_rewards.py").write_text(textwrap.dedent(HOSTILE))
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        patch.setenv("HOSTILE_FOLDER", str(folder))  # also marks the processes
        import hostile_rewards  # pyright: ignore[reportMissingImports]

        texts = [text for case in CASES for text in (case, "2.0")]
        targets = [hostile_rewards.Target() if "unpickled" in text else str(folder) for text in texts]
        with pool.Verifiers(hostile_rewards.judge, workers=2, timeout=1.5, memory=0.5) as verifiers:
            scored = verifiers.submit(texts, targets).result()
    errors = dict(scored.errors)
    rows = {
        case: (name, errors.get(2 * row))
        for row, (case, name) in enumerate(zip(CASES, outcomes(scored)[::2], strict=True))
    }
    return rows, scored.reward[1::2], sorted(path.name for path in folder.iterdir()), orphans.marked(str(folder))


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
    with pool.Verifiers(reward, workers=1) as verifiers:
        scored = verifiers.submit(["1"] * 5 + ["die"] + ["1"] * 60, [None] * 66).result()
    assert [i for i, name in enumerate(outcomes(scored)) if name != "CORRECT"] == [5]
    assert (tmp_path / "starts").stat().st_size == 10  # the row ends workers 3 and 9


@pytest.mark.full
def test_workers_that_cannot_be_kept_alive_end_in_one_clear_error(tmp_path, monkeypatch):
    reward = starting(tmp_path, monkeypatch, deadly="range(2, 100)")
    with pool.Verifiers(reward, workers=1) as verifiers:
        scored = verifiers.submit(["die"] + ["1"] * 20, [None] * 21).result()
    assert outcomes(scored) == ["CRASHED"] * 21
    assert "in a row ended while starting" in scored.errors[0][1] and "SIGKILL" in scored.errors[0][1]
    with pytest.raises(pool.VerifierError, match="6 in a row ended while starting"), pool.Verifiers(reward, workers=2):
        pass


def test_a_stopped_worker_does_not_block_and_stopping_ends_the_wait(judge, monkeypatch):
    monkeypatch.setattr(process, "_SEND_LIMIT", 0.2)
    monkeypatch.setattr(pool, "_GRACE", 0.1)
    stop = threading.Event()
    with pool.Verifiers(judge, workers=1, timeout=600, interrupted=stop.is_set) as verifiers:
        worker = int(verifiers.submit(["pid"], [None]).result().reward[0])
        os.kill(worker, signal.SIGSTOP)
        large = verifiers.submit(["number 1" + " " * 10**6], [None])  # more than the pipe's buffer holds
        assert outcomes(large.result()) == ["CORRECT"]  # by another worker
        assert orphans.gone(worker)
        pending = verifiers.submit(["hang"], [None])
        stop.set()
        with pytest.raises(pool.Interrupted):
            pending.result()
