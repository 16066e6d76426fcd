"""The files of a tokenizer as one value: gathered from a folder, packed into bytes, unpacked again."""

import io
import json
import zipfile
from collections.abc import Mapping
from typing import Any

from etils import epath

from rljax.data import storage

# what is read of a checkpoint's folder; without the first there is no tokenizer
NAMES = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja"),
    *("chat_template.json", "generation_config.json", "config.json"),
)
_MAGIC = b"PK\x03\x04"


def gather(folder: epath.Path) -> dict[str, bytes]:
    """Read the files of a folder that say something of its tokenizer.

    Raises:
      ValueError: there is no tokenizer.json; says what there is instead.
    """
    names = storage.names(folder)
    if NAMES[0] not in names:
        others = [n for n in names if n in ("tokenizer.model", "vocab.json", "merges.txt", "vocab.txt")]
        hint = " name tokenizer.model itself for that model alone, or" if "tokenizer.model" in others else ""
        raise ValueError(
            f"tokenizer: {str(folder)!r} holds no {NAMES[0]}, but {', '.join(others) or 'nothing like it'};{hint} save"
            " one there with transformers: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    return {name: storage.read(folder / name) for name in NAMES if name in names}


def packed(content: bytes) -> bool:
    """Tell whether these bytes are what ``pack`` makes."""
    return content.startswith(_MAGIC)


def pack(files: Mapping[str, bytes]) -> bytes:
    """Put files into one zip archive; the same files give the same bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name)  # dated 1980, not now
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name])
    return out.getvalue()


def unpack(content: bytes, shown: str) -> dict[str, bytes]:
    """Return the files of ``pack``; ValueError if the archive is damaged or holds others."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            files = {name: archive.read(name) for name in archive.namelist()}
    except (zipfile.BadZipFile, OSError) as error:
        raise ValueError(f"tokenizer: {shown} is a damaged archive: {error}") from error
    if NAMES[0] not in files or not set(files) <= set(NAMES):
        raise ValueError(f"tokenizer: {shown} is an archive of {', '.join(files)}; expected {NAMES[0]} among {NAMES}")
    return files


def json_of(files: Mapping[str, bytes], name: str, shown: str) -> dict[str, Any]:
    """Parse one of the files, {} where it is absent; ValueError if it is no JSON object."""
    try:
        value = json.loads(files.get(name, b"{}"))
    except ValueError as error:
        raise ValueError(f"tokenizer: {shown}: {name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"tokenizer: {shown}: {name} is {type(value).__name__}, expected an object")
    return value
