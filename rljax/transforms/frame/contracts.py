"""Pieces under check: whenever a chain runs or is traced, an error of a piece names it, and so does a wrong result.

Such an error is an ``errors.CodeError``: its message has the seam and the call of the piece, its notes the traceback,
the arrays that the piece was given, and what its seam returns.
"""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax

from rljax import types
from rljax.language import errors, messages
from rljax.transforms.frame import shapes

_NONE = types.Needs()
_DECLARED = {"ref_logp": "reference", "value": "value"}  # fields of a rollout, by the need that fills them
_PLURAL = ("turn", "agent", "episode", "domain")  # fields of a rollout whose need has an s


class Declared:
    """The scores as a piece sees them: a read of what its ``needs`` do not declare raises ValueError."""

    def __init__(self, scores: types.Scores | None, needs: types.Needs, live: bool):
        self._scores, self._needs, self._live = scores, needs, live

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if not self._live:
            raise _undeclared(name, "live", "; it is then computed on the whole minibatch")
        if name in ("divergence", *types.SCORES) and not getattr(self._needs, name, True):
            raise _undeclared(name, name)
        return getattr(self._scores, name)


jax.tree_util.register_pytree_node(
    Declared, lambda d: ((d._scores,), (d._needs, d._live)), lambda declared, scores: Declared(*scores, *declared)
)


def _undeclared(name: str, need: str, why: str = "") -> ValueError:
    value = "True" if getattr(_NONE, need) is False else "frozenset({...})"
    return ValueError(
        f"it reads scores.{name} and does not declare it. Write needs=types.Needs({need}={value}) in the piece's "
        f"decorator of rljax.transforms.define, or in the transform it returns{why}."
    )


def _guarded(piece: types.Transform, record: Any) -> Any:
    """Return a record as the piece sees it: scores are limited to what it declares."""
    scores = record._scores if isinstance(record, Declared) else record
    prepares, needs = isinstance(piece, types.PrepareTransform), piece.needs
    if not isinstance(scores, types.Scores) and not (prepares and scores is None):
        return record
    return Declared(scores, needs, not prepares or needs.live or needs.fixed_proximal or needs.proximal)


def apply(piece: types.Transform, *args: Any) -> Any:
    """Apply a piece and check what it returns.

    Args:
      piece: the piece.
      *args: the arguments of ``piece.apply``: records, state, key.

    Returns:
      What ``piece.apply`` returns.

    Raises:
      CodeError: an exception inside the piece, or a record or state of another shape, dtype or structure.
    """
    *records, state, key = args
    with _inside(piece, records):
        out = piece.apply(*(_guarded(piece, r) for r in records), state, key)
        if isinstance(piece, types.LossTransform):
            if not isinstance(out, types.Loss):
                raise ValueError(f"apply returned a value of type {type(out).__name__}: expected types.Loss")
            shapes.check_loss(out, records[1].mask)
            return out
        if not isinstance(out, tuple) or len(out) != 2:
            raise ValueError(f"apply returned a value of type {type(out).__name__}: expected (record, state)")
        if isinstance(piece, types.AfterTransform):
            shapes.check_same("the reference", records[0], out[0])
        else:
            shapes.check_rollout(out[0])
            shapes.check_same("the mask", records[0].mask, out[0].mask)
        shapes.check_same("the state", state, out[1])
        return out


def observe(piece: types.Transform, state: types.State, metrics: types.Metrics) -> types.State:
    """Update the state of a piece after a step, and check that its structure stays.

    Raises:
      CodeError: an exception inside the piece, such as a read of a metric that no piece writes, or another structure.
    """
    with _inside(piece, [dict(metrics)]):
        new = piece.observe(state, metrics)
        shapes.check_same("the state", state, new)
        return new


def _inside(piece: types.Transform, records: Sequence[Any]) -> Any:
    name = f"{piece.seam} {piece.spec}".strip() or "a piece without a name"
    return errors.inside(name, functools.partial(_notes, piece, records))


def _notes(piece: types.Transform, records: Sequence[Any], error: Exception) -> Iterator[str]:
    """Yield what a reader of the error needs to know about the inputs and about the result."""
    arrays = dict(pair for r in records for pair in _arrays(r))
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        names = {name.partition("'")[2].removesuffix("']") or name: name for name in arrays}
        near = messages.closest(error.args[0], names)
        yield "" if near is None else f"Did you mean {names[near]}?"
    by_shape: dict[str, list[str]] = {}
    named = [name for name in arrays if _named(name, piece.needs)]
    for name, x in ((name, arrays[name]) for name in named):
        by_shape.setdefault(f"{x.dtype}{[*x.shape]}", []).append(name)
    if by_shape:
        others = f", beside {count} arrays that its needs do not name" if (count := len(arrays) - len(named)) else ""
        yield "\n".join([f"It was given{others}:", *(f"  {s:<16} {', '.join(n)}" for s, n in by_shape.items())])
    rollout = next((r for r in records if isinstance(r, types.Rollout)), None)
    if "NoneType" in str(error) and rollout is not None:
        absent = [n for n in _DECLARED if getattr(rollout, n) is None]
        yield "\n".join(f"rollout.{n} is absent unless needs=types.Needs({_DECLARED[n]}=True)." for n in absent)
    if piece.seam in shapes.RETURNS and rollout is not None:
        yield f"A function of seam {piece.seam!r} returns {shapes.RETURNS[piece.seam][1]}."


def _named(name: str, needs: types.Needs) -> bool:
    """Return whether the needs name an array, or it has no need of its own."""
    field, _, key = name.partition(".")[2].partition("['")
    if field in ("parts", "extra"):
        return key.removesuffix("']") in getattr(needs, field)
    need = _DECLARED.get(field, field + "s" * (field in _PLURAL))
    return name == "rollout.reward" or bool(getattr(needs, need, True))


def _arrays(record: Any) -> Iterator[tuple[str, Any]]:
    """Yield the arrays of a record by their path, such as rollout.parts['format']."""
    names = {types.Rollout: "rollout", types.Scores: "scores", types.Loss: "loss", dict: "metrics"}
    kind = next((name for of, name in names.items() if isinstance(record, of)), None)
    if kind is None:
        return
    for path, x in jax.tree_util.tree_leaves_with_path(record):
        if hasattr(x, "dtype"):
            yield f"{kind}{jax.tree_util.keystr(path)}", x
