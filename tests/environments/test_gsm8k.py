"""Questions with worked answers: GSM8K, MATH."""

import collections
import json
import pathlib
import re
from typing import Any

import jax
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import HostTask
from rljax.environments.config import VerifierConfig
from rljax.environments.questions import own, published
from rljax.environments.questions import task as questions
from rljax.environments.verifiers import judging, mathematics
from rljax.language import parse
from tests.data import test_public_tokenizer as public

REAL = pathlib.Path(__file__).parents[2] / ".." / "shared" / "data" / "gsm8k"
FILES = {"train": "train.jsonl", "heldout": "test.jsonl"}

TRAIN = [
    ("Ann has 3 pens and buys 4. How many?", "Ann has 3 + 4 = <<3+4=7>>7 pens.\n#### 7"),
    ("Two dozen eggs. How many?", "2 * 12 = <<2*12=24>>24.\n#### 24"),
    ("Half of 3,000?", "3,000 / 2 = <<3000/2=1500>>1,500\u2028\n#### 1,500"),  # U+2028 is no end of line in jsonl
]
HELDOUT = [("Ann has 9 pens and sells 4. How many?", "9 - 4 = <<9-4=5>>5.\n#### 5")]


def write(folder, train=TRAIN, heldout=HELDOUT):
    folder.mkdir(exist_ok=True)
    for name, rows in (("train.jsonl", train), ("test.jsonl", heldout)):
        lines = [json.dumps({"question": q, "answer": a}, ensure_ascii=False) for q, a in rows]
        (folder / name).write_text("\n".join(lines) + "\n\n")
    return folder


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "set")


def characters(task):
    return tokenizers.train(task.corpus(), model_type="char")


# --- the files -----------------------------------------------------------------------------------


def test_missing_files(path):
    with pytest.raises(FileNotFoundError, match=r"nowhere/train\.jsonl: no such file"):
        published.gsm8k(path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"set/dev\.jsonl: no such file .*'test.jsonl'"):
        published.gsm8k(path, heldout="dev.jsonl")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"question": "What', "not JSON"),
        ('["What?", "#### 1"]', "a list, expected an object"),
        ('{"answer": "#### 1"}', "column 'question' .* is missing"),
        ('{"question": "What?", "answer": ["#### 1"]}', "'answer' is"),
        ('{"question": " ", "answer": "#### 1"}', "is ' '"),
        ('{"question": "What?", "answer": "It is 1."}', "'####'"),
        ('{"question": "What?", "answer": "It is #### 1 ####"}', "'####'"),
    ],
)
def test_malformed_lines(path, line, words):
    with (path / "train.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=r"train\.jsonl:5: .*" + words):  # 4 is blank
        published.gsm8k(path)


def test_a_file_without_rows(path):
    (path / "test.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"test\.jsonl.*no rows"):
        published.gsm8k(path)


# --- the task ------------------------------------------------------------------------------------


def test_prompts_and_demonstrations(path):
    task = published.gsm8k(path, prompt_length=64, completion_length=48)
    tokenizer = characters(task)
    bound = task.bind(tokenizer)
    protocol: HostTask = bound
    assert protocol.host
    index = np.array([2, 0, 4], np.int32)  # 4 wraps around to 1
    prompts = bound.prompts(index, "train")
    assert isinstance(prompts, types.Prompts)
    token, mask = bound.demonstrations(index, "train", jax.random.key(0))
    np.testing.assert_array_equal(prompts.index, np.array([2, 0, 1]))
    assert prompts.token.shape == prompts.mask.shape == (3, 64)
    assert token.shape == mask.shape == (3, 48)
    assert {a.dtype for a in (prompts.token, prompts.index, token)} == {np.dtype(np.int32)}
    assert {a.dtype for a in (prompts.mask, mask)} == {np.dtype(np.float32)}
    solutions = {
        0: " Ann has 3 + 4 = 7 pens.\n#### 7",
        1: " 2 * 12 = 24.\n#### 24",
        2: " 3,000 / 2 = 1,500\u2028\n#### 1,500",
    }
    for i, row in enumerate((2, 0, 1)):
        text = f"Question: {TRAIN[row][0]}\nAnswer:"
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text  # the tokenizer loses nothing
        np.testing.assert_array_equal(prompts.token[i], np.array([tokenizer.pad] * (64 - len(ids)) + ids))
        np.testing.assert_array_equal(prompts.mask[i], np.array([0] * (64 - len(ids)) + [1] * len(ids)))
        ids = [*tokenizer.encode(solutions[row]), tokenizer.eos]
        np.testing.assert_array_equal(token[i], np.array(ids + [tokenizer.pad] * (48 - len(ids))))
        np.testing.assert_array_equal(mask[i], np.array([1] * len(ids) + [0] * (48 - len(ids))))
        assert bound.text(row, "train") == task.text(row, "train") == text
    assert [bound.target(row, "train") for row in range(3)] == ["7", "24", "1,500"]
    assert bound.target(0, "heldout") == "5"
    assert (bound.size("train"), bound.size("heldout")) == (3, 1)


def test_calculator_marks_may_stay(path):
    task = published.gsm8k(path, 64, 48, calculator=True)
    bound = task.bind(characters(task))
    assert bound.tokens is not None
    token, _ = bound.demonstrations(np.array([1]), "train")
    assert characters(task).decode(token[0]) == " 2 * 12 = <<2*12=24>>24.\n#### 24"


def test_corpus_holds_no_heldout_text(path):
    lines = list(published.gsm8k(path).corpus())
    assert len(lines) == 6
    assert not any("sells" in line for line in lines)


def test_long_solutions_are_cut_without_end(path):
    task = published.gsm8k(path, prompt_length=64, completion_length=22)
    tokenizer = characters(task)
    bound = task.bind(tokenizer)
    with pytest.warns(
        questions.LengthWarning, match="completion_length=22: 2 of 3 train demonstrations .* are truncated"
    ):
        token, mask = bound.demonstrations(np.array([0, 1]), "train")
    bound.demonstrations(np.array([0]), "heldout")  # warns of nothing
    assert tokenizer.decode(token[0]) == " Ann has 3 + 4 = 7 pens.\n#### 7"[:22]
    np.testing.assert_array_equal(mask, np.ones((2, 22), np.float32))
    assert tokenizer.eos not in token[0]
    assert token[1, 21] == tokenizer.eos  # 21 characters and the end: just fits


def test_overlong_prompts(path):
    # "Question: " and "\nAnswer:" are 18 characters; the questions have 36, 25 and 14, held out 37
    task = published.gsm8k(path, prompt_length=53)
    tokenizer = characters(task)
    message = r"prompt_length=53: 1 of 3 train prompts and 1 of 1 heldout prompts of 'gsm8k' are longer \(.*\); "
    with pytest.raises(ValueError, match=message + "the shortest heldout prompt has 55 tokens"):
        task.bind(tokenizer)
    write(path, heldout=[*HELDOUT, ("Nine?", "#### 9")])
    message = message.replace("1 of 1", "1 of 2")
    for overlong in ("error", "drop"):  # held-out prompts are never left out unless that is asked for
        with pytest.raises(ValueError, match=message + r"set prompt_length=55 \(the longest\), or overlong='drop_all'"):
            published.gsm8k(path, prompt_length=53, overlong=overlong).bind(tokenizer)
    with pytest.warns(
        questions.LengthWarning, match=message.removesuffix("; ") + " and are left out; the longest has 55"
    ):
        bound = published.gsm8k(path, prompt_length=53, overlong="drop_all").bind(tokenizer)
    assert (bound.size("train"), bound.size("heldout")) == (2, 1)
    assert [bound.target(i, "train") for i in range(2)] == ["24", "1,500"]  # rows 1 and 2 moved up
    assert bound.text(0, "heldout") == "Question: Nine?\nAnswer:"
    prompts = bound.prompts(np.array([0, 1]), "train")
    assert [tokenizer.decode(row) for row in prompts.token] == [bound.text(i, "train") for i in range(2)]
    published.gsm8k(path, prompt_length=55).bind(tokenizer)  # the length that the message asked for
    write(path, heldout=[("Nine?", "#### 9")])
    with pytest.raises(
        ValueError, match=r"53: 1 of 3 train prompts of .*train\.jsonl:1.* prompt_length=54 .* or overlong='drop'$"
    ):
        published.gsm8k(path, prompt_length=53).bind(tokenizer)
    with pytest.warns(questions.LengthWarning, match="1 of 3 train prompts of 'gsm8k' are longer .* and are left out"):
        assert published.gsm8k(path, prompt_length=53, overlong="drop").bind(tokenizer).size("train") == 2


def test_characters_the_tokenizer_lacks(path):
    write(path, heldout=[("Ünder 9?", "#### 9")])
    task = published.gsm8k(path)
    bound = task.bind(characters(task))  # held-out text may hold unknown characters
    assert characters(task).unk in bound.prompts(np.array([0]), "heldout").token[0]
    with pytest.raises(ValueError, match=r"tokenizer: lacks characters of 3 rows .*train\.jsonl:1, .*:2, .*:3\)"):
        task.bind(tokenizers.train(["Question"], model_type="char"))


def test_bad_arguments(path):
    cases: tuple[tuple[dict[str, Any], str], ...] = (
        ({"prompt_length": -1}, "prompt_length=-1"),
        ({"completion_length": 0}, "completion_length=0"),
        ({"overlong": "cut"}, "overlong='cut': must be one of 'error', 'drop', 'drop_all'"),
        ({"answer": "box"}, "answer='box': must be one or several of 'marked', 'boxed', 'stated', 'bold', 'last'"),
        ({"answer": ()}, r"answer=\(\): must be one or several of"),
        (
            {"chat": (("assistent", "Hi."),)},
            r"chat: \('assistent', 'Hi.'\) is not a message .* system, user, assistant",
        ),
        ({"heldout": "train.jsonl"}, "heldout='.*train.jsonl' is the file of the training split"),
    )
    for arguments, field in cases:
        with pytest.raises(ValueError, match=field):
            published.gsm8k(path, **arguments)
    task = published.gsm8k(path)
    with pytest.raises(ValueError, match="'test'; choose one of train, heldout"):
        task.size("test")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="bind"):
        task.prompts(np.array([0]), "train")


def test_another_set_whose_answers_are_bare_numbers(tmp_path):
    (tmp_path / "test.jsonl").write_text('{"id": 0, "question": "How far?", "answer": 27.0}\n')
    task = own.jsonl(tmp_path / "test.jsonl", reward="number", heldout=1, chat=False, completion_length=16)
    tokenizer = tokenizers.train(
        [*"How far? Write the final answer on the last line, after. #27", '"\n'], model_type="char"
    )
    token, _ = task.bind(tokenizer).demonstrations(np.array([0]), "heldout")
    assert tokenizer.decode(token[0]) == "#### 27"
    assert task.target(0, "heldout") == "27"
    with pytest.raises(ValueError, match="'train'; choose one of heldout"):
        task.size("train")


def test_questions_in_a_chat(path, tmp_path):
    model = tokenizers.load(public.write(tmp_path / "model", "byte level"))
    task = published.gsm8k(path, 256, 128, chat=True, instruction="Think.")
    bound = task.bind(model)
    prompts = bound.prompts(np.array([1]), "train")
    asked = f"<|from|>user\n{TRAIN[1][0]}\nThink.<|to|>\n<|from|>assistant\n"
    assert prompts.token[0][prompts.mask[0] > 0].tolist() == model.encode(asked)
    assert bound.text(1, "train") == f"{TRAIN[1][0]}\nThink."  # what the user says
    token, mask = bound.demonstrations(np.array([1]), "train")
    to = model.encode("<|to|>")
    assert token[0][mask[0] > 0].tolist() == [*model.encode("2 * 12 = 24.\n#### 24"), *to]
    with pytest.raises(ValueError, match="no chat template"):
        task.bind(tokenizers.make("bytes", ()))


def test_a_chat_ends_with_what_its_template_ends_a_message_with(path, tmp_path):
    folder = public.write(tmp_path / "model", "byte level")  # <|end|> is a stop token as well
    (folder / "chat_template.jinja").write_text("{% for m in messages %}{{ m.content }}<|end|>{% endfor %}")
    model = tokenizers.load(folder)
    token, mask = published.gsm8k(path, 256, 128, chat=True).bind(model).demonstrations(np.array([1]), "train")
    assert [token[0][mask[0] > 0][-1]] == model.encode("<|end|>") != [model.eos]


def test_a_chat_asks_for_what_its_verifier_reads(path, tmp_path):
    model = tokenizers.load(public.write(tmp_path / "model", "byte level"))
    task: Any = published.gsm8k(path, 256, 128, chat=True)
    assert task.text(0, "train").endswith('many?\nWrite the final answer on the last line, after "####".')
    assert (
        published.gsm8k(path).text(0, "train").endswith("many?\nAnswer:")
    )  # a base model learns it from demonstrations
    for completion in ("#### 7", "So $\\boxed{7}$.", "Ann has **7** pens.", "Ann has **7 pens**.", "The answer is 7."):
        assert task.reward(completion, task.target(0, "train"))["outcome"] == "correct"
    assert task.reward("Ann has 7 pens.", "7")["outcome"] == "unparseable"  # the last number is an option
    task = published.gsm8k(path, chat=True, answer=("boxed", "last"))
    assert task.reward("Ann has 7 pens.", "7")["reward"] == 1
    requests = []
    for answer in ("marked", "boxed", "stated", "bold", "last"):  # the demonstration obeys the request, and is correct
        task = published.gsm8k(path, 256, 128, chat=True, answer=answer).bind(model)
        requests.append(task.text(0, "train").partition("\n")[2])
        token, _ = task.demonstrations(np.arange(3), "train")
        for i in range(3):
            assert task.reward(model.decode(token[i]), task.target(i, "train"))["outcome"] == "correct"
            other = (i + 1) % 3
            assert task.reward(model.decode(token[other]), task.target(i, "train"))["outcome"] == "wrong"
    assert len(set(requests)) == 5 and all(requests)


def test_a_chat_may_begin_with_messages(path, tmp_path):
    model = tokenizers.load(public.write(tmp_path / "model", "byte level"))
    shown: Any = (("system", "Be brief."), ("user", "1 + 1?"), ("assistant", "#### 2"))
    start = "<|from|>system\nBe brief.<|to|>\n"
    asked = f"<|from|>user\n{TRAIN[0][0]}<|to|>\n<|from|>assistant\n"
    for chat, before in (
        ("Be brief.", start),
        (shown, start + "<|from|>user\n1 + 1?<|to|>\n<|from|>assistant\n#### 2<|to|>\n"),
    ):
        prompts = published.gsm8k(path, 256, 128, chat=chat, instruction="").bind(model).prompts(np.array([0]), "train")
        assert prompts.token[0][prompts.mask[0] > 0].tolist() == model.encode(before + asked)
    task = parse.one(
        f"gsm8k({str(path)!r}, chat={shown!r}, answer='boxed')", parse.Registry("task", environments.TASKS), "task"
    )
    assert (
        task.chat[2] == {"role": "assistant", "content": "#### 2"}
        and task.reward("\\boxed{7}", "7")["reward"] == 1
        and task.reward("#### 7", "7")["reward"] == 0
    )


def test_demonstrations_gain_no_space_after_the_prompt(path, tmp_path):
    # in the manner of Llama 2: ``encode`` writes a space in front of every text
    model = tokenizers.load(public.write(tmp_path / "model", "fallback", "legacy"))
    bound = published.gsm8k(path, 256, 128).bind(model)
    prompts, (token, mask) = bound.prompts(np.array([1]), "train"), bound.demonstrations(np.array([1]), "train")
    ids = [*prompts.token[0][prompts.mask[0] > 0], *token[0][mask[0] > 0]]
    assert ids == [1, *model.encode(f"{bound.text(1, 'train')} 2 * 12 = 24.\n#### 24"), 2]


def test_prompts_start_as_the_files_say_and_carry_the_instruction(path, tmp_path):
    model = tokenizers.load(public.write(tmp_path / "model", "fallback"))
    bound = published.gsm8k(path, 256, 128, instruction="Think.").bind(model)
    prompts = bound.prompts(np.array([1]), "train")
    text = f"Question: {TRAIN[1][0]}\nThink.\nAnswer:"
    assert bound.text(1, "train") == text
    assert prompts.token[0][prompts.mask[0] > 0].tolist() == [1, *model.encode(text)]


@pytest.mark.full
def test_math(tmp_path):
    rows = [
        {"problem": "Half of $x$?", "solution": "It is $\\boxed{\\frac{x}{2}}$.", "level": "Level 1"},
        {"problem": "$1+1$?", "solution": "First $\\boxed{1}$, then $\\boxed 2$.", "subject": "Algebra"},
    ]
    for name, words in (("train.jsonl", ""), ("test.jsonl", "Tell me. ")):
        changed = [{**row, "problem": words + row["problem"]} for row in rows]
        (tmp_path / name).write_text("\n".join(map(json.dumps, changed)))
    task: Any = environments.lookup("math")(tmp_path, 128, 64)
    bound = task.bind(tokenizers.make("bytes", ()))
    assert [bound.target(i, "train") for i in range(2)] == ["\\frac{x}{2}", "2"]
    assert bound.text(1, "train") == "Question: $1+1$?\nPut the final answer in \\boxed{}.\nAnswer:"
    token, _ = bound.demonstrations(np.array([0]), "heldout")
    assert tokenizers.make("bytes", ()).decode(token[0]) == " " + rows[0]["solution"]
    for row in range(2):
        assert bound.reward(rows[row]["solution"], bound.target(row, "train"))["outcome"] == "correct"
        assert bound.reward(rows[row]["solution"], bound.target(1 - row, "train"))["outcome"] == "wrong"
    (tmp_path / "train.jsonl").write_text('{"problem": "One?", "solution": "1"}')
    with pytest.raises(ValueError, match=r"train.jsonl:1: 'solution' has no final answer after '\\\\boxed'"):
        environments.lookup("math")(tmp_path)


@pytest.mark.full
@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/gsm8k")
def test_the_real_problems():
    task = published.gsm8k(REAL)
    assert (task.size("train"), task.size("heldout")) == (7473, 1319)
    tokenizer = tokenizers.train(task.corpus(), vocabulary=1024, model_type="bpe")
    bound = task.bind(tokenizer)  # the default lengths hold every prompt
    assert bound.size("train") == 7473
    assert bound.target(0, "train") == "72"
    assert "Natalia" in bound.text(0, "train")
    token, mask = bound.demonstrations(np.arange(7473), "train")
    whole = [row for row in range(7473) if token[row, int(mask[row].sum()) - 1] == tokenizer.eos]
    assert len(whole) > 7400
    completions = [tokenizer.decode(token[row]) for row in whole]
    with judging.Verifiers(bound.reward, VerifierConfig(workers=2), parts=bound.parts) as verifiers:
        scored = verifiers.submit(completions, [bound.target(row, "train") for row in whole]).result()
    assert set(scored.outcome.tolist()) == {types.Outcome.CORRECT}
    assert scored.errors == []
    for row in range(100):  # a neighbour's solution is right only where the answers agree
        if float(bound.target(row, "train").replace(",", "")) != float(bound.target(row + 1, "train").replace(",", "")):
            solution = task.sources["train"][row + 1].solution
            assert mathematics.numeric_answer(solution, bound.target(row, "train"))["outcome"] == "wrong"


ALL = ("marked", "boxed", "stated", "bold")  # what a chat reads
WRITTEN = [
    *("{w}\n#### {a}", "{w}\n#### ${a}", "#### Step 1: add 3\n{w}\n#### {a} clips."),
    *("{w}\n$$\\boxed{{{a}}}$$", "{w} \\boxed{{{a} \\text{{ clips}}}}", "{w} $\\boxed{{\\${a}}}$ in 3 steps."),
    *("{w} \\boxed{{{a}\\%}}", "{w} \\boxed{{{a} clips}}"),  # a percent sign is a unit
    *("{w}\nThe answer is {a}.", "{w}\nThe final answer is: **{a}**", "**Answer:** ${a}", "Answer: \\({a}\\) clips"),
    *("{w}\nShe sold **{a}** clips.", "### Step 1\n{w}\n**Total: {a} clips in May.**", "{w} **${a}**"),
]  # fmt: skip


@pytest.mark.full
@pytest.mark.skipif(not REAL.is_dir(), reason="needs ../shared/data/gsm8k")
def test_the_real_problems_in_every_format():
    rows = [json.loads(line)["answer"] for name in FILES.values() for line in (REAL / name).read_text().splitlines()]
    rows = rows[::40]
    counts = collections.Counter()
    for text in rows:
        working, _, target = published._MARKED_CALCULATION.sub("", text).rpartition("####")
        working, target = working.strip(), target.strip()
        number = int(target.replace(",", ""))
        others = [n for n in map(int, re.findall(r"\b\d+\b", working)) if n != number]
        for form in WRITTEN:
            right = form.format(w=working, a=target)
            counts["right", mathematics.numeric_answer(right, target, ALL)["outcome"]] += 1
            for wrong in (number + 1, -number or 1, 10 * number or 1, *others[-1:]):  # the last is of the working
                slip = form.format(w=working, a=wrong)
                for text in (slip, f"{right}\nNo, that is wrong.\n{slip}"):
                    counts["wrong", mathematics.numeric_answer(text, target, ALL)["outcome"]] += 1
        unfinished = "\n".join(working.splitlines()[:-1])
        counts["unfinished", mathematics.numeric_answer(unfinished, target, ALL)["outcome"]] += 1
        counts["last", mathematics.numeric_answer(unfinished, target, ("last",))["outcome"]] += 1
    assert counts["right", "correct"] == len(WRITTEN) * len(rows) == 15 * 220
    assert counts["wrong", "correct"] == 0 and counts["unfinished", "unparseable"] == len(rows)
    assert counts["last", "correct"] > 5  # why the last number is no answer unless that is asked for
