"""Settings with which public systems run a recipe: ``grpo(like="verl")``. DIFFERENCES.md has the versions and the rest.

A preset is what the system does when its user sets nothing but the method's name. Where a recipe has no argument for
a setting, there is no preset here, and DIFFERENCES.md says what to write instead.
"""

from collections.abc import Mapping
from typing import Any

from rljax.transforms import reduce

_TOKENS = reduce.mean_over_tokens()

LIKE: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "grpo": {
        "verl": {"kl": 0.0, "dual": 3.0, "limit": 20.0, "aggregate": _TOKENS},
        "trl": {"kl": 0.0, "epsilon": 1e-4, "aggregate": _TOKENS},
        "openrlhf": {"kl": 0.0, "epsilon": 1e-9, "limit": 20.0, "aggregate": _TOKENS, "charge": 0.01},
        "tunix": {"kl": 0.04, "estimator": "k1", "limit": 20.0},
        "areal": {"kl": 0.0, "epsilon": 1e-5, "aggregate": _TOKENS, "charge": 0.1},
    },
    "cispo": {"verl": {"low": 0.2, "high": 0.2}},
    "gmpo": {"verl": {"epsilon": 0.2}},
    "rloo": {"trl": {"kl": 0.05}},
    "reinforce_plus_plus": {"openrlhf": {"kl": 0.01}},
    "ppo": {
        "verl": {"lam": 1.0, "kl": 0.0, "value_clip": 0.5, "dual": 3.0},
        "openrlhf": {"lam": 1.0, "kl": 0.01, "estimator": "k1", "value_clip": 0.5},
        "tunix": {"lam": 0.95, "kl": 0.04, "estimator": "k3", "value_clip": 0.2},
    },
}
