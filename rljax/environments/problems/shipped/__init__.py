"""Device tasks that ship: each a file, which nothing in the frame imports.

=================  ====================================================================================
``arithmetic.py``  device task: sums, differences and products, with written-out working
``chain.py``       operations modulo a number, one after the other
``charts.py``      a picture: the heights of bars, greatest, one, or a difference
``counting.py``    a picture: how many shapes of a colour and a form
``countdown.py``   device task: reach a target from given numbers
``document.py``    a picture: a field of a page by its name, or two
``expression.py``  arithmetic expressions inside a compiled program: random, evaluated, written, parsed
``formulas.py``    the truth table of a boolean formula
``geometry.py``    a picture: the angle, length or side that a figure does not have
``labyrinth.py``   a picture: the steps of the path in a maze, or the first of them
``lists.py``       functions of a list of digits, one after the other
``paths.py``       a shortest path in a graph with lengths
``rewriting.py``   replacements in a text, one rule after the other
``scene.py``       a picture: all objects with their boxes, and the relations of pairs
``screen.py``      a picture: a click on a button, or its box
``redraw.py``      a picture: what draws it again
``sorting.py``     numbers in order, by exchanges of neighbours
=================  ====================================================================================
"""
