"""Pieces of the collection at the seam ``source``; ``rljax.transforms.source`` says what they see and write."""
