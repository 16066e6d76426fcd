"""Worker processes: what users write runs in them, with limits of time and memory for each call.

A pool asks workers to call methods of an object, which each worker has: a reward function that scores completions
(``verifiers.judging``), or the episodes of a host world (``worlds.host.episodes``). Scoring is an episode of one turn.

A worker answers one call after another. With ``config.verifier.concurrency`` above 1 it runs as many at once, in
threads, for code that waits: for a judge behind a network, a search engine, a browser. Coroutines share one event loop
and hold no thread while they wait. What is then shared by calls is the code's to guard, and the limit of memory is for
all of them. A worker that hangs or dies may have several calls; see ``pool``.

==================  ==================================================================================
``pool.py``         ``Pool``: what waits for workers, who asks which, what is asked again after a death
``process.py``      a worker process and its replacements: start, ask, end
``supervisor.py``   the first process of a worker, which ends all that it started
``worker.py``       the program inside a worker: load the object, answer calls
``overlapping.py``  the same for calls at once
==================  ==================================================================================

Workers import this package, so no module here but ``pool`` imports jax.
"""
