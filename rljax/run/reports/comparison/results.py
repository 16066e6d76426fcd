"""The result of a comparison: arms, their means with intervals, and the differences between them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from rljax.run.reports import runs as files
from rljax.run.reports.comparison import arms
from rljax.run.reports.pages import tables

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, repr=False)
class Result:
    """Arms with their means and differences; ``compare.Comparison`` adds how they are shown.

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

    def estimates(self, arm: arms.Arm, names: Sequence[str]) -> list[Row | None]:
        """Return the record of each of some quantities of an arm."""
        return [self.estimate(arm.name, name) for name in names]

    def differing(self, title: str = "") -> tables.Table:
        """Return the table of the fields in which the runs differ."""
        columns = ["field", *(arm.name for arm in self.arms)]
        return tables.Table(columns, [[name, *values] for name, values in self.fields.items()], title, len(columns))
