"""Stop strings inside the program against ``str.find`` on the text: straddling tokens, compacted, resumed."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as library

from rljax import sampling, types
from rljax.data import hugging_face, raw_bytes
from rljax.sampling import stopping
from tests.sampling import sampling_cases as samplers
from tests.support import drawing, tiny

TEXT = ("the cat sat on the mat </answer> then\n\nthe end é漢 <answer>72</answer>", "an answer: 3\n\n\nthat's that") * 4
STRINGS = ("\n\n", "</answer>", "at the", "漢", "that")
LENGTH = 24


@functools.cache
def vocabulary():
    """Return a byte-level BPE tokenizer of 300 ids, one of them the end."""
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<end>"], initial_alphabet=alphabet, show_progress=False
    )
    model.train_from_iterator(TEXT, trainer)
    files = {"tokenizer.json": model.to_str().encode(), "tokenizer_config.json": b'{"eos_token": "<end>"}'}
    return hugging_face.load(files, "test")


def first_end(pieces, token, strings):
    """Count the tokens up to the one with which the text since the last special token holds a string; None: never."""
    text = b""
    for count, i in enumerate(token, start=1):
        piece = pieces[i] if i < len(pieces) else None
        text = b"" if piece is None else text + piece
        if any(text.find(s.encode()) >= 0 for s in strings):
            return count
    return None


def run(table, token):
    """Return the tokens of each row [B, T] after which it holds a string, None where it never does."""

    def step(state, column):
        state = table.advance(state, column)
        return state, table.matched(state)

    ends = np.asarray(jax.lax.scan(step, table.start(len(token)), jnp.asarray(token).T)[1]).T
    return [int(row.argmax()) + 1 if row.any() else None for row in ends]


@pytest.mark.parametrize(
    "strings", [STRINGS, ("\n\n",), ("aaab", "aab"), ("abab", "bab", "b"), ("e",), ("é", "漢 <")], ids=str
)
def test_the_table_finds_what_find_finds(strings):
    pieces = vocabulary().pieces()
    rng = np.random.default_rng(0)
    # cuts of real text at random tokens, so that strings come up often and straddle; some ids beyond the tokenizer
    source = np.array(vocabulary().encode("".join(TEXT) + "aaaabab" * 3), np.int32)
    rows = [np.concatenate([source[a : a + rng.integers(1, 9)] for a in rng.integers(0, len(source), 12)])[:LENGTH]
            for _ in range(300)]  # fmt: skip
    token = np.stack([np.pad(row, (0, LENGTH - len(row)), constant_values=305) for row in rows])
    token = np.where(rng.random(token.shape) < 0.03, vocabulary().eos, token)
    ends = run(stopping.build(strings, pieces, 310), token)
    assert ends == [first_end(pieces, row, strings) for row in token]
    assert 0 < sum(end is not None for end in ends) < 300


@pytest.mark.full
def test_the_string_that_ends_a_row_is_found():
    pieces, eos = vocabulary().pieces(), vocabulary().eos
    rng = np.random.default_rng(0)
    source = vocabulary().encode("".join(TEXT) + "aaaabab" * 3)
    cases = set()
    for strings in (STRINGS, ("\n\n",), ("aaab", "aab"), ("漢 <", "é")):
        rows = [source[a : a + LENGTH] for a in rng.integers(0, len(source), 80)]
        ends = [first_end(pieces, row, strings) for row in rows]
        rows = [row[:end] for row, end in zip(rows, ends, strict=True)]
        token = np.stack([np.pad(row, (0, LENGTH - len(row)), constant_values=eos) for row in rows])
        mask = np.stack([np.arange(LENGTH) < len(row) for row in rows]).astype(np.float32)
        closed, kept = jax.jit(sampling.Ends((eos,), 0, stopping.build(strings, pieces, 310)).closed)(token, mask)
        for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
            texts = [b"".join(pieces[t] or b"" for t in row[j:]) for j in range(len(row))]
            start = [j for j, text in enumerate(texts) if any(text.startswith(s.encode()) for s in strings)]
            expected = [*row[: start[-1]], eos] if start else row
            assert closed[i, np.asarray(kept)[i] > 0].tolist() == expected
            cases.add((end is not None, bool(start)))
        other = int(rows[0][0])  # a second stop token
        closed, kept = sampling.Ends((eos, other)).closed(jnp.asarray(token), jnp.asarray(mask))
        np.testing.assert_array_equal(closed, np.where(token == other, eos, token))
        np.testing.assert_array_equal(kept, mask)
    assert cases == {(False, False), (True, True), (True, False)}  # the last: text and string share a token


@pytest.mark.parametrize(
    ("strings", "token", "expected"),
    [
        (("**\n",), [1, 2, 4], [1, 0]),
        (("**\n",), [1, 2, 3], [1, 2, 3]),  # "4***" and a line feed: the string begins inside of the second token
        (("\n", "*\n*"), [1, 3], [1, 3]),  # of two strings, one of which holds the other
    ],
)
def test_what_is_before_a_string_is_kept(strings, token, expected):
    ends = sampling.Ends((0,), 0, stopping.build(strings, [None, b"4", b"**", b"*\n", b"\n"], 5))
    closed, kept = ends.closed(jnp.array([token]), jnp.ones((1, len(token))))
    assert closed[kept > 0].tolist() == expected


def test_a_string_in_what_is_given_does_not_end_what_follows():
    table = stopping.build(("bb",), [b"a", b"b", None], 3)
    token = jnp.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1]], jnp.int32)
    state, found = table.read(token, jnp.array([3, 2, 3])), []
    for t in (0, 1):
        state = table.advance(state, token[jnp.arange(3), jnp.array([3, 2, 3]) + t])
        found.append(table.matched(state).tolist())
    assert found == [[False, True, True], [True, True, True]]  # the last two: begun in what is given


def test_tables_are_small_and_count_states():
    pieces = raw_bytes.Bytes().pieces()
    table = stopping.build(("abc", "abd"), pieces, len(pieces)).transition
    assert table.shape == (4, 259) and table.dtype == np.uint8  # nothing, a, ab, a whole one
    assert stopping.build(("xabcx", "abc"), pieces, 259).transition.shape == (4, 259)  # "abc" is always there first
    assert stopping.build(("a" * 300,), pieces, 259).transition.dtype == np.uint16


def test_a_string_may_begin_and_end_inside_a_token_and_not_across_a_special_one():
    table = stopping.build(("bc",), [b"abcd", b"ab", b"cd", None, b""], 6)
    assert run(table, np.array([[0, 3, 3], [1, 2, 1], [1, 3, 2], [1, 5, 2], [1, 4, 2]])) == [1, 2, None, None, 3]


@pytest.mark.parametrize(
    ("strings", "columns", "words"),
    [
        ((), 3, "expected one or more texts"),
        (("a", ""), 3, "expected one or more texts"),
        (("a",), 2, "3 pieces for 2 columns"),
    ],
)
def test_bad_tables(strings, columns, words):
    with pytest.raises(ValueError, match=words):
        stopping.build(strings, [b"a", b"b", None], columns)


# --- in the decode loop --------------------------------------------------------------------------


STATES = 7


def policy():
    """Return the toy of ``test_sampling`` with the BPE vocabulary: logits that favour what makes the strings up."""
    pieces = vocabulary().pieces()
    rng = np.random.default_rng(1)
    logits = rng.normal(size=(STATES, len(pieces))) - 4
    likely = [i for s in ("\n\n", "</answer>", "at the that") for i in vocabulary().encode(s)]
    likely += [i for i, piece in enumerate(pieces) if piece is not None and len(piece) == 1 and piece in b"\n</athe"]
    logits[:, likely] += 1
    return jnp.asarray(logits, jnp.float32)


PROMPTS = samplers.prompts_of((1, 2), (3,), (5, 2, 9), width=3)
KEYS = samplers.keys_for(3, 8)
OPTIONS = {"pad": 0, "stop": (0,)}


@functools.cache
def sampled(strings, compact=0):
    table = stopping.build(strings, vocabulary().pieces(), 300) if strings else None
    generate = functools.partial(
        sampling.generate,
        samplers.TOY,
        samples=8,
        length=LENGTH,
        **drawing.arguments(strings=table, compact=compact, **OPTIONS),
    )
    return jax.tree.map(np.asarray, jax.jit(generate)(policy(), PROMPTS, KEYS))


@pytest.mark.parametrize("compact", [0, 2])
def test_completions_end_where_the_text_first_holds_a_string(compact):
    plain, cut = sampled(()), sampled(STRINGS, compact)
    pieces, ended = vocabulary().pieces(), 0
    for row in range(24):
        length = int(plain.mask[row].sum())
        end = first_end(pieces, plain.token[row, :length], STRINGS)
        ended += end is not None
        count = length if end is None else end
        assert int(cut.mask[row].sum()) == count
        np.testing.assert_array_equal(cut.token[row, :count], plain.token[row, :count])
        np.testing.assert_array_equal(cut.token[row, count:], 0)
        assert cut.finish[row] == (plain.finish[row] if end is None else types.Finish.STOP)
        np.testing.assert_allclose(cut.raw_logp[row, :count], plain.raw_logp[row, :count], atol=1e-6)
    assert 4 < ended < 24
    assert cut.steps == cut.mask.sum(axis=1).max()


@pytest.mark.full
def test_a_string_may_straddle_a_cut():
    width = 2
    whole = sampled(STRINGS)
    table = stopping.build(STRINGS, vocabulary().pieces(), 300)
    resume = jax.jit(
        functools.partial(
            sampling.resume, samplers.TOY, segment=width, **drawing.arguments(strings=table, compact=1, **OPTIONS)
        )
    )
    cut = jax.tree.map(jnp.zeros_like, whole)
    for number in range(-(-LENGTH // width)):
        cut = resume(policy(), PROMPTS, KEYS, cut, jnp.full((24,), number == 0))
    for name in ("token", "mask", "finish"):
        np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


def test_without_strings_the_program_carries_no_state():
    def text(**options):
        arguments = drawing.arguments(samples=8, length=4, **OPTIONS, **options)
        generate = functools.partial(sampling.generate, samplers.TOY, **arguments)
        return jax.jit(generate).lower(policy(), PROMPTS, KEYS).as_text()

    table = stopping.build(("\n\n",), vocabulary().pieces(), 300)
    assert "ui8" not in text() and "xui8>" in text(strings=table)


# --- in a run ------------------------------------------------------------------------------------


@pytest.mark.full
def test_a_run_ends_completions_at_its_strings():
    program = tiny.program(sampler__stop=("8", "33"))
    step = program.steps[0]
    state = step.begin(None, program.key)
    rollout = jax.device_get(step.rollout(state, program.key))
    pieces, ended = program.tokenizer.pieces(), 0
    for token, mask, finish in zip(rollout.action.token, rollout.mask, rollout.finish, strict=True):
        emitted = token[mask > 0]
        end = first_end(pieces, emitted, ("8", "33"))
        ended += end is not None
        assert end in (None, len(emitted))
        assert finish == (types.Finish.STOP if end or emitted[-1] == program.tokenizer.eos else types.Finish.LENGTH)
    assert 0 < ended < len(rollout.mask)
    # an answer that a string ends is judged like one that end-of-sequence ends
    task, index = program.tasks[0], np.asarray(rollout.index)
    text = [program.tokenizer.decode(t[m > 0]) for t, m in zip(rollout.action.token, rollout.mask, strict=True)]
    text = [t.split("8")[0].split("33")[0] for t in text]
    right = [t == str(eval(task.text(int(i), "train").rstrip("="))) for t, i in zip(text, index, strict=True)]
    stopped = rollout.finish == types.Finish.STOP
    assert np.all(
        (rollout.parts["format"] == 1) == [bool(s and t.isdigit()) for s, t in zip(stopped, text, strict=True)]
    )
    np.testing.assert_array_equal(rollout.reward, np.where(stopped, right, False))
    assert 0 < rollout.parts["format"].sum() < ended + 32


def test_a_string_that_is_a_special_token_is_one():
    program, special = tiny.program(sampler__stop=("1",)), vocabulary()
    assert program.setups[0].ends.strings is not None and program.setups[0].ends.stop == (program.tokenizer.eos,)
    changed = dataclasses.replace(program, tokenizer=special)
    assert changed.ends(("<end>", "1")).stop == (special.eos,)
    assert changed._special(("<end>", "1")) == {"<end>": special.eos}
    with pytest.raises(ValueError, match=r"config\.sampler\.stop=\('a', ''\): no text may be empty"):
        tiny.program(sampler__stop=("a", ""))
