"""Several runs of one config: what they are, which share a program, and what computes them.

=================  ============================================================================================
``sweep.py``       the runs: of a file, of ``--seeds`` and ``--sweep``, or of lists: ``grid``, ``product``, ``expand``
``cohorts.py``     which runs share a program: ``plan``
``many.py``        runs them: ``train_many``
``population.py``  rounds of runs, between which the worst continue from the best: ``evolve``
``mixtures.py``    runs on mixtures of domains, and a surrogate that picks one: ``search``
``alone.py``       what computes one member: the functions of its phases, and the workers of its tasks and worlds
``together.py``    what computes several members in one program
``results.py``     the table of their results
``commands.py``    ``python -m rljax sweep``: the command of each run
=================  ============================================================================================
"""
