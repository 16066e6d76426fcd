"""What a critic adds to an update, on the policy's trunk or apart from it: ``python -m rljax bench critic``."""

import statistics
from collections.abc import Sequence
from typing import Any

from rljax import bench
from rljax.bench import algebra
from rljax.config import schema
from rljax.run.reports.pages import tables

FORMS: dict[str, tuple[str, dict[str, Any]]] = {  # algorithm, and fields of config.module.value
    "no critic": ("reinforce_plus_plus(kl=0.0)", {}),
    "on the policy's trunk": ("ppo(kl=0.0)", {"trunk": "policy", "trunk_weight": 0.5}),
    "on it, without gradient": ("ppo(kl=0.0)", {"trunk": "policy", "stop_trunk": True}),
    "a network of its own": ("ppo(kl=0.0)", {}),
}


def critic(
    config: schema.ConfigDict, rounds: int, devices: Sequence[Any] | None = None, forms: Sequence[str] = tuple(FORMS)
) -> dict[str, Any]:
    """Time an update without a critic, with one on the policy's trunk, and with one of its own, interleaved.

    All sample equal rows, whiten the advantage and clip the ratio.

    Args:
      config: the config, whose last phase is timed.
      rounds: updates of each form.
      devices: the devices of the mesh; None: all devices.
      forms: names in ``FORMS``.

    Returns:
      A JSON-able record: the forms with their times in ms, and the ratios to the first.
    """
    updaters = {}
    for name in forms:
        call, fields = FORMS[name]
        edited = config.copy_and_resolve_references()
        edited.module.value.update(fields)
        updaters[name] = algebra.updater(edited, call, devices)[0]
    times = bench.interleaved(updaters, rounds)
    alone, records = times[forms[0]], []
    for name, seconds in times.items():
        records.append(
            {
                "form": name,
                "median_ms": 1e3 * statistics.median(seconds),
                "best_ms": 1e3 * min(seconds),
                "ratio_of_best": min(seconds) / min(alone),
                **bench.compared(alone, seconds),
            }
        )
    return {"rounds": rounds, "forms": records}


def table(record: dict[str, Any]) -> str:
    """Return the record of ``critic`` as text."""
    rows = []
    for form in record["forms"]:
        times = [f"{form[name]:.1f}" for name in ("median_ms", "best_ms")]
        ratios = [f"{x:.3f}" for x in (form["ratio"], form["ratio_of_best"], *form["ratio_quartiles"])]
        rows.append([form["form"], *times, *ratios])
    columns = ["critic", "median ms", "best ms", "ratio", "of best", "quartiles", ""]
    return "\n".join(tables.Table(columns, rows).lines())
