"""Reports on runs, as self-contained pages.

Comparison of runs
``compare``          The command, and the function of the same name.
``comparison``       Its result, shown as text, as a page or in a notebook: ``Comparison``.
``folders``          The work directories among some folders and patterns: ``find``.
``runs``             A run read from its work directory: ``load``, ``Run``.
``arms``             Runs grouped by the fields that are compared, and the checks that they may be averaged: ``group``.
``quantities``       What is compared: pass@k, final metrics, time and tokens: ``measure``.
``intervals``        Means over runs and differences, with intervals: ``mean``, ``difference``.
``writing``          Numbers and intervals as text.
``bands``            Figures: arms and their runs, pass@k, curves with bands.
``comparison_text``  The tables on a terminal.
``comparison_page``  The page.

Any page
``html``             The skeleton of a page: ``page``, ``table``, ``folded``, ``tag``, ``escape``.
``pictures``         Figures as inline SVG: ``picture``, ``gallery``.
"""
