"""A task scored by worker processes, end to end: every row judged, crashes counted, scores replayed after a kill."""

import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap
import time
import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import types
from rljax.config import files
from rljax.environments.workers import pool
from rljax.run import loop, producers, programs
from rljax.run.evaluation import evaluate
from rljax.run.producers import verified
from rljax.run.records import journals
from tests.run.producers.host_path_cases import JUDGES
from tests.support import compiler, orphans

ROOT = pathlib.Path(__file__).parents[3]
ONE = jax.devices()[:1]
ROWS, WARM, LAST = 32, 3, 7  # rows of a step; the last step of the warm start; of the run
EVALUATED = 4 * 2 + 4  # completions an evaluation judges: 4 prompts, 2 samples each and a greedy one

# some demonstrations are longer than the completions
pytestmark = pytest.mark.filterwarnings("ignore::rljax.environments.questions.task.LengthWarning")


def lucky(text):
    return zlib.crc32(text.encode()) % 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the problems, and the module of the judges."""
    folder = tmp_path_factory.mktemp("host_path")
    (folder / "judges_of_test_host_path.py").write_text(textwrap.dedent(JUDGES))
    names, things = ("Ann", "Ben", "Carla", "Dmitri", "Ewa", "Farid", "Grace"), ("pens", "marbles", "oranges", "books")
    for file, numbers in (("train", range(40)), ("test", range(40, 48))):
        with (folder / f"{file}.jsonl").open("w") as lines:
            for i in numbers:
                a, b, name, thing = i + 2, 3 * i % 17 + 1, names[i % 7], things[i % 4]
                question = f"{name} has {a} {thing} and buys {b} more. How many {thing} are there?"
                working = f"{name} has {a} + {b} = {a + b} {thing} now.\n" if i % 4 == 0 else ""
                lines.write(json.dumps({"question": question, "answer": f"{working}#### {a + b}"}) + "\n")
    patch = pytest.MonkeyPatch()
    patch.syspath_prepend(folder)
    yield folder
    patch.undo()


@pytest.fixture
def moods(folder, tmp_path, monkeypatch):
    """Return an empty folder of moods, which the workers started from here on look at."""
    monkeypatch.setenv("HOST_PATH_MOODS", str(tmp_path / "moods"))
    (tmp_path / "moods").mkdir()
    return tmp_path / "moods"


def config(folder, **fields):
    """Return the shipped config in its quick variant on the small problems, with one worker."""
    c = files.load(str(ROOT / "configs" / "gsm8k.py"), "quick")
    c.task = f"judges_of_test_host_path.questions(path={str(folder)!r})"
    c.phase.warm.steps, c.phase.main.steps = WARM, LAST - WARM
    c.checkpoint.every = 5
    c.log.rollouts, c.log.report = 1, False
    c.verifier.workers = 1
    for name, value in fields.items():
        files.override(c, name.replace("__", "."), value)
    return c


def short(folder, **fields):
    """Return the config of 4 steps that are judged, without demonstrations and evaluations."""
    return config(folder, phases=("main",), phase__main__evaluate="", checkpoint__every=2, **fields)


def train(c, workdir=None):
    return loop.train(c, workdir, progress=False, devices=ONE)


@functools.cache
def program(folder):
    return programs.build(config(folder), devices=ONE)


def read(workdir, name):
    return [json.loads(line) for line in (workdir / f"{name}.jsonl").open()]


def calls(moods):
    return (moods / "calls").stat().st_size


@pytest.fixture(scope="module")
def whole(folder):
    """Return (work directory, result, calls of the judge) of a run that nothing disturbed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOST_PATH_MOODS", str(folder))
        result = train(config(folder), folder / "whole")
    return folder / "whole", result, calls(folder)


def test_every_completion_is_scored(whole):
    workdir, result, count = whole
    verdicts, steps = read(workdir, "verdicts"), read(workdir, "metrics")
    assert [v["step"] for v in verdicts] == [4, 5, 6, 7]  # demonstrations are not judged
    assert all(len(v["reward"]) == len(v["outcome"]) == ROWS for v in verdicts)
    assert count == 4 * ROWS + 2 * EVALUATED
    for verdict, step in zip(verdicts, steps[WARM:], strict=True):
        assert step["valid_rows"] == ROWS
        assert sum(step[f"outcome/{o.name.lower()}"] for o in types.Outcome) == pytest.approx(1.0)
        assert step["reward"] == pytest.approx(np.mean(verdict["reward"]))
        assert step["outcome/correct"] == pytest.approx(np.mean(np.equal(verdict["outcome"], types.Outcome.CORRECT)))
    assert all("reward" not in step for step in steps[:WARM])
    assert 0 < np.mean([v["reward"] for v in verdicts]) < 1  # else the test below sees nothing
    assert [e["name"] for e in result.evaluations] == ["base", "result"]


def test_each_row_is_judged_by_its_own_text_and_its_own_answer(whole):
    rollouts = [r for r in read(whole[0], "rollouts") if r["step"] > WARM]
    assert len(rollouts) == 4 * ROWS
    for row in rollouts:
        words = row["prompt"].split()
        assert row["parts"] == {"format": 1.0, "wanted": float(words[3]) + float(words[7])}  # Ann has 3 pens and buys 4
        assert row["reward"] == lucky(row["completion"])
        assert row["outcome"] == ("correct" if row["reward"] else "wrong")


@pytest.mark.full
def test_chunks_change_no_row(folder, moods):
    p = program(folder)
    step = p.steps[1]
    state = p.steps[0].begin(None, p.key)
    with verified.verifiers(p.setups[-1].task, p.setups[-1].settings.verifier) as workers:
        one, two = (verified.Verified(p, step, workers, journals.Journal(), chunks)(state) for chunks in (1, 2))
    assert calls(moods) == 2 * ROWS
    np.testing.assert_array_equal(one.action.token, two.action.token)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), one, two)
    np.testing.assert_array_equal(two.episode, np.arange(ROWS))
    np.testing.assert_array_equal(two.group, np.repeat(np.arange(8), 4))
    completions = verified.texts(p.tokenizer, *jax.device_get((two.action.token, two.mask)))
    np.testing.assert_array_equal(two.reward, [lucky(text) for text in completions])


def test_demonstrations_end_where_the_budget_lets_them(folder):
    p = program(folder)
    state = p.steps[0].begin(None, p.key)
    rows = producers.make(p, p.steps[0], None)(state)
    length = rows.mask.sum(axis=1).astype(int)
    last = rows.action.token[np.arange(16), length - 1]
    for index, n, token in zip(rows.index, length, last, strict=True):
        worked = index % 4 == 0  # those solutions have more tokens than the budget of 12
        assert (n == 12) == worked
        assert (token == p.tokenizer.eos) == (not worked)
    assert {0, 1} <= {int(i) % 4 for i in rows.index}  # both were seen
    np.testing.assert_array_equal(rows.on_policy, 0)


# --- verifiers that fail --------------------------------------------------------------------------


@pytest.mark.full
def test_crashed_rows_are_invalid_counted_and_told(folder, moods):
    (moods / "touchy").touch()
    with pytest.warns(verified.VerifierWarning, match=r"(?s)crashed on \d+ of 32 rows of step [12].*no such answer"):
        result = train(config(folder, phases=("main",), phase__main__steps=2, phase__main__evaluate=""))
    p = result.program
    step, state = p.steps[0], p.steps[0].begin(None, p.key)
    with (
        verified.verifiers(p.setups[-1].task, p.setups[-1].settings.verifier) as workers,
        pytest.warns(verified.VerifierWarning),
    ):
        rows = verified.Verified(p, step, workers, journals.Journal(), 2)(state)
    completions = verified.texts(p.tokenizer, *jax.device_get((rows.action.token, rows.mask)))
    crashed = np.array([zlib.crc32(text.encode()) % 3 == 0 for text in completions])
    assert 0 < crashed.sum() < ROWS
    np.testing.assert_array_equal(rows.valid, ~crashed)
    np.testing.assert_array_equal(rows.outcome == types.Outcome.CRASHED, crashed)
    np.testing.assert_array_equal(rows.reward, [lucky(t) * (not c) for t, c in zip(completions, crashed, strict=True)])
    assert [h["step"] for h in result.history] == [1, 2]  # the run went on
    first = result.history[0]  # the same step as the rows above
    assert first["valid_rows"] == ROWS - crashed.sum()
    assert first["outcome/crashed"] == pytest.approx(crashed.mean())
    assert first["reward"] == pytest.approx(
        np.mean([lucky(t) for t, c in zip(completions, crashed, strict=True) if not c])
    )


def test_a_verifier_that_crashes_on_every_row_ends_the_run_with_its_traceback(folder, moods):
    (moods / "raise").write_text("0")
    with pytest.raises(RuntimeError, match=r"(?s)32 of 32 rows of step 1.*Traceback.*KeyError: 'no such answer'"):
        train(config(folder, phases=("main",)))


@pytest.mark.full
def test_a_reward_that_returns_crashed_on_every_row_ends_the_run_with_one_line(folder, moods):
    (moods / "hopeless").touch()
    with pytest.raises(pool.VerifierError, match=r"32 of 32 rows of step 1. First:\n.*returned outcome 'crashed'"):
        train(config(folder, phases=("main",)))


def test_an_evaluation_that_crashes_on_every_row_is_no_zero(folder, moods):
    (moods / "raise").write_text("0")
    p = program(folder)
    params = p.steps[0].begin(None, p.key).params["policy"]
    with pytest.raises(RuntimeError, match=r"(?s)8 of 8 rows of an evaluation.*no such answer"):
        evaluate.evaluate(p, params, name="x", step=0, prompts=4, samples=2)


# --- killed and resumed ---------------------------------------------------------------------------


def same(one, other):
    for name in ("metrics", "verdicts", "evaluations", "rollouts"):
        assert (one / f"{name}.jsonl").read_bytes() == (other / f"{name}.jsonl").read_bytes(), name


SCRIPT = """
import sys, pathlib
from tests.run.producers import test_host_path as t
t.train(t.config(pathlib.Path(sys.argv[1])), sys.argv[2])
"""


@pytest.mark.full
def test_killed_it_ends_bit_for_bit_as_if_nothing_had_been(whole, folder, moods, tmp_path):
    # Killed by its own judge in step 7: step 6 is journalled, the newest checkpoint is step 5's.
    (moods / "kill").write_text(str(EVALUATED + 3 * ROWS + 7))
    path = os.pathsep.join((str(ROOT), str(folder)))
    killed = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(folder), str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [v["step"] for v in read(tmp_path / "run", "verdicts")] == [4, 5, 6]
    (moods / "kill").unlink()
    before = calls(moods)
    result = train(config(folder), tmp_path / "run")
    assert (
        calls(moods) - before == ROWS + EVALUATED
    )  # step 7 and the last evaluation; what was journalled is not judged
    same(whole[0], tmp_path / "run")
    jax.tree.map(np.testing.assert_array_equal, whole[1].state, result.state)


@pytest.mark.full
def test_sigterm_ends_a_run_whose_worker_is_stopped_and_the_run_resumes(folder, moods, tmp_path):
    (tmp_path / "stopped_config.py").write_text(
        "import pathlib\nfrom tests.run.producers import test_host_path as t\n\n"
        f"def get_config(arg=''):\n    return t.short(pathlib.Path({str(folder)!r}), verifier__timeout=600.0)\n"
    )
    last = ROWS + 5  # in step 2
    (moods / "stop").write_text(str(last))
    command = [sys.executable, "-m", "rljax", "--config", str(tmp_path / "stopped_config.py")]
    run = subprocess.Popen(
        [*command, "--workdir", str(tmp_path / "run")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(folder))), "XLA_FLAGS": compiler.QUICK},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    while run.poll() is None and not ((moods / "calls").exists() and calls(moods) > last):
        time.sleep(0.05)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=60)  # far below the time limit of the row
    assert run.returncode == loop.RESUMABLE, output
    assert "waiting for the verifier" in output and "run the same command again" in output
    assert orphans.marked(str(moods)) == []
    before = read(tmp_path / "run", "verdicts")
    assert [v["step"] for v in before] == [1]
    assert (tmp_path / "run" / "checkpoints" / "1").is_dir()
    (moods / "stop").unlink()
    result = train(short(folder, verifier__timeout=600.0), tmp_path / "run")
    assert [h["step"] for h in result.history] == [1, 2, 3, 4]
    assert calls(moods) == last + 1 + 3 * ROWS
    assert read(tmp_path / "run", "verdicts")[:1] == before


@pytest.mark.full
def test_time_outs_are_replayed_as_they_happened(folder, moods, tmp_path):
    # Every other call times out; in step 4 the judge breaks down, after the checkpoint of step 2.
    (moods / "slow").touch()
    (moods / "raise").write_text(str(3 * ROWS))
    with pytest.raises(RuntimeError, match="no such answer"):
        train(short(folder), tmp_path / "run")
    before = read(tmp_path / "run", "verdicts")
    assert [v["step"] for v in before] == [1, 2, 3]
    (moods / "slow").unlink()
    (moods / "raise").unlink()
    result = train(short(folder), tmp_path / "run")  # from step 3, in a world where nothing times out
    seen = {h["step"]: (h["outcome/timed_out"], h["valid_rows"]) for h in result.history}
    assert seen == {1: (0.5, 16), 2: (0.5, 16), 3: (0.5, 16), 4: (0.0, 32)}
    assert read(tmp_path / "run", "verdicts")[:3] == before


def test_the_journal_gives_scores_to_the_completions_they_belong_to(tmp_path):
    def completions(token):
        rows = np.arange(2), np.arange(2), np.full((2, 3), token, np.int32), np.ones((2, 3))
        return verified.digest([verified.Rows(*rows)])

    verdict = types.Verdict(reward=np.float32([0.1, 1]), outcome=np.int32([3, 1]), parts={"format": np.float32([0, 1])})
    journal = journals.Journal(tmp_path)
    for step in (1, 2, 3):
        assert journal.replay(journals.VERDICTS, (step, 0), completions(step)) is None
        journal.record(journals.VERDICTS, (step, 0), completions(step), verdict)
    again = journals.Journal(tmp_path, 1)
    assert again.replay(journals.VERDICTS, (1, 0), completions(1)) is None  # the checkpoint has it already
    replayed = again.replay(journals.VERDICTS, (2, 0), completions(2))
    jax.tree.map(np.testing.assert_array_equal, replayed, verdict)
    assert replayed.reward.dtype == jnp.float32
    assert again.replay(journals.VERDICTS, (3, 0), completions(9)) is None  # the same step of another run
    again.record(journals.VERDICTS, (3, 0), completions(9), verdict)
    assert [r["step"] for r in read(tmp_path, "verdicts")] == [1, 2, 3, 3]  # the last one counts
    resumed = journals.Journal(tmp_path, 2)
    assert resumed.replay(journals.VERDICTS, (3, 0), completions(9)) is not None
    changed = journals.Journal(tmp_path, 2, judge="another reward")
    assert changed.replay(journals.VERDICTS, (3, 0), completions(9)) is None


# --- around it ------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_finished_run_is_evaluated_from_its_directory_alone(whole, folder, moods):
    command = [
        sys.executable,
        "-m",
        "rljax",
        "evaluate",
        "--allow_code=judges_of_test_host_path",
        str(whole[0]),
        "--prompts",
        "4",
        "--samples",
        "2",
    ]
    path = os.pathsep.join((str(ROOT), str(folder)))
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path, "XLA_FLAGS": compiler.QUICK},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    record, stored = json.loads(done.stdout.splitlines()[-1]), whole[1].evaluations[-1]
    assert calls(moods) == EVALUATED
    assert record["step"] == LAST
    assert {k: record[k] for k in ("pass_at_k", "greedy", "length")} == {
        k: stored[k] for k in ("pass_at_k", "greedy", "length")
    }


def test_a_path_that_is_not_there_is_named():
    c = files.load(str(ROOT / "configs" / "gsm8k.py"))
    files.override(c, "task.path", "nowhere")
    with pytest.raises((FileNotFoundError, ValueError), match=r"nowhere/train\.jsonl: no such file"):
        programs.build(c)


def test_the_shipped_config_says_what_it_runs():
    c = files.load(str(ROOT / "configs" / "gsm8k.py"))
    assert (c.tokenizer.kind, c.tokenizer.vocabulary) == ("bpe", 1024)
    assert c.phases == ("warm", "main") and c.phase.warm.algorithm == "sft()" and c.algorithm.startswith("grpo(")
    with pytest.raises(ValueError, match="only variant is 'quick'"):
        files.load(str(ROOT / "configs" / "gsm8k.py"), "fast")
