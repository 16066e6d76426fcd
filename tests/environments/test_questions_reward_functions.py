"""Tasks over a user's rows: reward functions; what counts as correct."""

import io
import json
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import rich.console

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.verifiers import judging, outcomes, rewards
from rljax.environments.workers import process, worker
from rljax.language import errors
from rljax.run.evaluation import evaluate
from rljax.run.producers import verified
from rljax.transforms import trajectories
from tests.environments.questions_cases import ROWS, task, write

# --- reward functions -----------------------------------------------------------------


def judged(made, completion, row=0):
    return made.reward(completion, made.target(row, "train"), **environments.columns(made, row, "train"))


def test_a_reward_gets_the_columns_that_it_takes(folder):
    made = task("jsonl('my.jsonl', reward='my:picky')")
    assert set(made.columns(0, "train")) == {"prompt", "level"}
    level = next(row["level"] for row in ROWS if row["question"] == made.text(0, "train"))
    assert judged(made, "x") == {"reward": 1.0, "level": level, "prompt": len(made.text(0, "train")), "plain": True}
    assert judged(task("jsonl('my.jsonl', reward='my:nosy')"), "x")["columns"] == len(ROWS[0]) + 1  # and the prompt
    assert task("jsonl('my.jsonl', reward='my:right')").columns(0, "train") == {}
    made = task("jsonl('my.jsonl')")
    assert judged(made, f" {made.target(0, 'train')}\n")["outcome"] == "correct" and made.parts == ()


def test_columns_named_as_a_parameter_that_is_taken_already_are_not_passed_again(folder):
    rows = [{**row, "completion": "c", "reference": "r", "self": "s"} for row in ROWS]
    write(folder / "named.jsonl", rows)
    made = task("jsonl('named.jsonl', reward='my:all_columns')")
    row_columns = len(rows[0]) + 1 - 2  # with the prompt, without completion and answer
    assert judged(made, str(made.target(0, "train"))) == {"reward": 1.0, "columns": row_columns}


def test_a_second_parameter_that_is_not_the_reference_is_refused(folder):
    with pytest.raises(ValueError, match=r"of_the_prompt\(completion, prompt\): a second parameter is the reference"):
        task("jsonl('my.jsonl', reward='my:of_the_prompt')")
    with pytest.raises(ValueError, match=r"'level', is the reference, 'answer', and also"):
        task("jsonl('my.jsonl', reward='my:of_a_column')")
    assert judged(task("jsonl('my.jsonl', answer='level', reward='my:of_a_column')"), "x") == 1.0


def test_a_reward_that_changes_its_arguments_changes_neither_the_rows_nor_what_others_get(folder):
    made = task("jsonl('my.jsonl', reward={'my:growing': 1.0, 'my:picky': 0.0})")
    for _ in range(2):
        assert judged(made, "x")["growing"] == 2.0

    def extend(text, target):
        target.append(text)
        return len(target)

    target: list[str] = []
    with judging.Verifiers(extend, VerifierConfig(workers=0)) as verifiers:
        assert [*verifiers.submit(["a", "b"], [target, target]).result().reward] == [1.0, 1.0]


def test_names_of_rewards_hide_neither_the_sum_nor_a_built_in_one(folder):
    assert judged(task("jsonl('my.jsonl', reward={'my:reward': 0.5})"), "x") == {
        "outcome": "unjudged",
        "reward": 0.5,
        "rewards_of_test_questions.reward": 1.0,
    }
    write(folder / "lists.jsonl", [{"question": f"{i}?", "answer": ["a", "b"]} for i in range(60)])
    made = task("jsonl('lists.jsonl', reward='my:exact')")  # of the user: the answer is passed as it is
    assert made.parts == () and judged(made, "b") == 1.0
    both = task("jsonl('my.jsonl', reward={'my:exact': 1.0, 'exact': 1.0})")
    assert both.parts == ("rewards_of_test_questions.exact", "exact")
    with pytest.raises(ValueError, match="do not differ in their names"):
        rewards.combine({(lambda completion: 1.0): 1.0, (lambda completion: 2.0): 1.0})  # pyright: ignore


def test_an_exception_while_a_reward_is_imported_has_the_line_of_the_user(folder):
    (folder / "broken_module.py").write_text("BEST = {}['best']\ndef right(completion):\n    return 1.0\n")
    with pytest.raises(errors.CodeError, match=r"reward: 'broken_module:right' cannot be imported .KeyError") as error:
        task("jsonl('my.jsonl', reward='broken_module:right')")
    assert 'broken_module.py", line 1' in "\n".join(error.value.notes)


def test_what_all_completions_of_a_group_answer_fits_into_a_line():
    scored = worker.answered(outcomes.Scorer(long_error), "score", [["x"] * 512, "", {}])
    assert len(json.dumps([0, *scored])) < process._LONGEST_LINE


def long_error(completions, reference):
    raise ValueError("\u00e9" * 10_000)


def test_several_rewards_are_parts_of_a_weighted_sum(folder):
    made = task("jsonl('my.jsonl', reward={'my:brief': 0.5, 'my:strict': 2.0, 'number': 1})")
    assert made.parts == ("brief", "strict", "number", "answer")
    answer = str(made.target(0, "train"))
    short = 1 / (1 + len(answer))
    assert judged(made, answer) == {
        "outcome": "correct",  # of strict, the first that returns one
        "reward": 0.5 * short + 2.0,  # the number is not after its mark
        "brief": short,
        "brief/length": len(answer),
        "strict": 1.0,
        "number": 0.0,
        "number/format": 0.0,
        "answer": 0.0,
    }
    assert judged(task("jsonl('my.jsonl', reward={'my:right': 1.0, 'my:brief': 0.2})"), answer)["outcome"] == "unjudged"
    half = judged(task("jsonl('my.jsonl', reward={'my:right': 0.5})"), answer)
    assert half == {"outcome": "unjudged", "reward": 0.5, "right": 1.0}
    crash = rewards.combine({lambda completion: {"outcome": "crashed"}: 1.0, "exact": 1.0})  # pyright: ignore
    assert crash("1", "1")["outcome"] == "crashed"


def test_the_worker_runs_what_the_file_defines_with_its_columns(folder):
    made = task("jsonl('my.jsonl', reward={'my:picky': 1.0, 'my:right': 1.0})")
    index = range(8)
    with judging.Verifiers(made.reward, VerifierConfig(workers=1, threshold=2.0), parts=made.parts) as verifiers:
        texts = [str(made.target(i, "train") + i % 2) for i in index]
        columns = [made.columns(i, "train") for i in index]
        scored = verifiers.submit(texts, [made.target(i, "train") for i in index], columns).result()
    assert scored.errors == [] and [types.Outcome(code).name for code in scored.outcome] == ["CORRECT", "WRONG"] * 4
    np.testing.assert_array_equal(scored.parts["right"], np.array([1, 0] * 4))
    np.testing.assert_array_equal(
        scored.parts["picky/level"], np.array([made.columns(i, "train")["level"] for i in index])
    )


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_reward_of_groups_sees_the_completions_of_a_prompt(folder, workers):
    made = task("jsonl('my.jsonl', reward='my:ranked', answer='')")
    texts = ["a", "bb", "ccc", "raise", "x", "y", "short", "x", "y", "zz", "z", "z"]
    with judging.Verifiers(made.reward, VerifierConfig(workers=workers)) as verifiers:
        groups = [i // 3 for i in range(12)]
        scored = verifiers.submit(texts, [""] * 12, [{"prompt": "p"}] * 12, groups).result()
    names = [types.Outcome(code).name for code in scored.outcome]
    assert names == ["WRONG", *["UNJUDGED"] * 2, *["CRASHED"] * 6, "UNJUDGED", "WRONG", "WRONG"]
    np.testing.assert_allclose(scored.reward, np.array([0, 1 / 3, 2 / 3, *[0] * 6, 2 / 3, 0, 0]))
    errors = dict(scored.errors)
    assert "no luck" in errors[3] and "returned [1.0]; for 3 completions it must return a list of 3" in errors[6]


@pytest.mark.full
def test_a_group_is_scored_again_if_its_worker_is_killed_and_fails_whole(folder):
    made = task("jsonl('my.jsonl', reward={'my:ranked': 1.0, 'my:brief': 1.0}, answer='')")
    texts = ["a", "die-once", "die", "b", "hang", "c", "a", "bb"]
    with judging.Verifiers(made.reward, VerifierConfig(workers=1, timeout=1.0)) as verifiers:
        columns = [{"prompt": str(folder / "mark")}] * 8
        scored = verifiers.submit(texts, [""] * 8, columns, [i // 2 for i in range(8)]).result()
    names = [types.Outcome(code).name for code in scored.outcome]
    assert names == [*["UNJUDGED"] * 2, *["CRASHED"] * 2, *["TIMED_OUT"] * 2, *["UNJUDGED"] * 2]
    assert "SIGKILL" in dict(scored.errors)[2] and (folder / "mark").exists()
    np.testing.assert_allclose(scored.parts["ranked"], np.array([0, 0.5, 0, 0, 0, 0, 0, 0.5]))


# --- what counts as correct -----------------------------------------------------------


def test_a_fractional_reward_is_correct_only_by_an_outcome_or_a_threshold():
    values = [1, 0, -1.0, 0.1, 1.2, {"reward": 0.1, "outcome": "correct"}, {"reward": 0.5, "outcome": "unjudged"}]
    texts = [str(i) for i in range(len(values))]
    named = {}
    for threshold in (0.0, 0.5, 1.1):
        with judging.Verifiers(
            lambda text, target: values[int(text)], VerifierConfig(workers=0, threshold=threshold)
        ) as verifiers:
            scored = verifiers.submit(texts, texts).result()
        named[threshold] = [types.Outcome(code).name[0] for code in scored.outcome]
    assert named == {0.0: [*"CWWUUCU"], 0.5: [*"CWWWCCC"], 1.1: [*"WWWWCCW"]}


def test_unjudged_rows_are_reported_with_what_to_set(folder):
    made = task("jsonl('my.jsonl', reward='my:brief', answer='')").bind(tokenizers.make("bytes", ()))
    tokenizer = tokenizers.make("bytes", ())
    token, mask = tokenizers.padded([tokenizer.encode(t) for t in ("a", "bb", "ccc", "d")], 4, tokenizer.pad)
    rows = verified.Rows(np.arange(4), np.repeat(np.arange(2, dtype=np.int32), 2), token, mask)
    with judging.Verifiers(made.reward, VerifierConfig(workers=0)) as verifiers:
        pending = verified.judge(made, tokenizer, verifiers, rows, "train", 2)
        with pytest.warns(verified.VerifierWarning, match=r"set config\.verifier\.threshold to the smallest"):
            verdict = verified.verdict([rows], [pending], "step 1")
    assert set(np.asarray(verdict.outcome)) == {types.Outcome.UNJUDGED}
    record = {"name": "result", "step": 1, "pass_at_k": {"1": [0.0, 0.0, 0.1]}, "greedy": [0.0, 0.0, 0.1], "length": 1}
    console = rich.console.Console(file=io.StringIO(), width=200)
    evaluate.table([{**record, "prompts": 2, "samples": 2, "unjudged": 0.75, "examples": []}], console)
    shown: Any = console.file
    assert "75.0" in shown.getvalue() and "config.verifier.threshold" in shown.getvalue()


def test_a_process_without_all_completions_of_a_group_is_refused(folder):
    made = task("jsonl('my.jsonl', reward='my:ranked', answer='')").bind(tokenizers.make("bytes", ()))
    rows = verified.Rows(np.arange(3), np.zeros(3, np.int32), np.zeros((3, 2), np.int32), np.ones((3, 2), np.float32))
    with (
        judging.Verifiers(made.reward, VerifierConfig(workers=0)) as verifiers,
        pytest.raises(ValueError, match="not whole groups of 2"),
    ):
        verified.judge(made, tokenizers.make("bytes", ()), verifiers, rows, "train", 2)


def test_pieces_split_unjudged_rows_by_the_sign_of_their_reward():
    zero, values = jnp.zeros(4), jnp.asarray([0.3, -0.3, 0.0, 0.3])
    outcome = jnp.asarray([*[types.Outcome.UNJUDGED] * 3, types.Outcome.WRONG], jnp.int32)
    rows = types.Rollout(mask=jnp.ones((4, 1)), reward=values, group=zero.astype(jnp.int32), outcome=outcome)
    np.testing.assert_array_equal(trajectories.correct(rows), np.array([True, False, False, False]))
