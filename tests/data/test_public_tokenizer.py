"""Tokenizers of public checkpoints: a folder's files, read as transformers reads them, and bytes."""

import io
import itertools
import json
import pickle
from typing import Any

import numpy as np
import pytest
import sentencepiece
import tokenizers as library

from rljax.config import resolve
from rljax.data import raw_bytes, tokenizers
from rljax.run import programs
from tests.support import tiny

CORPUS = ("the cat sat on the mat. The cat ran!\n\n", "7 * 8 = 56, and 1 + 2 = 3; don't", "été, naïve 漢字 🙂") * 3
TEXTS = ("the cat sat", " a  d ", "\na\n\n t", "don't 7*8=56", "é漢 🙂🚀 ж", "   ", "x", "the cat .", "tab\tand ▂")
SPECIAL = ("<|end|>", "<|from|>", "<|to|>")  # as Qwen has them: of the text, of a message
CHATML = (
    "{% for message in messages %}{{ '<|from|>' + message['role'] + '\n' + message['content'] + '<|to|>' + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|from|>assistant\n' }}{% endif %}"
)


def byte_level():
    """Train a tokenizer in the manner of GPT-2, Qwen and Llama 3."""
    model = library.Tokenizer(library.models.BPE())
    model.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    model.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(vocab_size=320, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(CORPUS, trainer)
    model.add_special_tokens(list(SPECIAL))
    return model


def fallback(space="first"):
    """Train a tokenizer in the manner of Llama 2 and Gemma: spaces as U+2581, bytes for what is not in the list.

    ``space`` says how a text gets a space in front: a ``prepend_scheme``, or "legacy", a normalizer as in older files.
    """
    model = library.Tokenizer(library.models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if space == "legacy":
        normalizers = library.normalizers
        model.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    else:
        model.pre_tokenizer = library.pre_tokenizers.Metaspace(prepend_scheme=space, split=False)
    decoders = library.decoders
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    model.decoder = decoders.Sequence(steps)
    byte = [f"<0x{b:02X}>" for b in range(256)]
    trainer = library.trainers.BpeTrainer(
        vocab_size=340, special_tokens=["<unk>", "<s>", "</s>", *byte], show_progress=False
    )
    model.train_from_iterator([text[:40] for text in CORPUS], trainer)
    model.post_processor = library.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    content = json.loads(model.to_str())
    content["added_tokens"] = content["added_tokens"][:3]  # the bytes are ordinary tokens
    return library.Tokenizer.from_str(json.dumps(content))


def write(folder, kind, space="first", **changes):
    """Write the files of a checkpoint that say something of its tokenizer; changes are of tokenizer_config.json."""
    folder.mkdir(exist_ok=True)
    made = byte_level() if kind == "byte level" else fallback(space)
    ids = {token: made.token_to_id(token) for token in SPECIAL}
    extra = made.get_vocab_size()
    files: dict[str, dict] = {
        "byte level": {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": None,
                "eos_token": "<|to|>",
                "pad_token": {"__type": "AddedToken", "content": "<|end|>", "special": True},
                "chat_template": CHATML,
                "model_max_length": 100,
                "added_tokens_decoder": {
                    **{str(i): {"content": token, "special": True} for token, i in ids.items()},
                    str(extra): {"content": "<think>", "special": False, "normalized": False},
                },
            },
            "generation_config.json": {"eos_token_id": [ids["<|to|>"], ids["<|end|>"]]},
        },
        "fallback": {
            "tokenizer_config.json": {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": "<s>",
                "eos_token": "</s>",
                "unk_token": "<unk>",
            },
            "config.json": {"eos_token_id": 2, "pad_token_id": -1},
        },
    }[kind]
    (folder / "tokenizer.json").write_text(made.to_str())
    files["tokenizer_config.json"] |= changes
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {kind: write(tmp_path_factory.mktemp("files") / "model", kind) for kind in ("byte level", "fallback")}


KINDS = pytest.mark.parametrize("kind", ["byte level", "fallback"])


# --- what the files say --------------------------------------------------------------------------


def test_special_tokens_come_from_the_files(folders):
    model = tokenizers.load(folders["byte level"])
    end, sent, to = (model.encode(text) for text in SPECIAL)
    assert [len(x) for x in (end, sent, to)] == [1, 1, 1]
    assert (model.eos, model.pad, model.bos, model.unk) == (to[0], end[0], None, None)
    assert model.stop == (to[0], end[0])
    assert model.vocabulary == model.encode("<think>")[0] + 1  # from tokenizer_config.json alone
    pieces = model.pieces()
    assert len(pieces) == model.vocabulary and pieces[-1] == b"<think>" and pieces[to[0]] is None
    assert model.decode([to[0], *model.encode("a<think>"), end[0], 10**6]) == "a<think>"
    assert model.prompt("the cat") == model.encode("the cat")

    model = tokenizers.load(folders["fallback"])
    assert (model.eos, model.pad, model.bos, model.unk, model.stop) == (2, 2, 1, None, (2,))
    assert model.prompt("the cat") == [1, *model.encode("the cat")]
    assert model.decode([1, *model.encode("the cat"), 2]) == "the cat"
    assert model.pieces()[:5] == [None, None, None, b"\x00", b"\x01"]


@pytest.mark.parametrize(
    ("files", "stop", "pad"),
    [
        ({"generation_config.json": {"eos_token_id": [7, 3]}, "config.json": {"eos_token_id": 5}}, (2, 7, 3), 2),
        ({"config.json": {"eos_token_id": [5, 2], "pad_token_id": 4}}, (2, 5), 4),
        ({"generation_config.json": {"pad_token_id": 6}}, (2,), 6),
        ({"special_tokens_map.json": {"pad_token": "<s>", "eos_token": {"content": "</s>"}}}, (2,), 1),
    ],
)
def test_stop_tokens_and_padding(tmp_path, files, stop, pad):
    copy = write(tmp_path / "copy", "fallback")
    (copy / "config.json").unlink()
    for name, content in files.items():
        (copy / name).write_text(json.dumps(content))
    model = tokenizers.load(copy)
    assert (model.eos, model.stop, model.pad) == (2, stop, pad)


def test_special_tokens_map_overrides_a_config_without_added_tokens(tmp_path):
    cases: Any = (({}, 1), ({"added_tokens_decoder": {"2": {"content": "</s>", "special": True}}}, 2))
    for changes, eos in cases:
        copy = write(tmp_path / "copy", "fallback", **changes)
        (copy / "special_tokens_map.json").write_text('{"eos_token": "<s>"}')
        assert tokenizers.load(copy).eos == eos


# PreTrainedTokenizerFast applies the post-processor of tokenizer.json, which writes bos here
BOS = [("PreTrainedTokenizerFast", add, [1]) for add in (True, False, None)]
BOS += [("LlamaTokenizer", True, [1]), ("LlamaTokenizerFast", False, []), ("GemmaTokenizer", False, [])]
BOS += [("LlamaTokenizer", None, [1])]


@pytest.mark.parametrize(("kind", "add", "start"), BOS)
def test_how_a_context_starts(tmp_path, kind, add, start):
    changes = {"tokenizer_class": kind} | ({} if add is None else {"add_bos_token": add})
    copy = write(tmp_path / "copy", "fallback", **changes)
    model = tokenizers.load(copy)
    assert model.prompt("cat") == [*start, *model.encode("cat")]
    content = json.loads((copy / "tokenizer.json").read_text())
    (copy / "tokenizer.json").write_text(json.dumps(content | {"post_processor": None}))
    model = tokenizers.load(copy)
    decides = add is not None and kind != "PreTrainedTokenizerFast"
    assert model.prompt("cat") == [*(start if decides else []), *model.encode("cat")]


# --- prompts and what follows them ---------------------------------------------------------------

PROMPTS = ("Question: the cat\nAnswer:", "7 * 8 =", "the cat</s>", "the cat\n", "x", "the cat ")
REPLIES = (" the cat sat", "the cat", "56", " 56", "\n\na", "  d", "", "é漢")


def dummy_prefix():
    """Train a SentencePiece model in the manner of Llama 2, with a space in front of every text."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(CORPUS), model_writer=written, model_type="bpe", vocab_size=330,
        normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True, minloglevel=3,
    )  # fmt: skip
    return tokenizers.load(written.getvalue())


def test_what_follows_a_prompt_gains_no_space(folders, tmp_path):
    kinds = [tokenizers.load(folders["byte level"]), raw_bytes.Bytes(), dummy_prefix()]
    kinds += [tokenizers.load(write(tmp_path / space, "fallback", space)) for space in ("first", "always", "legacy")]
    whole = doubled = 0
    for model in kinds:
        pieces = model.pieces()
        for prompt, reply in itertools.product(PROMPTS, REPLIES):
            start, ids = model.encode(prompt), tokenizers.continuation(model, prompt, reply)
            text = b"".join(pieces[i] or b"" for i in [*start, *ids])
            expected = b"".join(pieces[i] or b"" for i in model.encode(prompt + reply))
            assert text == expected, (prompt, reply)
            whole += start + ids == model.encode(prompt + reply)
            doubled += start + model.encode(reply) != start + ids
    # a token spans the boundary in a few: "the cat " + "the cat" has the token " the"
    assert whole > 0.9 * len(kinds) * len(PROMPTS) * len(REPLIES)
    assert doubled > 100  # ``encode`` alone adds a space in four of the six kinds


def test_ids_of_a_vocabulary_small_enough_to_read(tmp_path):
    # h i o -> the space is written U+0120; "hi" is merged, then " hi"
    vocab = {"h": 0, "i": 1, "o": 2, "\u0120": 3, "hi": 4, "\u0120hi": 5, "\u00c3": 6, "\u00a9": 7}
    content = {
        "version": "1.0",
        "added_tokens": [
            {"id": 8, "content": "</s>", "special": True, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
        ],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "vocab": vocab, "merges": [["h", "i"], ["\u0120", "hi"]]},
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 8}')
    model = tokenizers.load(tmp_path / "tokenizer.json")  # the file itself, the others beside it
    assert model.encode("hi hi oé</s>") == [4, 5, 3, 2, 6, 7, 8]
    assert model.decode([4, 5, 3, 2, 6, 7, 8]) == "hi hi oé"
    assert model.pieces() == [b"h", b"i", b"o", b" ", b"hi", b" hi", b"\xc3", b"\xa9", None]
    assert model.characters().tolist() == [ord("h"), ord("i"), ord("o"), ord(" "), 0, 0, 0, 0, 0]


# --- values and round trips ----------------------------------------------------------------------


def models(folders):
    return [tokenizers.load(folder) for folder in folders.values()] + [raw_bytes.Bytes()]


def test_texts_come_back(folders):
    for model in models(folders):
        for text in TEXTS:
            if model.prompt("")[:1] == [1]:  # a space at the very front is taken for the one that is put there
                text = text.lstrip(" ")
            assert model.decode(model.encode(text)) == text
            assert model.decode(np.asarray(model.encode(text), np.int32)) == text


def test_pieces_are_the_bytes_of_the_text(folders):
    for model in models(folders):
        pieces = model.pieces()
        assert len(pieces) == model.vocabulary
        for text in TEXTS:
            whole = b"".join(pieces[i] or b"" for i in model.encode("." + text))
            assert whole.removeprefix(b" ") == ("." + text).encode()  # the space that some put before a text
        for i, code in enumerate(model.characters()):
            if code:
                assert (pieces[i] or b"").decode() == chr(code)


def test_equal_hashable_and_picklable_by_their_bytes(folders):
    for model in models(folders):
        model.encode("the")  # what is cached does not travel
        for copy in (tokenizers.load(model.serialized), pickle.loads(pickle.dumps(model))):
            assert copy == model and hash(copy) == hash(model) and copy.stop == model.stop
            assert copy.encode(TEXTS[0]) == model.encode(TEXTS[0])
    bpe, other, _ = models(folders)
    assert bpe != other and tokenizers.load(folders["byte level"]) == bpe


def test_a_work_directory_may_be_the_tokenizer(folders, tmp_path):
    for model in models(folders):
        (tmp_path / "tokenizer.model").write_bytes(model.serialized)
        (tmp_path / "config.json").write_text("{}")
        assert tokenizers.load(tmp_path) == model


def test_bytes():
    model = raw_bytes.Bytes()
    assert (model.vocabulary, model.pad, model.bos, model.eos, model.unk, model.stop) == (259, 0, 1, 2, None, (2,))
    assert model.encode("aé") == [97 + 3, 0xC3 + 3, 0xA9 + 3]
    assert model.decode([1, 100, 0, 0xC3 + 3, 2, 300]) == "a\ufffd"
    assert chr(model.characters()[100]) == "a" and model.characters()[0xC3 + 3] == 0


def test_a_config_takes_bytes_or_a_folder(folders, tmp_path):
    fields = {"phases": ("main",), "mesh__data": 1}
    assert tiny.program(tokenizer__kind="bytes").tokenizer == raw_bytes.Bytes()

    def make(config):
        return programs.make_tokenizer(resolve.run(config))

    assert make(tiny.config(tokenizer__path=str(folders["fallback"]), **fields)).bos == 1
    for given, words in (
        ({"tokenizer__path": str(tmp_path / "no")}, r"config\.tokenizer\.path='.*no': tokenizer: no file or folder"),
        (
            {"tokenizer__kind": "byte"},
            "config.tokenizer.kind='byte': must be one of 'char', 'bpe', 'unigram', 'bytes'. Did you mean 'bytes'",
        ),
        ({"tokenizer__kind": "bytes", "tokenizer__vocabulary": 512}, "bytes have 259 ids, not 512"),
    ):
        with pytest.raises(ValueError, match=words):
            make(tiny.config(**given))


# --- files that cannot be used -------------------------------------------------------------------


def test_folders_without_a_tokenizer(tmp_path):
    (tmp_path / "vocab.json").write_text("{}")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json \(other tokenizers: vocab\.json\); save one"):
        tokenizers.load(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(b"")
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"name that file; or save"):
        tokenizers.load(tmp_path)
    with pytest.raises(FileNotFoundError, match="no file or folder"):
        tokenizers.load(tmp_path / "no")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", "{", r"tokenizer\.json: "),
        ("tokenizer.json", "{}", r"tokenizer\.json: "),
        ("tokenizer_config.json", "[1", r"tokenizer_config\.json: not JSON"),
        ("generation_config.json", "[1]", r"generation_config\.json: a list, expected an object"),
        ("tokenizer_config.json", "{}", "special token|no end-of-sequence"),
        ("tokenizer_config.json", '{"eos_token": "<eos>"}', "eos_token is '<eos>', which has no id in tokenizer.json"),
        ("generation_config.json", '{"eos_token_id": 5000}', r"special token 5000, but tokenizer\.json has"),
        (
            "tokenizer_config.json",
            '{"eos_token": "</s>", "added_tokens_decoder": {"7": {"content": "</s>"}}}',
            r"added_tokens_decoder has '</s>' as 7, tokenizer\.json as 2",
        ),
        (
            "tokenizer_config.json",
            '{"eos_token": "</s>", "added_tokens_decoder": {"7": "x"}}',
            "added_tokens_decoder has '7': 'x', expected an id with content",
        ),
        (
            "tokenizer_config.json",
            '{"eos_token": "</s>", "added_tokens_decoder": {"7": {"content": 5}}}',
            "added_tokens_decoder has '7': .*, expected an id with content",
        ),
        ("tokenizer_config.json", '{"eos_token": {"content": 5}}', r"eos_token is \{'content': 5\}, expected a text"),
        ("generation_config.json", '{"eos_token_id": ["2"]}', r"eos_token_id is \['2'\], expected an id or several"),
    ],
)
def test_bad_files(folders, tmp_path, name, content, words):
    copy = write(tmp_path / "copy", "fallback")
    (copy / "config.json").unlink()
    (copy / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        tokenizers.load(copy)


def test_bad_bytes(folders):
    whole = tokenizers.load(folders["fallback"]).serialized
    with pytest.raises(ValueError, match="damaged archive"):
        tokenizers.load(whole[:-40])
    for content in (b"nonsense", b""):
        with pytest.raises(ValueError, match="neither a SentencePiece model"):
            tokenizers.load(content)


def test_a_decoder_that_does_not_write_token_by_token(tmp_path):
    copy = write(tmp_path / "copy", "fallback")
    content = json.loads((copy / "tokenizer.json").read_text())
    content["decoder"] = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    (copy / "tokenizer.json").write_text(json.dumps(content))
    model = tokenizers.load(copy)
    with pytest.raises(ValueError, match="decoder WordPiece does not decode token by token"):
        model.pieces()


# --- beside transformers -------------------------------------------------------------------------


@KINDS
def test_ids_and_texts_are_those_of_transformers(folders, kind):
    transformers = pytest.importorskip("transformers")
    published = transformers.PreTrainedTokenizerFast.from_pretrained(folders[kind])
    ours = tokenizers.load(folders[kind])
    assert (ours.eos, ours.bos) == (published.eos_token_id, published.bos_token_id)
    assert published.pad_token_id in (ours.pad, None) and ours.vocabulary == len(published)
    rng = np.random.default_rng(0)
    for text in (*TEXTS, *(f"{t}{s}b {t}" for t in TEXTS for s in (published.eos_token, "<think>"))):
        assert ours.encode(text) == published.encode(text, add_special_tokens=False)
        assert ours.prompt(text) == published.encode(text)
    for _ in range(50):
        ids = rng.integers(0, ours.vocabulary, 12).tolist()
        text_of_ids = published.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        assert ours.decode(ids) == text_of_ids
