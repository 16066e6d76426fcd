"""A step compiled for chips that are not there: does it fit, what does it send, how long could it take.

``topology`` names the chips, ``programs`` makes a step's programs for them and compiles each, ``hlo`` reads what the
compiler made, ``collectives`` and ``traffic`` count what it sends and moves, ``flops`` counts work from shapes,
``roofline`` makes times of the three, ``report`` says it, ``page`` writes tpu/TOPOLOGIES.md and ``scaling`` its figure.
``tpu/compile.py`` is the command.
"""
