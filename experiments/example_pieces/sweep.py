"""Compare four powers of ``pieces.tapered_rloo``, with three seeds each."""

from rljax.run.members import sweep

RECIPE = "experiments.example_pieces.pieces.tapered_rloo"


def get_sweep():
    """Return the twelve runs: ``python -m rljax sweep experiments/example_pieces/sweep.py --config quickstart ...``."""
    return sweep.product(
        sweep.grid({"algorithm": [f"{RECIPE}(power={power})" for power in (0.0, 0.5, 1.0, 2.0)]}),
        sweep.grid({"seed": range(3)}),
    )
