"""Files of a user: every format gives the same rows, every damage is named, prepared files, overlap, stored rows."""

import gzip
import io
import json
import sys

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import rich.console
from array_record.python import array_record_module

from rljax import environments
from rljax.data import overlap, rows, stored_groups, tokenizers
from rljax.data.rows import exchanges, prepare, text
from rljax.environments.config import VerifierConfig
from rljax.environments.questions import task as task_lib
from rljax.environments.verifiers import judging
from rljax.run.data import inspect, show
from rljax.run.producers import references
from tests.data import test_public_tokenizer as public

ROWS = [{"question": f"What is {i} + 1? é", "answer": str(i + 1), "meta": {"level": i % 3}} for i in range(20)]
TEXT = "\n".join(json.dumps(row) for row in ROWS)


def arrow_stream(path, listed):
    table = pyarrow.Table.from_pylist(listed)
    with pyarrow.OSFile(str(path), "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)


def saved(folder, shards):
    """Write the files that ``datasets.Dataset.save_to_disk`` writes."""
    folder.mkdir(parents=True)
    names = [f"data-{n:05d}-of-{len(shards):05d}.arrow" for n in range(len(shards))]
    for name, shard in zip(names, shards, strict=True):
        arrow_stream(folder / name, shard)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text("{}")


@pytest.fixture
def written(tmp_path):
    """Return a folder with the same rows in every format."""
    (tmp_path / "a.jsonl").write_text(TEXT + "\n\n")
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(TEXT.encode()))
    (tmp_path / "a.json").write_text(json.dumps(ROWS, indent=1))
    (tmp_path / "lines.json").write_text("\ufeff" + TEXT)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), tmp_path / "a.parquet")
    arrow_stream(tmp_path / "a.arrow", ROWS)
    saved(tmp_path / "saved", [ROWS[:7], ROWS[7:]])
    saved(tmp_path / "splits" / "train", [ROWS])
    (tmp_path / "splits" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    (tmp_path / "shards").mkdir()
    for n, part in enumerate((ROWS[:5], ROWS[5:])):
        table = pyarrow.Table.from_pylist(part)
        pyarrow.parquet.write_table(table, tmp_path / "shards" / f"train-{n:05d}-of-00002.parquet")
    prepare.prepare(tmp_path / "a.jsonl", tmp_path / "prepared")
    return tmp_path


def test_every_format_has_the_same_rows(written):
    names = ("a.jsonl", "a.jsonl.gz", "a.json", "lines.json", "a.parquet", "a.arrow", "saved", "splits", "shards")
    for name in (*names, "prepared", "shards/*", "prepared/rows.array_record"):
        source = rows.read(written / name)
        assert list(source) == ROWS == [source[i] for i in range(len(source))], name
        assert source[-1] == ROWS[-1] and source[3:5] == ROWS[3:5], name
        assert source.columns() == {"question": 20, "answer": 20, "meta": 20}, name
    assert list(rows.read([written / "a.jsonl", str(written / "shards")])) == ROWS + ROWS


def test_a_row_knows_its_place(written):
    places = {"a.jsonl": "a.jsonl:7", "a.jsonl.gz": "a.jsonl.gz:7", "a.json": "a.json[6]", "a.parquet": "a.parquet[6]"}
    places["shards"] = "shards/train-00001-of-00002.parquet[1]"
    places["prepared"] = "prepared/rows.array_record[6]"
    for name, place in places.items():
        assert rows.read(written / name).where(6) == f"{written}/{place}"
    (written / "blank.jsonl").write_text('\n{"a": 1}\n \n{"a": 2}')
    assert rows.read(written / "blank.jsonl").where(1) == f"{written}/blank.jsonl:4"


DAMAGED = {
    "x.jsonl": (b'{"a": 1}\n[1]', "x.jsonl:2: a list, expected an object"),
    "twice.jsonl": (b'{"a": 1}\n\n{"a": 1, "a": 2}', "twice.jsonl:3: .*'a' twice"),
    "bytes.jsonl": (b'{"a": 1}\n{"a": "\xff"}', "bytes.jsonl:2: .*UTF-8"),
    "nan.jsonl": (b'{"a": NaN}', "nan.jsonl:1: .*not a finite number"),
    "cut.jsonl": (b'{"a": 1}\n{"a": ', "cut.jsonl:2: not JSON"),
    "empty.jsonl": (b"\n", "empty.jsonl: no rows"),
    "list.json": (b'[{"a": 1}, 2]', r"list.json\[1\]: a number, expected an object"),
    "cut.jsonl.gz": (gzip.compress(TEXT.encode())[:-9], "cut.jsonl.gz: a damaged gzip"),
    "cut.arrow": (b"hello", "cut.arrow: a damaged arrow file"),
    "cut.parquet": (b"PAR1" + b"a" * 20, "cut.parquet: a damaged parquet file"),
    "short.array_record": (b"abc", "short.array_record: not an array_record file"),
    "rows.csv": (b"a,b", "rows.csv: the format is not known"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damage_is_named_with_file_and_line(name, tmp_path):
    content, words = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=words):
        rows.read(tmp_path / name)


def test_damage_inside_a_file_of_records(written):
    parquet = bytearray((written / "a.parquet").read_bytes())
    parquet[40] ^= 255
    (written / "b.parquet").write_bytes(parquet)
    with pytest.raises(ValueError, match=r"b.parquet: a damaged parquet file"):
        rows.read(written / "b.parquet")
    writer = array_record_module.ArrayRecordWriter(str(written / "b.array_record"), "group_size:1")
    for record in (b'{"a": 1}', b"\x0a\x03abc"):
        writer.write(record)
    writer.close()
    with pytest.raises(ValueError, match=r"b.array_record\[1\]: not JSON"):
        rows.read(written / "b.array_record")


def test_files_that_are_not_one_set_are_refused(written):
    with pytest.raises(FileNotFoundError, match=r"did you mean 'a.jsonl'"):
        rows.read(written / "b.jsonl")
    with pytest.raises(FileNotFoundError, match="no file matches"):
        rows.read(written / "*.csv")
    with pytest.raises(ValueError, match=r"several data sets; name one of them: .*a\*, .*lines\*"):
        rows.read(written)
    (written / "splits" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(ValueError, match=r"name one of them: .*splits/train, .*splits/test"):
        rows.read(written / "splits")
    (written / "shards" / "train-00000-of-00002.parquet").unlink()
    with pytest.raises(FileNotFoundError, match="1 of the shards train"):
        rows.read(written / "shards")
    with pytest.raises(ValueError, match="Did you mean 'json'"):
        rows.read(written / "a.json", format="jsn")


def test_a_column_that_some_rows_lack_is_named(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"question": "a", "answer": "1"}\n{"question": "b"}\n{"question": "c", "answer": null}')
    source = rows.read(path)
    source.require(["question"])
    with pytest.raises(ValueError, match=r"a.jsonl:2: no value in column 'answer' \(2 of 3 rows lack it\)"):
        source.require(["question", "answer"])
    with pytest.raises(ValueError, match=r"a.jsonl:1: .*'questin' \(no row has it\). Did you mean 'question'"):
        source.require(["questin"])


def test_without_pyarrow_the_package_is_named(written, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "rljax.data.rows.arrow", raising=False)
    monkeypatch.delattr(rows, "arrow", raising=False)
    with pytest.raises(ValueError, match="pip install pyarrow"):
        rows.read(written / "a.parquet")
    assert len(rows.read(written / "a.jsonl")) == 20


@pytest.mark.full
def test_folders_of_the_datasets_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    whole = datasets.Dataset.from_list(ROWS)
    whole.save_to_disk(tmp_path / "whole", num_shards=3)
    whole.select([3, 1, 2]).save_to_disk(tmp_path / "some")
    datasets.DatasetDict(train=whole, test=whole.select(range(2))).save_to_disk(tmp_path / "both")
    assert list(rows.read(tmp_path / "whole")) == ROWS == list(rows.read(tmp_path / "both" / "train"))
    assert list(rows.read(tmp_path / "some")) == [ROWS[3], ROWS[1], ROWS[2]]


def test_prepared_rows_are_unique_shuffled_and_written_once(tmp_path):
    source = tmp_path / "a.jsonl"
    source.write_text(TEXT + "\n" + TEXT)
    done = prepare.prepare(source, tmp_path / "out", unique=["question"], shuffle=3)
    assert (done.read, done.written, done.existed) == (40, 20, False)
    result = list(rows.read(tmp_path / "out"))
    assert result != ROWS and sorted(result, key=ROWS.index) == ROWS
    time = (tmp_path / "out" / prepare.FILE).stat().st_mtime_ns
    assert prepare.prepare(source, tmp_path / "out", unique=["question"], shuffle=3).existed
    assert (tmp_path / "out" / prepare.FILE).stat().st_mtime_ns == time
    with pytest.raises(ValueError, match="exists with other content"):
        prepare.prepare(source, tmp_path / "out", shuffle=4)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.jsonl", "out"]  # no temporary folder is left


def words_of(seed, count):
    return [f"w{n}" for n in np.random.default_rng(seed).integers(0, 10**6, count)]


def test_overlap_finds_what_was_put_there():
    train = [" ".join(words_of(seed, 40)) for seed in range(30)]
    copied, near, short, other = train[3].upper() + "!", words_of(99, 40), words_of(98, 6), words_of(97, 40)
    near[10:24] = train[5].split()[:14]  # two 13-grams of 28
    train[7] += " " + " ".join(short)
    result = overlap.overlap(train, [copied, " ".join(near), " ".join(short), " ".join(other)])
    assert result.equal == 1 and result.common == 0
    assert [(m.evaluation, m.train, m.share) for m in result.matches] == [(0, 3, 1.0), (2, 7, 1.0), (1, 5, 2 / 28)]
    instruction = " ".join(words_of(1000, 15)) + " "
    repeated = overlap.overlap([instruction + text for text in train], [instruction + " ".join(other)])
    assert repeated.matches == () and repeated.common > 0  # what all prompts repeat does not count
    assert overlap.duplicates(["A b.", "c", "a B"]) == [(0, 2)]


CHATML = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def test_stored_rows_as_tokens(tmp_path):
    asked, good, bad = {"role": "user", "content": "ab"}, "good", "bad"
    reply = [{"role": "assistant", "content": good}], [{"role": "assistant", "content": bad}]
    shapes = [
        {"prompt": [asked], "chosen": reply[0], "rejected": reply[1]},
        {"prompt": "ab", "chosen": [asked, *reply[0]], "rejected": [asked, *reply[1]]},
        {"prompt": [asked], "chosen": good, "rejected": bad},
        {"chosen": [asked, *reply[0]], "rejected": [asked, *reply[1]]},
    ]
    before = [{"role": "assistant", "content": "what?"}, {"role": "user", "content": "cd"}]  # of a longer completion
    longer = exchanges.demonstration({"prompt": "ab", "completion": [*before, *reply[0]]})
    assert longer == ([asked, *before], good)
    assert longer == exchanges.demonstration({"prompt": [asked], "completion": [asked, *before, *reply[0]]})
    system = {"role": "system", "content": "x"}
    for prompt in ("ab", "ab ", "", [asked], None):  # a whole conversation begins with another author
        read = exchanges.demonstration({"prompt": prompt, "completion": [system, {**asked, "name": None}, *reply[0]]})
        assert read == ([system, asked], good)
    path = tmp_path / "pairs.jsonl"
    path.write_text("\n".join(map(json.dumps, shapes)))
    model = tokenizers.load(public.write(tmp_path / "model", "byte level", chat_template=CHATML))
    pairs = stored_groups.Reader("pairs", model, 48, 16).read(str(path))
    for k, completion in enumerate((good, bad)):
        expected = tokenizers.exchange(model, [asked], completion)
        for n in range(len(shapes)):
            assert pairs.prompt[n, 48 - pairs.prompt_length[n] :].tolist() == expected[0]
            assert pairs.token[n, k, : pairs.length[n, k]].tolist() == expected[1]
    path.write_text(json.dumps({"messages": [asked, *reply[0]]}) + "\n" + json.dumps({"messages": [asked]}))
    with pytest.raises(ValueError, match=r"pairs.jsonl:2: 'messages' does not end with a message of the assistant"):
        stored_groups.Reader("demonstrations", model, 48, 16).read(str(path))
    plain = tmp_path / "plain.jsonl"
    plain.write_text('{"prompt": "1+1=", "completion": "2"}\n{"prompt": "1+1=", "completion": "two, I think"}')
    bytes_ = tokenizers.make("bytes", [])
    with pytest.raises(ValueError, match=r"1 of 2 rows are longer .* the first .*plain.jsonl:2"):
        stored_groups.Reader("demonstrations", bytes_, 8, 4).read(str(plain))
    with pytest.warns(stored_groups.LengthWarning, match="1 of 2"):
        groups = stored_groups.Reader("demonstrations", bytes_, 8, 4, overlong="drop").read(str(plain))
    assert groups.token.tolist() == [[[*bytes_.encode("2"), bytes_.eos, 0, 0]]]


def test_special_tokens_are_visible(tmp_path):
    model = tokenizers.load(public.write(tmp_path / "model", "byte level", chat_template=CHATML))
    ids = [*model.encode("ab"), model.eos, *model.encode("c")]
    assert [text for text, special in tokenizers.visible(model, ids) if not special] == ["ab", "c"]
    assert "".join(text for text, _ in tokenizers.visible(model, ids)) == f"ab{model.special()[model.eos]}c"


def printed(function, *args, **options):
    """Return what a function prints to a console that is no terminal."""
    out = io.StringIO()
    function(*args, rich.console.Console(file=out, width=500, markup=False), **options)
    return out.getvalue()


def test_inspect_counts_what_does_not_fit_and_what_is_common(tmp_path):
    path, other = tmp_path / "a.jsonl", tmp_path / "other.jsonl"
    listed = [{"question": " ".join(words_of(seed, 20)), "answer": "1" * (seed + 1)} for seed in range(10)]
    path.write_text("\n".join(map(json.dumps, [*listed, listed[2]])))
    other.write_text("\n".join(json.dumps({"problem": row["question"] + "!"}) for row in listed))
    shown = printed(inspect.report, f"jsonl({str(path)!r}, completion_length=8)", against=[str(other)])
    table = [line.split() for line in shown.splitlines() if " demonstrations " in line]
    assert sum(int(line[2]) for line in table) == 11  # train and heldout
    assert sum(int(line[-2]) for line in table) == 3  # answers of 8, 9 and 10 digits, which end-of-sequence follows
    assert f"{path}:3 and {path}:11: " in shown
    assert "heldout in train: 0 (0.0%) prompts are equal" in shown
    shown = printed(inspect.report, str(path), against=[str(other)])
    assert f"{other} in {path}: 10 (100.0%) prompts are equal" in shown and f"100% of {other}:1: " in shown
    assert "question" in shown and "11" in shown


def grade(completion, reference):
    """Judge an answer; 7 is a fault of the data."""
    if reference == "7":
        raise KeyError(reference)
    return float(completion.strip() == reference and reference != "3")


@pytest.mark.full
def test_reference_solutions_that_fail_are_named_and_counted(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i}+0=", "answer": str(i)}) for i in range(40)))
    task = f"jsonl({str(path)!r}, reward='tests.data.test_rows:grade')"
    shown = printed(inspect.report, task)
    assert (
        "40 of 40 reference solutions tried, 2 not correct (1 " in shown and "1 wrong" in shown and "1 crashed" in shown
    )
    assert f"{path}:4" in shown and f"{path}:8" in shown and "the first error: KeyError: '7'" in shown
    assert "40 of 40 reference solutions tried, all correct" in printed(inspect.report, f"jsonl({str(path)!r})")
    read = environments.lookup("jsonl")(path, reward=grade)
    with judging.Verifiers(grade, VerifierConfig(workers=0)) as judges:
        asked = references.solutions(read)
        assert len(asked) == 40 and references.tried(asked, judges, 0.0) == (40, 0, ())
        assert {f.question.reference for f in references.tried(asked, judges).failed} == {"3", "7"}
        with pytest.warns(task_lib.DataWarning, match="40 of 40 reference solutions tried, 2 not correct"):
            references.warn(read, judges)
    assert references.solutions(environments.lookup("guess")()) == []


def test_show_prints_what_the_model_sees(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(json.dumps({"question": f"{i}+1=", "answer": str(i + 1)}) for i in range(30)))
    model = public.write(tmp_path / "model", "byte level", chat_template=CHATML)
    task, changes = f"jsonl({str(path)!r}, system='Add.')", [f"tokenizer.path={model}"]
    shown = printed(show.examples, task, changes=changes, split="heldout", count=1)
    (index,) = [i for i in range(30) if f">{i}+1=" in shown]
    assert f"reference: '{index + 1}'" in shown and "reward of the demonstration: 1, correct" in shown
    bound = environments.lookup("jsonl")(path, system="Add.").bind(tokenizers.load(model))
    prompts = bound.prompts([0], "heldout")
    (row,), (mask,) = prompts.token, prompts.mask
    seen = "".join(
        f"[[{t}]]" if s else t for t, s in tokenizers.visible(tokenizers.load(model), row[mask > 0].tolist())
    )
    assert seen in shown and "Add." in seen and "[[" in seen
    with pytest.raises(ValueError, match="--index=99"):
        show.examples(task, rich.console.Console(), changes=changes, index=99)


PUBLISHED = {
    "amc": {"id": 0, "problem": "What is 3 + 4?", "answer": 7.0, "url": ""},
    "aime": {"ID": "2024-I-1", "Problem": "What is 3 + 4?", "Solution": "7", "Answer": 7},
    "dapo_math": {
        "data_source": "math_dapo",
        "prompt": [{"role": "user", "content": "What is 3 + 4?"}],
        "reward_model": {"ground_truth": "7", "style": "rule-lighteval/MATH_v2"},
    },
    "deepscaler": {"problem": "What is 3 + 4?", "answer": "7", "solution": ""},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sets_are_read_in_their_own_columns(name, tmp_path):
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([PUBLISHED[name]]), tmp_path / "a.parquet")
    (tmp_path / "a.json").write_text(json.dumps([PUBLISHED[name]]))
    for file in ("a.parquet", "a.json"):
        task = environments.lookup(name)(tmp_path / file, heldout=1.0)
        assert task.text(0, "heldout").startswith("What is 3 + 4?") and task.target(0, "heldout") == "7"
        assert task.reward("Answer: 7", "7")["outcome"] == "correct"
        assert task.reward("Answer: 8", "7")["outcome"] == "wrong"


# --- files of others -----------------------------------------------------------------------------


def test_repeated_rows_beyond_the_limit_are_refused(tmp_path):
    values = pyarrow.DictionaryArray.from_arrays(np.zeros(text.MOST_ROWS + 1, np.int8), pyarrow.array(["x"]))
    pyarrow.parquet.write_table(pyarrow.table({"question": values}), tmp_path / "a.parquet")
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    with pytest.raises(ValueError, match=r"a.parquet: more than 10,000,000 rows"):
        rows.read(tmp_path / "a.parquet")


def test_compressed_rows_beyond_the_limit_are_refused_before_all_are_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text, "LARGEST", 1 << 20)
    values = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 50_000), pyarrow.array(["x" * 1000]))
    table = pyarrow.table({"question": values})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet", store_schema=False)
    plain = pyarrow.table({"question": ["x" * 1000] * 5000})
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.ipc.new_file(tmp_path / "a.arrow", plain.schema, options=options) as writer:
        writer.write_table(plain, max_chunksize=100)
    line = json.dumps({"question": "x" * 1000}) + "\n"
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(line.encode() * 5000))
    (tmp_path / "big.jsonl").write_text(line * 5000)
    monkeypatch.setattr(text, "LARGEST", 1 << 30)
    prepare.prepare(tmp_path / "big.jsonl", tmp_path / "records")
    monkeypatch.setattr(text, "LARGEST", 1 << 20)
    for name in ("a.parquet", "a.arrow", "a.jsonl.gz", "records"):
        with pytest.raises(ValueError, match=r"more than 1,048,576 bytes uncompressed"):
            rows.read(tmp_path / name)


@pytest.mark.parametrize("key", ["type", "pythonClassName"])
def test_a_data_set_of_tfds_that_names_code_imports_nothing(tmp_path, monkeypatch, key):
    (tmp_path / "harmful_features.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')\n")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "set"
    folder.mkdir()
    (folder / "features.json").write_text(json.dumps({key: "harmful_features.Feature", "content": {}}))
    (folder / "dataset_info.json").write_text(json.dumps({"name": "set", "version": "1.0.0", "fileFormat": "x"}))
    with pytest.raises(ValueError, match=r"features\.json names 'harmful_features.Feature', code outside tfds"):
        rows.read(folder)
    assert not (tmp_path / "imported").exists()
    with pytest.raises(ValueError, match="expected tfds:NAME/SPLIT"):
        rows.read("tfds:huggingface:squad/train")
