"""Evaluation of a checkpoint: held-out accuracy, pass@k, intervals, statistics of episodes.

Nothing here trains. ``run.games`` has what only games of several seats need.

================  =================================================================================================
``episodes.py``   statistics of episodes of a world: ``Rows``, ``statistics``
``evaluate.py``   pass@k, maj@k and greedy accuracy: ``evaluate``, ``table``
``intervals.py``  means over runs and differences, with intervals over seeds and prompts: ``mean``, ``difference``
``passk.py``      estimators of pass@k and maj@k, and intervals: ``pass_at_k``, ``bootstrap``, ``wilson``
``ranking.py``    how well reward models judge completions of held-out prompts: accuracy on pairs and on steps, and
                  calibration
``sample.py``     completions of a prompt: ``complete``
``trials.py``     the rows of episodes on the host: what an evaluation counts of them, and an episode as text
================  =================================================================================================
"""
