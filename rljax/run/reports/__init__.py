"""Reports on runs, as self-contained pages.

``html``      The skeleton of a page: ``page``, ``table``, ``folded``, ``tag``, ``escape``.
``pictures``  Figures as inline SVG: ``picture``, ``gallery``.
"""
