"""The files of a tokenizer as one value: read from a folder, packed into bytes, unpacked."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from etils import epath

from rljax.data import storage

# the files that are read from a checkpoint's folder; the first one is required
NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("chat_template.json", "generation_config.json", "config.json"),
)
DATE = "date.txt"  # not of the folder: the date that chat templates print, recorded with the tokenizer
_MAGIC = b"PK\x03\x04"


def gather(folder: epath.Path) -> dict[str, bytes]:
    """Return the contents of the files in ``NAMES`` that a folder has, by name.

    Raises:
      ValueError: the folder has no tokenizer.json; the message lists other tokenizer files in it.
    """
    names = storage.names(folder)
    if NAMES[0] not in names:
        others = [n for n in names if n in ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")]
        hint = " to use tokenizer.model only, name that file; or" if "tokenizer.model" in others else ""
        raise ValueError(
            f"tokenizer: {str(folder)!r} has no {NAMES[0]} (other tokenizers: {', '.join(others) or 'none'});{hint}"
            " save one in it with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return {name: storage.read(folder / name) for name in NAMES if name in names}


def packed(content: bytes) -> bool:
    """Return whether ``content`` is a result of ``pack``."""
    return content.startswith(_MAGIC)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a zip archive of files; equal files give equal bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # with a fixed date
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return out.getvalue()


def unpack(content: bytes, shown: str) -> dict[str, bytes]:
    """Return the files in a result of ``pack``; ValueError, naming ``shown``, if it is damaged or has other files."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"tokenizer: {shown} is a damaged archive: {error}") from error
    if NAMES[0] not in files or not set(files) <= {*NAMES, DATE}:
        raise ValueError(
            f"tokenizer: {shown} is an archive of {', '.join(files)}; expected {NAMES[0]} and others of {NAMES}"
        )
    return files


def json_of(files: Mapping[str, bytes], name: str, shown: str) -> dict[str, Any]:
    """Parse one of the files as a JSON object.

    Args:
      files: contents by name.
      name: of the file.
      shown: how messages name the tokenizer.

    Returns:
      The object, {} if the file is absent.

    Raises:
      ValueError: the file is not JSON, or not an object.
    """
    try:
        value = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ValueError(f"tokenizer: {shown}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"tokenizer: {shown}: {name} is {type(value).__name__}, expected an object")
    return value
