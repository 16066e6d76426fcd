"""What arguments of pieces may be: intervals of numbers, and names; checked by the parser, not in the mathematics."""

import dataclasses
from typing import Annotated, Any, Literal

LARGEST = 3.4028234663852886e38  # the largest finite float32


@dataclasses.dataclass(frozen=True)
class Range:
    """Closed interval of an argument's valid values; ``open_low`` leaves out the lower end.

    By default the ends are the largest finite float32 numbers. NaN is in no interval; infinity only if it is an end.
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


# A Python number, a traced scalar or a Controller: Any to a type checker; the parser checks the range.
Number = Annotated[Any, Range()]
Positive = Annotated[Any, Range(0, open_low=True)]
NonNegative = Annotated[Any, Range(0)]
Bound = Annotated[Any, Range(float("-inf"), float("inf"))]  # of a clamp; an infinite bound disables it
Limit = Annotated[Any, Range(0, float("inf"))]  # the same, of what is not negative
Cap = Annotated[Any, Range(0, float("inf"), open_low=True)]  # the same, of what is above 0
Fraction = Annotated[Any, Range(0, 1)]
Count = Annotated[int, Range(1, 1e9)]

Segment = Literal["batch", "group", "episode", "agent", "domain", "turn", "tag"]
Segments = Segment | tuple[Segment, ...]  # rows, or tokens, with equal ids of all of these belong together
Unit = Literal["trajectory", "row", "episode", "token"]  # what a statistic counts once, see advantage.center_by
Anchor = Literal["proximal", "behaviour", "reference", "one"]  # denominator of a ratio; "one" is probability 1
Estimator = Literal["k1", "k2", "k3", "abs", "k1+", "k3+"]  # of a KL from sampled tokens, see ops.kl_estimate
Predicate = Literal[
    "on_policy", "off_policy", "correct", "wrong", "positive", "negative", "nonzero", "kept", "first_turn"
]  # see transforms.where
Level = Literal["token", "product", "geometric"]  # of an importance weight: the token's, the row's product or mean
RejectLevel = Literal["token", "row_sum", "row_mean", "row_max"]
PromptWeight = Literal["uniform", "failure", "spread"]  # 1, 1 - p, sqrt((1 - p) / p), p the group's success rate
