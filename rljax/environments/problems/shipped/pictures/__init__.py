"""Device tasks with pictures that ship; each has a twin in text.

================  =================================================================
``charts.py``     the heights of bars: the greatest, one, or a difference
``counting.py``   how many shapes of a colour and a form
``document.py``   a field of a page by its name, or two
``film.py``       the moves of a shape from frame to frame
``geometry.py``   the angle, length or side that a figure does not have
``labyrinth.py``  the steps of the path in a maze, or the first of them
``redraw.py``     what draws the picture again
``scene.py``      all objects with their boxes, and the relations of pairs
``screen.py``     a click on a button, or its box
================  =================================================================
"""
