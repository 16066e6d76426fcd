"""Pictures of rows: named by a column, checked, decoded and resized. A picture is never trusted to be one."""

import dataclasses
import hashlib
import io
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import PIL.Image
import PIL.ImageOps

from rljax.data import storage
from rljax.environments import traits
from rljax.environments.questions import columns
from rljax.language import messages, settings
from rljax.language.settings import Count, setting

OFFERED = "pictures"  # the keyword argument of a reward function that gets the pictures of a row
MARK = "<image>"  # in a prompt: where a picture is
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")  # decoded without another program
_BYTES, _PIXELS = 64 << 20, 1 << 26  # the largest file and picture that are decoded
_MARGIN = (127, 127, 127)


class File(NamedTuple):
    """A picture in a file."""

    name: str  # as in the row, which decides the split
    path: str


Source = File | bytes  # or the content of a file


@dataclasses.dataclass(frozen=True)
class Looks:
    """The pictures of rows."""

    image: str = setting(
        "", "Column of a picture or of a list of them: paths, or contents as Hugging Face stores them; '': no pictures."
    )
    pixels: Count = setting(32, "Side to which pictures are resized; their proportions stay, with grey margins.")
    picture_tokens: Count = setting(16, "Tokens of a picture in a prompt.")

    __post_init__ = settings.check

    def sources(self, row: Mapping[str, Any], where: str, folder: str) -> tuple[Source, ...]:
        """Return the pictures of a row, their paths relative to a folder.

        Raises:
          ValueError: the column is missing, or holds something else.
        """
        if not self.image:
            return ()
        value = columns.find(row, self.image.strip("{}"), where, "image")
        return tuple(_source(one, where, folder) for one in (value if isinstance(value, list | tuple) else [value]))

    def of(self, count: int) -> traits.Pictures | None:
        """Return what prompts of at most ``count`` pictures have; None without a column."""
        return traits.Pictures(count, self.pixels, self.pixels, self.picture_tokens) if self.image else None

    def decoded(self, sources: Sequence[Source], count: int, where: str) -> np.ndarray:
        """Return the pictures of a row, and blank ones up to ``count``: ``[count, pixels, pixels, 3]`` uint8.

        Raises:
          ValueError: a file is missing or too large, or is not a whole picture; names the row.
        """
        out = np.zeros((count, self.pixels, self.pixels, 3), np.uint8)
        for number, source in enumerate(sources):
            out[number] = self._decoded(source, where)
        return out

    def _decoded(self, source: Source, where: str) -> np.ndarray:
        def refuse(why: Any) -> NoReturn:
            name = messages.shown(source.path) if isinstance(source, File) else f"of {len(source):,} bytes"
            raise ValueError(f"{where}: picture {name} ({self.image!r}): {why}") from None

        try:
            content = _content(source)
            with warnings.catch_warnings():
                warnings.simplefilter("error", PIL.Image.DecompressionBombWarning)
                with PIL.Image.open(io.BytesIO(content), formats=_FORMATS) as image:
                    if image.width * image.height > _PIXELS:
                        refuse(f"{image.width} x {image.height} pixels are above {_PIXELS:,}")
                    upright = PIL.ImageOps.exif_transpose(image).convert("RGB")
        except PIL.UnidentifiedImageError:
            refuse(f"not a picture of the formats {', '.join(_FORMATS)}")
        except (OSError, SyntaxError, ValueError, PIL.Image.DecompressionBombError, Warning) as error:
            refuse(storage.brief(error))
        return np.asarray(PIL.ImageOps.pad(upright, (self.pixels, self.pixels), color=_MARGIN))


def _source(value: Any, where: str, folder: str) -> Source:
    """Return a path or the content of a picture; Hugging Face's feature is an object with both."""
    if isinstance(value, Mapping):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, bytes) and value:
        return value
    if not isinstance(value, str) or not value:
        raise ValueError(f"{where}: picture {messages.shown(value)}: expected a path, or the content of a file")
    return File(value, value if storage.remote(value) else str(storage.path(folder) / value))


def _content(source: Source) -> bytes:
    if isinstance(source, File) and storage.size(source.path) > _BYTES:
        raise ValueError(f"the file has more than {_BYTES:,} bytes")
    content = source if isinstance(source, bytes) else storage.read(source.path)
    if len(content) > _BYTES:
        raise ValueError(f"{len(content):,} bytes are above {_BYTES:,}")
    return content


def marked(text: str, count: int, where: str) -> str:
    """Return a prompt with a ``MARK`` for each of its pictures: in front if it has none; ValueError if they differ."""
    if MARK not in text:
        return MARK * count + text
    if text.count(MARK) != count:
        raise ValueError(f"{where}: the prompt has {text.count(MARK)} {MARK} and the row {count} pictures")
    return text


def folder(files: Any) -> str:
    """Return the folder of a data file, of the first of several, or a folder itself."""
    first = str(files[0] if isinstance(files, list | tuple) else files)
    return first if storage.is_dir(first) else str(storage.path(first).parent)


def digests(sources: Sequence[Source]) -> list[str]:
    """Return the digest of each picture, of its name or content."""
    return [hashlib.sha256(s.name.encode() if isinstance(s, File) else s).hexdigest() for s in sources]
