"""The result of a comparison: arms, their means with intervals, and the differences between them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import rich.console
from matplotlib import figure

from rljax.run.reports import arms
from rljax.run.reports import runs as files

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, repr=False)
class Comparison:
    """What ``compare`` returns; a notebook shows it as tables and figures.

    Attributes:
      arms: the arms, the baseline first.
      by: the fields in which they differ.
      over: the field over which runs are averaged.
      runs: a record for each run: arm, path, the value of ``over``, and its quantities.
      table: a record for each arm and quantity: arm, quantity, mean, low, high, count, over, freedom.
      differences: a record for each other arm and quantity: arm, baseline, quantity, mean, low, high, count, over.
      main: names of the quantities of the main table.
      notes: sentences on runs that were left out or differ in more than ``by`` and ``over``.
      fields: the fields in which the runs differ, with the values of each arm.
      common: the fields that all runs share, with their values.
    """

    arms: Sequence[arms.Arm]
    by: Sequence[str]
    over: str
    runs: Sequence[Row]
    table: Sequence[Row]
    differences: Sequence[Row]
    main: Sequence[str]
    notes: Sequence[str]
    fields: dict[str, list[str]]
    common: dict[str, str]

    @property
    def loaded(self) -> list[files.Run]:
        """The runs as they were read, in the order of ``runs``."""
        return [run for arm in self.arms for run in arm.runs.values()]

    @property
    def tries(self) -> list[str]:
        """The names of pass@k for each k."""
        return list(dict.fromkeys(r["quantity"] for r in self.table if r["quantity"].startswith("pass@")))

    def estimate(self, arm: str, quantity: str) -> Row | None:
        """Return the record of an arm and a quantity, or None."""
        return next((r for r in self.table if r["arm"] == arm and r["quantity"] == quantity), None)

    def difference(self, arm: str, quantity: str) -> Row | None:
        """Return the record of the difference of an arm from the baseline, or None."""
        return next((r for r in self.differences if r["arm"] == arm and r["quantity"] == quantity), None)

    def figures(self) -> list[figure.Figure]:
        """Return the figures: the first quantity of each arm, pass@k, and the curves with bands."""
        from rljax.run.reports import bands

        return [*bands.results(self), *bands.curves(self)]

    def html(self, command: str = "") -> str:
        """Return a self-contained page; ``command`` is the command that makes it."""
        from rljax.run.reports import comparison_page

        return comparison_page.page(self, command)

    def show(self, console: rich.console.Console | None = None) -> None:
        """Print the tables; without colors and borders if the output is not a terminal."""
        from rljax.run.reports import comparison_text

        comparison_text.show(self, console)

    def _repr_html_(self) -> str:
        from rljax.run.reports import comparison_page

        return comparison_page.summary(self)

    def __repr__(self) -> str:
        arms_ = ", ".join(f"{arm.name!r} ({len(arm.runs)})" for arm in self.arms)
        return f"Comparison of {len(self.runs)} runs: {arms_}. show() prints it."
