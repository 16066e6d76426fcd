"""Tasks: the table, bad settings, and arithmetic against Python's."""

import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, sampling, types
from rljax.data import tokenizers
from rljax.environments import characters
from rljax.sampling import stopping
from tests.data import test_public_tokenizer as public
from tests.support import on_device

CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE


def evaluate_arithmetic(prompt):
    return eval(re.sub(r"\b0+(?=\d)", "", prompt.removesuffix("=")))


# --- the table ---------------------------------------------------------------------------------


def test_lookup_names_the_choices_and_the_nearest():
    assert environments.lookup("arithmetic")().name == "arithmetic"
    with pytest.raises(
        ValueError, match=r"'contdown'; choose one of arithmetic, countdown, .*gsm8k.*; nearest: 'countdown'"
    ):
        environments.lookup("contdown")


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("name", ["arithmetic", "countdown"])
def test_a_tokenizer_trained_on_the_corpus_suffices(name):
    task = environments.lookup(name)()
    lines = list(task.corpus())
    assert lines == list(task.corpus()) and len(lines) == 1025
    assert lines[1].startswith(task.text(0, "train"))
    bound = task.bind(tokenizers.train(lines))
    assert set("".join(lines)) | {"\n"} == set("".join(on_device.decode(bound, [range(bound.tokenizer.vocabulary)])))


# --- arithmetic --------------------------------------------------------------------------------


def test_arithmetic_splits_are_disjoint_and_together_everything():
    task = on_device.make("arithmetic", digits=1, operators="+-", working=False, heldout=0.25)
    assert (task.size("train"), task.size("heldout")) == (150, 50)
    train, held = on_device.prompts(task, range(160), "train"), on_device.prompts(task, range(50), "heldout")
    assert train[150:] == train[:10]  # wraps within the split
    assert not set(train) & set(held)
    assert set(train) | set(held) == {f"{a}{o}{b}=" for a in range(10) for b in range(10) for o in "+-"}
    assert [task.text(3, "train"), task.text(3, "heldout")] == [train[3], held[3]]
    # the operators' order in the setting says nothing about the problems
    swapped = environments.lookup("arithmetic")(digits=1, operators="-+", working=False, heldout=0.25)
    assert swapped.bind(task.tokenizer) == task


@pytest.mark.full
def test_arithmetic_beyond_the_index_keeps_problems_apart():
    task = on_device.make("arithmetic", operands=3, digits=5, operators="+-", working=False)
    assert task.size("train") + task.size("heldout") == 4 * 10**7
    train, held = (
        on_device.run(task, np.arange(2000) * 1999),
        on_device.prompts(task, np.arange(2000) * 1999, "heldout"),
    )
    assert len(set(train.prompts) | set(held)) == 4000
    digits = np.asarray([[int(c) for c in p if c.isdigit()] for p in train.prompts])
    assert digits.shape == (2000, 15)
    assert np.all(np.abs(digits.mean(0) - 4.5) < 0.35)  # 5 standard errors of 2000 uniform digits
    assert train.texts == [str(evaluate_arithmetic(p)) for p in train.prompts]
    assert np.all(train.outcome == CORRECT)


@pytest.mark.default_tier(1)
@pytest.mark.parametrize(
    ("settings", "splits"),
    [
        ({}, ("train", "heldout")),
        ({"operators": "+-*", "working": False}, ("train",)),
        ({"operands": 3, "digits": 1, "operators": "+-*", "working": False}, ("train",)),
    ],
)
def test_clean_demonstrations_are_all_correct(settings, splits):
    task = on_device.make("arithmetic", **settings)
    for split in splits:
        done = on_device.run(task, np.arange(task.size(split)), split)
        assert np.all(done.outcome == CORRECT)
        assert np.all(done.verdict.reward == 1) and np.all(done.verdict.parts["format"] == 1)
        for prompt, text in zip(done.prompts, done.texts, strict=True):
            assert text.split(";")[-1] == str(evaluate_arithmetic(prompt))
        last = done.mask.sum(1).astype(int) - 1
        assert np.all(done.token[np.arange(len(last)), last] == task.tokenizer.eos)
        assert np.all(np.diff(done.mask, axis=1) <= 0) and np.all((done.token == 0) == (done.mask == 0))
        assert not task.common.working or last.max() + 1 == task.completion_length  # not longer than need be


def working_by_hand(a, b, digits, forgetful):
    """Column sums of a + b from the units up; the forgetful leave out every carry between columns."""
    parts, carry, units = [], 0, ""
    for column in range(digits):
        x, y = a // 10**column % 10, b // 10**column % 10
        total = x + y + carry
        parts.append(f"{x}+{y}" + (f"+{carry}" if carry else "") + f"={total}")
        carry = 0 if forgetful else total // 10
        units = (str(total) if column == digits - 1 else str(total % 10)) + units
    return ";".join([*parts, str(int(units))])


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("slip", [0.0, 1.0])
def test_working_and_forgotten_carries(slip):
    assert working_by_hand(37, 48, 2, False) == "7+8=15;3+4+1=8;85"  # the docstring's example
    task = on_device.make("arithmetic", slip=slip)
    done = on_device.run(task, np.arange(task.size("train")))
    pairs = np.asarray([list(map(int, p[:-1].split("+"))) for p in done.prompts])
    assert done.texts == [working_by_hand(a, b, 2, slip == 1) for a, b in pairs.tolist()]
    carries = pairs[:, 0] % 10 + pairs[:, 1] % 10 >= 10
    np.testing.assert_array_equal(done.outcome, np.where(carries & (slip == 1), WRONG, CORRECT))


@pytest.mark.full
def test_forgotten_borrows():
    task = on_device.make("arithmetic", operators="-", working=False, slip=1.0)
    done = on_device.run(task, np.arange(task.size("train")))
    pairs = np.asarray([list(map(int, p[:-1].split("-"))) for p in done.prompts])
    borrows = pairs[:, 0] % 10 < pairs[:, 1] % 10
    np.testing.assert_array_equal(done.outcome, np.where(borrows, WRONG, CORRECT))
    assert done.texts == list(map(str, (pairs[:, 0] - pairs[:, 1] + 10 * borrows).tolist()))


@pytest.mark.full
def test_noise_and_randomness():
    noisy = on_device.make("arithmetic", noise=0.25)
    index = np.arange(noisy.size("train"))
    done = on_device.run(noisy, index)
    # two columns, each right with probability 3/4; standard error of 9000 rows 0.0053
    assert abs(np.mean(done.outcome == WRONG) - 7 / 16) < 0.025
    offs = []
    for prompt, text in zip(done.prompts, done.texts, strict=True):
        a, b = map(int, prompt[:-1].split("+"))
        total, true = int(text.split(";")[0].split("=")[1]), a % 10 + b % 10
        assert total // 10 == true // 10
        offs.append((total - true) % 10)
    share = np.bincount(offs, minlength=10) / len(offs)
    assert abs(share[0] - 0.75) < 0.025 and np.all(np.abs(share[1:] - 0.25 / 9) < 0.01)
    silent = on_device.run(on_device.make("arithmetic", noise=0.25, working=False), index)  # the same mistakes, unseen
    assert silent.texts == [text.split(";")[-1] for text in done.texts]
    np.testing.assert_array_equal(silent.outcome, done.outcome)
    # a row's draws hang on key and index, not on its place in the batch
    np.testing.assert_array_equal(on_device.run(noisy, index[::-1]).token[::-1], done.token)
    assert np.any(on_device.run(noisy, index, key=1).token != done.token)


def test_arithmetic_verdicts():
    task = on_device.make("arithmetic", operators="+-", working=False, completion_length=16)
    answers = [evaluate_arithmetic(p) for p in on_device.run(task, range(100)).prompts]
    index, answer = next((i, a) for i, a in enumerate(answers) if a < -9)
    size = str(-answer)
    cases = {
        str(answer): CORRECT,
        size: WRONG,
        str(answer - 1): WRONG,
        "-0" + size: WRONG,  # a leading zero is an integer, not the decimal form
        str(answer) + "0": WRONG,
        str(answer + 2**32): WRONG,  # equal if digits were summed in 32 bits
        "-" + "9" * 14: WRONG,
        "-0": WRONG,
        str(answer) + "~": UNPARSEABLE,  # no end-of-sequence
        "": UNPARSEABLE,
        "-": UNPARSEABLE,
        "--" + size: UNPARSEABLE,
        "+" + size: UNPARSEABLE,
        size + "-": UNPARSEABLE,
        str(answer) + "=": UNPARSEABLE,
        "=" + str(answer): UNPARSEABLE,
    }
    token, mask = on_device.completions(task, list(cases))
    token[0, 4:] = task.tokenizer.encode("1")[0]  # what follows end-of-sequence does not count, masked or not
    mask[0, 4:6] = 1
    verdict = on_device.verify(task, [index] * len(cases), token, mask)
    assert verdict.outcome.tolist() == list(cases.values())
    assert verdict.reward.tolist() == [outcome == CORRECT for outcome in cases.values()]
    assert verdict.parts["format"].tolist() == [outcome != UNPARSEABLE for outcome in cases.values()]
    unseen = on_device.verify(task, [index] * len(cases), token, mask * (token != task.tokenizer.eos))
    assert np.all(unseen.outcome == UNPARSEABLE)  # an end-of-sequence that was not emitted


def test_an_answer_may_end_with_a_stop_string_or_another_stop_token():
    task = on_device.make("arithmetic")
    answer, model = evaluate_arithmetic(task.text(0, "train")), task.tokenizer
    other = model.encode(" ")[0]
    ends = sampling.Ends((model.eos, other), model.pad, stopping.build(("=", ">>"), model.pieces(), model.vocabulary))
    cases = {f"{answer}": CORRECT, f"{answer}=~": CORRECT, f"{answer} ~": CORRECT, f"1;{answer}>>~": CORRECT}
    cases |= {f"{answer + 1}=~": WRONG, f"{answer}~": UNPARSEABLE, f"{answer}>~": UNPARSEABLE, "=~": UNPARSEABLE}
    token, mask = on_device.completions(task, list(cases))
    verdict = on_device.verify(task, [0] * len(cases), *map(np.asarray, jax.jit(ends.closed)(token, mask)))
    assert verdict.outcome.tolist() == list(cases.values())


def test_only_the_final_answer_counts():
    task = on_device.make("arithmetic")
    answer = evaluate_arithmetic(task.text(0, "train"))
    cases = {f"{answer}": CORRECT, f"1+1=3;{answer}": CORRECT, f";;{answer}": CORRECT, f"{answer};{answer + 1}": WRONG}
    cases |= {f"{answer};": UNPARSEABLE, f"{answer};1+1": UNPARSEABLE, ";": UNPARSEABLE}
    verdict = on_device.verify(task, [0] * len(cases), *on_device.completions(task, list(cases)))
    assert verdict.outcome.tolist() == list(cases.values())


def step_labels(text, working, answer):
    """Return {place: whether the step that ends there is right}; a tilde stands for no end-of-sequence."""
    labels, whole = {}, text.rstrip("~")
    for number, step in enumerate(whole.split(";")[:-1]):
        place = len(";".join(whole.split(";")[: number + 1]))
        labels[place] = number < len(working) and step == working[number]
    last = len(whole) - text.endswith("~")
    return labels | {last: not text.endswith("~") and whole.split(";")[-1] == answer}


def test_steps_are_labelled_by_the_solution():
    task = on_device.make("arithmetic", step_reward=0.5, completion_length=24)
    index = next(i for i in range(99) if sum(map(int, task.text(i, "train")[1:5:3])) > 9)  # with a carry
    a, b = map(int, task.text(index, "train")[:-1].split("+"))
    *working, answer = working_by_hand(a, b, 2, False).split(";")
    forgotten = working_by_hand(a, b, 2, True)
    one, two = working
    cases = [f"{one};{two};{answer}", forgotten, answer, f"{one};{answer}", f"{two};{one};{answer}", ";", ""]
    cases += [f"{one};{two};{answer}0", f"{one};{two};{answer}~", f"{one};{two};~", f"{one}0;{two};{answer}"]
    cases += [f"{one};{one};{answer}", f";{one};{answer}", f"{one};{two};;{answer}", f"{one[1:]};{two};{answer}"]
    token, mask = on_device.completions(task, cases)
    verdict = on_device.verify(task, [index] * len(cases), token, mask)
    for case, paid in zip(cases, verdict.token_reward, strict=True):
        labels = step_labels(case, working, answer)
        want = np.zeros(24)
        for place, right in labels.items():
            want[place] = 0.5 if right else -0.5
        np.testing.assert_array_equal(paid, want, err_msg=case)
    assert verdict.reward.tolist() == [case.split(";")[-1] == answer for case in cases]
    strict = on_device.make("arithmetic", strict=True, completion_length=24)
    verdict = on_device.verify(strict, [index] * len(cases), token, mask)
    assert verdict.reward.tolist() == [case == f"{one};{two};{answer}" for case in cases]
    assert task.supplies == ("token_reward",) and on_device.make("arithmetic").supplies == ()


def test_pieces_of_several_characters_are_no_answer():
    task = environments.lookup("arithmetic")(digits=1)
    task = task.bind(tokenizers.train(["12 12 12 12", "0123456789+=;"], vocabulary=20, model_type="bpe"))
    index = next(i for i in range(90) if evaluate_arithmetic(task.text(i, "train")) == 12)
    ids = range(task.tokenizer.vocabulary)
    merged = [i for i in ids if task.tokenizer.decode([i]) == "12"]
    apart = [i for c in "12" for i in ids if task.tokenizer.decode([i]) == c]
    token, mask = np.zeros((2, task.completion_length), np.int32), np.zeros((2, task.completion_length), np.float32)
    for row, answer in enumerate((merged, apart)):
        assert len(answer) == row + 1
        token[row, : row + 2], mask[row, : row + 2] = [*answer, task.tokenizer.eos], 1
    assert on_device.verify(task, [index, index], token, mask).outcome.tolist() == [UNPARSEABLE, CORRECT]


def test_characters_are_written_by_pieces_and_not_by_bytes(tmp_path):
    # as in Llama 2, both the byte <0x37> and the piece "7" are the character 7, and a text gets a space in front
    model = tokenizers.load(public.write(tmp_path / "model", "fallback"))
    piece = model.encode("x7")[-1]
    assert model.pieces()[piece] == b"7" == model.pieces()[model.pieces().index(b"7")] and piece > 260
    assert characters.table(model, "7", "test")[ord("7")] == piece


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("arithmetic", {"operands": 1}, r"operands: 1 is not in \[2, 10\]"),
        ("arithmetic", {"digits": 0}, "digits: 0"),
        ("arithmetic", {"operators": "+/"}, r"operators: '\+/' is not a choice"),
        ("arithmetic", {"operators": "++"}, "operators"),
        ("arithmetic", {"operators": "+-"}, "working: True requires operators"),
        ("arithmetic", {"slip": 1.5}, r"slip=1.5: must be a number in \[0, 1\]"),
        ("arithmetic", {"noise": -1}, "noise=-1"),
        ("arithmetic", {"heldout": 0.0}, "heldout: 0.0"),
        ("arithmetic", {"step_reward": 1.0, "working": False}, "step_reward: 1.0 pays steps of the working"),
        ("arithmetic", {"strict": True, "working": False}, "strict: True judges steps of the working"),
        ("arithmetic", {"digits": 5, "operators": "*", "working": False}, "digits: 5 .* beyond int32"),
        ("arithmetic", {"prompt_length": 5}, "prompt_length: 5 tokens are too few; these settings need 6"),
        ("arithmetic", {"completion_length": 19}, "completion_length: 19 tokens are too few; these settings need 20"),
        ("countdown", {"numbers": 1}, "numbers: 1"),
        ("countdown", {"highest": 1}, "highest: 1"),
        ("countdown", {"numbers": 6, "highest": 100}, "highest: 100 .* exceeds int32"),
        ("countdown", {"operators": "-/"}, "operators: '-/'"),
        ("countdown", {"largest": 29}, "largest: 29 is not in .*targets up to 30"),
        ("countdown", {"slip": 2.0}, "slip: 2.0"),
        ("countdown", {"heldout": 1.0}, "heldout: 1.0"),
        ("countdown", {"prompt_length": 14}, "prompt_length: 14 tokens are too few; these settings need 15"),
        ("countdown", {"completion_length": 10}, "completion_length: 10 tokens are too few; these settings need 11"),
    ],
)
def test_settings_out_of_range(name, settings, words):
    with pytest.raises(ValueError, match=words):
        environments.lookup(name)(**settings)


@pytest.mark.default_tier(1)
@pytest.mark.parametrize(("name", "missing"), [("arithmetic", ";"), ("countdown", ":>")])
def test_binding(name, missing):
    task = environments.lookup(name)()
    with pytest.raises(ValueError, match=f"no one-character tokens for '{missing}', which task '{name}'"):
        task.bind(tokenizers.train(["0123456789+-*= ()"]))
    with pytest.raises(ValueError, match=r"call task.bind\(tokenizer\) first"):
        task.prompts(jnp.arange(2), "train")
    assert task.tokenizer is None and on_device.make(name).prompt_length == task.prompt_length


# --- the examples of the page --------------------------------------------------------------------

PAGE = pathlib.Path(environments.__file__).parent / "README.md"


@pytest.mark.parametrize("name", ["Reverse", "Capitals"])
def test_the_examples_of_the_page_judge_their_demonstrations_correct(name):
    names = {}
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if f"class {name}" in c]
    exec(code, names)
    task = names[name]()
    task = task.bind(tokenizers.train(task.corpus()))
    for split in ("train", "heldout"):
        index = jnp.arange(task.size(split))
        prompts = jax.device_get(task.prompts(index, split))
        token, mask = jax.device_get(task.demonstrations(index, split, jax.random.key(0)))
        texts = [task.tokenizer.decode(row[seen > 0]) for row, seen in zip(prompts.token, prompts.mask, strict=True)]
        assert texts == [task.text(int(i), split) for i in index]
        assert prompts.token.shape[1] == task.prompt_length and token.shape[1] == task.completion_length
        if environments.scored_on_device(task):
            assert np.all(task.verify(index, split, token, mask).outcome == CORRECT)
        else:
            answers = [task.tokenizer.decode(row[seen > 0]) for row, seen in zip(token, mask, strict=True)]
            scores = [task.reward(a, task.target(int(i), split)) for i, a in enumerate(answers)]
            assert [score["outcome"] for score in scores] == ["correct"] * len(scores)
