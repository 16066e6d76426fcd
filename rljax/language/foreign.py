"""Names in other libraries, with the corresponding names in rljax, for the error messages of ``parse.nearest``.

The names are in foreign.txt, two lines for each: names in other libraries, and below them ours.
"""

import pathlib


def _table(text: str) -> dict[str, str]:
    lines = text.strip().splitlines()
    return {name: ours.strip() for names, ours in zip(lines[::2], lines[1::2], strict=True) for name in names.split()}


FOREIGN, _SAME = map(_table, pathlib.Path(__file__).with_name("foreign.txt").read_text().split("\n\n"))
"""Keys are names in other libraries; each value of ``FOREIGN`` completes the sentence "Here that is ..."."""

SAME = {name: tuple(ours.split()) for name, ours in _SAME.items()}
"""Names in other libraries, in lower case, with ours for the same argument or field; the first that is valid counts."""
