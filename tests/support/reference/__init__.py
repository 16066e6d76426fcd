"""Plain NumPy oracles, written from the papers, one loop at a time."""
