"""One model on 4 to 512 chips with as many rows each: what FSDP costs, by compilation."""

import pathlib
from typing import Any

MODEL, ROWS = "qwen3-8b", 8  # rows of a chip: one prompt's completions
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


def command(size: str) -> list[str]:
    """Return the arguments of tpu/compile.py for a topology."""
    words = ["--config", f"configs/pretrained.py:{MODEL}", "--topology", size]
    words += ["--prompt_length", "512", "--completion_length", "1024", "--prompts", str(SIZES[size]), "--samples", "8"]
    return [
        *words,
        "--set",
        "model.attention=splash",
        "--set",
        "learner.microbatches=1",
        "--set",
        f"mesh.fsdp={SIZES[size]}",
    ]


_MEANING = """\
FSDP keeps 1/n of every matrix on a chip and fetches the rest when it is used: in a pass a chip sends (n - 1)/n of the
parameters, here 8.2 billion in bfloat16, once forward and once for the backward pass, which makes each layer again,
and (n - 1)/n of the gradient in float32 to those who keep it. With rows for each chip fixed that is nearly flat from
8 chips on, as is the work it must hide behind; it does not grow with the pod. From 8 to 32 chips the compiler weaves
gathers and scatters into the products, as permutes. The bytes double where the axis is a whole torus of 4x4x4 or
more: there the TPU compiler makes gathers and scatters into all-reduces, which send twice the bytes over all six
links. Arguments fall as 1/n; temporaries come down to the chip's own activations and the matrices of the layer at
work, which no number of chips makes smaller: that takes `tensor` or `sequence`. What does grow, latency, is not
counted."""


def _found(records: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    found = [(chips, records.get(f"scaling {size}: update", {})) for size, chips in SIZES.items()]
    return [(chips, r) for chips, r in found if "sent_ici" in r]


def _by_kind(record: dict[str, Any]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for c in record["collectives"]:
        sums[c["kind"]] = sums.get(c["kind"], 0.0) + c["sent"]
    return sums


def draw(records: dict[str, Any], path: pathlib.Path) -> None:
    """Draw bytes sent by kind, and memory, of a chip against the number of chips."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    found = _found(records)
    if not found:
        return
    chips, gib = [n for n, _ in found], 2**30
    figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3), dpi=100, layout="constrained")
    kinds = sorted({k for _, r in found for k, v in _by_kind(r).items() if v > 0.02 * r["sent_ici"]})
    for kind in kinds:
        left.plot(chips, [_by_kind(r).get(kind, 0.0) / gib for _, r in found], "o-", label=kind, markersize=3)
    left.plot(chips, [r["sent_ici"] / gib for _, r in found], "k.--", label="all")
    left.set(xscale="log", xlabel="chips", ylabel="GiB sent by a chip, one update", ylim=(0, None))
    for field in ("temporaries", "arguments"):
        right.plot(chips, [r[field] / gib for _, r in found], "o-", label=field, markersize=3)
    right.set(xscale="log", xlabel="chips", ylabel="GiB of a chip", ylim=(0, None))
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_xticks(chips, [str(n) for n in chips])
        axes.minorticks_off()
        axes.legend(fontsize=7, frameon=False)
    figure.savefig(path)
    plt.close(figure)


def table(records: dict[str, Any]) -> str:
    """Return the figures as a table, and what they mean."""
    found, gib = _found(records), 2**30
    lines = [
        f"The update of {MODEL}, {ROWS} rows a chip of 512 + 1024 tokens, all chips along `fsdp`; per chip:",
        "",
        "| chips | sent, GiB | all-gather | reduce-scatter | permute | all-reduce | temporaries | arguments, GiB |",
        "|" + " ---: |" * 8,
    ]
    for chips, r in found:
        kinds = _by_kind(r)
        sent = [kinds.get(k, 0.0) for k in ("all-gather", "reduce-scatter", "collective-permute", "all-reduce")]
        sizes = [r["sent_ici"], *sent, r["temporaries"], r["arguments"]]
        lines.append(f"| {chips} | " + " | ".join(f"{s / gib:.2f}" for s in sizes) + " |")
    return "\n".join([*lines, "", _MEANING])
