"""Arguments without effect: a piece declares what must differ before an argument changes the gradient.

    @define.surrogate
    @idle.until("ratio", low=idle.ABOVE_0, high=idle.ABOVE_0)
    def clip(loss, r, s, low=0.2, high=0.2): ...

Two clips train alike while every ratio is 1. The causes that end this, by name:

    steps       the policy has been updated since the rollout: several gradient steps for each rollout
    sampler     the policy at the start of the update is not the one that sampled, or not its distribution
    ratio       the ratio of the objective differs from 1; each ratio piece says what ``moves`` it
    reference   the reference differs from the policy at the start of a step
    N tokens    a row has more than N tokens
    name=value  another argument of the piece has this value

``config.effects`` reports what is declared idle in a phase, and tests/transforms/test_idle.py compares each declaration
with the gradient.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from rljax import transforms, types

F = TypeVar("F", bound=Callable[..., Any])
Arguments = Mapping[str, Any]
Causes = tuple[str, ...]

UNDECLARED = types.Needs(moves=frozenset({"always"}))  # of a ratio piece that does not say what moves its ratio

ABOVE_0 = types.Range(0, open_low=True)
FROM_0 = types.Range(0, float("inf"))
FROM_1 = types.Range(1, float("inf"))
ABOVE_1 = types.Range(1, open_low=True)


def until(*causes: str | Callable[[Arguments], Causes | None], **ranges: types.Range | None) -> Callable[[F], F]:
    """Return a decorator that declares arguments without effect until one of the causes; put it below the seam's.

    Args:
      *causes: names of causes, see the module; or one function of the piece's arguments that returns them, or None if
        the arguments have an effect. No cause: they never have an effect.
      **ranges: by argument, the values without effect; None: all values.

    Returns:
      The decorator.
    """

    def declare(function: F) -> F:
        function.__dict__["idle"] = (*getattr(function, "idle", ()), (causes, ranges))
        return function

    return declare


def needs(function: Callable[..., Any], arguments: Arguments) -> types.Needs:
    """Return what a piece declares for its arguments, and a coefficient of 0, as ``Needs.idle``.

    Args:
      function: the piece's function, which may have been decorated by ``until``.
      arguments: its arguments by name. Numbers that are traced or follow a schedule are left out.

    Returns:
      The needs, with no other field set.
    """
    calls = set()
    for causes, ranges in getattr(function, "idle", ()):
        named = causes[0](arguments) if causes and callable(causes[0]) else causes
        shown = {k: arguments[k] for k, values in ranges.items() if _within(arguments[k], values)}
        if named is not None and shown:
            calls.add((transforms.call(function.__name__, shown), *named))
    if equals(arguments.get("coefficient"), 0):
        calls.add((transforms.call(function.__name__, {"coefficient": arguments["coefficient"]}),))
    return types.Needs(idle=frozenset(calls))


def equals(value: Any, number: float) -> bool:
    """Return whether a value is this Python number, not a traced number or a schedule."""
    return isinstance(value, int | float) and value == number


def _within(value: Any, values: types.Range | None) -> bool:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return values is None or value in values
    return values is None and isinstance(value, str | tuple)
