"""Tasks over rows: splits, checks with file and line, reward functions and what they are given; reasoning-gym."""

import pickle
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from rljax import types
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.questions import own, splits
from rljax.environments.questions import task as questions
from rljax.environments.verifiers import judging
from rljax.language import dotted
from tests.data import test_public_tokenizer as public
from tests.environments.questions_cases import ROWS, prompts, task, write

# --- splits ---------------------------------------------------------------------------


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


# --- rows and arguments ---------------------------------------------------------------


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


# --- reasoning-gym --------------------------------------------------------------------


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
    with judging.Verifiers(made.reward, VerifierConfig(workers=1, timeout=60)) as verifiers:
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
