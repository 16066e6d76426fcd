"""One model on 4 to 512 chips with a fixed number of rows per chip: the cost of FSDP, from compiled programs."""

import math
import pathlib
from typing import Any

from rljax.run.reports.pages import tables

MODEL = "qwen3-8b"  # each chip has 8 rows: the completions of one prompt
_SHAPES = ("2x2x1", "2x2x2", "2x2x4", "2x4x4", "4x4x4", "4x4x8", "4x8x8", "8x8x8")
SIZES = {f"v5p:{shape}": math.prod(map(int, shape.split("x"))) for shape in _SHAPES}


def _compiled(records: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Return (chips, record) of the sizes that have a record without an error."""
    rows = [(chips, records.get(f"scaling {size}: update", {})) for size, chips in SIZES.items()]
    return [(chips, r) for chips, r in rows if "sent_ici" in r]


def _by_kind(record: dict[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for c in record["collectives"]:
        sums[c["kind"]] = sums.get(c["kind"], 0.0) + c["sent"]
    return sums


def draw(records: dict[str, Any], path: pathlib.Path) -> None:
    """Draw the bytes sent and the memory of one chip against the number of chips, and write the figure to ``path``."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    rows = _compiled(records)
    if not rows:
        return
    chips, gib = [n for n, _ in rows], 2**30
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), dpi=100, layout="constrained")
    kinds = sorted({k for _, r in rows for k, v in _by_kind(r).items() if v > 0.02 * r["sent_ici"]})
    for kind in kinds:
        left.plot(chips, [_by_kind(r).get(kind, 0.0) / gib for _, r in rows], "o-", label=kind, markersize=3)
    left.plot(chips, [r["sent_ici"] / gib for _, r in rows], "k.--", label="all")
    left.set(xscale="log", xlabel="chips", ylabel="GiB sent by one chip in an update", ylim=(0, None))
    for field in ("temporaries", "arguments"):
        right.plot(chips, [r[field] / gib for _, r in rows], "o-", label=field, markersize=3)
    right.set(xscale="log", xlabel="chips", ylabel="GiB on one chip", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(chips, [str(n) for n in chips])
        axes.minorticks_off()
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path)
    plt.close(figure)


def table(records: dict[str, Any]) -> str:
    """Return the table of the figures as Markdown."""
    kinds, rows = ("all-gather", "reduce-scatter", "collective-permute", "all-reduce"), []
    for chips, r in _compiled(records):
        sent = _by_kind(r)
        sizes = [r["sent_ici"], *(sent.get(kind, 0.0) for kind in kinds), r["temporaries"], r["arguments"]]
        rows.append([chips, *(f"{size / 2**30:.2f}" for size in sizes)])
    named = ["all-gather", "reduce-scatter", "permute", "all-reduce", "temporaries", "arguments, GiB"]
    return "\n".join(tables.Table(["chips", "sent, GiB", *named], rows, left=0).markdown())
