"""Published methods that are settings of pieces (rljax/methods/published.toml): a run of their real steps.

    python -m tests.methods.published [NAME ...]

Every method takes steps of its compiled program on a tiny policy until its source has acted and the policy has had a
gradient, two steps at least; a line says after how many. The tests resolve every method and run its pieces on abstract
arrays, as a run does before it starts.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

import rljax
from rljax.algorithms import coverage
from rljax.run import programs
from tests.support import tiny

METHODS = coverage.settings()
SHOWN = ("steps", "fired", "reward", "valid_rows", "gradient_norm")


def config(name):
    """Return the config of a method, on one device."""
    fields = dict(METHODS[name])
    if "config" in fields:
        return rljax.get_config(*fields["config"].split(":"))
    algorithm = fields.pop("algorithm")
    c = tiny.config(algorithm, mesh__data=1)
    for module in {field.split(".")[1] for field in fields if field.startswith("module.")}:
        c.module[module] = rljax.module()
    return tiny.edited(c, fields)


def program(name):
    """Return the program of a method."""
    return programs.build(config(name), devices=jax.devices()[:1])


@functools.cache
def policy(task):
    """Return the parameters of a policy that solves a part of a task, so that groups have right and wrong rows."""
    cloned = tiny.program("sft()", task=task, batch__prompts=64, phase__main__warmup=10, phase__main__steps=150)
    (step,) = cloned.steps
    state = step.begin(None, cloned.key)
    for _ in range(150):
        state, _ = step.fused(state, cloned.key)
    return jax.device_get(state.params["policy"])


def run(name, least=2, most=40):
    """Take steps of the compiled program of a method until it has acted, and return the last metrics.

    Args:
      name: a key of ``METHODS``.
      least: steps at least.
      most: steps at most.

    Returns:
      Metrics of the last step by name; "steps", how many were taken; "fired", the largest of all steps.

    Raises:
      AssertionError: a skipped update, a metric that is not finite, a source that did not act, or no gradient.
    """
    built, state = program(name), None
    *before, step = built.steps
    for warm in before:
        state = warm.begin(state, built.key)
        for _ in range(least):
            state, _ = warm.fused(state, built.key)
    start = None if before or "config" in METHODS[name] else policy(METHODS[name].get("task", tiny.config().task))
    state = step.begin(state, built.key, start and {"policy": jax.tree.map(jnp.asarray, start)})
    assert step.fused is not None
    acted, moved = 0.0, 0.0
    for taken in range(1, most + 1):
        state, metrics = step.fused(state, built.key)
        assert int(state.skipped_total) == 0
        values = {k: float(v) for k, v in jax.device_get(metrics).items() if k != "rows"}
        assert all(np.isfinite(x) for x in values.values()), values
        acted, moved = max(acted, values.get("fired", 1.0)), max(moved, values["gradient_norm"])
        if taken >= least and acted > 0 and moved > 0:
            return values | {"steps": taken} | ({"fired": acted} if "fired" in values else {})
    raise AssertionError(f"in {most} steps: fired at most {acted:.3g}, gradient norm at most {moved:.3g}")


def main(names):
    """Run the methods, all by default, and print a line for each."""
    failed = 0
    for name in names or METHODS:
        start = time.process_time()
        try:
            metrics = run(name)
            said = ", ".join(f"{k} {metrics[k]:.4g}" for k in SHOWN if k in metrics)
        except Exception as error:  # each method is reported
            said, failed = f"FAILED {type(error).__name__}: {error!s:.300}", failed + 1
        print(f"{name}: {said} ({time.process_time() - start:.0f} s)", flush=True)
        jax.clear_caches()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
