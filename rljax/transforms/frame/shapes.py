"""Shapes and types of the records, and of what the functions of a piece return; checked also while tracing."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from rljax import types
from rljax.language import errors
from rljax.transforms.frame import extras

PER_TOKEN = (
    *("behaviour_logp", "raw_logp", "entropy", "square_prob", "version", "turn", "token_reward", "advantage"),
    *("value", "returns", "ref_logp", "proximal_logp"),
)
PER_ROW = ("outcome", "valid", "episode", "agent", "domain", "on_policy", "finish", "index")
IDS = ("group", "episode", "agent", "domain")  # only their equality matters, so they may be anything that can be sorted
WHOLE = ("version", "turn", "outcome", "finish", "index")  # numbers with a meaning

_ROW, _TOKEN, _ROW_OF_TOKENS = ("B",), ("B", "T"), ("B", 1)

# By seam: the shapes of what its function returns, or of the first item of a pair, and all that it may return
RETURNS: dict[str, tuple[tuple[tuple[Any, ...], ...], str]] = {
    "reward": ((_ROW, _TOKEN), "the rows' reward [B], token rewards [B, T], or a rollout"),
    "advantage": (
        (_ROW, _TOKEN, _ROW_OF_TOKENS),
        "the advantage [B], [B, 1] or [B, T]; a pair of it and the critic's target; or a rollout",
    ),
    "prepare": ((_TOKEN, _ROW_OF_TOKENS), "where the mask stays, bool [B, T] or [B, 1]; a rollout; or a pair of both"),
    "ratio": ((_TOKEN, _ROW_OF_TOKENS), "log rho [B, T] or [B, 1]; or a pair of it and the proximal log-probs [B, T]"),
    "surrogate": ((_TOKEN,), "the term [B, T]; or a pair of it and a dict of metrics [B, T]"),
    "weight": ((_TOKEN, _ROW_OF_TOKENS), "the weight [B, T] or [B, 1]"),
    "penalty": ((_TOKEN,), "the term [B, T]; or a pair of it and its metric [B, T]"),
    "reduce": ((_TOKEN,), "the coefficient of every token [B, T]"),
}


class Signature(NamedTuple):
    """How rljax calls a function of a source."""

    arguments: str
    returns: str
    kind: type | None = None  # of what it returns, or of the first item of a pair; None: any pytree


# Functions of ``types.Source`` and ``types.Again``; ``transforms.source`` says what each does
FUNCTIONS = {
    "init": Signature("rollout, problems", "the pool"),
    "choose": Signature("pool, problems, offered, key", "types.Choice", types.Choice),
    "head": Signature("pool, problems, rows, solutions, key", "types.Action", types.Action),
    "edit": Signature("pool, problems, rollout, solutions, count, key", "types.Edit", types.Edit),
    "merge": Signature("first, second, edit", "types.Rollout", types.Rollout),
    "select": Signature("rollout, pool, count, key", "a pair (types.Rollout, pool)", types.Rollout),
    "observe": Signature("pool, metrics", "the pool"),
}
R = TypeVar("R", types.Source, types.Again)


def array(name: str, x: Any, allowed: tuple[tuple[Any, ...], ...], mask: Any, kind: Any = None) -> None:
    """Check shape and dtype of an array of a batch.

    Args:
      name: of the array, for the error.
      x: the array.
      allowed: shapes of "B", "T", numbers, and ... for any further dimensions.
      mask: ``[B, T]``, the mask of the batch.
      kind: int or float; None: a float of at least 32 bits; bool: any.

    Raises:
      ValueError: another shape or dtype, by name.
    """
    letters = dict(zip(("B", "T"), jnp.shape(mask), strict=True))
    sizes = [tuple(letters.get(n, n) for n in shape) for shape in allowed]
    written = (f"{size}, [{', '.join(map(str, shape))}]" for size, shape in zip(sizes, allowed, strict=True))
    expected = " or ".join(written).replace("Ellipsis", "...")
    if not hasattr(x, "dtype"):
        given = jax.tree.map(lambda leaf: f"{leaf.dtype}{[*leaf.shape]}" if hasattr(leaf, "dtype") else leaf, x)
        raise ValueError(f"{name} is {given!r:.100}: expected an array {expected}")
    if not any(jnp.shape(x) == s or (s[-1] is ... and jnp.shape(x)[: len(s) - 1] == s[:-1]) for s in sizes):
        raise ValueError(f"{name} has shape {jnp.shape(x)}: expected {expected}")
    group = jnp.integer if kind is int else jnp.floating
    if kind is not bool and not jnp.issubdtype(x.dtype, group):
        raise ValueError(f"{name} has type {x.dtype}: expected {'whole numbers' if kind is int else 'floats'}")
    if kind is None and x.dtype.itemsize < 4:
        raise ValueError(f"{name} has type {x.dtype}: expected float32")


def check_rollout(rollout: types.Rollout) -> None:
    """Check the shape and the type of every field that is present.

    Raises:
      ValueError: a field of another shape or type, by name.
    """
    if jnp.ndim(rollout.mask) != 2:
        raise ValueError(f"mask has shape {jnp.shape(rollout.mask)}: expected [B, T]")
    arrays = {name: getattr(rollout, name) for name in ("mask", "reward", "group", *PER_TOKEN, *PER_ROW)}
    arrays["token"] = getattr(rollout.action, "token", None)
    for name, x in arrays.items():
        if x is not None:
            shape = _ROW if name in ("reward", "group", *PER_ROW) else _TOKEN
            array(name, x, (shape,), rollout.mask, int if name in ("token", *IDS, *WHOLE) else float)
    for name, x in rollout.parts.items():
        array(f"parts[{name!r}]", x, (_ROW,), rollout.mask, float)
    for name, x in rollout.extra.items():
        shape = extras.EXTRAS[name].shape if name in extras.EXTRAS else ("B", ...)
        array(f"extra[{name!r}]", x, (shape,), rollout.mask, bool)
    for name, x in rollout.coefficient.items():
        array(f"coefficient[{name!r}]", x, (_TOKEN,), rollout.mask)


def check_scores(scores: types.Scores, rollout: types.Rollout) -> None:
    """Check that the scores belong to the rollout's rows and tokens.

    Raises:
      ValueError: a score of another shape or type, by name.
    """
    arrays = {name: (getattr(scores, name), row.shape) for name, row in types.SCORES.items()}
    arrays |= {f"divergence[{name!r}]": (x, _TOKEN) for name, x in scores.divergence.items()}
    for name, (x, shape) in arrays.items():
        if x is not None:
            array(f"scores.{name}", x, (shape,), rollout.mask, float)


def requested(needs: types.Needs, mask: types.Array) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the scores that needs name, divergences aside.

    Args:
      needs: what is asked for.
      mask: ``[B, T]``, of the rows.

    Returns:
      The shapes by the name of the field of ``types.Scores``.
    """
    letters = dict(zip(("B", "T"), jnp.shape(mask), strict=True))
    named = {name: [letters[n] for n in types.SCORES[name].shape if n is not ...] for name in needs.requested}
    sizes = {
        name: [kind[-1] for kind in sorted(asked)] for name in named if (asked := getattr(needs, name)) is not True
    }
    return {name: (*shape, *sizes.get(name, ())) for name, shape in named.items()}


def check_loss(loss: types.Loss, mask: types.Array) -> None:
    """Check terms, metrics and ratio of a loss chain.

    Raises:
      ValueError: an array of another shape or type, by name.
    """
    arrays = {f"the term {name!r}": x for name, x in loss.terms.items()}
    arrays |= {f"the metric {name!r}": x for name, x in loss.metrics.items()}
    arrays |= {"log_ratio": loss.log_ratio, "proximal_logp": loss.proximal_logp}
    for name, x in arrays.items():
        if x is not None:
            array(name, x, (_TOKEN,), mask)


def check_same(name: str, one: types.Tree, two: types.Tree) -> None:
    """Check that a tree keeps its structure, shapes and dtypes.

    Raises:
      ValueError: they differ.
    """
    before, after = (jax.tree.map(lambda x: f"{jnp.result_type(x)}{[*jnp.shape(x)]}", tree) for tree in (one, two))
    if before != after:
        raise ValueError(
            f"{name} was {before!s:.200} and became {after!s:.200}: structure, shapes and dtypes must stay"
        )


def returned(seam: str, function: Callable[..., Any], arguments: Mapping[str, Any], *records: Any) -> Any:
    """Return ``function(*records, **arguments)``, after a check that it is one of ``RETURNS[seam]``.

    Raises:
      ValueError: another type, shape or dtype, with the file and line of the function.
    """
    out = function(*records, **arguments)
    mask = next((r.mask for r in records if isinstance(r, types.Rollout)), None)
    first, second = out if isinstance(out, tuple) and len(out) == 2 else (out, None)
    if isinstance(first, types.Rollout):  # of a pair, where the mask stays is the second item
        first, second = second, None
    if mask is not None and seam in RETURNS and (first is not None or out is None):
        function = inspect.unwrap(function)
        place = f"{function.__name__} ({errors.place(function)}) returned a result that"
        array(place, first, RETURNS[seam][0], mask, bool if seam == "prepare" else None)
        for name, x in (second if isinstance(second, Mapping) else {} if second is None else {"": second}).items():
            array(place.replace("a result", f"a second item {name!r}"), x, (_TOKEN,), mask)
    return out


def source(record: R) -> R:
    """Check the signatures of the functions of a source or of its second pass.

    Args:
      record: the source, or ``Source.again``.

    Returns:
      The record, whose functions also check the type of what they return.

    Raises:
      ValueError: a function takes other arguments than ``FUNCTIONS`` has; names it, its file and line.
    """
    functions = {name: getattr(record, name, None) for name in FUNCTIONS}
    functions = {n: f for n, f in functions.items() if f is not None and f is not getattr(type(record), n, None)}
    for name, function in functions.items():
        _check_signature(name, function)
    checked = {n: functools.partial(_answer, n, f) for n, f in functions.items() if FUNCTIONS[n].kind}
    return dataclasses.replace(record, **checked)


def _check_signature(name: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function that is built in
        return
    expected = FUNCTIONS[name]
    try:
        signature.bind(*expected.arguments.split(", "))
    except TypeError:
        raise ValueError(
            f"{name} ({errors.place(function)}) takes ({', '.join(signature.parameters)}): expected "
            f"({expected.arguments}), and it returns {expected.returns}"
        ) from None


def _answer(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)``, after a check that it is of the type that ``FUNCTIONS[name]`` has."""
    expected = FUNCTIONS[name]
    out: Any = function(*args)
    pair = name == "select"
    first = out[0] if pair and isinstance(out, tuple) and len(out) == 2 else None if pair else out
    if not isinstance(first, expected.kind or object):
        kind = f"{out.dtype}{[*out.shape]}" if hasattr(out, "dtype") else type(out).__name__
        place = f"{name} ({errors.place(function)})"
        raise ValueError(f"{place} returned a value of type {kind}: expected {expected.returns}")
    return out
