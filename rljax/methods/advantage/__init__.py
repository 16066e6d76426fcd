"""Pieces of the collection at the seam ``advantage``; ``rljax.transforms.advantage`` says what they see and write."""
