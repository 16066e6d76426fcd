"""Runs: the training loop, its files, and the commands on them. README.md explains work directories and commands.

Training
``train``          The command that trains: flags, work directory, several processes, exit codes.
``programs``       A config made ready to run, with network, task, tokenizer, mesh and steps: ``build``, ``Program``.
``loop``           ``train``, its ``Result``, and ``Series``, runs that follow each other and share a program.
``conductor``      The loop over phases, steps and members, with logs, evaluations and checkpoints: ``conduct``.
``members``        Several runs in one program: members of a cohort, sweeps, seeds.
``producers/``     Producers whose rows pass through the host: verified, answered, demonstrated, read from files.
``records``        Records of a run: its checkpoints, its logs, and what identifies it.

Files of a run
``reports``        Pages on runs, rollouts and metrics in the terminal, and the comparison of several: ``compare``.

Commands on runs
``evaluation``     Evaluation of a checkpoint: held-out accuracy, pass@k, intervals, statistics of episodes.
``games``          Games of checkpoints against a person and each other, Elo ratings, NashConv.
``preview``        What a run would do, without devices: ``--check``.
``sharding``       How a config's train state is laid out over a mesh.
``session``        A run in progress: its work directory, checkpoints and logs.
``convert``        A policy as a public checkpoint, and the reverse.
"""
