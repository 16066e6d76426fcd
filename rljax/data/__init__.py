"""Data: tokenizers, chat templates, and files on this machine and in object stores.

The one protocol is ``tokenizers.Tokenizer``; ``tokenizers.load`` and ``tokenizers.make`` return one. ``storage`` reads
and writes files by the same functions on local disks and on gs://. ``cache_folder`` is where prepared data is kept.

=====================  ==================================================================================
``tokenizers.py``      the protocol of a tokenizer; ``load`` one from files, ``make`` one from a corpus
``sentence_piece.py``  SentencePiece models, trained here or elsewhere
``hugging_face.py``    tokenizer.json and the files next to it
``raw_bytes.py``       UTF-8 bytes as tokens
``bundle.py``          the files of a tokenizer as one value
``chat.py``            chat templates
``conversations.py``   conversations of several turns as tokens
``characters.py``      tokens that are one character, for tasks inside the compiled program
``documents.py``       files that others wrote: limits of size, strict JSON
``rows/``              rows of a user's files: jsonl, JSON, parquet, Arrow, array_record, tfds
``stored_groups.py``   demonstrations, preference pairs and rows with rewards as tokens, in groups that are trained on
``stored_steps.py``    steps of control worlds, in windows that are trained on
``overlap.py``         duplicates and n-gram overlap of texts
``storage.py``         files here and objects on gs://, with retries
``shuffle.py``         a keyed permutation of [0, size) without a table
=====================  ==================================================================================

``README.md`` shows how each is used.
"""

import os
import pathlib


def cache_folder() -> pathlib.Path:
    """Return ``$RLJAX_CACHE``, else ``rljax`` in the user's cache directory."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return pathlib.Path(os.environ.get("RLJAX_CACHE") or os.path.join(home, "rljax")).expanduser()
