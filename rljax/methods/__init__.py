"""Published methods beside the core: recipes and pieces that a config names like any other; see README.md.

The tables of ``rljax.algorithms`` and ``rljax.transforms`` find what is here by its name, and import it when it is
asked for. Nothing else imports this package.
"""
