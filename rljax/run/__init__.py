"""Runs: the training loop, its files, and the commands on them. README.md explains work directories and commands.

Training
``train``          The command that trains: flags, work directory, several processes, exit codes.
``programs``       A config made ready to run, with network, task, tokenizer, mesh and steps: ``build``, ``Program``.
``loop``           Phases of steps, with logs, evaluations and checkpoints: ``train``, ``Result``.
``host_rollouts``  Rollouts of tasks with verifiers on the host: chunks, worker processes, the journal of verdicts.
``host_worlds``    Rollouts of host worlds: conversations in rounds, worker processes, the journal of answers.
``config``         The settings of evaluations, checkpoints and logs.

Files of a run
``checkpoints``    Checkpoints, written in the background and verified when restored: ``Checkpointer``.
``digests``        Names and digests of the arrays of a checkpoint.
``metrics``        Metrics, timings, evaluations and sampled rollouts as jsonl: ``Logger``.
``events``         Starts, warnings, memory and ends of a run, with times: ``Events``.
``steplog``        An append-only file of records that a resumed run cuts back: ``StepLog``.
``sinks``          Where records go beside these: TensorBoard, W&B, CSV.
``glossary``       Unit, meaning and bad values of every metric.
``watch``          Symptoms of failure in the metrics, and their remedies: ``Watcher``.
``progress``       The progress line: ``Progress``.
``terminal``       Tables of text in a terminal: ``show``.
``plots``          The learning curve and pass@k: ``learning_curve``, ``passk``.
``reports``        Pages on runs, rollouts and metrics in the terminal, and the comparison of several: ``compare``.

Commands on runs
``evaluate``       pass@k and greedy accuracy: ``evaluate``, ``table``.
``intervals``      Means over runs and differences, with intervals over seeds and prompts: ``mean``, ``difference``.
``passk``          Unbiased estimators of pass@k and their intervals: ``pass_at_k``, ``bootstrap``, ``wilson``.
``episodes``       Statistics of episodes of a world: ``Rows``, ``statistics``.
``sample``         Completions of a prompt: ``complete``.
``play``           A person plays a seat of a world against a checkpoint: ``Policy``, ``Person``, ``run``.
``matches``        Episodes of a world on the host, one turn at a time: ``Episode``.
``elo``            Ratings of players from results of games: ``ratings``, ``fit``.
``nashconv``       Exact NashConv in Kuhn poker, and the strategy of a language policy: ``nashconv``, ``strategy``.
``sweep``          A file of fields and values becomes commands of runs: ``grid``, ``zipped``, ``product``.
``many``           Several runs in one program: ``train_many``.
``cohorts``        Which runs share a program: ``plan``.
``together``       The programs of such runs, and their loop.
``seeds``          The runs of ``--seeds`` and ``--sweep``, and a table of the results.
``preview``        What a run would do, without devices: ``--check``.
``sharding``       How a config's train state is laid out over a mesh.
``forks``          Runs that begin with the parameters of another run's checkpoint: ``checkpoint.init``.
``identity``       What a run is: its config and code, compared when it is resumed.
``session``        A run in progress: its checkpoints, logs and progress line.
``convert``        A policy as a public checkpoint, and the reverse.
"""
