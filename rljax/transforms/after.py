"""After-update transforms: they update the reference policy once a step is done."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import transforms, types
from rljax.transforms import define
from rljax.transforms.frame import idle


@define.after(needs=lambda a: types.Needs(reference=True, follows=idle.equals(a["decay"], 0)))
def ema_reference(reference, params, metrics, decay: types.Fraction = 0.99) -> types.Tree:
    """Let the reference follow the policy: ref <- decay ref + (1 - decay) params."""
    return jax.tree.map(lambda r, p: decay * r + (1.0 - decay) * p, reference, params)


def _every(count: types.Count, moved: Callable[[Any, Any], Any], follows: bool) -> types.AfterTransform:
    """Replace each array of the reference by ``moved(reference, policy)`` after every ``count``-th step."""

    def apply(reference, params, metrics, steps, key):
        steps = steps + 1
        due = steps % count == 0
        return jax.tree.map(lambda r, p: jnp.where(due, moved(r, p), r), reference, params), steps

    needs = types.Needs(reference=True, follows=count == 1 and follows)
    return types.AfterTransform(apply, init=lambda: jnp.zeros((), jnp.int32), needs=needs)


@define.constructor("after")
def reset_reference(every: types.Count = 100) -> types.AfterTransform:
    """Copy the policy into the reference after every ``every``-th step of the phase."""
    return _every(every, lambda r, p: p, follows=True)


@define.constructor("after")
def mix_reference(every: types.Count = 32, share: types.Fraction = 0.9) -> types.AfterTransform:
    """Move the reference most of the way to the policy every so often: ref <- share params + (1 - share) ref.

    After every ``every``-th step of the phase. Source: TR-DPO (arXiv 2404.09656) as RLT's release sets it (arXiv
    2506.08388). ``share`` 1 is ``reset_reference``; ``every`` 1 is ``ema_reference`` with decay 1 - share.
    """
    return _every(every, lambda r, p: share * p + (1.0 - share) * r, follows=idle.equals(share, 1))


@define.constructor("after")
def reset_reference_if_better(
    every: types.Count = 10, metric: str = "reward", margin: types.Number = 0.0
) -> types.AfterTransform:
    """Copy the policy into the reference after ``every`` steps whose mean metric is above its mean at the last copy.

    The first ``every`` steps copy nothing: their mean is the one to exceed. With ``ratio.token("reference")`` the
    reference is the old policy of a clipped objective, which so moves only where the policy has improved: the rule of
    Uni-O4 (arXiv 2311.03351), which compares estimates of an offline evaluation. Here the measure is computed on the
    rows that the steps trained on, so the policy that is copied is up to ``every`` updates newer than those measured.

    Args:
      every: steps that are averaged, and after which the reference may move.
      metric: a metric of the step.
      margin: how much larger the mean must be.
    """

    def init():
        zero = jnp.zeros((), jnp.result_type(float))
        return {"count": jnp.zeros((), jnp.int32), "total": zero, "best": zero}

    def apply(reference, params, metrics, state, key):
        if metric not in metrics:
            raise ValueError(f"after.reset_reference_if_better: no metric {metric!r}; a step has {', '.join(metrics)}")
        count, total = state["count"] + 1, state["total"] + metrics[metric]
        due, first = count % every == 0, count == every
        better = due & ~first & (total / every > state["best"] + margin)
        best = jnp.where(better | (due & first), total / every, state["best"])
        state = {"count": count, "total": jnp.where(due, 0.0, total), "best": best}
        return jax.tree.map(lambda r, p: jnp.where(better, p, r), reference, params), state

    return types.AfterTransform(apply, init=init, needs=types.Needs(reference=True))


def __getattr__(name: str) -> Any:
    return transforms.piece("after", name)
