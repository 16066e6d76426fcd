"""What every page and every table in the terminal is made of, whatever it shows.

===============  ================================================================================
``figures.py``   figures as inline SVG: ``inline``, ``gallery``
``html.py``      the skeleton of a page: ``page``, ``folded``, ``tag``, ``escape``
``images.py``    pictures of prompts, in records, on pages and in terminals
``plots.py``     the learning curve and pass@k: ``learning_curve``, ``passk``
``tables.py``    A table, and its renderers for a terminal, a page and a Markdown file: ``Table``
``terminal.py``  text in a terminal: ``console``, ``text``
===============  ================================================================================
"""
