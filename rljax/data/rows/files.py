"""Which files a path, a pattern or a folder means, and the format of each."""

import fnmatch
import glob
import hashlib
import re
from collections.abc import Iterator, Sequence

from rljax.data import documents, storage
from rljax.language import messages, parse

FORMATS = ("jsonl", "json", "parquet", "arrow", "array_record", "tfds")
TFDS = "tfds:"

_SUFFIXES = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "json", ".parquet": "parquet", ".arrow": "arrow"}
_SUFFIXES |= {".npz": "npz"}  # steps of control worlds, which ``data.stored_steps`` reads
_RECORDS = re.compile(r"\.array_?record(-\d+-of-\d+)?$")
_SHARD = re.compile(r"([-_.]?\d+(-of-\d+)?)?(\.\w+)?(\.gz)?(-\d+-of-\d+)?$")  # what the files of one set differ in
_SETTINGS = (
    *("manifest.json", "dataset_info.json", "dataset_infos.json", "state.json", "features.json"),
    "dataset_dict.json",
)


def expand(paths: storage.Path | Sequence[storage.Path], format: str = "") -> Iterator[tuple[str, str]]:
    """Yield (file, format) for each file that ``paths`` mean. Arguments and errors as in ``rows.read``."""
    if format and format not in FORMATS:
        raise ValueError(f"format={format!r}: not a format.{parse.nearest(format, FORMATS)}")
    listed = paths if isinstance(paths, Sequence) and not isinstance(paths, str) else [paths]
    if not listed:
        raise ValueError("path: no file is named")
    for path in listed:
        name = str(path)
        if name.startswith(TFDS):
            yield name, "tfds"
        elif re.search(r"[*?\[]", name):
            matches = _match(name)
            if not matches:
                raise FileNotFoundError(f"{name}: no file matches this pattern")
            for match in matches:
                yield from _one(match, format)
        else:
            yield from _one(name, format)


def of(name: str) -> str:
    """Return the format of a file by its name, "" if it is not known."""
    if _RECORDS.search(name):
        return "array_record"
    return next((format for end, format in _SUFFIXES.items() if name.removesuffix(".gz").endswith(end)), "")


def _match(pattern: str) -> list[str]:
    if not storage.remote(pattern):
        return sorted(glob.glob(str(storage.path(pattern)), recursive=True))
    folder, _, last = pattern.rpartition("/")
    if re.search(r"[*?\[]", folder):
        raise ValueError(f"{pattern}: in an object store a pattern may only be the last part of a path")
    return [f"{folder}/{name}" for name in storage.names(folder) if fnmatch.fnmatchcase(name, last)]


def _one(name: str, format: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a path without a pattern."""
    if storage.is_dir(storage.path(name)):
        yield from _folder(name, format)
        return
    if not storage.exists(storage.path(name)):
        folder, _, last = name.rstrip("/").rpartition("/")
        names = storage.names(storage.path(folder or "."))
        if "features.json" in names:  # a split of a data set of tfds
            yield name, "tfds"
            return
        close = messages.closest(last, names)
        raise FileNotFoundError(f"{name}: no such file or folder" + (f"; did you mean {close!r}?" if close else ""))
    if not (format or of(name)):
        raise ValueError(f"{name}: the format is not known by this name; set format to one of {', '.join(FORMATS)}")
    yield name, format or of(name)


def _folder(name: str, format: str) -> Iterator[tuple[str, str]]:
    folder = storage.path(name)
    names = storage.names(folder)
    if "features.json" in names:  # a data set of tfds
        yield name, "tfds"
        return
    if "dataset_dict.json" in names:  # several data sets of save_to_disk
        splits = documents.read(folder / "dataset_dict.json").get("splits")
        if not isinstance(splits, list) or len(splits) != 1:
            raise ValueError(f"{name}: a dictionary of data sets; name one of them: {_examples(name, splits or [])}")
        yield from _folder(f"{name.rstrip('/')}/{splits[0]}", format)
        return
    if "state.json" in names:
        yield name, "arrow"
        return
    files = [n for n in names if n not in _SETTINGS and (of(n) if not format else of(n) == format)]
    sets = sorted({_SHARD.sub("", n) for n in files})
    if len(sets) > 1:
        patterns = [f"{s}*" for s in sets]
        raise ValueError(f"{name}: files of several data sets; name one of them: {_examples(name, patterns)}")
    if not files:
        raise ValueError(f"{name}: no file of a known format ({', '.join(FORMATS)}) among {messages.shown(names)}")
    if missing := _missing(files):
        raise FileNotFoundError(f"{name}: {missing} of the shards {sets[0]}* missing")
    for file in files:
        yield f"{name.rstrip('/')}/{file}", format or of(file)


def _missing(files: Sequence[str]) -> int:
    """Return how many files are missing of those that names such as "train-00001-of-00004.parquet" count."""
    counts = [int(match[1]) for name in files if (match := re.search(r"-of-(\d+)", name))]
    return max(counts, default=0) - len(files) if counts else 0


def _examples(folder: str, names: Sequence[str]) -> str:
    return ", ".join(f"{folder.rstrip('/')}/{name}" for name in names[:5])


def digest(file: str) -> str:
    """Return the SHA-256 of the content of files; errors as ``rows.read``."""
    whole = hashlib.sha256()
    for name, _ in expand(file):
        path = storage.path(name.removeprefix(TFDS))
        folder = storage.is_dir(path)
        for part in [path / n for n in sorted(storage.names(path))] if folder else [path]:
            whole.update(str(part.name).encode())
            for content in storage.parts(part):
                whole.update(content)
    return whole.hexdigest()
