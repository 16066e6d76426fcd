"""Environments of other packages as rules: the package, what is observed, and when an episode is solved."""

import dataclasses
import importlib
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax import types
from rljax.environments.control import drawn, task
from rljax.language import messages, settings
from rljax.language.settings import setting


def load(module: str, extra: str) -> Any:
    """Return a module of a package.

    Raises:
      ValueError: the package is absent.
    """
    try:
        return importlib.import_module(module)
    except ImportError:
        raise ValueError(
            f"{extra} needs its package: pip install rljax-lm[{extra}], or in the checkout pip install '.[{extra}]'"
        ) from None


def known(name: str, names: Any) -> None:
    """Raise ValueError if an environment's name is none of those that the package has."""
    if name not in names:
        near = messages.closest(name, names, cutoff=0.0)
        raise ValueError(f"environment: {name!r}: expected one of {', '.join(names)}; nearest: {near!r}")


def row(seen: Any) -> types.Array:
    """Return all numbers of a tree as one row, float32."""
    return jnp.concatenate([jnp.ravel(leaf).astype(jnp.float32) for leaf in jax.tree.leaves(seen)])


def like(old: Any, new: Any) -> Any:
    """Return a tree with the types and shapes of another, as states of one program have them."""
    return jax.tree.map(lambda a, x: jnp.asarray(x, a.dtype).reshape(a.shape), old, new)


@dataclasses.dataclass(frozen=True)
class Packaged(drawn.Drawn):
    """What such rules have in common; a state has ``seen``, what is observed."""

    environment: str = setting("", "Name of the environment in the package.")
    steps: settings.Size = setting(0, "The most steps of an episode; 0: the time limit of the environment.")
    threshold: float | None = setting(None, "Total reward from which an episode is solved; None: no episode is.")

    def observe(self, state: Any) -> types.Array:
        """Return what is observed."""
        return state["seen"]

    def solved(self, state: Any, total: types.Array) -> types.Array:
        """Return whether the total reaches the threshold."""
        return total >= (math.inf if self.threshold is None else self.threshold)


def of(world: Any) -> Callable[..., task.ControlTask]:
    """Return the constructor of a task; an absent package and a wrong name are errors there, not at the first step."""

    def made(rules: Any) -> task.ControlTask:
        _ = rules.actions
        return task.ControlTask(rules)

    return settings.constructor(made, world())
