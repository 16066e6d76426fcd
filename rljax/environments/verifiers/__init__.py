"""Verifiers: reward functions that tasks share, and what scores completions with them in worker processes.

A host reward is a function ``reward(completion, target, **columns)`` at the top level of a module. It returns a number,
or a mapping with ``"reward"``, optionally ``"outcome"`` (the lower-case name of a ``types.Outcome``), and other named
numbers. Worker processes import this package, so no module here but ``judging`` imports jax at the top.

==================  ===================================================================
``mathematics.py``  reward functions: numeric answers, LaTeX answers
``code.py``         a reward function: programs judged by tests
``listings.py``     programs in what models write, tests in rows
``rendered.py``     a reward function: drawings, as SVG or by plotting code, compared with pictures
``svg.py``          SVG of models: what is refused, its elements
``similarity.py``   how alike two pictures are: pixels, SSIM, structure
``sandbox/``        where these programs run
``rewards.py``      reward functions by name, several as weighted parts of one
``answers.py``      how final answers are written and read: marked, boxed, stated, bold
``outcomes.py``     reward functions as workers call them, and what they return, checked
``judging.py``      ``Verifiers``: completions scored in worker processes, with a time limit for each
==================  ===================================================================
"""
