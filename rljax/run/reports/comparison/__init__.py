"""Comparison of runs: means with intervals over seeds, differences between arms. Each file reads those above it only.

``arms``        Runs grouped by the fields that are compared, and the checks that they may be averaged: ``group``.
``quantities``  What is compared: pass@k, final metrics, time and tokens: ``measure``.
``results``     Arms with their means and differences: ``Result``.
``writing``     Numbers and intervals as text.
``bands``       Figures: arms and their runs, pass@k, curves with bands.
``text``        The tables on a terminal.
``page``        The page.
``compare``     The command, and the function of the same name, which returns a ``Comparison``.
"""
