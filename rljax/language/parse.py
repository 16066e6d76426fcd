"""The language of config strings: calls to registered names, checked against their signatures.

    grpo(high=0.28)                       one call
    experiments.study.pieces.mine(0.3)    a dotted path to any importable function
    center_by_group() | whiten()          several pieces, in order
    + kl('k3', linear(0.01, 0.0, 100))    appended to the recipe's pieces; calls nest
    none                                  no pieces

Strings are parsed with ``ast`` and never evaluated. Arguments are literals or calls. Their names, types and ranges are
those of the signature, so the signature is the schema.
"""

import ast
import difflib
import importlib
import inspect
import math
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rljax.language import foreign, hints

Registry = Mapping[str, Callable[..., Any] | str]
"""Functions by name; a string "module:function" is imported at first use."""


def setting(text: str) -> tuple[str, Any]:
    """Return the field and the value of "field=value"; a value that is not a literal is a string.

    Raises:
      ValueError: there is no "=".
    """
    field, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text}: expected field=value.")
    try:
        return field.removeprefix("config."), ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return field.removeprefix("config."), value


def nearest(name: str, valid: typing.Iterable[str]) -> str:
    """Return the end of an error message: the nearest valid name, or that of a foreign name, and all valid names."""
    names = sorted(valid)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    if name in foreign.FOREIGN:
        hint = f" Here that is {foreign.FOREIGN[name]}."
    return f"{hint} Valid: {', '.join(names)}."


def _tree(text: str, field: str) -> ast.expr:
    try:
        return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{field}={text!r}: not a call such as 'name(argument=1)' ({error.msg}).") from None


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return head and f"{head}.{node.attr}"
    return None


def lookup(name: str, registry: Registry, field: str) -> Callable[..., Any]:
    """Return the function that a name or a dotted path denotes.

    Args:
      name: a key of ``registry``, or a dotted path to an importable function.
      registry: functions by name.
      field: field of the config that errors name.

    Returns:
      The function.

    Raises:
      ValueError: an unknown name, or a path that cannot be imported.
    """
    known = registry.get(name)
    if callable(known):
        return known
    module, _, attribute = known.partition(":") if known else name.rpartition(".")
    if not module:
        raise ValueError(f"{field}: unknown name {name!r}.{nearest(name, registry)}")
    if module.partition(".")[0] in sys.stdlib_module_names:
        raise ValueError(f"{field}: {name!r} is in Python's standard library, which a config cannot call.")
    try:
        imported = importlib.import_module(module)
    except ImportError as error:
        raise ValueError(f"{field}: {name!r} cannot be imported ({error}).") from error
    if not callable(getattr(imported, attribute, None)):
        named = {n: getattr(imported, n) for n in dir(imported) if not n.startswith("_")}
        public = [n for n, f in named.items() if callable(f) and str(getattr(f, "__module__", "")).startswith(module)]
        raise ValueError(f"{field}: module {module!r} has no function {attribute!r}.{nearest(attribute, public)}")
    return getattr(imported, attribute)


def _value(node: ast.expr, registry: Registry, field: str) -> Any:
    if isinstance(node, ast.Call):
        return _call(node, registry, field, registry)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(x, registry, field) for x in node.elts)
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if ast.unparse(node) == "-inf":
        return -math.inf
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise ValueError(f"{field}: {ast.unparse(node)!r} is neither a literal nor a call.") from None


def _call(node: ast.expr, registry: Registry, field: str, nested: Registry) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    name = _dotted(call.func)
    if name is None:
        raise ValueError(f"{field}: {ast.unparse(node)!r} is not a call to a name.")
    function = lookup(name, registry, field)
    args = [_value(a, nested, field) for a in call.args]
    kwargs = {}
    for keyword in call.keywords:
        if keyword.arg is None:
            raise ValueError(f"{field}: {name}(**...) is not supported; write the arguments out.")
        kwargs[keyword.arg] = _value(keyword.value, nested, field)
    return invoke(function, name, args, kwargs, field)


def invoke(function: Callable[..., Any], name: str, args: list, kwargs: dict, field: str) -> Any:
    """Call ``function`` after checking argument names, types and ranges against its signature.

    Args:
      function: any function; arguments are checked against its annotations.
      name: its name in the config, for error messages.
      args: positional arguments.
      kwargs: arguments by name.
      field: field of the config that errors name.

    Returns:
      The result of the function.

    Raises:
      ValueError: an unknown or missing argument, a value outside its type or range, or an error of the function.
    """
    signature = inspect.signature(function)
    unknown = [k for k in kwargs if k not in signature.parameters]
    if unknown and not any(p.kind is p.VAR_KEYWORD for p in signature.parameters.values()):
        raise ValueError(
            f"{field}: {name}() has no argument {unknown[0]!r}.{nearest(unknown[0], signature.parameters)}"
        )
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ValueError(f"{field}: {name}({', '.join(signature.parameters)}): {error}.") from None
    try:
        annotations = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError):
        annotations = {}
    for argument, value in bound.arguments.items():
        problem = hints.mismatch(value, annotations.get(argument, Any))
        if problem:
            raise ValueError(f"{field}: {name}({argument}={value!r}): {argument} must be {problem}.")
    try:
        return function(*bound.args, **bound.kwargs)
    except (TypeError, ValueError, OSError) as error:
        raise ValueError(f"{field}: {name}(): {error}") from error


def one(text: str, registry: Registry, field: str, nested: Registry | None = None) -> Any:
    """Evaluate a single call.

    Args:
      text: such as ``"grpo(high=0.28)"``.
      registry: functions by name, for the call.
      field: field of the config that errors name.
      nested: functions by name, for calls among the arguments; None: ``registry``.

    Returns:
      The result of the called function.

    Raises:
      ValueError: the text is not a call, or has an unknown name or an invalid argument.
    """
    return _call(_tree(text, field), registry, field, registry if nested is None else nested)


def many(text: str, registry: Registry, field: str, nested: Registry | None = None) -> list[Any]:
    """Evaluate calls joined by ``|``.

    Args:
      text: such as ``"a() | b(2)"``; "none" means no calls.
      registry: functions by name, for the calls.
      field: field of the config that errors name.
      nested: functions by name, for calls among the arguments; None: ``registry``.

    Returns:
      The results of the called functions, in order.

    Raises:
      ValueError: a part is not a call, or has an unknown name or an invalid argument.
    """
    if text.strip() == "none":
        return []

    def flatten(node: ast.expr) -> list[ast.expr]:
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            return [*flatten(node.left), *flatten(node.right)]
        return [node]

    nested = registry if nested is None else nested
    return [_call(node, registry, field, nested) for node in flatten(_tree(text, field))]


def with_argument(text: str, argument: str, value: Any, field: str) -> str:
    """Return a call with one keyword argument replaced or appended: ("nsr()", "low", 0.1) -> "nsr(low=0.1)".

    Args:
      text: a call.
      argument: the argument's name.
      value: a literal.
      field: field of the config that errors name.

    Returns:
      The call, with the argument last.

    Raises:
      ValueError: the call has positional arguments.
    """
    node = _tree(text, field)
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if call.args:
        raise ValueError(f"{field}={text!r}: write its arguments as keywords in order to set {argument!r}.")
    keywords = [k for k in call.keywords if k.arg != argument]
    keywords.append(ast.keyword(arg=argument, value=_tree(repr(value), field)))
    return ast.unparse(ast.Call(func=call.func, args=[], keywords=keywords))
