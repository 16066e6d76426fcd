"""Intervals of numbers: the valid values of an argument."""

import dataclasses

LARGEST = 3.4028234663852886e38  # the largest finite float32


@dataclasses.dataclass(frozen=True)
class Range:
    """Closed interval of an argument's valid values; ``open_low`` leaves out the lower end.

    By default the ends are those of the finite float32 numbers. NaN is in no interval; infinity only if it is an end.
    """

    low: float = -LARGEST
    high: float = LARGEST
    open_low: bool = False

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.open_low else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        low = "(-inf" if self.low == -LARGEST else f"{'(' if self.open_low else '['}{_written(self.low)}"
        return f"{low}, {'inf)' if self.high == LARGEST else f'{_written(self.high)}]'}"


def _written(end: float) -> str:
    """Return a number in the shortest notation that is exact: 1e9, 4294967295."""
    text = f"{end:g}".replace("e+0", "e").replace("e+", "e")
    return text if float(text) == end else f"{end}"
