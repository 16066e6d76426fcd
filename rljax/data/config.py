"""Settings of the tokenizer."""

import dataclasses
import datetime
from typing import Literal

from rljax.data import chat
from rljax.language import settings
from rljax.language.settings import Size, setting


@dataclasses.dataclass(frozen=True)
class TokenizerConfig:
    """The tokenizer that is trained on the tasks' text, or loaded."""

    kind: Literal["char", "bpe", "unigram", "bytes"] = setting(
        "char", "Trained on the text of the tasks ('char', 'bpe', 'unigram'), or UTF-8 bytes."
    )
    vocabulary: Size = setting(0, "Ids to train; 0: as many as there are characters.")
    path: str = setting("", "Folder with tokenizer.json or a SentencePiece model to load instead, gs:// too.")
    date: str = setting(chat.DATE, "Date that chat templates print, YYYY-MM-DD; no template reads the clock.")

    def __post_init__(self):
        """Check the fields."""
        settings.check(self)
        try:
            datetime.date.fromisoformat(self.date)
        except ValueError:
            raise ValueError(f"date={self.date!r}: must be a date such as {chat.DATE!r}.") from None
