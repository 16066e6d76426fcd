"""The update: gradients, optimizers, and the metrics of an update.

==================  ===================================================================================================
``diagnostics.py``  formulas of the metrics that only runs with ``config.log.diagnostics`` compute
``gradients.py``    the gradient of a minibatch, of one objective or of a trunk and its heads; micro-batches
``optimizers.py``   optax chains, an update that skips non-finite gradients, stochastic rounding of bfloat16 parameters
``overlapped.py``   an update whose rows arrive in parts, while others are sampled
``row_metrics.py``  metrics of the rows that a step trains on
``splits.py``       how rows are split: the number of micro-batches, what is recomputed, over how many devices
``updates.py``      the update: scores, advantages, objectives, epochs and minibatches
==================  ===================================================================================================
"""
