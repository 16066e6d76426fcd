"""Numbers of a comparison as text: fractions in percent, counts with thousands, others with four digits."""

import math
from collections.abc import Mapping
from typing import Any

from rljax.run.reports import quantities


def heading(name: str) -> str:
    """Return the name of a quantity with its unit."""
    return f"{name}, %" if quantities.in_unit(name) else name


def number(name: str, value: float, signed: bool = False) -> str:
    """Return a value of a quantity; ``signed`` writes + before positive ones."""
    plus = "+" if signed else ""
    if not math.isfinite(value):
        return str(value)
    if quantities.in_unit(name):
        return f"{100 * value:{plus}.1f}"
    if name in ("tokens", "tokens/s", "steps"):
        return f"{value:{plus},.0f}"
    return f"{value:{plus}.1f}" if name == "minutes" else f"{value:{plus}.4g}"


def interval(row: Mapping[str, Any], signed: bool = False) -> str:
    """Return the interval of a record of a table, or "" if it has none."""
    if not (math.isfinite(row["low"]) and math.isfinite(row["high"])):
        return ""
    return f"[{number(row['quantity'], row['low'], signed)}, {number(row['quantity'], row['high'], signed)}]"


def basis(row: Mapping[str, Any] | None) -> str:
    """Return what the interval of a record is over, such as "4 seeds" or "prompts, 1 run"."""
    if row is None:
        return ""
    if not row["over"]:
        return "no interval: one run" if row["count"] < 3 else "no interval"
    if row["over"] == "prompts":
        return "prompts, one run"
    name = row["over"].removeprefix("paired ").rpartition(".")[2]
    plural = f"{row['count']} {name}{'' if row['count'] == 1 else 's'}"
    return f"{plural}, paired" if row["over"].startswith("paired ") else plural


def certain(row: Mapping[str, Any]) -> bool:
    """Return whether the interval of a difference does not contain 0."""
    return row["low"] > 0 or row["high"] < 0
