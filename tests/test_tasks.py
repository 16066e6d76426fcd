"""Tasks on the device: disjoint splits, demonstrations, and verifiers against Python's own arithmetic."""

import ast
import collections
import fractions
import functools
import random
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import tasks, types
from rljax.data import tokenizer as tokenizers

CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE


@functools.cache
def make(name, **settings):
    task = tasks.lookup(name)(**settings)
    return task.bind(tokenizers.train(task.corpus()))


@functools.cache
def jitted(task, method):
    return jax.jit(getattr(task, method), static_argnames="split")


def decode(task, token):
    """Texts of rows of tokens, by the table of characters and not by the task."""
    table = task.tokenizer.characters()
    return ["".join(chr(table[t]) for t in row if table[t]) for row in np.asarray(token).tolist()]


def prompts(task, index, split):
    return decode(task, jitted(task, "prompts")(jnp.asarray(index, jnp.int32), split=split).token)


def demonstrations(task, index, split, key=0):
    return jitted(task, "demonstrations")(jnp.asarray(index, jnp.int32), split=split, key=jax.random.key(key))


def verify(task, index, split, token, mask):
    return jitted(task, "verify")(jnp.asarray(index, jnp.int32), split=split, token=token, mask=mask)


def completions(task, texts):
    """Token and mask of texts; each ends with end-of-sequence unless it ends with a tilde."""
    length, tokenizer = task.completion_length, task.tokenizer
    token, mask = np.zeros((len(texts), length), np.int32), np.zeros((len(texts), length), np.float32)
    for row, text in enumerate(texts):
        ids = tokenizer.encode(text.rstrip("~")) + ([] if text.endswith("~") else [tokenizer.eos])
        assert len(ids) <= length
        token[row, : len(ids)], mask[row, : len(ids)] = ids, 1
    return token, mask


def evaluate_arithmetic(prompt):
    return eval(re.sub(r"\b0+(?=\d)", "", prompt.removesuffix("=")))


# --- the table ---------------------------------------------------------------------------------


def test_lookup_names_the_choices_and_the_nearest():
    assert tasks.lookup("arithmetic")().name == "arithmetic"
    with pytest.raises(ValueError, match=r"'contdown'; there are arithmetic, countdown, gsm8k; nearest: 'countdown'"):
        tasks.lookup("contdown")


# --- arithmetic --------------------------------------------------------------------------------


def test_arithmetic_splits_are_disjoint_and_together_everything():
    task = make("arithmetic", digits=1, operators="+-", working=False, heldout=0.25)
    assert (task.size("train"), task.size("heldout")) == (150, 50)
    train, held = prompts(task, range(150), "train"), prompts(task, range(50), "heldout")
    assert not set(train) & set(held)
    assert set(train) | set(held) == {f"{a}{o}{b}=" for a in range(10) for b in range(10) for o in "+-"}
    assert prompts(task, [157, 150], "train") == [train[7], train[0]]  # wraps within the split
    assert [task.text(3, "train"), task.text(3, "heldout")] == [train[3], held[3]]
    # the operators' order in the setting says nothing about the problems
    assert (
        tasks.lookup("arithmetic")(digits=1, operators="-+", working=False, heldout=0.25).bind(task.tokenizer) == task
    )


def test_arithmetic_beyond_the_index_keeps_problems_apart():
    task = make("arithmetic", operands=3, digits=5, operators="+-", working=False)
    assert task.size("train") + task.size("heldout") == 4 * 10**7
    train, held = (prompts(task, np.arange(2000) * 1999, split) for split in ("train", "heldout"))
    assert len(set(train) | set(held)) == 4000
    digits = np.asarray([[int(c) for c in p if c.isdigit()] for p in train])
    assert digits.shape == (2000, 15)
    assert np.all(np.abs(digits.mean(0) - 4.5) < 0.35)  # 5 standard errors of 2000 uniform digits
    token, mask = demonstrations(task, range(256), "train")
    answers = decode(task, token)
    assert answers == [str(evaluate_arithmetic(p)) for p in prompts(task, range(256), "train")]
    assert np.all(np.asarray(verify(task, range(256), "train", token, mask).outcome) == CORRECT)


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"operands": 3, "digits": 1},
        {"operators": "+-*", "working": False},
        {"operands": 3, "digits": 1, "operators": "+-*", "working": False},
    ],
)
def test_clean_demonstrations_are_all_correct(settings):
    task = make("arithmetic", **settings)
    for split in ("train", "heldout"):
        index = np.arange(task.size(split))
        token, mask = demonstrations(task, index, split)
        verdict = verify(task, index, split, token, mask)
        assert np.all(np.asarray(verdict.outcome) == CORRECT)
        assert np.all(np.asarray(verdict.reward) == 1) and np.all(np.asarray(verdict.parts["format"]) == 1)
        for prompt, text in zip(prompts(task, index, split), decode(task, token), strict=True):
            assert text.split(";")[-1] == str(evaluate_arithmetic(prompt))
        last = np.asarray(mask).sum(1).astype(int) - 1
        assert np.all(np.asarray(token)[np.arange(len(last)), last] == task.tokenizer.eos)
        assert np.all(np.diff(np.asarray(mask), axis=1) <= 0)
        assert last.max() + 1 == task.completion_length or "-" in task.operators or "*" in task.operators


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


@pytest.mark.parametrize("slip", [0.0, 1.0])
def test_working_and_forgotten_carries(slip):
    task = make("arithmetic", slip=slip)
    silent = make("arithmetic", slip=slip, working=False)
    index = np.arange(task.size("train"))
    token, mask = demonstrations(task, index, "train")
    pairs = np.asarray([list(map(int, p[:-1].split("+"))) for p in prompts(task, index, "train")])
    texts = decode(task, token)
    assert texts == [working_by_hand(a, b, 2, slip == 1) for a, b in pairs.tolist()]
    carries = pairs[:, 0] % 10 + pairs[:, 1] % 10 >= 10
    outcome = np.asarray(verify(task, index, "train", token, mask).outcome)
    np.testing.assert_array_equal(outcome == WRONG, carries & (slip == 1))
    np.testing.assert_array_equal(outcome == CORRECT, ~(carries & (slip == 1)))
    assert prompts(silent, index, "train") == prompts(task, index, "train")
    assert decode(silent, demonstrations(silent, index, "train")[0]) == [t.split(";")[-1] for t in texts]


def test_example_of_the_docstring():
    assert working_by_hand(37, 48, 2, False) == "7+8=15;3+4+1=8;85"


def test_forgotten_borrows():
    task = make("arithmetic", operators="-", working=False, slip=1.0)
    index = np.arange(task.size("train"))
    token, mask = demonstrations(task, index, "train")
    outcome = np.asarray(verify(task, index, "train", token, mask).outcome)
    pairs = np.asarray([list(map(int, p[:-1].split("-"))) for p in prompts(task, index, "train")])
    borrows = pairs[:, 0] % 10 < pairs[:, 1] % 10
    np.testing.assert_array_equal(outcome == WRONG, borrows)
    expected = pairs[:, 0] - pairs[:, 1] + 10 * borrows
    assert decode(task, token) == list(map(str, expected.tolist()))


def test_noise_and_slip_rates():
    noisy = make("arithmetic", noise=0.25)
    index = np.arange(noisy.size("train"))
    token, mask = demonstrations(noisy, index, "train")
    wrong = np.asarray(verify(noisy, index, "train", token, mask).outcome) == WRONG
    # two columns, each right with probability 3/4; standard error of 9000 rows 0.0053
    assert abs(wrong.mean() - 7 / 16) < 0.025
    offs = []
    for prompt, text in zip(prompts(noisy, index, "train"), decode(noisy, token), strict=True):
        a, b = map(int, prompt[:-1].split("+"))
        total = int(text.split(";")[0].split("=")[1])
        true = a % 10 + b % 10
        assert total // 10 == true // 10
        offs.append((total - true) % 10)
    share = np.bincount(offs, minlength=10) / len(offs)
    assert abs(share[0] - 0.75) < 0.025 and np.all(np.abs(share[1:] - 0.25 / 9) < 0.01)
    # a row's draws hang on key and index, not on its batch
    alone, _ = demonstrations(noisy, index[123:124], "train")
    np.testing.assert_array_equal(alone[0], token[123])
    assert np.any(np.asarray(demonstrations(noisy, index, "train", key=1)[0]) != np.asarray(token))


def test_arithmetic_verdicts():
    task = make("arithmetic", operators="+-", working=False, completion_length=16)
    index = next(i for i in range(500) if evaluate_arithmetic(task.text(i, "train")) < -9)
    answer = evaluate_arithmetic(task.text(index, "train"))
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
    token, mask = completions(task, list(cases))
    extra = task.tokenizer.encode("1")[0]
    token[0, 4:] = extra  # what follows end-of-sequence does not count, masked or not
    mask[0, 4:6] = 1
    verdict = verify(task, [index] * len(cases), "train", token, mask)
    assert np.asarray(verdict.outcome).tolist() == [int(o) for o in cases.values()]
    assert np.asarray(verdict.reward).tolist() == [float(o == CORRECT) for o in cases.values()]
    assert np.asarray(verdict.parts["format"]).tolist() == [float(o != UNPARSEABLE) for o in cases.values()]
    unseen = verify(task, [index] * len(cases), "train", token, mask * (token != task.tokenizer.eos))
    assert np.all(np.asarray(unseen.outcome) == UNPARSEABLE)  # an end-of-sequence that was not emitted


def test_only_the_final_answer_counts():
    task = make("arithmetic")
    answer = evaluate_arithmetic(task.text(0, "train"))
    cases = {f"{answer}": CORRECT, f"1+1=3;{answer}": CORRECT, f";;{answer}": CORRECT, f"{answer};{answer + 1}": WRONG}
    cases |= {f"{answer};": UNPARSEABLE, f"{answer};1+1": UNPARSEABLE, ";": UNPARSEABLE}
    token, mask = completions(task, list(cases))
    outcome = verify(task, [0] * len(cases), "train", token, mask).outcome
    assert np.asarray(outcome).tolist() == [int(o) for o in cases.values()]


def test_pieces_of_several_characters_are_no_answer():
    corpus = list(tasks.lookup("arithmetic")().corpus())
    task = tasks.lookup("arithmetic")().bind(tokenizers.train(corpus, vocabulary=60, model_type="bpe"))
    answer = str(evaluate_arithmetic(task.text(0, "train")))
    merged = task.tokenizer.encode(answer)
    assert len(merged) < len(answer)
    token = np.zeros((1, task.completion_length), np.int32)
    token[0, : len(merged) + 1] = [*merged, task.tokenizer.eos]
    assert int(task.verify(jnp.asarray([0]), "train", token, np.ones(token.shape)).outcome[0]) == UNPARSEABLE
    clean = task.demonstrations(jnp.asarray([0]), "train", jax.random.key(0))
    assert int(task.verify(jnp.asarray([0]), "train", *clean).outcome[0]) == CORRECT


# --- countdown ---------------------------------------------------------------------------------


def read_prompt(prompt):
    given, target = prompt.removesuffix(":").split(" > ")
    return sorted(map(int, given.split(" "))), int(target)


@pytest.mark.parametrize("settings", [{}, {"numbers": 2, "highest": 5, "operators": "*"}])
def test_countdown_splits_share_no_numbers(settings):
    task = make("countdown", **settings)
    seen = {}
    for split in ("train", "heldout"):
        size = min(4000, task.size(split))
        texts = prompts(task, np.arange(size), split)
        assert [task.text(1, split)] == texts[1:2]
        problems = [read_prompt(text) for text in texts]
        seen[split] = {tuple(given) for given, _ in problems}
        assert all(0 <= target <= task.largest for _, target in problems)
        assert all(1 <= n <= task.highest for given, _ in problems for n in given)
        assert prompts(task, [task.size(split) + 3], split) == texts[3:4]
    assert not seen["train"] & seen["heldout"]
    n, h = task.numbers, task.highest
    every = np.stack(np.meshgrid(*[np.arange(1, h + 1)] * n), -1).reshape(-1, n)
    assert seen["train"] | seen["heldout"] == {tuple(sorted(row)) for row in every.tolist()}


def test_countdown_prompts_are_varied_and_left_padded():
    task = make("countdown")
    batch = jitted(task, "prompts")(jnp.arange(2000, dtype=jnp.int32), split="train")
    mask = np.asarray(batch.mask)
    assert batch.token.shape == (2000, task.prompt_length) and batch.token.dtype == jnp.int32
    assert np.all(np.diff(mask, axis=1) >= 0) and mask.min() == 0 and np.all(mask[:, -1] == 1)
    np.testing.assert_array_equal(mask == 0, np.asarray(batch.token) == task.tokenizer.pad)
    assert len(set(decode(task, batch.token))) > 1700
    targets = [read_prompt(p)[1] for p in decode(task, batch.token)]
    assert len(set(targets)) > 50


def judge(text, given, target, operators):
    """The oracle: Python's parser and exact fractions."""
    kinds = {"+": ast.Add, "-": ast.Sub, "*": ast.Mult, "/": ast.Div}
    allowed = tuple(kinds[o] for o in operators)
    if not text or set(text) - set("0123456789()" + operators) or re.search(r"(?<!\d)0\d", text):
        return UNPARSEABLE
    used = []

    def value(node):
        if isinstance(node, ast.BinOp) and isinstance(node.op, allowed):
            left, right = value(node.left), value(node.right)
            if left is None or right is None or (isinstance(node.op, ast.Div) and right == 0):
                return None
            steps = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
            return left / right if isinstance(node.op, ast.Div) else steps[type(node.op)]
        if isinstance(node, ast.Constant):
            used.append(node.value)
            return fractions.Fraction(node.value)
        raise SyntaxError

    try:
        result = value(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return UNPARSEABLE
    return CORRECT if sorted(used) == given and result == target else WRONG


def mutate(text, rng, letters):
    place, letter = rng.randrange(len(text) + 1), rng.choice(letters)
    return rng.choice(
        [
            text,
            text[:place] + letter + text[place:],
            text[:place] + text[place + 1 :],
            text[:place] + letter + text[place + 1 :],
            f"({text})",
            text.replace("(", "").replace(")", ""),
            "".join(rng.choices(letters, k=rng.randrange(9))),
        ]
    )


@pytest.mark.filterwarnings("ignore::SyntaxWarning")  # Python's, of texts such as 3(2)
@pytest.mark.parametrize(("numbers", "operators"), [(4, "+-*/"), (3, "+*")])
def test_countdown_verdicts_agree_with_python(numbers, operators):
    rows = 3000
    task = make("countdown", numbers=numbers, operators=operators, slip=0.4, completion_length=24)
    rng, index = random.Random(numbers), np.arange(rows)
    problems = [read_prompt(p) for p in prompts(task, index, "train")]
    texts = [mutate(t, rng, "0123456789+-*/() ") for t in decode(task, demonstrations(task, index, "train")[0])]
    known = {chr(c) for c in task.tokenizer.characters()}
    texts = ["".join(c for c in t if c in known) for t in texts]
    expected = [judge(t, *problem, operators) for t, problem in zip(texts, problems, strict=True)]
    verdict = verify(task, index, "train", *completions(task, texts))
    found = np.asarray(verdict.outcome).tolist()
    for text, problem, mine, theirs in zip(texts, problems, found, expected, strict=True):
        assert mine == theirs, (text, problem)
    assert min(collections.Counter(expected).values()) > 300  # every verdict is well represented
    np.testing.assert_array_equal(verdict.reward, np.asarray(expected) == CORRECT)
    np.testing.assert_array_equal(verdict.parts["format"], np.asarray(expected) != UNPARSEABLE)
    cut = verify(task, index, "train", *completions(task, [t + "~" for t in texts]))
    assert np.all(np.asarray(cut.outcome) == UNPARSEABLE)


def test_countdown_by_hand():
    task = make("countdown", numbers=4, operators="+-*/", slip=0.4, completion_length=24)
    index, (given, target) = next(
        (i, problem) for i in range(300) if len(set((problem := read_prompt(task.text(i, "train")))[0])) == 4
    )
    a, b, c, d = given
    cases = {
        f"{a}+{b}+{c}": WRONG,  # a number left out
        f"{a}+{b}+{c}+{d}+{d}": WRONG,  # one used twice
        f"{a}/({b}-{b})": WRONG,  # division by zero
        f"{target}": WRONG,  # right value, wrong numbers
        f"(({a}+{b})+{c})+{d}": CORRECT if sum(given) == target else WRONG,
        f"{a}+{b}+{c}+{d})": UNPARSEABLE,
        f"-{a}+{b}": UNPARSEABLE,
        f"0{a}+{b}": UNPARSEABLE,
        f"{a}//{b}": UNPARSEABLE,
        f"{a}**{b}": UNPARSEABLE,
        "()": UNPARSEABLE,
        "": UNPARSEABLE,
    }
    verdict = verify(task, [index] * len(cases), "train", *completions(task, list(cases)))
    assert np.asarray(verdict.outcome).tolist() == [int(o) for o in cases.values()]
    assert np.asarray(verdict.parts["numbers"])[:5].tolist() == [0, 0, 0, 0, 1]


def test_countdown_demonstrations():
    clean, erring = make("countdown"), make("countdown", slip=1.0)
    index = np.arange(2000)
    token, mask = demonstrations(clean, index, "train")
    assert np.all(np.asarray(verify(clean, index, "train", token, mask).outcome) == CORRECT)
    for prompt, text in zip(prompts(clean, index, "train"), decode(clean, token), strict=True):
        given, target = read_prompt(prompt)
        assert eval(text) == target and sorted(map(int, re.findall(r"\d+", text))) == given
    token, mask = demonstrations(erring, index, "train")
    verdict = verify(erring, index, "train", token, mask)
    assert np.all(np.asarray(verdict.parts["numbers"]) == 1)  # the same numbers, by another way
    assert 0.5 < np.mean(np.asarray(verdict.outcome) == WRONG) < 0.98
    alone, _ = demonstrations(erring, index[77:78], "train")
    np.testing.assert_array_equal(alone[0], token[77])


# --- bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("arithmetic", {"operands": 1}, r"operands: 1 is not in \[2, 10\]"),
        ("arithmetic", {"digits": 0}, "digits: 0"),
        ("arithmetic", {"operators": "+/"}, r"operators: '\+/' is not a choice"),
        ("arithmetic", {"operators": "++"}, "operators"),
        ("arithmetic", {"operators": "+-"}, "working: True is for operators"),
        ("arithmetic", {"slip": 1.5}, r"slip: 1.5 is not in \[0, 1\]"),
        ("arithmetic", {"noise": -1}, "noise: -1"),
        ("arithmetic", {"heldout": 0.0}, "heldout: 0.0"),
        ("arithmetic", {"digits": 5, "operators": "*", "working": False}, "digits: 5 .* beyond int32"),
        ("arithmetic", {"prompt_length": 5}, "prompt_length: 5 tokens were given, these settings need 6"),
        ("arithmetic", {"completion_length": 19}, "completion_length: 19 tokens were given, these settings need 20"),
        ("countdown", {"numbers": 1}, "numbers: 1"),
        ("countdown", {"highest": 1}, "highest: 1"),
        ("countdown", {"numbers": 6, "highest": 100}, "highest: 100 .* beyond int32"),
        ("countdown", {"operators": "-/"}, "operators: '-/'"),
        ("countdown", {"largest": 29}, "largest: 29 is not in .*30 must be reachable"),
        ("countdown", {"slip": 2.0}, "slip: 2.0"),
        ("countdown", {"heldout": 1.0}, "heldout: 1.0"),
        ("countdown", {"prompt_length": 14}, "prompt_length: 14 tokens were given, these settings need 15"),
        ("countdown", {"completion_length": 10}, "completion_length: 10 tokens were given, these settings need 11"),
    ],
)
def test_settings_out_of_range(name, settings, words):
    with pytest.raises(ValueError, match=words):
        tasks.lookup(name)(**settings)


@pytest.mark.parametrize(("name", "missing"), [("arithmetic", ";"), ("countdown", ":>")])
def test_binding(name, missing):
    task = tasks.lookup(name)()
    with pytest.raises(ValueError, match=f"no one-character tokens for '{missing}', which task '{name}'"):
        task.bind(tokenizers.train(["0123456789+-*= ()"]))
    with pytest.raises(ValueError, match=r"call task.bind\(tokenizer\) first"):
        task.prompts(jnp.arange(2), "train")
    assert task.tokenizer is None and make(name).prompt_length == task.prompt_length
