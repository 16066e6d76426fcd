"""Device tasks whose problems are numbered, written in characters, and judged by their final answer.

===================  ========================================================================================
``sorting.py``       numbers in order, by exchanges of neighbours
``chain.py``         operations modulo a number, one after the other
``formulas.py``      the truth table of a boolean formula
``paths.py``         a shortest path in a graph with lengths
``rewriting.py``     replacements in a text, one rule after the other
``lists.py``         functions of a list of digits, one after the other
``rules.py``         ``Rules``, what is special about a kind of problems, and ``Common``, the settings that all have
``task.py``          ``Problems``, the task made of rules
``constructors.py``  a constructor from rules: ``of``, ``build``
``numbering.py``     problems by number: splits, values, the mistakes of demonstrations
===================  ========================================================================================
"""
