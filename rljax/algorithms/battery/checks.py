"""The checks of the battery: each runs the program on some batches and returns a finding."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.algorithms.battery import batch, edges, programs
from rljax.algorithms.battery.batch import B, T

CLOSE = 1e-4  # relative difference that rounding in float32 explains


class Finding(NamedTuple):
    """The result of a check."""

    check: str
    passed: bool | None  # None: the number is reported and not judged
    measured: str
    bound: str  # such as "bound 0.001"
    advice: str = ""  # what to look at


def _error(one: Any, two: Any) -> float:
    """Return the largest difference of two trees, relative to the largest element of the first."""
    pairs = list(zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True))
    scale = max((float(np.max(np.abs(a))) for a, _ in pairs), default=0.0)
    return max((float(np.max(np.abs(a - b))) for a, b in pairs), default=0.0) / (scale + 1e-3)


def _results(outcomes: list[programs.Outcome], rows: Any = slice(None)) -> list[Any]:
    return [([o.value], jax.tree.map(lambda x: x[rows], o.gradient)) for o in outcomes]


def _finding(check: str, measured: float, bound: float, advice: str, judged: bool = True) -> Finding:
    passed = measured <= bound  # False for nan
    limit = f"bound {bound:.2g}" if judged else "not bounded"
    return Finding(check, passed if judged else None, f"{measured:.2g}", limit, "" if passed else advice)


def masked(program: programs.Program) -> Finding:
    """Masked tokens, and tokens of invalid rows, have a gradient of exactly 0."""
    d = program.arrays()
    uncounted = (d["mask"] == 0) | (d["valid"][:, None] == 0)
    leaves = [x for o in program(d) for x in jax.tree.leaves(o.gradient)]
    largest = max(float(np.max(np.abs(x[uncounted if x.ndim > 1 else d["valid"] == 0]))) for x in leaves)
    advice = "a sum over tokens without rollout.mask: use ops.row_sum, ops.row_mean or jnp.where(rollout.mask > 0, ...)"
    return _finding("masked tokens have no gradient", largest, 0.0, advice)


def row_order(program: programs.Program, random: bool) -> Finding:
    """The order of the rows and the ids of the groups do not matter."""
    d, order = program.arrays(), np.random.default_rng(1).permutation(B)
    d["reward"] = d["reward"] + np.where(d["reward"] > 0, 1, -1) * 1e-2 * np.arange(B)  # without ties
    d["index"] = d["group"]
    shuffled = batch.select(d, order)
    shuffled |= {"group": shuffled["group"] * 100 - 3, "episode": 50 - shuffled["episode"]}
    measured = _error(_results(program(d), order), _results(program(shuffled)))
    if not measured <= CLOSE:  # rounding of the rewards, where they differ little in a group
        exact = programs.Program(program.algorithm, jnp.float64)
        measured = _error(_results(exact(d), order), _results(exact(shuffled)))
    advice = "the piece reads a row's position, or assumes that rows of a group are adjacent: use ops.segment_mean"
    return _finding("row order and group ids do not matter", measured, CLOSE, advice, judged=not random)


def padding(program: programs.Program, random: bool) -> Finding:
    """What padding holds and how wide it is does not matter, except that a reduction may divide by the width."""
    outcomes, wide = program(program.arrays()), program(edges.padded(program.arrays()))
    scales = [_scale(o.rows.coefficient, w.rows.coefficient) for o, w in zip(outcomes, wide, strict=True)]
    cut = [
        jax.tree.map(lambda x, s=s: s * (x[:, :T] if np.ndim(x) > 1 else x), result)
        for s, result in zip(scales, _results(wide), strict=True)
    ]
    advice = "the piece reads masked tokens or the width T: use rollout.mask, and ops.length for a row's tokens"
    measured = _error(_results(outcomes), cut)
    return _finding("padding values and width do not matter", measured, CLOSE, advice, judged=not random)


def _scale(coefficients: Any, wide: Any) -> float:
    """Return the factor between the coefficients of two widths; 1 if they have several, or differ otherwise."""
    pairs = [(np.asarray(x), np.asarray(wide[n])[:, :T]) for n, x in coefficients.items() if n != "metric"]
    factor = max((np.sum(x) / np.sum(y) for x, y in pairs if np.sum(y)), default=1.0)
    return float(factor) if all(np.allclose(x, factor * y, rtol=CLOSE) for x, y in pairs) else 1.0


def micro_batches(program: programs.Program) -> Finding:
    """Losses and gradients of micro-batches add up to the losses and gradients of the minibatch."""
    outcomes = program(program.arrays())
    parts = [([value], gradient) for value, gradient in (o.parts for o in outcomes)]
    advice = (
        "a loss piece reads a statistic of the batch: compute it in the decorator's statistics (define.statistic), or "
        "declare needs=types.Needs(whole='group')"
    )
    return _finding("micro-batches add", _error(_results(outcomes), parts), CLOSE, advice)


def extremes(program: programs.Program) -> Finding:
    """Losses, metrics and gradients are finite on legal batches at the edge."""
    bad = []
    for choice in (*edges.WORST, {"groups": "of one row"}):
        arguments: dict[str, Any] = {name: x for name, x in choice.items() if name != "groups"}
        d = program.completed(edges.extreme(**arguments, paid=program.needs.token_reward))
        if "groups" in choice:
            d["group"] = np.arange(B)
        results = [(o.value, o.metrics, o.gradient, o.rows.coefficient) for o in program(d)]
        if not all(np.all(np.isfinite(x)) for x in jax.tree.leaves(results)):
            bad.append(", ".join(f"{name}={x}" for name, x in choice.items()) or "the plain batch")
    advice = f"inf or nan on {bad[0]}: clamp what enters exp, and what divides" if bad else ""
    check = f"finite on {len(edges.WORST) + 1} extreme batches"
    return Finding(check, not bad, f"{len(bad)} not finite", "bound 0", advice)


def finite_differences(program: programs.Program) -> Finding:
    """The gradient is the derivative of the loss, whose stop_gradient parts are constants."""
    advice = "a custom derivative, or a kink of the loss at many tokens"
    return _finding("gradient equals finite differences", programs.largest_error(program), 1e-3, advice)


def traces(program: programs.Program) -> Finding:
    """The program was traced once for each of the two shapes that it has seen."""
    advice = "a Python value that changes with the data: keep the piece a function of its arrays"
    passed = program.traces == 2
    return Finding("one trace for each of two shapes", passed, str(program.traces), "bound 2", "" if passed else advice)


def reinforce(program: programs.Program) -> Iterator[Finding]:
    """On-policy, compare the gradient of the policy's loss with REINFORCE's: -A times the coefficient."""
    d = program.arrays()
    outcomes = program(d | {name: d["logp"] for name in ("proximal", "behaviour", "raw", "ref")})
    policy = next(
        (o for o, x in zip(outcomes, program.algorithm.objectives, strict=True) if x.module == "policy"), None
    )
    if policy is None or policy.rows.advantage is None:
        return
    coefficient = policy.rows.coefficient.get("policy", policy.rows.coefficient["common"])
    want, have = -policy.rows.advantage * coefficient, np.asarray(policy.gradient.logp)
    norms = np.linalg.norm(have), np.linalg.norm(want)
    cosine = float(np.sum(want * have) / max(norms[0] * norms[1], 1e-30))
    measured = f"cosine {cosine:.4f}, length {norms[0] / max(norms[1], 1e-30):.4g} times"
    yield Finding("on-policy gradient against REINFORCE", None, measured, "not bounded")
