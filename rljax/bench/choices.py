"""The effect of each choice of the config: ``python -m rljax bench choices`` times them one at a time."""

import pathlib
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax

from rljax import bench
from rljax.bench import parts, shapes
from rljax.config import files, schema
from rljax.run.reports.pages import tables

Part = Literal["rollout", "update"]
BOTH: tuple[Part, ...] = ("rollout", "update")

CHOICES: dict[str, dict[str, Any]] = bench.TABLES["choices"]
PLAIN: dict[str, Any] = bench.TABLES["plain"]
FIELDS: dict[str, tuple[Sequence[Part], Sequence[Any]]] = bench.TABLES["fields"]
REDRAWS = ("sampler.draw",)  # other tokens, of the same distribution


def measure(config: schema.ConfigDict, work: Callable[[schema.ConfigDict], Any], steps: int) -> list[dict[str, Any]]:
    """Time the sampling and the update of every choice, one at a time, then of all together.

    Args:
      config: the config in which the choices are set.
      work: makes the step of a config.
      steps: number of timed rollouts and updates.

    Returns:
      For each choice a record with "choice", "sample_s", "update_s" and "slot_utilisation".
    """
    every = {field: value for edits in CHOICES.values() for field, value in edits.items()}
    records = []
    for name, edits in {**CHOICES, "all together": every}.items():
        changed = config.copy_and_resolve_references()
        for field, value in {**PLAIN, **edits}.items():
            files.override(changed, field, value)
        run = parts.Runner(work(changed), jax.random.key(0, impl="threefry2x32"))
        for call in (run.rollout, run.update):
            call()  # compiles
        timed = {"sample_s": run.rollout, "update_s": run.update}
        times = {part: statistics.median(bench.seconds(call, steps)) for part, call in timed.items()}
        used = float(jax.numpy.sum(run.rows.mask) / jax.numpy.sum(run.rows.extra["slots"]))
        records.append({"choice": name, **times, "slot_utilisation": used})
    return records


def draw(fixed: list[dict[str, Any]], longtail: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draw both tables as bars with sampling and update, and write the figure to ``path``.

    Args:
      fixed: records of ``measure`` with full completions.
      longtail: records of ``measure`` with a long tail of lengths.
      path: the image file.
    """
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(11, 4.2), sharey=True)
    for axis, rows, title in zip(axes, (fixed, longtail), ("full completions", "long tail"), strict=True):
        names = [r["choice"] for r in rows]
        sample, update = ([r[k] for r in rows] for k in ("sample_s", "update_s"))
        axis.barh(names, sample, color="#4878a8", label="sampling")
        axis.barh(names, update, left=sample, color="#e0a458", label="update")
        for i, (s, u) in enumerate(zip(sample, update, strict=True)):
            axis.text(s + u, i, f" {s + u:.2f}", va="center", fontsize=8)
        axis.set(title=title, xlabel="seconds")
        axis.spines[["top", "right"]].set_visible(False)
        axis.margins(x=0.12)
    axes[0].invert_yaxis()
    axes[1].legend(frameon=False, loc="lower right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


def table(record: dict[str, Any]) -> str:
    """Return the record of ``choices`` as text."""
    rows = []
    for fixed, longtail in zip(record["fixed"], record["longtail"], strict=True):
        times = [f"{one[part]:.2f}" for one in (fixed, longtail) for part in ("sample_s", "update_s")]
        rows.append([fixed["choice"], *times, f"{100 * longtail['slot_utilisation']:.0f} %"])
    columns = ["choice", "sampling s", "update s", "long tail: sampling s", "update s", "slots"]
    return "\n".join(tables.Table(columns, rows).lines())


def choices(config: schema.ConfigDict, shape: str, prompt: int, length: int, steps: int, path: str) -> dict[str, Any]:
    """Measure every choice with full completions and with a long tail of lengths.

    Args:
      config: the config in which the choices are set.
      shape: a name in ``shapes.SHAPES``.
      prompt: tokens per prompt.
      length: maximum tokens per completion.
      steps: number of timed rollouts and updates.
      path: image file for the figure; empty writes none.

    Returns:
      A JSON-able record with the tables "fixed" and "longtail".
    """
    record: dict[str, Any] = {"shape": shape, "new_tokens": length}
    for lengths in ("fixed", "longtail"):
        record[lengths] = measure(config, lambda c, kind=lengths: shapes.work(c, shape, prompt, length, kind), steps)
    if path:
        draw(record["fixed"], record["longtail"], pathlib.Path(path))
    return record
