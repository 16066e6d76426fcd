"""Records of a run: its checkpoints, its logs, and what identifies it.

A file here writes or reads one file of the work directory, or explains what it holds. Pages are made in
``run.reports``.

==================  ====================================================================================
``checkpoints.py``  checkpoints, written in the background and verified when restored: ``Checkpointer``
``digests.py``      names and digests of the arrays of a checkpoint
``events.py``       starts, warnings, memory and ends of a run, with times: ``Events``
``forks.py``        runs that begin with the parameters of another run's checkpoint: ``checkpoint.init``
``glossary.py``     unit, meaning and bad values of every metric
``identity.py``     what a run is: its config and code, compared when it is resumed
``journals.py``     what the host answered in a step, replayed by a run that is resumed: ``Journal``
``metrics.py``      metrics, timings, evaluations and sampled rollouts as jsonl: ``Logger``
``progress.py``     the progress line: ``Progress``
``steplog.py``      an append-only file of records that a resumed run cuts back: ``StepLog``
``watch.py``        symptoms of failure in the metrics, and their remedies: ``Watcher``
==================  ====================================================================================
"""
