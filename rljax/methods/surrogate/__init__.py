"""Pieces of the collection at the seam ``surrogate``; ``rljax.transforms.surrogate`` says what they see and write."""
