"""The files of a tokenizer as one value: read from a folder, packed into bytes, unpacked."""

import io
import zipfile
import zlib
from collections.abc import Mapping

from etils import epath

from rljax.data import documents, storage
from rljax.language import messages

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
    return {name: documents.content(folder / name) for name in NAMES if name in names}


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
            names = archive.namelist()
            if NAMES[0] not in names or len(set(names)) < len(names) or not set(names) <= {*NAMES, DATE}:
                raise ValueError(
                    f"has {messages.shown(names)}, expected {NAMES[0]} and others of {', '.join((*NAMES, DATE))}"
                )
            if (size := sum(entry.file_size for entry in archive.infolist())) > documents.LARGEST:
                raise ValueError(f"has {size:,} bytes, expected at most {documents.LARGEST:,}")
            return {name: archive.read(name) for name in names}
    except (zipfile.BadZipFile, zlib.error, OSError, EOFError, RuntimeError, ValueError) as error:
        raise ValueError(f"tokenizer: {shown} is a damaged archive: {error}") from error
