"""Device tasks that ship: each a file, which nothing in the frame imports.

=================  ====================================================================================
``arithmetic.py``  device task: sums, differences and products, with written-out working
``chain.py``       operations modulo a number, one after the other
``countdown.py``   device task: reach a target from given numbers
``expression.py``  arithmetic expressions inside a compiled program: random, evaluated, written, parsed
``formulas.py``    the truth table of a boolean formula
``lists.py``       functions of a list of digits, one after the other; numbers in order, by exchanges of neighbours
``paths.py``       a shortest path in a graph with lengths
``pictures/``      tasks with pictures
``rewriting.py``   replacements in a text, one rule after the other
=================  ====================================================================================
"""
