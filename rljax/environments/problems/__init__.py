"""Device tasks whose problems are numbered, written in characters, and judged by their final answer.

===================  ========================================================================================
``shipped/``         device tasks that ship: each a file, which nothing in the frame imports
``rules.py``         ``Rules``, what is special about a kind of problems, and ``Common``, the settings that all have
``task.py``          ``Problems``, the task made of rules
``constructors.py``  the constructor of a task of rules: ``of``, ``build``
``numbering.py``     problems by number: splits, values, the mistakes of demonstrations
``mixed.py``         tasks that take turns in one task, each a domain
``drawn.py``         what tasks with a picture share: the twin in text; the distribution of answers of a split
``drawing.py``       pictures inside the program: shapes, lines, characters
===================  ========================================================================================
"""
