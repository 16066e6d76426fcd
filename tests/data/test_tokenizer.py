"""Tokenizers keep text exactly; shuffles are bijections."""

import functools
import io
import pickle
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import sentencepiece

from rljax.data import shuffle, tokenizers

CORPUS = ("the cat sat on the mat\n\nthe cat  ran", " lead and trail ", "7*8=56\tand 1+2=3\n", "é漢")
TEXTS = ("the cat", " a  d ", "\na\n\n t", "   ", "7\t8", "é漢", "", "\n", "cat\n")


@pytest.mark.parametrize(("model_type", "vocabulary"), [("char", None), ("bpe", 48), ("unigram", 48)])
def test_round_trip(model_type, vocabulary):
    model = tokenizers.train(CORPUS, vocabulary=vocabulary, model_type=model_type)
    for text in TEXTS:
        assert model.decode(model.encode(text)) == text
        assert model.unk not in model.encode(text)
    ids = model.encode("cat")
    assert model.decode([model.bos, model.pad, *ids, model.eos, model.pad, *ids]) == "catcat"
    assert model.decode(np.asarray(ids, np.int32)) == "cat"


def test_char_vocabulary_is_what_the_corpus_needs():
    model = tokenizers.train(["ab a", "c\n"])
    # pad, bos, eos, unk, newline, space, a, b, c
    assert (model.pad, model.bos, model.eos, model.unk, model.vocabulary) == (0, 1, 2, 3, 9)
    table = model.characters()
    assert table.dtype == np.int32 and table[:4].tolist() == [0] * 4
    assert sorted(table[4:].tolist()) == sorted(map(ord, "\n abc"))
    assert [chr(table[i]) for i in model.encode("b a\nc")] == list("b a\nc")
    assert model.encode("z") == [model.unk]


def test_characters_are_zero_for_longer_pieces():
    model = tokenizers.train(CORPUS, vocabulary=48, model_type="bpe")
    table, ids = model.characters(), model.encode("the")
    assert len(ids) < 3
    assert all(table[i] == 0 for i in ids if len(model.decode([i])) > 1)
    assert set(map(ord, "thecasmo n\n7*")) <= set(table.tolist())


def test_training_is_deterministic_and_quiet(capfd):
    program = (
        "import sys; from rljax.data import tokenizers as t;"
        "sys.stdout.buffer.write(t.train(eval(sys.argv[1]), vocabulary=48, model_type='unigram').serialized)"
    )
    here = tokenizers.train(CORPUS, vocabulary=48, model_type="unigram")
    there = subprocess.run([sys.executable, "-c", program, repr(CORPUS)], capture_output=True, check=True)
    assert there.stdout == here.serialized and there.stderr == b""
    assert capfd.readouterr() == ("", "")


def test_load_and_pickle(tmp_path):
    model = tokenizers.train(CORPUS)
    path = tmp_path / "tokenizer.model"
    path.write_bytes(model.serialized)
    for copy in (tokenizers.load(path), tokenizers.load(model.serialized), pickle.loads(pickle.dumps(model))):
        assert copy == model and hash(copy) == hash(model) and copy.encode("the cat") == model.encode("the cat")
    with pytest.raises(ValueError, match="neither a SentencePiece model"):
        tokenizers.load(b"nonsense")


def test_a_model_of_others_may_lack_padding_and_write_bytes():
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(  # as Llama's: no pad, unk 0, bytes for what is not in the list
        sentence_iterator=iter(["the cat sat on the mat", "the cat ran"] * 4),
        model_writer=written,
        model_type="bpe",
        vocab_size=290,
        normalization_rule_name="identity",
        byte_fallback=True,
        unk_id=0,
        bos_id=1,
        eos_id=2,
        pad_id=-1,
        minloglevel=3,
    )
    model = tokenizers.load(written.getvalue())
    assert (model.pad, model.bos, model.eos, model.unk, model.stop) == (2, 1, 2, None, (2,))
    for text in ("the cat", "é漢\n\t🙂", "zebra"):
        ids = model.encode(text)
        assert model.decode([1, *ids, 2]) == model.decode([*ids, 10**6]) == text
        pieces = model.pieces()
        assert b"".join(pieces[i] or b"" for i in ids) == b" " + text.encode()  # it puts a space in front
    assert pieces[:4] == [None, None, None, b"\x00"]
    assert model.characters()[model.encode("\n")[-1]] == ord("\n")
    with pytest.raises(ValueError, match="no chat template"):
        model.chat([])


@pytest.mark.parametrize(
    ("corpus", "given", "words"),
    [
        (["ab"], {"model_type": "word"}, "model_type: 'word' is not one of char, bpe, unigram"),
        (["ab"], {"model_type": "bpe"}, "vocabulary: None"),
        (["abc"], {"vocabulary": 7}, "vocabulary: 7 is below the 8"),
        (["ab"], {"vocabulary": 5000, "model_type": "bpe"}, "vocabulary: a 'bpe' model of 5000"),
        (["", "\n"], {}, "corpus"),
    ],
)
def test_bad_input(corpus, given, words):
    with pytest.raises(ValueError, match=words):
        tokenizers.train(corpus, **given)


@pytest.mark.default_tier(4)
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 15, 16, 17, 63, 64, 65, 1000, 1023, 1024, 1025])
def test_permute_is_a_bijection(size):
    shuffled = functools.partial(jax.jit, static_argnums=1)(shuffle.permute)
    for seed in (0, 7):
        image = shuffled(jnp.arange(size, dtype=jnp.int32), size, jnp.uint32(seed))
        assert image.dtype == jnp.int32
        np.testing.assert_array_equal(np.sort(image), np.arange(size))


def test_permute_depends_on_the_seed_and_wraps():
    index = jnp.arange(1000, dtype=jnp.uint32)
    first, second = (np.asarray(shuffle.permute(index, 1000, seed)) for seed in (1, 2))
    assert first.dtype == np.uint32
    # two random shuffles of 1000 agree in about one place, and a random shuffle moves things by size/3
    assert (first == second).sum() < 10
    assert 250 < np.abs(first.astype(int) - np.arange(1000)).mean() < 420
    np.testing.assert_array_equal(shuffle.permute(index + 3000, 1000, 1), first)


def test_permute_of_the_largest_size_stays_inside():
    index = jnp.arange(4096, dtype=jnp.int32) * 262143
    image = np.asarray(shuffle.permute(index, 2**30 - 1, 3))
    assert image.min() >= 0 and image.max() < 2**30 - 1 and len(np.unique(image)) == 4096


@pytest.mark.parametrize("size", [0, 2**30])
def test_permute_refuses(size):
    with pytest.raises(ValueError, match="size"):
        shuffle.permute(jnp.arange(3), size, 0)
    with pytest.raises(ValueError, match="index"):
        shuffle.permute(jnp.ones(3), 3, 0)
