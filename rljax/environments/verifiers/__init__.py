"""Verifiers: reward functions that tasks share, and the worker processes that run reward functions.

A host reward is a function ``reward(completion, target, **columns)`` at the top level of a module. It returns a number,
or a mapping with ``"reward"``, optionally ``"outcome"`` (the lower-case name of a ``types.Outcome``), and other named
numbers. Worker processes import this package, so no module here but ``pool`` imports jax at the top.

==================  ===================================================================
``mathematics.py``  reward functions: numeric answers, LaTeX answers
``rewards.py``      reward functions by name, several as weighted parts of one
``answers.py``      how final answers are written and read: marked, boxed, stated, bold
``pool.py``         ``Verifiers``: worker processes with a time limit per completion
``process.py``      the pool's side of a worker: start, send, receive, end
``supervisor.py``   the parent of a scoring process, which ends all that it started
``worker.py``       the code that runs inside a scoring process
==================  ===================================================================
"""
