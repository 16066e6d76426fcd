"""The language of config strings: calls to registered names, checked against their signatures.

    grpo(high=0.28)                       one call
    experiments.study.pieces.mine(0.3)    a dotted path to a marked function; see ``dotted``
    center_by_group() | whiten()          several pieces, in order
    + kl('k3', linear(0.01, 0.0, 100))    appended to the recipe's pieces; calls nest
    none                                  no pieces

Strings are parsed with ``ast`` and never evaluated. Arguments are literals or calls. Their names, types and ranges are
the signature's, so the signature is the schema. ``lookup`` is the one place where a name becomes a function.
"""

import ast
import contextlib
import contextvars
import dataclasses
import importlib
import inspect
import math
import re
import typing
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rljax.language import dotted, errors, foreign, hints, messages, scopes

_LONGEST = 10_000  # characters of a text
_DEEPEST = 50  # levels of its syntax tree, so that no recursion below exceeds Python's limit


@dataclasses.dataclass(frozen=True)
class Registry:
    """What a config may name at some place: functions by name, and marked objects of one kind by dotted path."""

    kind: str  # of ``dotted.KINDS``
    functions: Mapping[str, Callable[..., Any] | str]  # a string "module:function" is imported at first use


@dataclasses.dataclass(frozen=True)
class Name:
    """An argument that is written as a name and has a value only inside ``naming``."""

    name: str

    def __repr__(self) -> str:
        return self.name


_NAMED: contextvars.ContextVar[Mapping[str, Any]] = contextvars.ContextVar("named", default={})  # noqa: B039, never set


def naming(values: Mapping[str, Any]) -> contextlib.AbstractContextManager[Any]:
    """Within the block, arguments may be written as these names, which stand for these values."""
    return scopes.during(_NAMED, values)


def setting(text: str) -> tuple[str, Any]:
    """Return the field and the value of "field=value"; a value that is not a literal is a string.

    Raises:
      ValueError: there is no "=".
    """
    field, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--set {text}: expected field=value.")
    return field.removeprefix("config."), literal(value)


def literal(text: str) -> Any:
    """Return the value of a Python literal, or of JSON's true or false; another text is returned unchanged."""
    text = {"true": "True", "false": "False"}.get(text, text)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def nearest(name: str, valid: typing.Iterable[str]) -> str:
    """Return the end of an error message: the nearest valid name, or our name for a foreign one, and all names."""
    names = sorted(valid)
    return f"{_foreign(name, names) or messages.hint(name, names)} Valid: {', '.join(names)}."


def _foreign(name: str, valid: typing.Container[str]) -> str:
    """Return a sentence with our name for another library's; "" for an unknown one."""
    for same in foreign.SAME.get(name.lower().replace("-", "_"), ()):
        if same in valid:
            return f" Here it is {same!r}."
    return f" Here that is {foreign.FOREIGN[name]}." if name in foreign.FOREIGN else ""


def _tree(text: str, field: str) -> ast.expr:
    """Return the syntax tree of a text, of bounded length and depth."""
    if len(text) > _LONGEST:
        raise ValueError(
            f"{field}={messages.shown(text)}: has {len(text):,} characters; must have at most {_LONGEST:,}."
        )
    problem = f"{field}={messages.shown(text)}: not a call such as 'name(argument=1)'"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as a SyntaxWarning about an escape sequence
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else str(error) or "too deeply nested"
        same = " Here it is 'lam'." if re.search(r"\blambda\s*=", text) else ""  # a keyword of Python
        raise ValueError(f"{problem} ({messages.shown(reason)[1:-1]}).{same}") from None
    level: list[ast.AST] = [tree]
    for _ in range(_DEEPEST):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ValueError(f"{problem} (too deeply nested).")
    return tree


def _dotted(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = _dotted(node.value)
        return head and f"{head}.{node.attr}"
    return None


def lookup(name: str, registry: Registry, field: str) -> Callable[..., Any]:
    """Return the function that a name or a dotted path denotes.

    Args:
      name: a name of ``registry``, or a dotted path to an object that is marked as of the registry's kind.
      registry: what may be named.
      field: field of the config that errors name.

    Returns:
      The function.

    Raises:
      ValueError: an unknown name, or a path that reaches no marked object.
    """
    known = registry.functions.get(name)
    if isinstance(known, str):
        module, _, attribute = known.partition(":")
        return getattr(importlib.import_module(module), attribute)
    if known is not None:
        return known
    if "." not in name or name.lower() in foreign.SAME:
        raise ValueError(f"{field}: unknown name {messages.shown(name)}.{nearest(name, registry.functions)}")
    with resolving(field):
        return dotted.load(name, registry.kind)


@contextlib.contextmanager
def resolving(field: str) -> Iterator[None]:
    """Within the block, turn errors of ``dotted`` into errors of a field.

    Raises:
      ValueError: there is no such object; with the nearest name.
      CodeError: its module cannot be imported; with the traceback.
    """
    try:
        yield
    except dotted.Unknown as error:
        message, unknown, valid = error.args
        raise ValueError(f"{field}: {message}{nearest(unknown, valid)}") from None
    except dotted.NotMarked as error:
        cause = error.__cause__  # what the import of the module raised
        if cause is None:
            raise ValueError(f"{field}: {error}") from None
        raise errors.CodeError(f"{field}: {error}", [errors.trace(cause)]) from cause


def _value(node: ast.expr, registry: Registry, field: str) -> Any:
    if isinstance(node, ast.Call):
        return _call(node, registry, field, registry)
    if isinstance(node, ast.Tuple | ast.List):
        return tuple(_value(x, registry, field) for x in node.elts)
    if isinstance(node, ast.Name) and node.id in _NAMED.get():
        return _NAMED.get()[node.id]
    if isinstance(node, ast.Name) and node.id in ("inf", "nan"):
        return float(node.id)
    if isinstance(node, ast.UnaryOp) and ast.unparse(node) == "-inf":
        return -math.inf
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):  # TypeError: a list as a key
        raise ValueError(f"{field}: {_written(node)} is neither a literal nor a call.") from None


def _written(node: ast.AST) -> str:
    """Return a part of a text for an error message."""
    try:
        return messages.shown(ast.unparse(node))
    except ValueError:  # an integer with more digits than Python prints
        return "a part of it"


def _call(node: ast.expr, registry: Registry, field: str, nested: Registry) -> Any:
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    name = _dotted(call.func)
    if name is None:
        text = _written(node)
        same = _foreign("reinforce++", ("reinforce_plus_plus",)) if text.startswith("'reinforce + +") else ""
        raise ValueError(f"{field}: {text} is not a call to a name.{same}")
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
        near = nearest(unknown[0], signature.parameters)
        raise ValueError(f"{field}: {name}() has no argument {messages.shown(unknown[0])}.{near}")
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        kind = errors.Absent if str(error).startswith("missing") else ValueError
        raise kind(f"{field}: {name}({', '.join(signature.parameters)}): {error}.") from None
    try:
        annotations = typing.get_type_hints(inspect.unwrap(function), include_extras=True)
    except (NameError, TypeError):
        annotations = {}
    for argument, value in bound.arguments.items():
        several = signature.parameters[argument].kind is inspect.Parameter.VAR_POSITIONAL
        for item in value if several else (value,):
            problem = hints.mismatch(item, annotations.get(argument, Any))
            if problem:
                shown = messages.shown(item)
                raise ValueError(f"{field}: {name}({argument}={shown}): {argument} must be {problem}.")
    with errors.called(f"{field}: {name}()"):
        return function(*bound.args, **bound.kwargs)


def one(text: str, registry: Registry, field: str, nested: Registry | None = None) -> Any:
    """Evaluate a single call.

    Args:
      text: such as ``"grpo(high=0.28)"``.
      registry: what the call may name.
      field: field of the config that errors name.
      nested: what calls among the arguments may name; None: ``registry``.

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
      registry: what the calls may name.
      field: field of the config that errors name.
      nested: what calls among the arguments may name; None: ``registry``.

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


def without_options(text: str, registry: Registry, field: str) -> str:
    """Return a call with the arguments that have no default, and ``like``: "f(3, low=0.1)" -> "f(3)".

    Args:
      text: a call that ``one`` accepts.
      registry: what the call may name.
      field: field of the config that errors name.

    Returns:
      The call.
    """
    node = _tree(text, field)
    if not isinstance(node, ast.Call):
        return text
    parameters = inspect.signature(lookup(_dotted(node.func) or "", registry, field)).parameters
    required = [name for name, p in parameters.items() if p.default is p.empty]
    kept = [arg for arg, name in zip(node.args, parameters, strict=False) if name in required]
    keywords = [k for k in node.keywords if k.arg in (*required, "like")]
    return ast.unparse(ast.Call(func=node.func, args=kept, keywords=keywords))


def with_argument(text: str, argument: str, value: Any, field: str) -> str:
    """Return a call with one keyword argument replaced or appended: ("nsr()", "low", 0.1) -> "nsr(low=0.1)".

    Args:
      text: a call.
      argument: the argument's name, or of an argument of a call among the arguments: ("kl", "end") is "kl.end".
      value: a literal, or a ``Name``.
      field: field of the config that errors name.

    Returns:
      The call, with the argument last.

    Raises:
      ValueError: the call has positional arguments, or an argument that is no call is to have one.
    """
    argument, _, inner = argument.partition(".")
    if not argument.isidentifier():
        raise ValueError(f"{field}: {messages.shown(argument)} is not the name of an argument.")
    node = _tree(text, field)
    call = node if isinstance(node, ast.Call) else ast.Call(func=node, args=[], keywords=[])
    if inner:
        nested = next((k.value for k in call.keywords if k.arg == argument and isinstance(k.value, ast.Call)), None)
        if nested is None:
            raise ValueError(f"{field}={messages.shown(text)}: {argument!r} is not a call, so it has no {inner!r}.")
        literal = _tree(with_argument(ast.unparse(nested), inner, value, f"{field}.{argument}"), field)
    else:
        literal = _tree(repr(value), field)
    if call.args:
        raise ValueError(
            f"{field}={messages.shown(text)}: write its arguments as keywords in order to set {argument!r}."
        )
    keywords = [k for k in call.keywords if k.arg != argument]
    keywords.append(ast.keyword(arg=argument, value=literal))
    return ast.unparse(ast.Call(func=call.func, args=[], keywords=keywords))
