"""Ahead-of-time compilation: compile a step's programs for TPUs that are not attached, and analyse them.

``python tpu/compile.py`` is the command; tpu/README.md explains it. It reports whether each program fits the chip's
memory, how much it computes, moves and sends, and a lower bound on its time.

``topology``     TPU kinds with their peak rates, and descriptions of slices to compile for: ``describe``, ``KINDS``.
``compiling``    The programs of a step, traced with abstract arguments and compiled: ``make``, ``compile_one``.
``hlo``          A parser of optimized HLO text, with trip counts of loops: ``parse``, ``runs``, ``trip_count``.
``collectives``  Bytes sent, by kind of collective, mesh axis and network: ``find``, ``totals``, ``Layout``.
``traffic``      Bytes moved between a chip's memory and its units: ``moved``, ``largest``.
``flops``        Floating-point operations of a traced function, from shapes: ``count``, ``of_jaxpr``.
``roofline``     Times from work and peak rates: ``times``, ``model_flops``.
``report``       The record of a compiled program, and its text: ``describe``, ``table``.
``page``         tpu/TOPOLOGIES.md: models on slices of a suitable size: ``ROWS``, ``write``, ``page``.
``scaling``      The section and figure of that page from 4 to 512 chips: ``draw``, ``table``.
"""
