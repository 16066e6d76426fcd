"""Reports on runs, as self-contained pages.

``html``     The skeleton of a page: ``page``, ``table``, ``picture``, ``gallery``, ``folded``.
"""
