"""What does a lag of the sampler cost, and which losses keep the cost small?

python -m experiments.staleness.study
"""

import pathlib
from collections.abc import Sequence

from matplotlib import figure

from experiments import arms
from rljax.run.evaluation import intervals
from rljax.run.reports.pages import plots

LAGS = (0, 1, 4, 8)
METHODS = {
    "GRPO": {"algorithm": "grpo(kl=0.0)", "seam.ratio": "token(anchor='behaviour')"},
    "TIS": {"algorithm": "tis()"},
    "AReaL": {"algorithm": "areal()"},
    "AIPO": {"algorithm": "aipo()"},
}
EQUAL = {"seam.advantage": "center_by_group() | scale_by_group()", "seam.reduce": "mean_over_tokens()"}


def lagged(segment: int, oversample: int) -> dict[str, dict]:
    """Return the arms: each method at each lag, and rows that are written over several steps.

    Args:
      segment: tokens that a step adds to such a row.
      oversample: such rows in flight, as a multiple of those of a step.
    """
    partial = {"seam.source": f"partial(segment={segment}, oversample={oversample})"}
    settings = {f"lag {lag}": {"run.lag": lag} for lag in LAGS} | {"partial": partial}
    return {
        f"{method}, {name}": {**fields, **EQUAL, **changed}
        for method, fields in METHODS.items()
        for name, changed in settings.items()
    }


CLAIMS = (
    arms.Claim("AReaL has a higher pass@1 than GRPO at lag 8", "AReaL, lag 8", "GRPO, lag 8", "pass@1"),
    arms.Claim("GRPO loses pass@1 at lag 8", "GRPO, lag 8", "GRPO, lag 0", "pass@1", below=True),
    arms.Claim("AReaL loses less than 2 points at lag 8", "AReaL, lag 8", "AReaL, lag 0", "pass@1", margin=-0.02),
    arms.Claim("AReaL loses less than 2 points at lag 1", "AReaL, lag 1", "AReaL, lag 0", "pass@1", margin=-0.02),
    arms.Claim("TIS has a higher pass@1 than GRPO at lag 8", "TIS, lag 8", "GRPO, lag 8", "pass@1"),
    arms.Claim("AIPO has a higher pass@1 than GRPO at lag 8", "AIPO, lag 8", "GRPO, lag 8", "pass@1"),
    arms.Claim("AReaL has a higher pass@1 than GRPO with partial rows", "AReaL, partial", "GRPO, partial", "pass@1"),
)


def draw(study: arms.Study, records: Sequence[arms.Record], path: pathlib.Path) -> None:
    """Draw pass@1 against the lag, axes for each learning rate; partial rows are on the right."""
    rates = sorted({r["rate"] for r in records})
    canvas = figure.Figure(figsize=(4.4 * len(rates), 3.2), layout="constrained")
    for ax, rate in zip(canvas.subplots(1, len(rates), squeeze=False)[0], rates, strict=True):
        for n, (color, method) in enumerate(zip(plots.COLORS, METHODS, strict=False)):
            names = [f"{method}, {name}" for name in (*(f"lag {lag}" for lag in LAGS), "partial")]
            at = [intervals.mean([*arms.of(records, name, rate, "pass@1").values()], bounds=(0, 1)) for name in names]
            x = [place + 0.08 * n for place in range(len(at))]
            ends = [[e.mean - e.low for e in at], [e.high - e.mean for e in at]]
            ax.errorbar(x, [e.mean for e in at], ends, color=color, fmt="o", markersize=4, label=method)
            ax.plot(x[:-1], [e.mean for e in at][:-1], color=color, linewidth=1.2)
        ax.set_xticks(range(len(LAGS) + 1), [*map(str, LAGS), "partial"])
        plots.decorate(ax, f"pass@1, rate {rate:g}", "lag", "pass@1")
    arms.legend(canvas, columns=4)
    canvas.savefig(path, dpi=100)


def config():
    """Return sums with four gradient steps for each rollout."""
    c = arms.sums()
    c.log.diagnostics = ("clip",)
    return c


STUDY = arms.Study(
    config=config,
    arms=lagged(segment=6, oversample=3),
    claims=CLAIMS,
    quantities=("pass@1", "pass@32", "entropy"),
    curves=("accuracy", "clipped"),  # what a run has of them
    draw=draw,
)

if __name__ == "__main__":
    arms.main(STUDY, __doc__)
