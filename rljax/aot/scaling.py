"""One model on 4 to 512 chips with a fixed number of rows per chip: the cost of FSDP, from compiled programs."""

import pathlib
from typing import Any

from rljax.run.reports.pages import tables

MODEL, ROWS = "qwen3-8b", 8  # rows per chip: the completions of one prompt
SIZES = {
    "v5p:2x2x1": 4,
    "v5p:2x2x2": 8,
    "v5p:2x2x4": 16,
    "v5p:2x4x4": 32,
    "v5p:4x4x4": 64,
    "v5p:4x4x8": 128,
    "v5p:4x8x8": 256,
    "v5p:8x8x8": 512,
}


_MEANING = """\
FSDP stores 1/n of every matrix on each chip and gathers the rest when it is used. In one pass a chip sends (n - 1)/n of
the parameters, here 8.2 billion in bfloat16: once forward and once backward, where each layer is recomputed. It also
sends (n - 1)/n of the gradient in float32 to the chips that store it. With a fixed number of rows per chip, these bytes
are nearly constant from 8 chips on, as is the computation that they overlap with; they do not grow with the pod. From 8
to 32 chips the compiler fuses gathers and scatters into the matrix products, as permutes. The bytes double where the
axis is a whole torus of 4x4x4 or more: there the TPU compiler turns gathers and scatters into all-reduces, which send
twice the bytes over all six links. Arguments fall as 1/n. Temporaries fall to the chip's activations and the matrices
of the current layer, which more chips along `fsdp` do not reduce; `tensor` or `sequence` do. Latency, which does grow,
is not counted."""


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
    """Return the table of the figures, and its explanation, as Markdown."""
    kinds, rows = ("all-gather", "reduce-scatter", "collective-permute", "all-reduce"), []
    for chips, r in _compiled(records):
        sent = _by_kind(r)
        sizes = [r["sent_ici"], *(sent.get(kind, 0.0) for kind in kinds), r["temporaries"], r["arguments"]]
        rows.append([chips, *(f"{size / 2**30:.2f}" for size in sizes)])
    named = ["all-gather", "reduce-scatter", "permute", "all-reduce", "temporaries", "arguments, GiB"]
    lines = tables.Table(["chips", "sent, GiB", *named], rows, left=0).markdown()
    head = (
        f"The update of {MODEL}, with {ROWS} rows of 512 + 1024 tokens per chip and all chips along `fsdp`. Per chip:"
    )
    return "\n".join([head, "", *lines, "", _MEANING])
