"""Search over a folder of texts as a tool: passages ranked by BM25. Imports no jax, for worker processes."""

import contextlib
import dataclasses
import functools
import importlib
import pathlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from rljax.environments.worlds.host import calls
from rljax.language import messages

ENDINGS = (".txt", ".md")


class Passage(NamedTuple):
    """A part of a file."""

    name: str  # of the file, below the folder
    text: str


@dataclasses.dataclass(frozen=True)
class Search:
    """A tool that finds passages: ``begin`` returns its function. A worker indexes the folder when it starts.

    The score is BM25 in Lucene's form (Kamphuis et al., 2020; the library bm25s, Lù, arXiv 2407.03618), with English
    stop words and without stemming; passages of equal score come in the order of files and places.
    """

    folder: str
    passages: int = 3  # of an answer
    words: int = 100  # of a passage

    def __post_init__(self) -> None:
        """Raise ValueError if a setting is out of range, the folder has no texts, or bm25s is not installed."""
        for field, value in (("passages", self.passages), ("words", self.words)):
            if value < 1:
                raise ValueError(f"{field}={value}: must be 1 or more")
        messages.need("search", "bm25s", "worlds")
        if not split(self.folder, self.words):
            raise ValueError(f"folder={messages.shown(self.folder)}: its files ({', '.join(ENDINGS)}) have no text")

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Index the folder, in a worker that loads the tool."""
        self.__dict__.update(state)
        index(self.folder, self.words)

    def begin(self) -> Callable[[str], str]:
        """Return the tool."""

        def search(query: str) -> str:
            """Search a collection of texts.

            Args:
                query: Words to search for.
            """
            hits = self.find(query)
            if not hits:
                raise calls.ToolError("no passage has a word of the query")
            return "\n\n".join(f"[{n}] {passage.name}: {passage.text}" for n, passage in enumerate(hits, 1))

        return search

    def find(self, query: str) -> list[Passage]:
        """Return the passages with the best scores, best first; none that has no word of the query."""
        every, scorer = index(self.folder, self.words)
        tokens = _tokens([query])[0]
        known = [token for token in tokens if token in scorer.vocab_dict]
        if not known:
            return []
        scores = np.asarray(scorer.get_scores(known))
        order = np.lexsort((np.arange(len(scores)), -scores))[: self.passages]
        return [every[i] for i in order if scores[i] > 0]


@functools.cache
def split(folder: str, words: int) -> tuple[Passage, ...]:
    """Return the passages of the texts of a folder and its folders, in the order of their names.

    Paragraphs, which empty lines separate, are joined up to ``words`` words; a longer one is cut into several.

    Raises:
      ValueError: there is no such folder.
    """
    root = pathlib.Path(folder).expanduser()
    if not root.is_dir():
        raise ValueError(f"folder={messages.shown(folder)}: there is no such folder")
    passages = []
    for path in sorted(p for p in root.rglob("*") if p.suffix in ENDINGS and p.is_file()):
        name, current = path.relative_to(root).as_posix(), list[str]()
        for paragraph in re.split(r"\n\s*\n", path.read_text("utf-8", "replace")):
            every = paragraph.split()
            for part in (every[at : at + words] for at in range(0, len(every), words)):
                if current and len(current) + len(part) > words:
                    passages.append(Passage(name, " ".join(current)))
                    current = []
                current += part
        if current:
            passages.append(Passage(name, " ".join(current)))
    return tuple(passages)


@functools.cache
def index(folder: str, words: int) -> tuple[tuple[Passage, ...], Any]:
    """Return the passages of a folder, and what scores them."""
    passages = split(folder, words)
    scorer = _library().BM25(backend="numpy")
    scorer.index(_tokens([f"{passage.name} {passage.text}" for passage in passages]), show_progress=False)
    return passages, scorer


def _tokens(texts: list[str]) -> list[list[str]]:
    return _library().tokenize(texts, return_ids=False, show_progress=False)


@functools.cache
def _library() -> Any:
    with _without("jax"):  # which bm25s uses if it is there, on the accelerator, once it is imported
        return importlib.import_module("bm25s")


@contextlib.contextmanager
def _without(name: str) -> Iterator[None]:
    """Within the block, a package cannot be imported."""
    absent = object()
    before: Any = sys.modules.get(name, absent)
    sys.modules[name] = None  # pyright: ignore[reportArgumentType]  (how the import system spells it)
    try:
        yield
    finally:
        del sys.modules[name]
        if before is not absent:
            sys.modules[name] = before
