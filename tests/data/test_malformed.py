"""Files of others that are not what they should be: each is refused in one line that names the file."""

import hashlib
import json
import os
import random
import struct

import ml_dtypes
import numpy as np
import pytest
import safetensors
import safetensors.numpy

import rljax
from rljax import models
from rljax.config import resolve
from rljax.data import hugging_face, tokenizers
from rljax.environments.questions import published
from rljax.models.checkpoints import families, tensors, weights
from tests.data.malformed_cases import (
    CONFIG,
    DATA,
    DEEP,
    FIELDS,
    FOLDERS,
    PROBLEM,
    SPARSE,
    TOKENIZER,
    index,
    problem,
    problems,
    sound,
    stored,
)
from tests.support import tiny


def opened(folder):
    """Read a model folder by the functions that ``train`` and ``convert`` call."""
    path = str(folder)
    resolve.complete(tiny.config(model__weights=path))
    weights.load(path, models.Architecture(**families.read(weights.config(path)), param_dtype=weights.dtype(path)))
    tokenizer = tokenizers.load(path)
    tokenizer.chat([{"role": "user", "content": "hi"}])
    tokenizer.pieces()
    return tokenizer.prompt("hi hi")


def problems_of(cases, sound, call, tmp_path):
    """Return what happens to a sound folder after each of the functions that spoil it, other than one line."""
    out = {}
    for number, (name, spoil) in enumerate(cases.items()):
        folder = sound(tmp_path / str(number))
        spoil(folder)
        if what := problem(call, folder):
            out[name] = what
    return out


# --- problems with answers ------------------------------------------------------------


def read(folder):
    """Read problems by the functions that ``train`` calls."""
    task = published.gsm8k(folder, 512, 64).bind(tokenizers.make("bytes", ()))
    return [task.target(i, "train") for i in range(task.size("train"))]


# --- the tests ------------------------------------------------------------------------


def test_there_are_as_many_cases_as_the_note_says():
    assert len(FOLDERS) >= 100 and len(DATA) >= 60


def test_a_sound_folder_is_read(tmp_path):
    assert opened(sound(tmp_path / "model")) == [4, 5]
    folder = sound(tmp_path / "marked")  # a mark of byte order, and lines as on Windows
    for name in ("config.json", "tokenizer_config.json"):
        text = json.dumps(json.loads((folder / name).read_text()), indent=1).replace("\n", "\r\n")
        (folder / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert opened(folder) == [4, 5]
    folder = sound(tmp_path / "several")
    index(lambda where: {"metadata": {}, "weight_map": where})(folder)
    assert opened(folder) == [4, 5]


GROUPS = ("config", "tensors", "index", "tokenizer", "")


@pytest.mark.default_tier("index")
@pytest.mark.parametrize("group", GROUPS, ids=lambda group: group or "values")
def test_a_malformed_model_folder_is_refused_in_one_line(group, tmp_path):
    cases = {
        name: spoil
        for name, spoil in FOLDERS.items()
        if (name.startswith(f"{group} ") if group else not name.startswith(tuple(f"{g} " for g in GROUPS if g)))
    }
    call = opened if group else lambda folder: resolve.complete(tiny.config(model__weights=str(folder)))
    assert cases and problems_of(cases, sound, call, tmp_path) == {}


def test_a_folder_must_have_the_digest_that_is_set(tmp_path):
    folder = sound(tmp_path / "model")
    content = b"".join(path.read_bytes() for path in sorted(folder.glob("*.safetensors")))
    digest = hashlib.sha256(content).hexdigest()
    resolve.complete(tiny.config(model__weights=str(folder), model__digest=digest))
    with pytest.raises(ValueError, match=f"config.model.digest='{'0' * 64}': the digest of .* is {digest}"):
        resolve.complete(tiny.config(model__weights=str(folder), model__digest="0" * 64))
    config = tiny.config()
    config.module.judge = rljax.module(weights=str(folder), digest="00")
    with pytest.raises(ValueError, match=f"config.module.judge.digest='00': the digest of .* is {digest}"):
        resolve.complete(config)
    with pytest.raises(ValueError, match=r"config\.model: digest='00': .*set weights"):
        resolve.check(tiny.config(model__digest="00"))


def test_a_config_may_claim_any_number_of_tensors(tmp_path):
    folder, fields_ = sound(tmp_path / "model"), families.read({**CONFIG, **SPARSE})
    claimed = models.Architecture(**{**fields_, "layers": 1000, "experts": 500})
    with pytest.raises(ValueError, match=r"21 tensors, but its config\.json describes num_hidden_layers=1000, num_exp"):
        weights.check(str(folder), claimed)
    with pytest.raises(ValueError, match=r"missing .* and 26 more; not expected model\.layers\.0\.mlp"):
        weights.check(str(folder), models.Architecture(**fields_))


def entry(start, stop, shape=(2,), dtype="F32", **more):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, stop], **more}


def written(head, size=8, length=None):
    """Return the bytes of a file with a header, given as bytes or JSON, and ``size`` bytes of tensors."""
    head = head if isinstance(head, bytes) else json.dumps(head).encode()
    return struct.pack("<Q", len(head) if length is None else length) + head + bytes(size)


ONE = b'"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}'


# name -> content; whether the library of the format accepts it is asked in the test
SAFETENSORS = {
    "sound": written({"a": entry(0, 8)}),
    "two, out of order": written({"b": entry(8, 16), "a": entry(0, 8)}, 16),
    "no tensor": written({}, 0),
    "empty tensor": written({"a": entry(0, 0, (0,)), "b": entry(0, 8)}),
    "empty tensor at the end": written({"a": entry(0, 8), "b": entry(8, 8, (3, 0))}),
    "scalar": written({"a": entry(0, 4, ())}, 4),
    "metadata": written({"__metadata__": {"format": "pt"}, "a": entry(0, 8)}),
    "metadata null": written({"__metadata__": None, "a": entry(0, 8)}),
    "spaces after": written(b"{" + ONE + b"}   "),
    "half a byte each": written({"a": entry(0, 1, (2,), "F4")}, 1),
    "nothing times a large number": written({"a": entry(0, 0, (0, 2**60))}, 0),
    **{
        f"one {dtype}": written({"a": entry(0, size, (1,), dtype)}, size)
        for size, names in {
            1: ("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3"),
            2: ("U16", "I16", "F16", "BF16"),
            4: ("U32", "I32", "F32"),
            8: ("U64", "I64", "F64"),
        }.items()
        for dtype in names
    },
    "negative start": written({"a": entry(-8, 0)}),
    "negative stop": written({"a": entry(0, -8)}),
    "reversed": written({"a": entry(8, 0)}),
    "same bytes": written({"a": entry(0, 8), "b": entry(0, 8)}),
    "overlap": written({"a": entry(0, 8), "b": entry(4, 12)}, 12),
    "one inside another": written({"a": entry(0, 16, (4,)), "b": entry(4, 12)}, 16),
    "empty tensor inside": written({"a": entry(0, 8), "b": entry(4, 4, (0,))}),
    "hole": written({"a": entry(0, 8), "b": entry(12, 20)}, 20),
    "hole at the start": written({"a": entry(4, 12)}, 12),
    "bytes left": written({"a": entry(0, 8)}, 9),
    "bytes missing": written({"a": entry(0, 8)}, 7),
    "offsets of 2**63": written({"a": entry(2**63, 2**63 + 8)}),
    "offsets of 2**64": written({"a": entry(2**64, 2**64 + 8)}),
    "offsets of floats": written({"a": entry(0.0, 8.0)}),
    "offsets of texts": written({"a": entry("0", "8")}),
    "offsets of booleans": written({"a": entry(False, True, (1,), "U8")}, 1),
    "offsets null": written({"a": {**entry(0, 8), "data_offsets": None}}),
    "one offset": written({"a": {**entry(0, 8), "data_offsets": [8]}}),
    "three offsets": written({"a": {**entry(0, 8), "data_offsets": [0, 8, 8]}}),
    "minus zero": written(ONE.replace(b"[0,", b"[-0,").join((b"{", b"}"))),
    "shape of floats": written({"a": entry(0, 8, (2.0,))}),
    "shape of texts": written({"a": entry(0, 8, ("2",))}),
    "shape of booleans": written({"a": entry(0, 4, (True,))}, 4),
    "shape negative": written({"a": entry(0, 8, (-2,))}),
    "shape negative twice": written({"a": entry(0, 8, (-1, -2))}),
    "shape null": written({"a": {**entry(0, 8), "shape": None}}),
    "shape nested": written({"a": entry(0, 8, ([2],))}),
    "shape too large": written({"a": entry(0, 8, (3,))}),
    "shape overflows": written({"a": entry(0, 8, (2**62, 2**62))}),
    "shape wraps to the right size": written({"a": entry(0, 8, (2**62 + 2,))}),
    "shape overflows before a zero": written({"a": entry(0, 0, (2**63, 2**63, 0))}, 0),
    "shape of 2**64": written({"a": entry(0, 0, (0, 2**64))}, 0),
    "half a byte": written({"a": entry(0, 1, (3,), "F4")}, 1),
    "dtype unknown": written({"a": entry(0, 8, dtype="F33")}),
    "dtype in small letters": written({"a": entry(0, 8, dtype="f32")}),
    "dtype null": written({"a": entry(0, 8, dtype=None)}),
    "dtype number": written({"a": entry(0, 8, dtype=32)}),
    "dtype of another size": written({"a": entry(0, 8, dtype="F64")}),
    "dtype list": written({"a": entry(0, 8, dtype=["F32"])}),
    "no dtype": written({"a": {"shape": [2], "data_offsets": [0, 8]}}),
    "no shape": written({"a": {"dtype": "F32", "data_offsets": [0, 8]}}),
    "no offsets": written({"a": {"dtype": "F32", "shape": [2]}}),
    "null": written({"a": None}),
    "text": written({"a": "F32"}),
    "number": written({"a": 8}),
    "nested tensors": written({"a": {"b": entry(0, 8)}}),
    "metadata with a number": written({"__metadata__": {"a": 1}, "b": entry(0, 8)}),
    "metadata list": written({"__metadata__": [], "b": entry(0, 8)}),
    "metadata text": written({"__metadata__": "pt", "b": entry(0, 8)}),
    "field twice": written(b'{"a":{"dtype":"F32",' + ONE[5:] + b"}"),
    "list": written([entry(0, 8)]),
    "header null": written(b"null"),
    "header cut": written(b"{" + ONE),
    "header comma": written(b"{" + ONE + b",}"),
    "header and more": written(b"{" + ONE + b"}}"),
    "header and null byte": written(b"{" + ONE + b"}\0"),
    "mark of order": written(b"\xef\xbb\xbf{" + ONE + b"}"),
    "not utf-8": written(b"{" + ONE.replace(b"a", b"\xff", 1) + b"}"),
    "half a pair": written(b"{" + ONE.replace(b"a", b"\\ud800", 1) + b"}"),
    "not a number": written(b'{"a":{"x":NaN,' + ONE[5:] + b"}"),
    "deep list": written(DEEP),
    "deep object": written(b'{"a":' * 100_000),
    "deep inside": written(b'{"a":{"x":' + b"[" * 200 + b"]" * 200 + b"," + ONE[5:] + b"}"),
    "empty header": written(b""),
    "length of 2**63": written({"a": entry(0, 8)}, length=2**63),
    "length of 2**64 - 1": written({"a": entry(0, 8)}, length=2**64 - 1),
    "length one less": written({"a": entry(0, 8)}, length=len(ONE) + 1),
    "length one more": written({"a": entry(0, 8)}, length=len(ONE) + 3),
    "seven bytes": b"\2\0\0\0\0\0\0",
    "empty": b"",
    "zeros": bytes(100),
    "pickle": b"\x80\x04\x95\x00\x00\x00\x00\x00\x00\x00.",
}


# refused here although the library accepts them: the format's description forbids both
STRICTER = {
    "name twice": written(b"{" + ONE + b"," + ONE + b"}"),
    "space before": written(b" {" + ONE + b"}"),
    "unknown field": written({"a": entry(0, 8, scale=2)}),
    "list as an entry": written(b'{"a":["F32",[2],[0,8]]}'),
}


def test_safetensors_that_the_library_of_the_format_refuses_are_refused(tmp_path):
    path = tmp_path / "model.safetensors"

    def accepts(data):
        path.write_bytes(data)
        try:
            with safetensors.safe_open(path, framework="numpy") as file:
                return sorted(file.keys())
        except safetensors.SafetensorError:
            return None

    refused = 0
    for name, data in SAFETENSORS.items():
        names = accepts(data)
        if names is not None:
            assert sorted(tensors.index(str(tmp_path))) == names, name
        else:
            refused += 1
            assert problem(tensors.index, str(tmp_path)) == "", name
    assert refused > 60 and refused < len(SAFETENSORS) - 20
    for name, data in STRICTER.items():
        assert accepts(data) is not None and problem(tensors.index, str(tmp_path)) == "", name


def test_a_header_may_lie_about_a_large_file(tmp_path):
    """The header claims more than the format allows, in a sparse file that is large enough."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(written(b"{}", 0, length=100_000_001))
    os.truncate(path, 1 << 40)
    with pytest.raises(ValueError, match="a header of 100,000,001 bytes, expected at most 100,000,000"):
        tensors.index(str(tmp_path))


def test_tensors_in_two_files_are_refused(tmp_path):
    folder = sound(tmp_path / "model")
    (folder / "other.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    with pytest.raises(ValueError, match=r"other.safetensors: lm_head.weight is also in model.safetensors"):
        tensors.index(str(folder))
    folder = sound(tmp_path / "prefixed")
    stored(lambda made: {**made, "language_model.lm_head.weight": made["lm_head.weight"]})(folder)
    assert problem(opened, folder) == ""


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "bfloat16"])
def test_values_that_are_not_finite_are_found_by_their_bits(kind):
    draw = np.random.default_rng(0).standard_normal((5, 7)).astype(getattr(ml_dtypes, kind, kind))
    largest = ml_dtypes.finfo(draw.dtype).max
    for value in (0.0, -0.0, largest, -largest):
        draw[3, 2] = value
        assert weights._finite(draw) and weights._finite(draw[3:4, 2].reshape(()))
    for value in (np.inf, -np.inf, np.nan, -np.nan):
        draw[3, 2] = value
        assert not weights._finite(draw)
    assert weights._finite(draw[:0])


@pytest.mark.full
def test_tokenizers_whose_json_is_changed_at_random_are_read_or_refused():
    """Values of a sound tokenizer.json and tokenizer_config.json are replaced or removed, 300 times."""
    draw = random.Random(0)
    odd = (None, True, 0, -1, 2**32, 2**70, 1.5, "", "x", "[", "\0", [], {}, [None], {"a": 1}, "A" * 1000)

    def nodes(value, path=()):
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, item in items:
            yield *path, key
            yield from nodes(item, (*path, key))

    def changed(value):
        value = json.loads(json.dumps(value))
        for _ in range(draw.randint(1, 2)):
            *path, last = draw.choice(list(nodes(value)) or [()])
            place = value
            for key in path:
                place = place[key]
            if draw.random() < 0.3:
                del place[last]
            else:
                place[last] = draw.choice(odd)
        return value

    read, broken = 0, []
    added = {"added_tokens_decoder": {"8": {"content": "</s>", "special": True}}, "add_bos_token": False}
    for number in range(300):
        core, config = (changed(TOKENIZER), FIELDS) if number % 2 else (TOKENIZER, changed(FIELDS | added))
        try:
            given = {"tokenizer.json": core, "tokenizer_config.json": config}
            tokenizer = hugging_face.load({name: json.dumps(x).encode() for name, x in given.items()}, "here")
            tokenizer.decode(tokenizer.prompt("hi hi a"))
            tokenizer.chat([{"role": "user", "content": "hi"}])
            tokenizer.pieces()
            read += 1
        except ValueError:
            continue
        except BaseException as error:
            broken.append((core, config, repr(error)))
    assert broken == [] and 10 < read < 290


def test_malformed_problems_are_refused_in_one_line(tmp_path):
    assert problems_of(DATA, problems, read, tmp_path) == {}


@pytest.mark.parametrize("end", ["4", "\\boxed{}", "\\boxed{}, so 4", "\\boxed{4", "\\boxed{\\frac{1}{2}", "\\boxed"])
def test_solutions_without_a_boxed_answer_are_refused_in_one_line(end, tmp_path):
    sound = {"problem": "Two and two?", "solution": "$2 + 2 = \\boxed{\\frac{8}{2}}$."}
    for number, row in enumerate((sound, {**sound, "solution": f"It is {end}."})):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "train.jsonl").write_text(json.dumps(row) + "\n")
        (folder / "test.jsonl").write_text(json.dumps({**sound, "problem": "Three and one?"}))

    def read(folder):
        return published.math(folder).target(0, "train")

    assert read(tmp_path / "0") == "\\frac{8}{2}" and problem(read, tmp_path / "1") == ""


@pytest.mark.full
def test_problems_that_are_written_differently_are_read(tmp_path):
    rows = [PROBLEM, {**PROBLEM, "id": 7}, {"question": "\u2028\0?", "answer": "#### -1,000.5"}, PROBLEM]
    for number, (start, end) in enumerate([(b"", b"\r\n"), (b"\xef\xbb\xbf", b"\n"), (b"", b"\n\n \n")]):
        folder = problems(tmp_path / str(number))
        lines = [json.dumps(row, ensure_ascii=number == 0).encode() for row in rows]
        (folder / "train.jsonl").write_bytes(start + end.join(lines))  # without a last end of line
        assert read(folder) == ["4", "4", "-1,000.5", "4"]
