"""Rows with pictures: paths and contents, splits, placeholders, and files that are not what they say."""

import io
import json
import struct
import zlib

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest

from rljax.data import tokenizers
from rljax.environments import traits
from rljax.environments.questions import images, own


def picture(number, width=8, height=8):
    return np.full((height, width, 3), [number * 7 % 256, 200, 0], np.uint8)


def content(pixels, form="PNG"):
    buffer = io.BytesIO()
    PIL.Image.fromarray(pixels).save(buffer, format=form)
    return buffer.getvalue()


@pytest.fixture
def folder(tmp_path):
    """Return a folder of 40 pictures and a file of rows that ask the same of each."""
    (tmp_path / "seen").mkdir()
    rows = []
    for i in range(40):
        (tmp_path / f"seen/{i}.png").write_bytes(content(picture(i)))
        rows.append({"question": "What?", "answer": i, "file": f"seen/{i}.png"})
    write(tmp_path, rows)
    return tmp_path


def write(folder, rows):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def bound(folder, **fields):
    arguments = {"image": "file", "pixels": 8, "picture_tokens": 4, **fields}
    task = own.jsonl(folder / "rows.jsonl", **arguments)
    return task.bind(tokenizers.train(["What? Is left of yesno0123456789" + tokenizers.PICTURE]))


def test_pictures_of_rows_are_read_and_stand_for_their_placeholders(folder):
    task = bound(folder, heldout=0.25)
    assert traits.traits(task).pictures == traits.Pictures(1, 8, 8, 4)
    # equal questions about different pictures are different prompts: some are held out
    assert task.size("train") + task.size("heldout") == 40 and 0 < task.size("heldout") < 20
    index = np.arange(task.size("train"))
    prompts, mark = task.prompts(index, "train"), tokenizers.placeholder(task.tokenizer)
    assert prompts.image.shape == (len(index), 1, 8, 8, 3) and mark >= 0
    assert ((prompts.token == mark) * prompts.mask).sum(axis=1).tolist() == [4] * len(index)
    for i in index:
        np.testing.assert_array_equal(prompts.image[i, 0], picture(int(task.target(i, "train"))))


def test_rows_of_several_pictures_have_them_where_they_are_marked(folder):
    several = {"question": "Is <image> left of <image>?", "answer": "no", "file": ["seen/3.png", "seen/5.png"]}
    write(folder, [several, {"question": "What?", "answer": 1, "file": "seen/1.png"}] * 20)
    task = bound(folder, heldout=1)
    assert task.pictures.count == 2
    prompts, mark = task.prompts(np.arange(2), "heldout"), tokenizers.placeholder(task.tokenizer)
    placed = np.flatnonzero(prompts.token[0] == mark)
    assert len(placed) == 8 and np.diff(placed).max() > 1  # text between the two
    np.testing.assert_array_equal(prompts.image[0], [picture(3), picture(5)])
    np.testing.assert_array_equal(prompts.image[1], [picture(1), 0 * picture(1)])  # a place without a picture
    write(folder, [{**several, "file": "seen/3.png"}])
    with pytest.raises(ValueError, match=r"rows.jsonl:1: the prompt has 2 <image> and the row 1 pictures"):
        bound(folder, heldout=1)


def test_contents_in_columns_are_those_of_paths(folder):
    rows = [{"bytes": content(picture(i)), "path": None} for i in range(3)]
    table = pyarrow.table({"question": ["What?"] * 3, "answer": [0, 1, 2], "image": rows})
    pyarrow.parquet.write_table(table, folder / "rows.parquet")
    task = own.parquet(folder / "rows.parquet", image="{image}", pixels=8, picture_tokens=1, heldout=1)
    task = task.bind(tokenizers.train(["What?" + tokenizers.PICTURE]))
    np.testing.assert_array_equal(task.prompts(np.arange(3), "heldout").image[:, 0], [picture(i) for i in range(3)])


def test_proportions_stay_and_margins_are_grey():
    looks = images.Looks(image="file", pixels=8)
    seen = looks.decoded([content(picture(1, width=8, height=4))], 1, "row")[0]
    np.testing.assert_array_equal(seen[2:6], picture(1, 8, 4))
    assert (seen[[0, 1, 6, 7]] == 127).all()
    turned = PIL.Image.fromarray(np.array([[[255, 0, 0], [0, 0, 255]]], np.uint8))
    exif, buffer = PIL.Image.Exif(), io.BytesIO()
    exif[0x0112] = 3  # upside down
    turned.save(buffer, "PNG", exif=exif)
    assert images.Looks(image="file", pixels=2).decoded([buffer.getvalue()], 1, "row")[0, 0, 0, 2] > 100


def bomb():
    """Return a small PNG whose header claims 60,000 x 60,000 pixels."""
    parts = [(b"IHDR", struct.pack(">IIBBBBB", 60_000, 60_000, 8, 2, 0, 0, 0)), (b"IDAT", zlib.compress(bytes(60_000)))]
    chunks = (struct.pack(">I", len(x)) + name + x + struct.pack(">I", zlib.crc32(name + x)) for name, x in parts)
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not a picture of the formats PNG"),
        (b"GIF89a" + b"\0" * 20, "picture '.*bad.png'"),
        (content(picture(1, 64, 64))[:60], "picture '.*bad.png'"),
        (bomb(), "picture '.*bad.png'.*(bomb|pixels)"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "not a picture of the formats PNG"),
        (None, "No such file"),
    ],
    ids=["empty", "no-frame", "truncated", "bomb", "program", "missing"],
)
def test_what_is_no_picture_is_named_with_its_row(folder, data, words):
    if data is not None:
        (folder / "bad.png").write_bytes(data)
    write(folder, [{"question": "What?", "answer": 0, "file": "bad.png"}])
    task = bound(folder, heldout=1)
    with pytest.raises(ValueError, match=rf"(?i)rows.jsonl:1: .*({words})") as error:
        task.prompts(np.arange(1), "heldout")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, 7, {"path": None}, [3]])
def test_columns_without_a_picture_are_named(folder, value):
    write(folder, [{"question": "What?", "answer": 0, "file": value}])
    with pytest.raises(ValueError, match=r"rows.jsonl:1: .*(picture|image)"):
        bound(folder, heldout=1)
