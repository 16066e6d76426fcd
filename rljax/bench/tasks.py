"""Verifications per second of the device tasks: ``python -m rljax bench tasks``."""

from typing import Any

import jax
import jax.numpy as jnp

from rljax import bench, environments
from rljax.data import tokenizers
from rljax.run.reports.pages import tables

ROWS = 65_536
NAMES = tuple("arithmetic countdown sorting chain formulas paths rewriting lists reasoning backtracking traces".split())


def tasks(repeats: int) -> dict[str, Any]:
    """Time the compiled verifiers of all device tasks on demonstrations, of which a part is wrong.

    Args:
      repeats: batches of ``ROWS`` completions; the fastest counts.

    Returns:
      A record: ``rows`` of a batch, and ``rates``, verifications per second of each task with default settings.
    """
    rates = {name: _rate(name, repeats) for name in NAMES}
    return {"rows": ROWS, "rates": rates}


def _rate(name: str, repeats: int) -> float:
    unbound: Any = environments.lookup(name)(slip=0.3)
    task = unbound.bind(tokenizers.train(unbound.corpus()))
    index = jnp.arange(ROWS, dtype=jnp.int32)
    token, mask = jax.jit(lambda i: task.demonstrations(i, "train", jax.random.key(0)))(index)
    verify = jax.jit(lambda i, token, mask: task.verify(i, "train", token, mask).reward)
    compiled = verify.lower(index, token, mask).compile()
    return ROWS / min(bench.seconds(lambda: compiled(index, token, mask).block_until_ready(), repeats))


def table(record: dict[str, Any]) -> str:
    """Return the record of ``tasks`` as text."""
    lines = [f"{record['rows']:,} completions, {record['device']}; millions of verifications per second"]
    rows = [[name, f"{rate / 1e6:.2f}"] for name, rate in record["rates"].items()]
    return "\n".join([*lines, *tables.Table(["task", "rate"], rows).lines()])
