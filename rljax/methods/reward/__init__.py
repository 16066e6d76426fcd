"""Pieces of the collection at the seam ``reward``; ``rljax.transforms.reward`` says what they see and write."""
