"""Numbers of a comparison as text: fractions in percent, counts others with the digits that are known."""

import math
from collections.abc import Mapping
from typing import Any

from rljax.run.reports.comparison import quantities


def heading(name: str) -> str:
    """Return the name of a quantity with its unit."""
    return f"{name}, %" if quantities.in_unit(name) else name


def number(name: str, value: float, signed: bool = False, width: float = math.nan) -> str:
    """Return a value of a quantity.

    Args:
      name: the quantity.
      value: its value.
      signed: whether + is written before positive values.
      width: width of its interval, whose half is written with two digits.

    Returns:
      The text.
    """
    plus = "+" if signed else ""
    if quantities.in_unit(name):
        return f"{100 * value:{plus}.1f}"
    if name in quantities.COST:
        return f"{value:{plus},.{1 if name == 'minutes' else 0}f}"
    if math.isfinite(width) and width > 0:
        return f"{value:{plus}.{min(max(1 - math.floor(math.log10(width / 2)), 0), 6)}f}"
    return f"{value:{plus}.4g}"


def mean(row: Mapping[str, Any], signed: bool = False) -> str:
    """Return the mean of a record of a table."""
    return number(row["quantity"], row["mean"], signed, row["high"] - row["low"])


def interval(row: Mapping[str, Any], signed: bool = False) -> str:
    """Return the interval of a record of a table, or "" if it has none."""
    if not (math.isfinite(row["low"]) and math.isfinite(row["high"])):
        return ""
    low, high = (number(row["quantity"], row[end], signed, row["high"] - row["low"]) for end in ("low", "high"))
    return f"[{low}, {high}]"


def basis(row: Mapping[str, Any] | None) -> str:
    """Return what the interval of a record is over, such as "4 seeds and prompts" or "prompts, one run"."""
    if row is None:
        return ""
    if not row["over"]:
        return "one run"
    first, _, rest = row["over"].partition(" ")
    kind, over = (first, rest) if first in ("paired", "unpaired", "equal") else ("", row["over"])
    name, _, prompts = over.partition(" and ")
    runs = f"{row['count']} {'equal ' if kind == 'equal' else ''}{name.rpartition('.')[2]}s"
    text = "prompts, one run" if name == "prompts" else f"{runs} and prompts" if prompts else runs
    return text if kind in ("", "equal") else f"{text}, {kind}"


def certain(row: Mapping[str, Any]) -> bool:
    """Return whether the interval of a difference does not contain 0."""
    return row["low"] > 0 or row["high"] < 0
