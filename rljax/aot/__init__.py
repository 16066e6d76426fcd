"""Ahead-of-time compilation: compile a step's programs for TPUs and GPUs that are not attached, and analyse them.

``python -m rljax aot`` is the command; tpu/README.md explains it. It reports whether each program fits the chip's
memory, how much it computes, moves and sends, and a lower bound on its time.

``command``      ``python -m rljax aot``.
``topology``     Kinds of TPU and GPU with their peak rates, and what to compile for: ``describe``, ``KINDS``.
``compiling``    The programs of a step, traced with abstract arguments and compiled: ``make``, ``compile_one``.
``hlo``          A parser of optimized HLO text, with trip counts of loops: ``parse``, ``runs``, ``trip_count``.
``collectives``  Bytes sent, by kind of collective, mesh axis and network: ``find``, ``totals``, ``Layout``.
``live``         What a chip's memory holds at the peak, by cause: ``at_peak``, ``causes``.
``traffic``      Bytes moved between a chip's memory and its units: ``moved``, ``largest``.
``flops``        Floating-point operations of a traced function, from shapes: ``count``, ``of_jaxpr``.
``roofline``     Times from work and peak rates: ``times``, ``model_flops``.
``report``       The record of a compiled program, and its text: ``describe``, ``table``.
``page``         tpu/TOPOLOGIES.md and tpu/GPUS.md: models on suitable meshes: ``ROWS``, ``write``, ``page``.
``scaling``      The section and figure of that page from 4 to 512 chips: ``draw``, ``table``.
"""
