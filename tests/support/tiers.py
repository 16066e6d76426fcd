"""The two tiers: ``pytest`` runs what is not marked ``full``, ``pytest -m full`` the rest.

``@pytest.mark.full`` marks a whole test. ``@pytest.mark.default_tier("id", ...)`` keeps the named cases of a
parametrized test in the default tier and marks the others ``full``; ``@pytest.mark.default_tier(2)`` keeps the
first two.
"""

import collections

import pytest


def mark(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the cases that ``default_tier`` does not keep as ``full``.

    Args:
      config: pytest's configuration.
      items: the collected tests; they are marked in place.

    Raises:
      pytest.UsageError: a mark names an id that no case has.
    """
    cases = collections.defaultdict(dict)
    for item in items:
        if item.get_closest_marker("default_tier"):
            name, _, case = item.nodeid.partition("[")
            cases[name][case.removesuffix("]")] = item
    for name, members in cases.items():
        kept = next(iter(members.values())).get_closest_marker("default_tier").args
        if isinstance(kept[0], int):
            kept = tuple(members)[: kept[0]]
        for case, item in members.items():
            if case not in kept:
                item.add_marker("full")
        unknown = set(kept) - set(members)
        if unknown and not any("::" in argument for argument in config.args):  # else not all cases are collected
            raise pytest.UsageError(f"{name}: default_tier names {unknown}; the cases are {', '.join(members)}")
