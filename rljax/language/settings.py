"""Groups of settings: a frozen dataclass is the schema of its group.

    @dataclasses.dataclass(frozen=True)
    class SamplerConfig:
        temperature: Positive = setting(1.0, "Divisor of the logits.")
        draw: Literal["gumbel", "inverse"] = setting("gumbel", "How a token is drawn.")

The annotation is the type and the range, the default is the default, and the text is the help. A ``ConfigDict``, the
flags, the checks, the error messages and the page of all fields are derived from these. Functions receive a whole
group, so a new field needs one line in its group and one where it is read; ``flat`` gives a function of groups the
fields as arguments, for calls that users write.
"""

import dataclasses
import functools
import inspect
import re
import textwrap
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, TypeVar

from rljax.language import hints, messages, parse
from rljax.types import Range

Count = Annotated[int, Range(1, 1e9)]
Size = Annotated[int, Range(0, 1e9)]  # 0 usually means "off" or "automatic"
Share = Annotated[float, Range(0, 1)]
NonNegative = Annotated[float, Range(0)]
Positive = Annotated[float, Range(0, open_low=True)]

T = TypeVar("T")


def setting(default: Any, help: str, *, fixed: bool = False) -> Any:
    """Define a field of a group.

    Args:
      default: its value if a config does not set it.
      help: one line that explains the field, with its unit.
      fixed: whether it applies to the whole run, so that a phase cannot set it.

    Returns:
      The field, for the right-hand side of an annotated name in a dataclass.
    """
    return dataclasses.field(default=default, metadata={"help": help, "fixed": fixed})


def group(of: type, *, fixed: bool = False, flat: bool = False, **defaults: Any) -> Any:
    """Define a field that contains another group.

    Args:
      of: the group's dataclass; every field of it has a default, there or in ``defaults``.
      fixed: whether all its fields apply to the whole run, so that a phase cannot set them.
      flat: whether, in a config, its fields are fields of the enclosing group instead of a nested group.
      **defaults: values that replace the defaults of its fields.

    Returns:
      The field, for the right-hand side of an annotated name in a dataclass.
    """
    metadata = {"of": of, "fixed": fixed, "flat": flat, "defaults": defaults}
    return dataclasses.field(default_factory=lambda: of(**defaults), metadata=metadata)


def flat(function: Callable[..., T]) -> Callable[..., T]:
    """Give a function, as its arguments, the fields of its groups in place of the groups.

        @settings.flat
        def tools(path: str, lengths: Lengths = SHORT): ...

    ``tools("rows", turns=2)`` then calls it with ``lengths=dataclasses.replace(SHORT, turns=2)``; in the
    docstring, the line of a group becomes the help of its fields.

    Args:
      function: every parameter whose annotation is a dataclass is a group and has a default.

    Returns:
      The function of the fields.
    """
    annotations, inner = typing.get_type_hints(function, include_extras=True), inspect.signature(function)
    groups = {name: hint for name, hint in annotations.items() if dataclasses.is_dataclass(hint) and name != "return"}
    text, shown = inspect.cleandoc(function.__doc__ or "") + "\n", list[inspect.Parameter]()
    for name, parameter in inner.parameters.items():
        if name not in groups:
            shown.append(parameter)
            continue
        help = ""
        for field in dataclasses.fields(groups[name]):
            default, hint = getattr(parameter.default, field.name), _annotations(groups[name])[field.name]
            kind = parameter.KEYWORD_ONLY if field.kw_only else parameter.kind
            shown.append(parameter.replace(name=field.name, kind=kind, default=default, annotation=hint))
            line = f"{field.name}: {field.metadata['help']}"
            help += textwrap.fill(line, 116, initial_indent="  ", subsequent_indent="    ") + "\n"
        text = re.sub(rf"^  {name}: .*\n", lambda _, help=help: help, text, flags=re.MULTILINE)
    outer = inner.replace(parameters=shown)

    @functools.wraps(function)
    def called(*args: Any, **kwargs: Any) -> T:
        given = outer.bind(*args, **kwargs).arguments
        for name, group in groups.items():
            chosen = {field.name: given.pop(field.name) for field in dataclasses.fields(group) if field.name in given}
            given[name] = dataclasses.replace(inner.parameters[name].default, **chosen)
        return function(**given)

    made: Any = called
    made.__signature__, made.__annotations__ = outer, {p.name: p.annotation for p in shown}
    made.__doc__ = text
    del made.__wrapped__
    return made


def constructor(build: Callable[..., T], *groups: Any, doc: str | None = None) -> Callable[..., T]:
    """Return a function whose arguments are the fields of groups, see ``flat``; it passes the groups to ``build``.

    Args:
      build: makes a value of the groups.
      *groups: with the defaults of the arguments; no two have a field of the same name.
      doc: docstring of the function, without its arguments; None: that of the first group.

    Returns:
      The function.
    """
    default = {f"group_{number}": group for number, group in enumerate(groups)}

    def function(**given: Any) -> T:
        return build(*(given[name] for name in default))

    made: Any = function
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    made.__signature__ = inspect.Signature([inspect.Parameter(n, kind, default=g) for n, g in default.items()])
    made.__annotations__ = {name: type(group) for name, group in default.items()}
    text = inspect.cleandoc(doc or type(groups[0]).__doc__ or "")
    made.__doc__ = "\n".join([text, "", "Args:", *(f"  {name}: settings." for name in default), ""])
    return flat(function)


@functools.cache
def _annotations(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls, include_extras=True)


def check(instance: Any) -> None:
    """Check every setting of a group; use as the ``__post_init__`` of a group.

    Raises:
      ValueError: a value of another type or out of range; the message names the field, its value and what is allowed.
    """
    annotations = _annotations(type(instance))
    for field in dataclasses.fields(instance):
        if "help" in field.metadata:
            check_value(field.name, getattr(instance, field.name), annotations[field.name])


def check_value(name: str, value: Any, hint: Any) -> None:
    """Raise ValueError unless a value has the type and the range of an annotation; ``name`` is its field."""
    if problem := hints.mismatch(value, hint):
        raise ValueError(f"{name}={messages.shown(value)}: must be {problem}.{hints.closest(value, hint)}")


@dataclasses.dataclass(frozen=True)
class Field:
    """One field of a schema: its path, allowed values, default and help."""

    path: tuple[str, ...]
    hint: Any  # the annotation
    default: Any
    help: str
    fixed: bool  # whether it applies to the whole run

    @property
    def type(self) -> type:
        """The Python type of its values."""
        return type(self.default)

    @property
    def allowed(self) -> str:
        """Its allowed values, in words."""
        return hints.describe(self.hint)


def fields(cls: type) -> Iterator[Field]:
    """Yield every field of a group and of the groups inside it, in order of definition."""
    yield from _fields(cls, (), False, {})


def _fields(cls: type, path: tuple[str, ...], fixed: bool, defaults: Mapping[str, Any]) -> Iterator[Field]:
    annotations = _annotations(cls)
    for field in dataclasses.fields(cls):
        meta, inner = field.metadata, (*path, field.name)
        if "of" in meta:
            yield from _fields(meta["of"], path if meta["flat"] else inner, fixed or meta["fixed"], meta["defaults"])
        elif "help" in meta:
            default = defaults.get(field.name, field.default)
            yield Field(inner, annotations[field.name], default, meta["help"], fixed or meta["fixed"])


def defaults(cls: type) -> dict[str, Any]:
    """Return a nested dictionary with the default of every field of a group."""
    tree: dict[str, Any] = {}
    for field in fields(cls):
        put(tree, field.path, field.default)
    return tree


def put(tree: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set ``tree[path[0]][path[1]]...`` to a value, creating missing dictionaries.

    Args:
      tree: nested dictionaries, changed in place.
      path: keys from the outermost dictionary to the value; at least one.
      value: the value.
    """
    for name in path[:-1]:
        tree = tree.setdefault(name, {})
    tree[path[-1]] = value


def verify(cls: type, values: Mapping[str, Any], path: str = "config") -> None:
    """Check each value of a nested mapping against the schema of a group.

    Args:
      cls: the group's dataclass.
      values: a mapping such as a ``ConfigDict``; fields may be missing.
      path: the name of the mapping in error messages.

    Raises:
      ValueError: a field that the schema lacks, or a value of another type or out of range; the message names the
        field, its value and what is allowed.
    """
    known = _members(cls)
    for name in values:
        value = values[name]
        if name not in known:
            raise ValueError(f"{path}.{name}: unknown field.{parse.nearest(name, known)}")
        if not dataclasses.is_dataclass(known[name]):
            check_value(f"{path}.{name}", value, known[name])
        elif hasattr(value, "items"):
            verify(known[name], value, f"{path}.{name}")
        else:
            raise ValueError(f"{path}.{name}={messages.shown(value)}: must be a group of fields.")


def build(cls: type[T], values: Mapping[str, Any], path: str = "config") -> T:
    """Return a group whose fields have the values of a nested mapping, checked against its schema.

    Args:
      cls: the group's dataclass.
      values: a mapping such as a ``ConfigDict``; missing fields have their defaults.
      path: the name of the mapping in error messages.

    Returns:
      An instance of ``cls``.

    Raises:
      ValueError: the errors of ``verify``, or values that are incompatible with each other.
    """
    verify(cls, values, path)
    return _build(cls, values, path, {})


def _build(cls: Any, values: Mapping[str, Any], path: str, defaults: Mapping[str, Any]) -> Any:
    arguments = dict(defaults)
    for field in dataclasses.fields(cls):
        meta = field.metadata
        if "of" in meta:
            inner = values if meta["flat"] else values.get(field.name, {})
            where = path if meta["flat"] else f"{path}.{field.name}"
            arguments[field.name] = _build(meta["of"], inner, where, meta["defaults"])
        elif "help" in meta and field.name in values:
            arguments[field.name] = values[field.name]
    try:
        return cls(**arguments)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _members(cls: type) -> dict[str, Any]:
    """Return the members that a mapping of a group may have: annotations of settings, classes of groups."""
    members: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        meta = field.metadata
        if "of" in meta:
            members |= _members(meta["of"]) if meta["flat"] else {field.name: meta["of"]}
        elif "help" in meta:
            members[field.name] = _annotations(cls)[field.name]
    return members
