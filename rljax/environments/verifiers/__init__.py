"""Rewards: verifiers that tasks share, and the worker processes that run the ones written in plain Python.

A host reward is a module-level function ``reward(completion, reference)``. It returns a number, or a mapping with
``"reward"``, optionally ``"outcome"`` (the lower-case name of a ``types.Outcome``), and any other named numbers.
Worker processes import this package, so nothing here may import jax at the top except ``pool``.
"""
