"""Files of others that are not what they should be: each is refused in one line that names the file."""

import gzip
import io
import json
import os
import random
import struct
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
import rich.console
import safetensors
import safetensors.numpy

from rljax import models
from rljax.config import files, resolve, schema
from rljax.data import hugging_face, tokenizers
from rljax.environments import gsm8k
from rljax.models.checkpoints import families, tensors, weights
from rljax.run import checkpoints, evaluate, metrics
from tests import test_checkpoint, tiny

DEEP = b"[" * 100_000
CONFIG = {
    "model_type": "llama",
    "vocab_size": 12,
    "num_hidden_layers": 2,
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 6,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1e4,
    "hidden_act": "silu",
}
LAYER = {
    "input_layernorm": (8,),
    "self_attn.q_proj": (8, 8),
    "self_attn.k_proj": (4, 8),
    "self_attn.v_proj": (4, 8),
    "self_attn.o_proj": (8, 8),
    "post_attention_layernorm": (8,),
    "mlp.gate_proj": (6, 8),
    "mlp.up_proj": (6, 8),
    "mlp.down_proj": (8, 6),
}
SHAPES = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in LAYER.items()}
SHAPES |= {"model.embed_tokens.weight": (12, 8), "model.norm.weight": (8,), "lm_head.weight": (12, 8)}
SPECIAL = {"id": 8, "content": "</s>", "special": True, "normalized": False, "single_word": False, "lstrip": False}
BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
TOKENIZER = {
    "version": "1.0",
    "added_tokens": [SPECIAL | {"rstrip": False}],
    "pre_tokenizer": BYTE_LEVEL,
    "decoder": BYTE_LEVEL,
    "model": {
        "type": "BPE",
        "vocab": {"h": 0, "i": 1, "o": 2, "\u0120": 3, "hi": 4, "\u0120hi": 5, "\u00c3": 6, "a": 7},
        "merges": [["h", "i"], ["\u0120", "hi"]],
    },
}
TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
FIELDS = {"eos_token": "</s>", "chat_template": TEMPLATE}


def arrays():
    """Return the tensors of the sound folder."""
    draw = np.random.default_rng(0)
    return {name: draw.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}


def sound(folder):
    """Write a folder that every command reads."""
    folder.mkdir()
    safetensors.numpy.save_file(arrays(), folder / "model.safetensors")
    for name, content in (("config", CONFIG), ("tokenizer", TOKENIZER), ("tokenizer_config", FIELDS)):
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


def opened(folder):
    """Read a model folder by the functions that ``train`` and ``convert`` call."""
    path = str(folder)
    resolve.complete(tiny.config(model__weights=path))
    weights.load(path, models.Architecture(**families.read(weights.config(path)), param_dtype=weights.dtype(path)))
    tokenizer = tokenizers.load(path)
    tokenizer.chat([{"role": "user", "content": "hi"}])
    tokenizer.pieces()
    return tokenizer.prompt("hi hi")


def problem(call, argument):
    """Return "" if a call ends in one short line for the user, else what happened."""
    try:
        result = call(argument)
    except (ValueError, FileNotFoundError) as error:
        text = str(error)
        return "" if text and "\n" not in text and len(text) < 1000 else f"message {text!r}"
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return f"no error: {result!r}"


def problems_of(cases, sound, call, tmp_path):
    """Return what happens to a sound folder after each of the functions that spoil it, other than one line."""
    out = {}
    for number, (name, spoil) in enumerate(cases.items()):
        folder = sound(tmp_path / str(number))
        spoil(folder)
        if what := problem(call, folder):
            out[name] = what
    return out


# --- model folders --------------------------------------------------------------------------------------


def content(name, data):
    """Return the function that replaces a file of a folder by bytes, text, or JSON."""
    data = data if isinstance(data, bytes | str) else json.dumps(data)
    return lambda folder: (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def fields(**changes):
    """Return the function that changes fields of config.json; the value ``...`` removes one."""
    return content("config.json", {k: v for k, v in {**CONFIG, **changes}.items() if v is not ...})


def no_file(name, kind):
    """Return the function that puts something else in the place of a file."""

    def spoil(folder):
        (folder / name).unlink(missing_ok=True)
        if kind == "directory":
            (folder / name).mkdir()
        elif kind == "loop":
            (folder / name).symlink_to(folder / name)
        elif kind == "dangling":
            (folder / name).symlink_to(folder / "nowhere")
        elif kind == "pipe":
            os.mkfifo(folder / name)
        elif kind == "endless":
            (folder / name).symlink_to("/dev/zero")
        elif kind == "huge":  # a sparse file
            (folder / name).touch()
            os.truncate(folder / name, 1 << 40)

    return spoil


def stored(change):
    """Return the function that writes the tensors that ``change`` returns."""
    return lambda folder: safetensors.numpy.save_file(change(arrays()), folder / "model.safetensors")


def cut(size):
    return lambda folder: os.truncate(folder / "model.safetensors", size)


def header(change):
    """Return the function that edits the text of the tensors' header and keeps its length."""

    def spoil(folder):
        file = folder / "model.safetensors"
        data = file.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        text = change(data[8 : 8 + length])
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return spoil


def index(listing):
    """Return the function that splits the tensors over two files, with an index that ``listing`` changes."""

    def spoil(folder):
        made, names = arrays(), sorted(SHAPES)
        (folder / "model.safetensors").unlink()
        for number, part in enumerate((names[:9], names[9:])):
            safetensors.numpy.save_file({name: made[name] for name in part}, folder / f"{number}.safetensors")
        where = {name: f"{int(number >= 9)}.safetensors" for number, name in enumerate(names)}
        value = listing(where)
        (folder / tensors.INDEX).write_bytes(value if isinstance(value, bytes) else json.dumps(value).encode())

    return spoil


def config_files():
    """Yield (name, function) for files that are no config.json."""
    text = json.dumps(CONFIG)
    yield from {
        "empty": b"",
        "spaces": b" \n ",
        "not json": b"model_type: llama\n",
        "cut": text[:-20].encode(),
        "two objects": (text + text).encode(),
        "a list": [CONFIG],
        "a string": '"llama"',
        "a number": b"12",
        "null": b"null",
        "deep": DEEP,
        "deep inside": b'{"a":' * 100_000,
        "twice the same": b'{"vocab_size": 99, ' + text[1:].encode(),
        "the last of many twice": json.dumps({str(i): 0 for i in range(10**5)}).encode()[:-1] + b', "99999": 1}',
        "latin-1": text.replace("silu", "s\xeflu").encode("latin-1"),
        "null byte": text.encode() + b"\0",
        "utf-16 cut": text.encode("utf-16")[:-1],
        "tensors": struct.pack("<Q", 2) + b"{}",
        "nan": text.replace("1e-05", "NaN").encode(),
        "infinity": text.replace("10000.0", "Infinity").encode(),
        "5000 digits": text.replace('_size": 8', '_size": ' + "9" * 5000).encode(),
        "empty object": {},
    }.items()


VALUES = {
    "vocab_size": (None, ..., "12", -12, 12.5, 1e400, 10**30, [12], True),
    "num_hidden_layers": (None, ..., "2", -2, 0, 2.5, 10**7, 10**30, {}),
    "hidden_size": (None, "8", 0, 8.5, 7, 10**12, []),
    "num_attention_heads": (None, "2", 0, -2, 3, 10**15, [2]),
    "num_key_value_heads": ("1", -1, 3, 1.5, [1]),
    "intermediate_size": (..., "6", -6, 10**18),
    "head_dim": ("4", -4, 3, 4.5, [4]),
    "rms_norm_eps": ("small", -1e-5, 0, [1e-5]),
    "rope_theta": ("big", -1.0, [1e4], {}),
    "rope_scaling": (["linear"], "linear", {"type": "linear"}, {"type": "linear", "factor": "8"}, {"type": 7}),
    "rope_parameters": ([1], {"rope_type": "llama3"}, {"full_attention": [], "sliding_attention": 3}),
    "tie_word_embeddings": ("no", 2, []),
    "hidden_act": (7, [], {}, "relu"),
    "model_type": (None, 7, [], {}, "bert"),
    "text_config": (7, [], "llama"),
}
WINDOWS = {
    "sliding_window": ("4", -4, 4.5, [4]),
    "layer_types": (7, "full_attention", [7, 7], [["full_attention"]] * 2, ["full_attention"] * 3, {}),
    "max_window_layers": ("1", [1]),
}
EXPERTS = {
    "num_experts": ("4", -4, 4.5, [4]),
    "num_experts_per_tok": ("2", 0, 9, []),
    "mlp_only_layers": (7, "0"),
}
QWEN = {"model_type": "qwen3", "sliding_window": 4, "use_sliding_window": True, "max_window_layers": 1}
SPARSE = {"model_type": "qwen3_moe", "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 6}


def tensor_files():
    """Yield (name, function) for tensors that do not fit the config, or are none."""
    norm, query = "model.norm.weight", "model.layers.0.self_attn.q_proj.weight"
    yield from {
        "empty": cut(0),
        "seven bytes": cut(7),
        "half a header": cut(300),
        "half": cut(2000),
        "one byte short": lambda folder: cut((folder / "model.safetensors").stat().st_size - 1)(folder),
        "one byte more": lambda folder: (folder / "model.safetensors").open("ab").write(b"\0"),
        "length of 2**63": content("model.safetensors", struct.pack("<Q", 2**63) + b"{}"),
        "length of 2**40": content("model.safetensors", struct.pack("<Q", 2**40) + b"{}"),
        "none": lambda folder: (folder / "model.safetensors").unlink(),
        "pickle": lambda folder: (folder / "model.safetensors").rename(folder / "pytorch_model.bin"),
        "deep": content("model.safetensors", struct.pack("<Q", len(DEEP)) + DEEP),
        "no offsets": header(lambda text: text.replace(b"data_offsets", b"data_of")),
        "no dtype": header(lambda text: text.replace(b'"dtype"', b'"type"')),
        "text shape": header(lambda text: text.replace(b"[8,8]", b'"88"')),
        "null entry": header(lambda text: text.replace(b"{", b'{"x": null, ', 1)),
        "negative offsets": header(lambda text: text.replace(b"[0,", b"[-4,")),
        "overlap": header(lambda text: text.replace(b"[384,", b"[0,").replace(b",768]", b",384]")),
        "another name": stored(lambda made: {"x": made.pop(norm), **made}),
        "missing": stored(lambda made: made.pop(norm) is None or made),
        "extra": stored(lambda made: {**made, "model.layers.2.input_layernorm.weight": np.zeros(8, np.float32)}),
        "another shape": stored(lambda made: {**made, query: np.zeros((8, 9), np.float32)}),
        "turned": stored(lambda made: {**made, "lm_head.weight": made["lm_head.weight"].T.copy()}),
        "integers": stored(lambda made: {**made, query: np.zeros((8, 8), np.int64)}),
        "quantized": stored(lambda made: {**made, query: np.zeros((8, 8), np.uint8)}),
        "nan": stored(lambda made: {**made, norm: np.full(8, np.nan, np.float32)}),
        "infinity": stored(lambda made: {**made, norm: np.full(8, np.inf, np.float32)}),
        "nothing": stored(lambda made: {}),
        "of another vocabulary": fields(vocab_size=0),
    }.items()


def index_files():
    """Yield (name, function) for indices that cannot be followed."""
    norm = "model.norm.weight"
    yield from {
        "not json": index(lambda where: b"{"),
        "a list": index(lambda where: [where]),
        "no map": index(lambda where: {"metadata": {}}),
        "map is a list": index(lambda where: {"weight_map": list(where)}),
        "map is null": index(lambda where: {"weight_map": None}),
        "empty map": index(lambda where: {"weight_map": {}}),
        "number": index(lambda where: {"weight_map": {**where, norm: 1}}),
        "null": index(lambda where: {"weight_map": {**where, norm: None}}),
        "list": index(lambda where: {"weight_map": {**where, norm: ["0.safetensors"]}}),
        "above": index(lambda where: {"weight_map": {**where, norm: "../x.safetensors"}}),
        "absolute": index(lambda where: {"weight_map": {**where, norm: "/etc/passwd"}}),
        "no such file": index(lambda where: {"weight_map": {**where, norm: "2.safetensors"}}),
        "another file": index(lambda where: {"weight_map": {**where, norm: "0.safetensors"}}),
        "tensor of no file": index(lambda where: {"weight_map": {**where, "x": "0.safetensors"}}),
        "directory": index(lambda where: {"weight_map": {**where, norm: "."}}),
        "twice": index(lambda where: b'{"weight_map": {}, "weight_map": ' + json.dumps(where).encode() + b"}"),
        "deep": index(lambda where: DEEP),
    }.items()


def tokenizer_files():
    """Yield (name, function) for files of a tokenizer that cannot be read."""
    model, text = TOKENIZER["model"], json.dumps(TOKENIZER)
    yield from {
        "core: empty": content("tokenizer.json", b""),
        "core: cut": content("tokenizer.json", text[:-30]),
        "core: a list": content("tokenizer.json", [TOKENIZER]),
        "core: deep": content("tokenizer.json", DEEP),
        "core: no model": content("tokenizer.json", {**TOKENIZER, "model": None}),
        "core: no vocabulary": content("tokenizer.json", {**TOKENIZER, "model": {**model, "vocab": None}}),
        "core: text id": content("tokenizer.json", {**TOKENIZER, "model": {**model, "vocab": {"h": "0"}}}),
        "core: negative id": content("tokenizer.json", {**TOKENIZER, "model": {**model, "vocab": {"h": -1}}}),
        "core: id of 4e9": content(
            "tokenizer.json", {**TOKENIZER, "model": {**model, "vocab": {**model["vocab"], "z": 4_000_000_000}}}
        ),
        "core: merge of unknown": content("tokenizer.json", {**TOKENIZER, "model": {**model, "merges": [["z", "z"]]}}),
        "core: decoder": content("tokenizer.json", {**TOKENIZER, "decoder": {"type": "No"}}),
        "core: latin-1": content("tokenizer.json", text.encode().replace(b"</s>", b"<\xff>")),
        "fields: empty": content("tokenizer_config.json", b""),
        "fields: a list": content("tokenizer_config.json", [FIELDS]),
        "fields: deep": content("tokenizer_config.json", DEEP),
        "fields: latin-1": content("tokenizer_config.json", b'{"eos_token": "\xff"}'),
        "fields: number": content("tokenizer_config.json", {**FIELDS, "eos_token": 8}),
        "fields: list": content("tokenizer_config.json", {**FIELDS, "bos_token": ["</s>"]}),
        "fields: object": content("tokenizer_config.json", {**FIELDS, "eos_token": {"text": "</s>"}}),
        "fields: unknown": content("tokenizer_config.json", {**FIELDS, "eos_token": "<eos>"}),
        "fields: none": content("tokenizer_config.json", {"chat_template": TEMPLATE}),
        "added: a list": content("tokenizer_config.json", {**FIELDS, "added_tokens_decoder": ["</s>"]}),
        "added: no number": content("tokenizer_config.json", {**FIELDS, "added_tokens_decoder": {"x": {}}}),
        "added: a text": content("tokenizer_config.json", {**FIELDS, "added_tokens_decoder": {"9": "<x>"}}),
        "added: no content": content("tokenizer_config.json", {**FIELDS, "added_tokens_decoder": {"9": {}}}),
        "added: field": content(
            "tokenizer_config.json", {**FIELDS, "added_tokens_decoder": {"9": {"content": "<x>", "special": 3}}}
        ),
        "added: another id": content(
            "tokenizer_config.json", {**FIELDS, "added_tokens_decoder": {"99": {"content": "<x>"}}}
        ),
        "template: number": content("tokenizer_config.json", {**FIELDS, "chat_template": 7}),
        "template: names": content("tokenizer_config.json", {**FIELDS, "chat_template": [{"name": "default"}]}),
        "template: numbers": content("tokenizer_config.json", {**FIELDS, "chat_template": [7]}),
        "template: broken": content("tokenizer_config.json", {**FIELDS, "chat_template": "{% for m in %}"}),
        "template: unclosed": content("chat_template.jinja", "{{ messages"),
        "template: latin-1": content("chat_template.jinja", b"{{ '\xff' }}"),
        "template: attribute": content("chat_template.jinja", "{{ messages.x.y }}"),
        "template: division": content("chat_template.jinja", "{{ 1 // 0 }}"),
        "template: huge": content("chat_template.jinja", "{{ 'a' * 10 ** 11 }}"),
        "template: directory": no_file("chat_template.jinja", "directory"),
        "stops: text": content("generation_config.json", {"eos_token_id": "8"}),
        "stops: fraction": content("generation_config.json", {"eos_token_id": 8.5}),
        "stops: lists": content("generation_config.json", {"eos_token_id": [[8]]}),
        "stops: object": content("generation_config.json", {"eos_token_id": {"a": 8}}),
        "stops: too large": content("generation_config.json", {"eos_token_id": 99}),
        "stops: a list": content("generation_config.json", [8]),
        "pad: text": content("generation_config.json", {"pad_token_id": "0"}),
        "core: directory": no_file("tokenizer.json", "directory"),
        "core: pipe": no_file("tokenizer.json", "pipe"),
    }.items()


def folders():
    """Return {name: function that spoils a sound folder}."""
    cases = {}
    for name, data in config_files():
        cases[f"config {name}"] = content("config.json", data)
    for kind in ("directory", "loop", "dangling", "pipe", "endless", "huge"):
        cases[f"config {kind}"] = no_file("config.json", kind)
        cases[f"tensors {kind}"] = no_file("model.safetensors", kind)
    for base, table in (({}, VALUES), (QWEN, WINDOWS), (SPARSE, EXPERTS)):
        for field, values in table.items():
            for value in values:
                shown = "absent" if value is ... else json.dumps(value)
                cases[f"{field}={shown}"] = fields(**{**base, field: value})
    cases |= {f"tensors {name}": spoil for name, spoil in tensor_files()}
    cases |= {f"index {name}": spoil for name, spoil in index_files()}
    cases |= {f"tokenizer {name}": spoil for name, spoil in tokenizer_files()}
    return cases


FOLDERS = folders()


# --- problems with answers ------------------------------------------------------------------------------

PROBLEM = {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}
LINE = json.dumps(PROBLEM)


def problems(folder):
    """Write a folder of problems that ``gsm8k`` reads."""
    folder.mkdir()
    (folder / "train.jsonl").write_text(f"{LINE}\n" * 3)
    (folder / "test.jsonl").write_text(json.dumps({**PROBLEM, "question": "Three and one?"}))
    return folder


def read(folder):
    """Read problems by the functions that ``train`` calls."""
    task = gsm8k.gsm8k(folder, 512, 64).bind(tokenizers.make("bytes", ()))
    return [task.target(i, "train") for i in range(task.size("train"))]


def line(data):
    """Return the function that adds a line to the training split."""
    data = data if isinstance(data, bytes | str) else json.dumps(data)
    data = data if isinstance(data, bytes) else data.encode()
    return lambda folder: (folder / "train.jsonl").write_bytes((folder / "train.jsonl").read_bytes() + data + b"\n")


def row(**changes):
    """Return the function that adds a problem with some fields changed; the value ``...`` removes one."""
    return line({k: v for k, v in {**PROBLEM, **changes}.items() if v is not ...})


def data():
    """Return {name: function that spoils a folder of problems}."""
    text = f"{LINE}\n" * 3
    files = {
        "empty": b"",
        "blank": b"\n \n\t\n",
        "only a mark of order": b"\xef\xbb\xbf",
        "zip": b"PK\x03\x04" + bytes(100),
        "parquet": b"PAR1" + bytes(100) + b"PAR1",
        "noise": np.random.default_rng(0).bytes(5000),
        "nulls": bytes(5000),
        "utf-16": text.encode("utf-16"),
        "utf-32": text.encode("utf-32"),
        "latin-1": text.replace("Two", "D\xe9ux").encode("latin-1"),
        "one list": json.dumps([PROBLEM] * 3).encode(),
        "a printed list": json.dumps([PROBLEM] * 3, indent=1).encode(),
        "one object": json.dumps({"data": [PROBLEM] * 3}).encode(),
        "a printed object": json.dumps(PROBLEM, indent=1).encode(),
        "csv": b"question,answer\nTwo and two?,#### 4\n",
        "yaml": b"- question: Two\n  answer: 4\n",
        "html": b"<!DOCTYPE html>\n<html>Not found</html>\n",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n",
        "megabytes in a line": b'{"question": "' + b"x" * 5_000_000,
    }
    lines = {
        "cut": LINE[:-9],
        "single quotes": str(PROBLEM),
        "comma": LINE + ",",
        "comma inside": LINE.replace("}", ",}"),
        "comment": "// " + LINE,
        "two objects": LINE + LINE,
        "two objects, spaced": LINE + " " + LINE,
        "list": [PROBLEM],
        "text": '"What?"',
        "number": "12",
        "null": "null",
        "nan": "NaN",
        "deep": DEEP,
        "deep inside": b'{"question": ' * 50_000,
        "not utf-8": LINE.encode().replace(b"Two", b"\xff"),
        "null byte": LINE + "\0",
        "null inside": LINE.replace("Two", "T\0o"),
        "half a pair": LINE.replace("Two", "\\ud83d"),
        "escape": LINE.replace("Two", "\\x41"),
        "tab inside": LINE.replace("Two", "\t"),
        "name twice": LINE.replace("{", '{"answer": "#### 5", ', 1),
        "answer of 5000 digits": '{"question": "Two?", "answer": ' + "1" * 5000 + "}",
        "answer beyond floats": '{"question": "Two?", "answer": 1e999}',
        "empty object": {},
    }
    rows = {
        "no question": {"question": ...},
        "no answer": {"answer": ...},
        "null question": {"question": None},
        "number as question": {"question": 7},
        "list as question": {"question": ["Two?"]},
        "object as question": {"question": {"text": "Two?"}},
        "empty question": {"question": ""},
        "spaces as question": {"question": " \n"},
        "null answer": {"answer": None},
        "true as answer": {"answer": True},
        "list as answer": {"answer": ["#### 4"]},
        "empty answer": {"answer": ""},
        "no mark": {"answer": "It is 4."},
        "number without mark": {"answer": 4},
        "nothing after the mark": {"answer": "4\n#### "},
        "two marks": {"answer": "#### 4 ####"},
        "word": {"answer": "#### four"},
        "nan": {"answer": "#### nan"},
        "infinity": {"answer": "#### infinity"},
        "punctuation": {"answer": "#### ?"},
        "one of several": {"answer": "#### A"},
    }
    cases = {f"file {name}": content("train.jsonl", value) for name, value in files.items()}
    cases |= {f"held out {name}": content("test.jsonl", files[name]) for name in ("empty", "zip", "noise")}
    cases |= {f"line {name}": line(value) for name, value in lines.items()}
    cases |= {f"row {name}": row(**value) for name, value in rows.items()}
    for kind in ("absent", "directory", "loop", "dangling", "pipe", "endless", "huge"):
        cases[f"train {kind}"] = no_file("train.jsonl", kind)
    return cases


DATA = data()


# --- the tests ------------------------------------------------------------------------------------------


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
        return gsm8k.math(folder).target(0, "train")

    assert read(tmp_path / "0") == "\\frac{8}{2}" and problem(read, tmp_path / "1") == ""


@pytest.mark.full
def test_problems_that_are_written_differently_are_read(tmp_path):
    rows = [PROBLEM, {**PROBLEM, "id": 7}, {"question": "\u2028\0?", "answer": "#### -1,000.5"}, PROBLEM]
    for number, (start, end) in enumerate([(b"", b"\r\n"), (b"\xef\xbb\xbf", b"\n"), (b"", b"\n\n \n")]):
        folder = problems(tmp_path / str(number))
        lines = [json.dumps(row, ensure_ascii=number == 0).encode() for row in rows]
        (folder / "train.jsonl").write_bytes(start + end.join(lines))  # without a last end of line
        assert read(folder) == ["4", "4", "-1,000.5", "4"]


# --- work directories -----------------------------------------------------------------------------------


def test_a_stored_config_that_was_changed_is_refused_in_one_line():
    sound = json.loads(files.dumps(schema.default()))
    assert files.differences(files.from_dict(sound), schema.default()) == []
    changes = (
        *({name: value} for name in ("batch", "model", "phase") for value in (None, 7, "x", [])),
        *({"batch": {"prompts": value}} for value in (None, "8", 2.5, -1, [8])),
        *({"phase": {"main": value}} for value in (None, 7, [])),
        *({"phase": {"main": {"steps": value}}} for value in ("8", [8], {})),
        *({"phase": {"main": {"batch": value}}} for value in ("8", [8], {"rows": 8}, {"prompts": "8"})),
        *({"phases": value} for value in (None, "main", [7])),
        *({"seed": value} for value in (None, "0", 0.5)),
        {"unknown": 1},
        {"model": {"unknown": 1}},
    )
    for change in changes:
        assert problem(files.from_dict, {**sound, **change}) == "", change
    for value in (None, [], "x", 7):
        assert problem(files.from_dict, value) == ""


@pytest.mark.full
@pytest.mark.parametrize(
    "extras",
    [{}, {"config": 7, "tokenizer": ""}, {"config": {}, "tokenizer": 7}, {"config": {"seed": "x"}, "tokenizer": ""}],
)
def test_a_checkpoint_that_is_not_of_a_run_is_refused_in_one_line(extras, tmp_path):
    with checkpoints.Checkpointer(tmp_path / "checkpoints") as saver:
        saver.save(1, test_checkpoint.make_state(1), extras)
    assert problem(evaluate.load, str(tmp_path)) == ""


ROLLOUT = {"step": 1, "prompt": "1+1=", "completion": "2", "reward": 1.0}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"{\n",
        DEEP + b"\n",
        b'{"step": "1"}\n',
        b'{"step": 1}\n',
        b"\xff\n",
        bytes(100) + b"\n",
        gzip.compress(b"{}", mtime=0) + b"\n",
        *(json.dumps({**ROLLOUT, name: 7}).encode() + b"\n" for name in ("prompt", "completion")),
        *(json.dumps({**ROLLOUT, name: "x"}).encode() + b"\n" for name in ("reward", "parts", "advantage")),
        json.dumps({**ROLLOUT, "parts": {"format": None}}).encode() + b"\n",
        json.dumps({**ROLLOUT, "outcome": []}).encode() + b"\n",
    ],
)
def test_malformed_rollouts_are_refused_in_one_line(data, tmp_path):
    def show(folder):
        metrics.show_rollouts(folder, console=rich.console.Console(file=io.StringIO()))

    (tmp_path / "rollouts.jsonl").write_bytes(json.dumps(ROLLOUT).encode() + b"\n")
    show(tmp_path)
    (tmp_path / "rollouts.jsonl").write_bytes(data)
    assert problem(show, tmp_path) == ""


# --- the commands ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("case", ["convert", "train", "problems", "metrics"])
def test_a_command_ends_with_one_line_and_code_2(case, tmp_path):
    folder = sound(tmp_path / "model")
    if case == "convert":
        FOLDERS["num_hidden_layers=10000000"](folder)
        command = ["convert", f"--source={folder}"]
    elif case == "train":
        FOLDERS["config deep"](folder)
        command = ["--config=quickstart", f"--config.model.weights={folder}", f"--workdir={tmp_path / 'run'}"]
    elif case == "problems":
        folder = problems(tmp_path / "problems")
        DATA["line half a pair"](folder)
        command = ["--config=pretrained:quick", f"--config.task=gsm8k(path={str(folder)!r})"]
    else:
        (tmp_path / "rollouts.jsonl").write_bytes(DEEP + b"\n")
        command = ["metrics", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "rljax", *command], capture_output=True, text=True)
    lines = [text for text in done.stderr.splitlines() if text.strip()]
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert str(tmp_path) in lines[0]
