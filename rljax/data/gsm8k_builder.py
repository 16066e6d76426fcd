"""Jsonl files of questions and answers as a tfds data set in array_record: built once, then random access.

``sources`` is the entry point. The cache is keyed by the contents of the files, written to a temporary folder and
renamed, so that a changed file is rebuilt, an interrupted build is never read, and two processes may build at once.
The files and the cache may be on gs://: array_record reads local files only, so a remote cache is copied to this
machine first. TensorFlow is never imported.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import pathlib
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow_datasets as tfds
from etils import epath

from rljax import data
from rljax.data import documents, storage
from rljax.language import messages

_NAME = "question_answer"  # the name that tfds derives from the class below
_VERSION = "1.1.0"
_MANIFEST = "manifest.json"
_NUMBERS = "####"  # the mark of GSM8K, whose answers are numbers
_LARGEST = 4 << 30  # bytes of a file; its rows are in memory while it is built
_ATTEMPTS = 5  # attempts to rename, against other processes, before an error


class QuestionAnswer(tfds.core.GeneratorBasedBuilder):
    """Rows of ``question`` and ``answer`` texts by split, in the order of the file."""

    VERSION = tfds.core.Version(_VERSION)
    code_path = None  # not needed; to determine it tfds imports a package that it does not require

    def __init__(self, *, rows: Mapping[str, Sequence[tuple[str, str]]], data_dir: str):
        """Store the checked rows of each split; ``data_dir`` is the folder to build in."""
        self._rows = rows
        super().__init__(data_dir=data_dir, file_format="array_record")

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description="Questions with their answers.",
            features=tfds.features.FeaturesDict({"question": tfds.features.Text(), "answer": tfds.features.Text()}),
            disable_shuffling=True,  # row i of a split is row i of its file
        )

    def _split_generators(self, dl_manager: object) -> dict[str, Iterator[tuple[int, dict[str, str]]]]:
        del dl_manager  # nothing is downloaded
        return {split: self._generate_examples(split) for split in self._rows}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, str]]]:
        for key, (question, answer) in enumerate(self._rows[split]):
            yield key, {"question": question, "answer": answer}


def sources(
    path: str | os.PathLike[str],
    files: Mapping[str, str],
    cache: str | os.PathLike[str] | None = None,
    fields: tuple[str, str] = ("question", "answer"),
    mark: str = _NUMBERS,
) -> dict[str, Sequence[Mapping[str, bytes]]]:
    """Return each split as a random-access sequence, building the array_record files if they do not exist.

    Args:
      path: folder of the jsonl files, local or gs://.
      files: file name of each split.
      cache: folder of the array_record files, local or gs://; None: ``$RLJAX_CACHE``, else ``rljax`` in the user's
        cache folder.
      fields: names of the question and of the answer in the files.
      mark: text before the final answer, which every answer must contain; "": none.

    Returns:
      By split, sequences of ``{"question": bytes, "answer": bytes}``.

    Raises:
      FileNotFoundError: ``path`` or one of ``files`` does not exist.
      ValueError: a file cannot be read, or a line is not a JSON object with a question and an answer; names the file
        and the line.
    """
    folder = storage.path(path)
    if not storage.is_dir(folder):
        raise FileNotFoundError(
            f"task argument path={str(path)!r} is not a folder; expected a folder with {', '.join(files.values())}"
        )
    content: dict[str, bytes] = {}
    digest = hashlib.sha256(repr((_VERSION, fields, mark, list(files))).encode())
    for split, name in files.items():
        try:
            content[split] = documents.content(folder / name, _LARGEST)
        except FileNotFoundError:
            text = f"task argument path={str(path)!r}: no file {name!r} in it (the {split} split)"
            raise FileNotFoundError(text) from None
        except ValueError as error:
            raise ValueError(f"task argument path: {error}") from None
        digest.update(hashlib.sha256(content[split]).digest())
    name = f"{_NAME}-{digest.hexdigest()[:16]}"
    shared = storage.path(cache) / name if cache and storage.remote(cache) else None
    home = data.cache_folder(None if shared else cache)
    if shared and storage.exists(shared / _MANIFEST):
        place = storage.stage(shared, home)
    else:
        place = home / name
        if not _complete(place):
            rows = {split: _rows(folder / files[split], content[split], fields, mark) for split in files}
            _build(place, rows)
        if shared:
            storage.upload(place, shared, last=_MANIFEST)
    built: Any = tfds.builder_from_directory(str(place / _NAME / _VERSION))
    return {split: built.as_data_source(split) for split in files}


def _rows(file: epath.Path, content: bytes, fields: tuple[str, str], mark: str) -> list[tuple[str, str]]:
    """Parse and check a jsonl file; blank lines are skipped."""
    rows = []
    for number, line in enumerate(content.splitlines(), start=1):
        if not line.strip():
            continue
        where = f"task argument path: {file}, line {number}"
        row = documents.parse_object(line, where)
        question, answer = row.get(fields[0]), _as_text(row.get(fields[1]))
        for name, value in zip(fields, (question, answer), strict=True):
            if not isinstance(value, str) or not value.strip():
                raise ValueError(f"{where}: {name!r} is {messages.shown(value)}, expected a text that is not empty")
        if mark and not _final(str(answer), mark):
            expected = "number" if mark == _NUMBERS else "final answer"
            raise ValueError(f"{where}: {fields[1]!r} has no {expected} after {mark!r}")
        rows.append((question, answer))
    if not rows:
        raise ValueError(f"task argument path: {file} has no rows")
    return rows


def _final(answer: str, mark: str) -> bool:
    """Return whether an answer has a final answer after its last mark: a digit, or any letter or digit."""
    rest = answer.rpartition(mark)[2].strip() if mark in answer else ""
    if mark == _NUMBERS:
        return any(c.isdigit() for c in rest.partition("\n")[0])
    if rest.startswith("{"):  # LaTeX: up to the closing brace
        depth = itertools.accumulate((c == "{") - (c == "}") for c in rest)
        rest = rest[: next((end for end, open_ in enumerate(depth) if not open_), 0)]
    return any(c.isalnum() for c in rest)


def _as_text(answer: object) -> object:
    """Return a numeric answer as text, 27.0 as "27"; return anything else unchanged."""
    if isinstance(answer, bool) or not isinstance(answer, (int, float)):
        return answer
    return str(int(answer) if float(answer).is_integer() else answer)


def _complete(place: pathlib.Path) -> bool:
    """Return whether every file that the build wrote exists unchanged."""
    try:
        checksums = documents.read(place / _MANIFEST)
        return all(zlib.crc32((place / name).read_bytes()) == crc for name, crc in checksums.items())
    except (OSError, ValueError):
        return False


def _build(place: pathlib.Path, rows: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Build in a temporary folder next to ``place``, then rename; an existing complete build is kept."""
    place.parent.mkdir(parents=True, exist_ok=True)
    temporary = pathlib.Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        build = temporary / "build"
        tfds.disable_progress_bar()  # it takes a second, and the run has a progress line
        with contextlib.redirect_stdout(io.StringIO()):  # tfds prints the path of the temporary folder
            QuestionAnswer(rows=rows, data_dir=str(build)).download_and_prepare()
        files = [file for file in build.rglob("*") if file.is_file()]
        checksums = {str(file.relative_to(build)): zlib.crc32(file.read_bytes()) for file in files}
        (build / _MANIFEST).write_text(json.dumps(checksums, indent=1))
        for attempt in range(_ATTEMPTS):
            try:
                os.rename(build, place)
                return
            except OSError:  # the folder exists: another process's build, or a damaged one
                if _complete(place):
                    return
                if attempt + 1 == _ATTEMPTS:
                    raise
                with contextlib.suppress(FileNotFoundError):  # another process may have moved it
                    os.rename(place, temporary / f"damaged-{attempt}")
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
