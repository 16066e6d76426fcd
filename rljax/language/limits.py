"""The largest numbers that are taken from a user."""

LARGEST = 1e15  # of a reward, of a part or of an extra: the sum of the squares of a batch is finite in float32
ROWS = 2**31 - 1  # of a step: rows are counted in int32
