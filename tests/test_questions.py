"""Tasks over a user's rows: splits, checks with file and line, reward functions and what they are given."""

import io
import json
import pickle
import sys
import textwrap
from typing import Any

import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import rich.console

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments.questions import own, splits
from rljax.environments.questions import task as questions
from rljax.environments.verifiers import pool, process, rewards, worker
from rljax.language import dotted, errors, parse
from rljax.run import evaluate, host_rollouts
from rljax.transforms import trajectories
from tests import test_public_tokenizer as public

ROWS = [
    {"question": f"What is {i} + 1?", "answer": i + 1, "level": i % 3, "meta": {"kind": ["sum"]}} for i in range(60)
]

MODULE = """
    import os, pathlib, signal, time

    def right(completion, reference):
        return float(completion == str(reference))

    def brief(completion):
        return {"reward": 1 / (1 + len(completion)), "length": len(completion)}

    def strict(completion, reference):
        right = completion == str(reference)
        return {"reward": float(right), "outcome": "correct" if right else "wrong"}

    def picky(completion, reference, *, prompt, level, style="plain"):
        return {"reward": 1.0, "level": level, "prompt": len(prompt), "plain": style == "plain"}

    def nosy(completion, reference, **row):
        return {"reward": 1.0, "columns": len(row)}

    def lacking(completion, reference, difficulty):
        return 1.0

    def ranked(completions, reference, *, prompt):
        if "die-once" in completions and not os.path.exists(prompt):
            pathlib.Path(prompt).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if "die" in completions:
            os.kill(os.getpid(), signal.SIGKILL)
        if "hang" in completions:
            time.sleep(600)
        if "short" in completions:
            return [1.0]
        if "raise" in completions:
            raise KeyError("no luck")
        return [sum(len(other) < len(c) for other in completions) / len(completions) for c in completions]

    def solve(question):
        return 1.0

    def all_columns(completion, answer, **row):
        return {"reward": float(completion == str(answer)), "columns": len(row)}

    def of_the_prompt(completion, prompt):
        return 1.0

    def of_a_column(completion, level):
        return 1.0

    def growing(completion, reference, *, meta):
        meta["kind"].append("seen")
        return len(meta["kind"])

    def reward(completion):
        return 1.0

    def exact(completion, reference):
        return float(completion in reference)

    class Model:
        def __init__(self, completion):
            pass

    def _hidden(completion):
        return 1.0
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with rows and a module of reward functions."""
    (tmp_path / "rewards_of_test_questions.py").write_text(textwrap.dedent(MODULE))
    write(tmp_path / "my.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("rewards_of_test_questions", None)


def write(path, rows):
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


def task(call) -> Any:
    """Return the task of a call, as a config names it; ``my:`` is the module of reward functions."""
    call = call.replace("my:", "rewards_of_test_questions:")
    return parse.one(call, parse.Registry("task", environments.TASKS), "config.task")


def prompts(made, split):
    return [made.text(i, split) for i in range(made.size(split))]


# --- splits --------------------------------------------------------------------------------------


def test_splits_share_no_prompt_and_no_row_moves(folder):
    twice = [*ROWS, *({**row, "question": f"  {row['question']}\n"} for row in ROWS)]  # the same words
    made = own.jsonl(write(folder / "a.jsonl", twice))
    train, heldout = ({text.strip() for text in prompts(made, split)} for split in ("train", "heldout"))
    assert not train & heldout and len(train | heldout) == 60 and made.size("train") + made.size("heldout") == 120
    more = [*({**row, "question": f"Add 1 to {i}."} for i, row in enumerate(ROWS)), *reversed(ROWS)]
    grown = own.jsonl(write(folder / "b.jsonl", more))
    assert heldout == set(prompts(grown, "heldout")) & (train | heldout)
    assert heldout <= set(prompts(own.jsonl(folder / "my.jsonl", heldout=0.3), "heldout"))
    numbers = [splits.number(f"{i}") for i in range(4000)]
    assert abs(np.mean(np.array(numbers) < 0.1) - 0.1) < 4 * np.sqrt(0.09 / 4000)  # 4 standard deviations


def test_fractions_that_leave_a_split_empty_name_one_that_does_not(folder):
    for fraction, word in ((1e-6, "none"), (1 - 1e-6, "all")):
        with pytest.raises(
            ValueError, match=rf"holds out {word} of the 60 rows; set heldout=0\.\d+, or a file"
        ) as error:
            own.jsonl("my.jsonl", heldout=fraction)
        named = float(str(error.value).partition("; set heldout=")[2].partition(",")[0])
        assert min(map(own.jsonl("my.jsonl", heldout=named).size, ("train", "heldout"))) >= 1
    made = own.jsonl("my.jsonl", heldout=1)
    assert made.size("heldout") == 60
    with pytest.raises(ValueError, match="no split 'train'"):
        made.size("train")


def test_training_prompts_that_a_file_holds_out_are_left_out_and_named(folder):
    write(folder / "test.jsonl", [ROWS[2], {"question": "New?", "answer": 1}])
    with pytest.warns(questions.DataWarning, match=r"1 of 60 training rows are held out \(.*my\.jsonl:3\); these rows"):
        made = task("jsonl('my.jsonl', heldout='test.jsonl')")
    assert (made.size("train"), made.size("heldout")) == (59, 2) and ROWS[2]["question"] not in prompts(made, "train")
    with pytest.raises(ValueError, match=r"60 of 60 training rows are held out .* and 57 more\); choose another file"):
        task("jsonl('my.jsonl', heldout='./my.jsonl')")


# --- rows and arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "call", "words"),
    [
        ({"answer": 1}, "", "column 'question' .prompt. is missing"),
        ({"question": " ", "answer": 1}, "", "'question' .prompt. is ' ', expected a text that is not empty"),
        ({"question": 7, "answer": 1}, "", "'question' .prompt. is 7, expected a text"),
        (
            {"question": ["a"], "answer": 1},
            "prompt='Q: {question}'",
            r"'question' is \['a'\], expected a text or a num",
        ),
        ({"question": "a"}, "", "column 'answer' .answer. is missing"),
        ({"question": "a", "answer": None}, "", "column 'answer' .answer. is null"),
        ({"question": "a", "answer": [1]}, "reward='number'", r"'answer' is \[1\], expected a text or a number"),
        ({"question": "a", "answer": "b"}, "final='marked'", "'answer' has no number after '####'"),
        ({"question": "a", "answer": 1}, "answer='{meta.kind.0}'", "column 'meta.kind.0' .answer. is missing"),
        ({"question": "a", "answer": 1}, "demonstration='worked'", "column 'worked' .demonstration. is missing"),
        ({"question": "a", "answer": 1}, "reward='my:picky'", "column 'level' .an argument of the reward function. is"),
    ],
)
def test_a_bad_row_is_refused_with_its_file_and_line(folder, row, call, words):
    good = {"question": "b", "answer": "#### 1", "level": 1, "worked": "w", "meta": {"kind": ["x"]}}
    write(folder / "bad.jsonl", [good, good, row])
    with pytest.raises(ValueError, match=rf"config\.task: jsonl\(\): .*bad\.jsonl:3: {words}"):
        task(f"jsonl('bad.jsonl', {call})")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("jsonl('your.jsonl')", "your.jsonl: no such file or folder.*'my.jsonl'"),
        ("jsonl('my.jsonl', prompt='{question')", "expected '}'.* write {{ for a brace"),
        ("jsonl('my.jsonl', prompt='{}')", "only the name of a column may be in braces"),
        ("jsonl('my.jsonl', prompt='{question!r:>9}')", "only the name of a column may be in braces"),
        ("jsonl('my.jsonl', prompt='{question.__class__}')", "column 'question.__class__' .* is missing"),
        ("jsonl('my.jsonl', heldout=1.5)", "heldout=1.5: must be above 0 and at most 1"),
        ("jsonl('my.jsonl', heldout=True)", "heldout=True: must be above 0 and at most 1"),
        ("jsonl('my.jsonl', answer='')", "answer='': the reward function 'exact' compares with an answer"),
        ("jsonl('my.jsonl', heldout='my.jsonl')", "is the file of the training split"),
        ("jsonl('my.jsonl', system='Be brief.', chat=False)", "system='Be brief.': needs chat"),
        ("jsonl('my.jsonl', formats='boxed')", "only the reward functions number and boxed read a final answer"),
        ("jsonl('my.jsonl', format='json')", "no argument 'format'. Did you mean 'formats'"),
        ("jsonl('my.jsonl', prompt_length=-1)", "prompt_length must be a whole number"),
        ("jsonl('my.jsonl', reward='numbr')", "neither MODULE:FUNCTION nor a name.* Did you mean 'number'"),
        ("jsonl('my.jsonl', reward='my:rigth')", "has no function 'rigth'. Did you mean 'right'"),
        ("jsonl('my.jsonl', reward='my:solve')", "its first parameter must be named completion"),
        ("jsonl('my.jsonl', reward='my:Model')", "is not a reward function"),
        ("jsonl('my.jsonl', reward='my:_hidden')", "has a private part"),
        ("jsonl('my.jsonl', reward='absent:right')", "cannot be imported .no module named 'absent'"),
        ("jsonl('my.jsonl', reward='os:system')", "is in Python's standard library"),
        ("jsonl('my.jsonl', reward={})", "names no function"),
        ("jsonl('my.jsonl', reward={'my:right': 'much'})", "the weight of .* is 'much', not a number"),
        ("jsonl('my.jsonl', reward=3)", "must be a name"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(folder, call, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words) as error:
        task(call)
    assert "\n" not in str(error.value)


def test_a_reward_path_imports_only_what_is_a_reward_and_what_may_be_named(folder):
    (folder / "harmful_module.py").write_text("open('imported', 'w')\ndef right(text):\n    return 1.0\n")
    with pytest.raises(dotted.NotMarked, match="not a reward function"):
        dotted.reward("harmful_module:right")
    with dotted.only(["experiments"]), pytest.raises(ValueError, match="--allow_code=rewards_of_test_questions"):
        task("jsonl('my.jsonl', reward='my:right')")
    assert not (folder / "imported").exists() and "rewards_of_test_questions" not in sys.modules
    with dotted.only(["rewards_of_test_questions"]):
        task("jsonl('my.jsonl', reward='my:right')")


def test_rows_are_the_same_in_every_format_and_prompts_fit(folder):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), "my.parquet")
    template = "prompt='{level}: {question} {{{meta.kind.0}}}', answer='{answer}', demonstration='question'"
    first, second = (task(f"{name}('my.{name}', {template})") for name in ("jsonl", "parquet"))
    assert prompts(first, "train") == prompts(second, "train")
    row = next(row for row in ROWS if row["question"] in first.text(0, "train"))
    assert first.text(0, "train") == f"{row['level']}: {row['question']} {{sum}}"
    assert first.target(0, "train") == str(row["answer"])
    bound = first.bind(tokenizers.make("bytes", ()))
    longest = max(len(text) for split in ("train", "heldout") for text in prompts(first, split))
    assert bound.prompt_length == -(-longest // 16) * 16
    token, mask = bound.demonstrations(np.array([0]), "train")
    assert tokenizers.make("bytes", ()).decode(token[0][mask[0] > 0]) == row["question"]
    made = task("jsonl('my.jsonl', reward='my:right')")  # the value of a column is passed as it is
    assert {made.text(0, "train"): made.target(0, "train")}.items() <= {
        r["question"]: r["answer"] for r in ROWS
    }.items()
    bare = task("jsonl('my.jsonl', answer='', reward='my:brief')").bind(tokenizers.make("bytes", ()))
    with pytest.raises(
        ValueError, match=r"no demonstration for \d+ rows \(.*my\.jsonl:\d+, .*: set demonstration to a"
    ):
        bare.demonstrations(np.array([0]), "train")


def test_the_memory_of_a_bound_task_does_not_grow_with_the_longest_completion(folder):
    sizes = []
    for length in (8, 100_000):
        bound = task(f"jsonl('my.jsonl', completion_length={length})").bind(tokenizers.make("bytes", ()))
        sizes.append(len(pickle.dumps(bound.tokens)))
        token, mask = bound.demonstrations(np.array([3]), "train")
        assert token.shape == mask.shape == (1, length)
    assert sizes[0] == sizes[1]


def test_the_chat_template_is_used_if_there_is_one(folder):
    model = tokenizers.load(public.write(folder / "model", "byte level"))
    assert task("jsonl('my.jsonl')").bind(tokenizers.make("bytes", ())).chat is None
    bound = task("jsonl('my.jsonl', system='Be brief.')").bind(model)
    prompts = bound.prompts(np.array([0]), "train")
    said = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": bound.text(0, "train")}]
    assert prompts.token[0][prompts.mask[0] > 0].tolist() == model.encode(model.chat(said))
    for call in ("chat=True", "system='Be brief.'"):
        with pytest.raises(ValueError, match="no chat template"):
            task(f"jsonl('my.jsonl', {call})").bind(tokenizers.make("bytes", ()))


# --- reward functions ----------------------------------------------------------------------------


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
    with pool.Verifiers(extend, workers=0) as verifiers:
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
    scored = worker.score(long_error, ["x"] * 512, "", {})
    assert len(json.dumps([0, scored])) < process._LONGEST_LINE


def long_error(completions, reference):
    raise ValueError("\u00e9" * 10_000)


def test_several_rewards_are_parts_of_a_weighted_sum(folder):
    made = task("jsonl('my.jsonl', reward={'my:brief': 0.5, 'my:strict': 2.0, 'number': 1})")
    assert made.parts == ("brief", "strict", "number")
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
    }
    assert judged(task("jsonl('my.jsonl', reward={'my:right': 1.0, 'my:brief': 0.2})"), answer)["outcome"] == "unjudged"
    half = judged(task("jsonl('my.jsonl', reward={'my:right': 0.5})"), answer)
    assert half == {"outcome": "unjudged", "reward": 0.5, "right": 1.0}
    crash = rewards.combine({lambda completion: {"outcome": "crashed"}: 1.0, "exact": 1.0})  # pyright: ignore
    assert crash("1", "1")["outcome"] == "crashed"


def test_the_worker_runs_what_the_file_defines_with_its_columns(folder):
    made = task("jsonl('my.jsonl', reward={'my:picky': 1.0, 'my:right': 1.0})")
    index = range(8)
    with pool.Verifiers(made.reward, workers=1, parts=made.parts, threshold=2.0) as verifiers:
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
    with pool.Verifiers(made.reward, workers=workers) as verifiers:
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
    with pool.Verifiers(made.reward, workers=1, timeout=1.0) as verifiers:
        columns = [{"prompt": str(folder / "mark")}] * 8
        scored = verifiers.submit(texts, [""] * 8, columns, [i // 2 for i in range(8)]).result()
    names = [types.Outcome(code).name for code in scored.outcome]
    assert names == [*["UNJUDGED"] * 2, *["CRASHED"] * 2, *["TIMED_OUT"] * 2, *["UNJUDGED"] * 2]
    assert "SIGKILL" in dict(scored.errors)[2] and (folder / "mark").exists()
    np.testing.assert_allclose(scored.parts["ranked"], np.array([0, 0.5, 0, 0, 0, 0, 0, 0.5]))


# --- what counts as correct ----------------------------------------------------------------------


def test_a_fractional_reward_is_correct_only_by_an_outcome_or_a_threshold():
    values = [1, 0, -1.0, 0.1, 1.2, {"reward": 0.1, "outcome": "correct"}, {"reward": 0.5, "outcome": "unjudged"}]
    texts = [str(i) for i in range(len(values))]
    named = {}
    for threshold in (0.0, 0.5, 1.1):
        with pool.Verifiers(lambda text, target: values[int(text)], workers=0, threshold=threshold) as verifiers:
            scored = verifiers.submit(texts, texts).result()
        named[threshold] = [types.Outcome(code).name[0] for code in scored.outcome]
    assert named == {0.0: [*"CWWUUCU"], 0.5: [*"CWWWCCC"], 1.1: [*"WWWWCCW"]}


def test_unjudged_rows_are_reported_with_what_to_set(folder):
    made = task("jsonl('my.jsonl', reward='my:brief', answer='')").bind(tokenizers.make("bytes", ()))
    tokenizer = tokenizers.make("bytes", ())
    token, mask = tokenizers.padded([tokenizer.encode(t) for t in ("a", "bb", "ccc", "d")], 4, tokenizer.pad)
    rows = host_rollouts.Rows(np.arange(4), np.repeat(np.arange(2, dtype=np.int32), 2), token, mask)
    with pool.Verifiers(made.reward, workers=0) as verifiers:
        pending = host_rollouts.judge(made, tokenizer, verifiers, rows, "train", 2)
        with pytest.warns(host_rollouts.VerifierWarning, match=r"set config\.verifier\.threshold to the smallest"):
            verdict = host_rollouts.verdict([rows], [pending], "step 1")
    assert set(np.asarray(verdict.outcome)) == {types.Outcome.UNJUDGED}
    record = {"name": "result", "step": 1, "pass_at_k": {"1": [0.0, 0.0, 0.1]}, "greedy": [0.0, 0.0, 0.1], "length": 1}
    console = rich.console.Console(file=io.StringIO(), width=200)
    evaluate.table([{**record, "prompts": 2, "samples": 2, "unjudged": 0.75, "examples": []}], console)
    shown: Any = console.file
    assert "75.0" in shown.getvalue() and "config.verifier.threshold" in shown.getvalue()


def test_a_process_without_all_completions_of_a_group_is_refused(folder):
    made = task("jsonl('my.jsonl', reward='my:ranked', answer='')").bind(tokenizers.make("bytes", ()))
    rows = host_rollouts.Rows(
        np.arange(3), np.zeros(3, np.int32), np.zeros((3, 2), np.int32), np.ones((3, 2), np.float32)
    )
    with pool.Verifiers(made.reward, workers=0) as verifiers, pytest.raises(ValueError, match="not whole groups of 2"):
        host_rollouts.judge(made, tokenizers.make("bytes", ()), verifiers, rows, "train", 2)


def test_pieces_split_unjudged_rows_by_the_sign_of_their_reward():
    zero, values = jnp.zeros(4), jnp.asarray([0.3, -0.3, 0.0, 0.3])
    outcome = jnp.asarray([*[types.Outcome.UNJUDGED] * 3, types.Outcome.WRONG], jnp.int32)
    rows = types.Rollout(mask=jnp.ones((4, 1)), reward=values, group=zero.astype(jnp.int32), outcome=outcome)
    np.testing.assert_array_equal(trajectories.correct(rows), np.array([True, False, False, False]))


# --- reasoning-gym -------------------------------------------------------------------------------


@pytest.fixture
def gym():
    """Skip without reasoning-gym, which is an extra."""
    return pytest.importorskip("reasoning_gym")


@pytest.mark.full
def test_problems_and_scores_are_those_of_reasoning_gym(gym):
    made = task("gym('leg_counting', max_animals=4, size=40, heldout=20, seed=3, tagged=False)")
    assert not set(prompts(made, "train")) & set(prompts(made, "heldout"))
    again = task("gym('leg_counting', max_animals=4, size=40, heldout=20, seed=3, tagged=False)")
    assert prompts(again, "train") == prompts(made, "train")
    direct = gym.create_dataset("leg_counting", max_animals=4, size=1)
    for split, i in (("train", 0), ("heldout", 7)):
        entry, answer = made.columns(i, split)["entry"], made.target(i, split)
        assert entry["question"].strip() == made.text(i, split) and entry["metadata"]["num_animals"] <= 4
        for text in (answer, f"It is {answer}.", f"{answer}0", "many", ""):
            score = made.reward(text, answer, entry=entry)
            assert score["reward"] == (direct.score_answer(text, entry) if text else 0)
            outcome = "correct" if text == answer else "wrong" if text else "unparseable"
            assert score["outcome"] == outcome
    fraction = made.reward(f"It is {answer}.", answer, entry=entry)
    assert 0 < fraction["reward"] < 1 and fraction["outcome"] == "wrong"


@pytest.mark.full
def test_several_generators_are_judged_in_worker_processes(gym):
    made = task(
        "gym({'leg_counting': {'weight': 3.0}, 'prime_factorization': {'max_value': 100000}}, size=200, heldout=10)"
    )
    entries = [made.columns(i, "train")["entry"] for i in range(made.size("train"))]
    share = np.mean([entry["metadata"]["source_dataset"] == "leg_counting" for entry in entries])
    assert abs(share - 0.75) < 4 * np.sqrt(0.75 * 0.25 / len(entries))  # 4 standard deviations
    rows = [i for name in ("leg_counting", "prime_factorization") for i in _first(entries, name)]
    texts = [f"so <answer>{made.target(i, 'train')}</answer>" for i in rows] + ["none", "<answer>two</answer>"]
    rows += [rows[0], rows[-1]]  # the scorer of factors raises ValueError for a text without numbers
    with pool.Verifiers(made.reward, workers=1, timeout=60) as verifiers:
        given = [made.columns(i, "train") for i in rows]
        scored = verifiers.submit(texts, [made.target(i, "train") for i in rows], given).result()
    names = [types.Outcome(code).name for code in scored.outcome]
    assert scored.errors == [] and names == ["CORRECT"] * (len(rows) - 2) + ["UNPARSEABLE"] * 2


def _first(entries, name):
    return [i for i, entry in enumerate(entries) if entry["metadata"]["source_dataset"] == name][:2]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("gym('leg_countin')", "no generator 'leg_countin'. Did you mean 'leg_counting'"),
        ("gym('leg_counting', max_animal=3)", "leg_counting: has no knob 'max_animal'. Did you mean 'max_animals'"),
        ("gym('leg_counting', max_animals='3')", "leg_counting: max_animals='3': must be a whole number"),
        ("gym('leg_counting', max_animals=2)", "gym: max_animals must be >= min_animals"),
        ("gym({'chain_sum': {'weight': -1}})", "the weight of 'chain_sum' is -1, not above 0"),
        ("gym({'chain_sum': {}}, min_terms=3)", "write knobs beside the name of their generator"),
    ],
)
@pytest.mark.full
def test_generators_and_knobs_are_checked(gym, call, words):
    with pytest.raises(ValueError, match=words):
        task(call)
