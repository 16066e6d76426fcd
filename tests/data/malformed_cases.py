"""What the tests of malformed share."""

import json
import os
import struct

import numpy as np
import safetensors
import safetensors.numpy

from rljax.models.checkpoints import tensors

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

PROBLEM = {"question": "Two and two?", "answer": "2 + 2 = 4\n#### 4"}

LINE = json.dumps(PROBLEM)


def problems(folder):
    """Write a folder of problems that ``gsm8k`` reads."""
    folder.mkdir()
    (folder / "train.jsonl").write_text(f"{LINE}\n" * 3)
    (folder / "test.jsonl").write_text(json.dumps({**PROBLEM, "question": "Three and one?"}))
    return folder


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
