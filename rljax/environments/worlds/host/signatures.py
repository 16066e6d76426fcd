"""Functions as JSON schemas, and values checked against them. Imports no jax, for worker processes.

The schemas are those that ``transformers.utils.get_json_schema`` makes, so that chat templates read them; see
https://huggingface.co/docs/transformers/chat_extras.
"""

import inspect
import json
import math
import re
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from rljax.language import messages

_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", type(None): "null"}
_WORDS = {
    "integer": "a whole number",
    "number": "a number",
    "string": "a text",
    "boolean": "true or false",
    "null": "null",
    "array": "a list",
    "object": "an object",
}
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_SECTION = re.compile(r"^[ \t]*(Args|Returns?|Raises|Yields|Examples?|Notes?):[ \t]*$", re.MULTILINE)
_ENTRY = re.compile(r"^([ \t]*)\*{0,2}(\w+)(?:[ \t]*\([^)\n]*\))?:[ \t]*(.*)$")


def describe(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the name, description and parameters of a tool.

    Args:
      function: its parameters have annotations and a line each under ``Args:`` of the docstring, in Google's style.

    Returns:
      {"name": ..., "description": ..., "parameters": {"type": "object", "properties": {...}, "required": [...]}}.

    Raises:
      ValueError: it has no docstring, or a parameter lacks an annotation or a description, or cannot be given by name.
    """
    name = getattr(function, "__name__", "")
    if not inspect.isroutine(function) or not _NAME.fullmatch(name):
        raise ValueError(f"functions: {messages.shown(function)} is not a function with a name")
    documented = inspect.getdoc(function)
    if not documented:
        raise ValueError(f"tool {name!r} has no docstring, which tells the model what it does")
    description, explained = _read(documented)
    hints = typing.get_type_hints(function)
    properties, required = {}, []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ValueError(f"tool {name!r}: the parameter {parameter} cannot be given by its name")
        if parameter.name not in hints:
            raise ValueError(f"tool {name!r}: the parameter {parameter.name!r} has no annotation")
        if parameter.name not in explained:
            raise ValueError(
                f"tool {name!r}: the parameter {parameter.name!r} has no line under Args: of the docstring"
            )
        properties[parameter.name] = schema(hints[parameter.name]) | {"description": explained[parameter.name]}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"name": name, "description": description, "parameters": parameters}


def _read(documented: str) -> tuple[str, dict[str, str]]:
    """Return the description of a docstring, and the description of each argument."""
    pieces = _SECTION.split(documented)
    explained: dict[str, str] = {}
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        if title != "Args":
            continue
        indent, current = None, ""
        for line in body.splitlines():
            match = _ENTRY.match(line)
            if match and (indent is None or len(match[1]) <= indent):
                indent, current = len(match[1]), match[2]
                explained[current] = match[3].strip()
            elif current and line.strip():
                explained[current] = f"{explained[current]} {line.strip()}".strip()
    return pieces[0].strip(), explained


def schema(hint: Any) -> dict[str, Any]:
    """Return the JSON schema of an annotation.

    Raises:
      ValueError: it is not among None, int, float, str, bool, list, dict, tuple, Literal, Any and unions of these.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return {}
    if origin is typing.Annotated:
        return schema(arguments[0])
    if hint in _SIMPLE:
        return {"type": _SIMPLE[hint]}
    if origin is typing.Literal:
        kinds = {_SIMPLE.get(type(value)) for value in arguments}
        return {"type": kinds.pop() if len(kinds) == 1 else sorted(map(str, kinds)), "enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        return _union([schema(each) for each in arguments if each is not type(None)], type(None) in arguments)
    if hint is list or (origin is list and len(arguments) == 1):
        return {"type": "array"} | ({"items": schema(arguments[0])} if arguments else {})
    if hint is tuple or (origin is tuple and arguments and Ellipsis not in arguments):
        return {"type": "array"} | ({"prefixItems": [schema(each) for each in arguments]} if arguments else {})
    if hint is dict or (origin is dict and len(arguments) == 2):
        return {"type": "object"} | ({"additionalProperties": schema(arguments[1])} if arguments else {})
    raise ValueError(f"annotation {messages.shown(hint)}: has no JSON schema")


def _union(options: list[dict[str, Any]], optional: bool) -> dict[str, Any]:
    if len(options) == 1:
        joined = options[0]
    elif all(set(option) == {"type"} and isinstance(option["type"], str) for option in options):
        joined = {"type": sorted(option["type"] for option in options)}
    else:
        joined = {"anyOf": options}
    return joined | ({"nullable": True} if optional else {})


def mismatch(value: Any, form: Mapping[str, Any]) -> str:
    """Return "" if a value of JSON fits a schema that ``schema`` made, else what is allowed, in words."""
    return "" if _fits(value, form) else words(form)


def words(form: Mapping[str, Any]) -> str:
    """Return in words what a schema allows."""
    if "enum" in form:
        text = f"one of {', '.join(map(json.dumps, form['enum']))}"
    elif "anyOf" in form:
        text = " or ".join(map(words, form["anyOf"]))
    elif "prefixItems" in form:
        text = f"a list of {len(form['prefixItems'])}: {', '.join(map(words, form['prefixItems']))}"
    else:
        kinds = form.get("type", [])
        text = " or ".join(_WORDS[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds)) or "anything"
        inner = form.get("items", form.get("additionalProperties"))
        text += f" of which each is {words(inner)}" if inner else ""
    return text + (" or null" if form.get("nullable") else "")


def _fits(value: Any, form: Mapping[str, Any]) -> bool:
    if value is None and form.get("nullable"):
        return True
    if "anyOf" in form:
        return any(_fits(value, option) for option in form["anyOf"])
    if "enum" in form:
        return any(value == choice and isinstance(value, bool) == isinstance(choice, bool) for choice in form["enum"])
    kinds = form.get("type")
    if kinds is not None and not any(_is(value, kind) for kind in ([kinds] if isinstance(kinds, str) else kinds)):
        return False
    if isinstance(value, list) and "prefixItems" in form:
        items = form["prefixItems"]
        return len(value) == len(items) and all(map(_fits, value, items))
    if isinstance(value, list) and "items" in form:
        return all(_fits(each, form["items"]) for each in value)
    if isinstance(value, dict) and "additionalProperties" in form:
        return all(_fits(each, form["additionalProperties"]) for each in value.values())
    return True


def _is(value: Any, kind: str) -> bool:
    """Return whether a value of JSON is of a type of JSON schema, where 3.0 is a whole number."""
    if kind in ("integer", "number"):
        if isinstance(value, float):
            return math.isfinite(value) and (kind == "number" or value.is_integer())
        return isinstance(value, int) and not isinstance(value, bool)
    kinds = {"string": str, "boolean": bool, "array": list, "object": dict, "null": type(None)}
    return isinstance(value, kinds[kind])


def converted(arguments: Mapping[str, Any], properties: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return arguments that fit their schemas as Python takes them: 3.0 is 3 where a whole number is due."""

    def convert(value: Any, form: Mapping[str, Any]) -> Any:
        if form.get("type") == "integer" and isinstance(value, float):
            return int(value)
        if form.get("type") == "number" and isinstance(value, int):
            return float(value) if abs(value) < 2**53 else value
        if isinstance(value, list) and "prefixItems" in form:
            return tuple(map(convert, value, form["prefixItems"]))
        if isinstance(value, list) and "items" in form:
            return [convert(each, form["items"]) for each in value]
        return value

    return {name: convert(value, properties[name]) for name, value in arguments.items()}
