"""The network: a decoder-only transformer as pure functions, over whole rows and with a cache.

==================  ===========================================================================
``attention.py``    attention of a batch of rows (plain, tiled, cuDNN, splash) and of one query
``caches.py``       decoding token by token with a key-value cache
``reads.py``        attention to a cache, and its kernel for GPUs
``histories.py``    rows whose keys and values are kept between calls
``gated.py``        gated layers and mixtures of experts
``layer.py``        one layer: norms, rotary positions, projections, gated layer
``transformer.py``  the forward pass over whole rows, and over rows that share a prompt
==================  ===========================================================================
"""
