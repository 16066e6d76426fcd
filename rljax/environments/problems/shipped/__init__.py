"""Device tasks that ship, which nothing in the frame imports.

====================  ================================================================================
``arithmetic.py``     device task: sums, differences and products, with written-out working
``backtracking.py``   search in a graph with dead ends
``countdown.py``      device task: reach a target from given numbers
``expression.py``     arithmetic expressions inside a compiled program: random, evaluated, written, parsed
``formulas.py``       the truth table of a boolean formula
``graphs.py``         shapes of the dependency graphs of ``reasoning``
``paths.py``          a shortest path in a graph with lengths
``pictures/``         tasks with pictures
``reasoning.py``      word problems over dependency graphs
``shapes.py``         shapes of problems in classes, one split each, for ``backtracking`` and ``traces``
``steps.py``          one step after the other: operations modulo a number, functions of a list, replacements in a text,
                      exchanges of neighbours
``traces.py``         programs of assignments, conditionals and loops, line by line
====================  ================================================================================
"""
