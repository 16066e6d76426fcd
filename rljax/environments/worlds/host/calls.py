"""Calls of tools: what a model writes becomes calls, and every call gets an answer. Imports no jax, for workers.

A tool is a Python function with a docstring and annotations. Models write calls in one of three forms:

==========  ==============================================================================================
``json``    ``<tool_call>{"name": "add", "arguments": {"x": 1, "y": 2}}</tool_call>``, as Hermes and Qwen do
``bare``    a turn that is one such object, without tags, also with "parameters", as Llama 3 does
``tags``    ``<search>query</search>``, a tag for each tool, for small models: the argument of a tool that
            takes one; of others, a JSON object
==========  ==============================================================================================

What stands between ``<think>`` and ``</think>`` holds no calls.
"""

import inspect
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeVar, get_args

from rljax.environments.worlds.host import signatures
from rljax.language import dotted, messages

Form = Literal["json", "bare", "tags"]

F = TypeVar("F", bound=Callable[..., Any])

TRANSCRIPT = "transcript"  # the keyword argument by which a reward function asks for a ``Transcript``
OPEN, CLOSE = "<tool_call>", "</tool_call>"
_THOUGHT = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_SPACE = re.compile(r"\s*")
_ARGUMENTS = ("arguments", "parameters")
_EXAMPLE = '{"name": ..., "arguments": {...}}'


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)


class Call(NamedTuple):
    """A call that a model wrote."""

    name: str  # "" if it cannot be read
    arguments: Mapping[str, Any]
    problem: str  # what is wrong with it; "" for a call that can be made


class Answer(NamedTuple):
    """What a call returns to the model."""

    name: str  # of the tool; "" if the call names none
    text: str
    malformed: bool  # the call could not be made
    failed: bool  # the function raised


class Made(NamedTuple):
    """A call of an episode, as a reward function sees it."""

    turn: int  # from 0
    name: str  # of the tool; "" if the call names none
    arguments: Mapping[str, Any]  # {} if they cannot be read
    result: str  # what the model read; "" after an error
    error: str  # what was wrong with the call, or what the function raised; ""


class Transcript(NamedTuple):
    """What a reward function gets that has a parameter ``transcript``."""

    turns: tuple[str, ...]  # what the policy wrote, the answer last
    calls: tuple[Made, ...]  # in their order, the malformed ones included


def tool(function: F) -> F:
    """Mark a function as a tool, so that a config can name it by its dotted path; see ``signatures.describe``."""
    return dotted.mark(function, "tool")


class ToolError(Exception):
    """What a tool raises to give an answer that counts as failed; the answer is the text of the exception."""


class Described(NamedTuple):
    """A tool that has a description of its own, such as a server's, in place of annotations and a docstring."""

    function: Callable[..., Any]
    description: Mapping[str, Any]  # as ``signatures.describe`` returns it
    mismatch: Callable[[Mapping[str, Any]], str] | None = None  # what is wrong with arguments; None: see ``signatures``
    seconds: float = 0.0  # that a call may take


class Toolbox:
    """Functions that a model may call."""

    def __init__(
        self,
        functions: Sequence[Callable[..., Any] | Described],
        form: Form = "json",
        longest: int = 2000,
        most: int = 8,
    ):
        """Describe the functions.

        Args:
          functions: each with a docstring and annotations, as ``signatures.describe`` reads them, or ``Described``.
          form: how calls are written.
          longest: the most characters of an answer.
          most: the most calls of a turn; those that follow are one malformed call.

        Raises:
          ValueError: a function cannot be described, two have one name, or an argument is out of range.
        """
        if form not in get_args(Form):
            raise ValueError(f"form={messages.shown(form)}: must be one of {', '.join(map(repr, get_args(Form)))}")
        for field, value in (("longest", longest), ("most", most)):
            if value < 1:
                raise ValueError(f"{field}={value}: must be 1 or more")
        self.form, self.longest, self.most = form, longest, most
        self._tools: dict[str, Described] = {}
        for each in functions:
            made = each if isinstance(each, Described) else Described(each, signatures.describe(each))
            name = made.description["name"]
            if name in self._tools:
                raise ValueError(f"functions: two tools are named {name!r}")
            self._tools[name] = made
        if not self._tools:
            raise ValueError("functions: names no tool")

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as chat templates take them: {"type": "function", "function": {...}} each."""
        return [{"type": "function", "function": dict(each.description)} for each in self._tools.values()]

    @property
    def instruction(self) -> str:
        """The tools and the form of calls as text, for a prompt without a chat template."""
        if self.form != "tags":
            tools = "\n".join(json.dumps(each.description, ensure_ascii=False) for each in self._tools.values())
            example = '{"name": NAME, "arguments": {NAME: VALUE}}'
            return (
                f"Tools:\n{tools}\nTo call a tool, write {OPEN + example + CLOSE if self.form == 'json' else example}"
            )
        lines = []
        for name, each in self._tools.items():
            properties = each.description["parameters"]["properties"]
            inside = next(iter(properties)) if len(properties) == 1 else "{...}" if properties else ""
            lines.append(f"<{name}>{inside}</{name}>: {each.description['description']}")
        return "Tools:\n" + "\n".join(lines)

    @property
    def ends(self) -> tuple[str, ...]:
        """Texts that end a call."""
        names = {"json": ("tool_call",), "bare": (), "tags": tuple(self._tools)}[self.form]
        return tuple(f"</{name}>" for name in names)

    def write(self, name: str, **arguments: Any) -> str:
        """Return a call as a model should write it."""
        if self.form == "tags":
            only = len(self._tools[name].description["parameters"]["properties"]) == 1
            inside = next(iter(arguments.values())) if only and arguments else None
            text = inside if isinstance(inside, str) else json.dumps(inside if only else arguments, ensure_ascii=False)
            return f"<{name}>{text}</{name}>"
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        return f"{OPEN}\n{call}\n{CLOSE}" if self.form == "json" else call

    def calls(self, text: str) -> list[Call]:
        """Return the calls of a turn, in order; never raises."""
        read = list(itertools.islice(self._each(text), self.most + 1))
        excess = Call("", {}, f"a turn may have {self.most} calls; the others were not made")
        return [*read[: self.most], *([excess] if len(read) > self.most else [])]

    def _each(self, text: str) -> Iterator[Call]:
        text = _THOUGHT.sub("", text).rpartition("</think>")[2]  # the prompt may have opened the thought
        if self.form == "tags":
            names = "|".join(map(re.escape, self._tools))
            tags = re.finditer(rf"<({names})>(.*?)(?:</\1>|(?=<(?:{names})>)|\Z)", text, re.DOTALL)
            yield from (self._tagged(match[1], match[2]) for match in tags)
        elif self.form == "bare":
            yield from [self._object(text)] if text.lstrip().startswith("{") else []
        else:
            at = text.find(OPEN)
            while at >= 0:
                call, end = self._object_at(text, at + len(OPEN))
                yield call
                at = text.find(OPEN, end)

    def answer(self, call: Call) -> Answer | Coroutine[Any, Any, Answer]:
        """Make a call; never raises but for ``KeyboardInterrupt``. Of an ``async def`` tool, the answer is awaited."""
        if call.problem:
            return Answer(call.name, self._cut(f"Error: {call.problem}"), malformed=True, failed=False)
        try:
            value = self._tools[call.name].function(**call.arguments)
            return self._awaited(call, value) if inspect.isawaitable(value) else self._said(call, _text(value))
        except BaseException as error:  # also exit(), which must not end the worker
            return self._said(call, _failure(error), failed=True)

    async def _awaited(self, call: Call, value: Awaitable[Any]) -> Answer:
        try:
            return self._said(call, _text(await value))
        except BaseException as error:
            return self._said(call, _failure(error), failed=True)

    def _said(self, call: Call, text: str, failed: bool = False) -> Answer:
        return Answer(call.name, self._cut(text), malformed=False, failed=failed)

    def _object_at(self, text: str, begin: int) -> tuple[Call, int]:
        """Read a call at a place of a turn; return it and its end. Tags may be part of an argument."""
        begin = _SPACE.match(text, begin).end()  # pyright: ignore[reportOptionalMemberAccess]  (matches always)
        try:
            end = _DECODER.raw_decode(text, begin)[1]
        except (ValueError, RecursionError):
            end = min(place if place >= 0 else len(text) for place in (text.find(t, begin) for t in (OPEN, CLOSE)))
        after = text[end:].lstrip()
        if after and not after.startswith((OPEN, CLOSE)):  # a stop text may have cut the end tag
            end = min(place if place >= 0 else len(text) for place in (text.find(t, end) for t in (OPEN, CLOSE)))
        return self._object(text[begin:end]), end

    def _object(self, text: str) -> Call:
        """Read a call written as JSON."""
        try:
            call = _json(text)
            if isinstance(call, dict) and isinstance(call.get("arguments"), str):
                call = call | {"arguments": _json(call["arguments"])}
        except ValueError as error:
            return Call("", {}, f"the call is not JSON: {error}. Write {_EXAMPLE}")
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            return Call("", {}, f'the call has no "name". Write {_EXAMPLE}')
        arguments = next((call[name] for name in _ARGUMENTS if name in call), {})
        if not isinstance(arguments, dict):
            return Call("", {}, f'"arguments" is {messages.shown(arguments)}, not an object. Write {_EXAMPLE}')
        return self._checked(call["name"], arguments)

    def _tagged(self, name: str, text: str) -> Call:
        """Read a call written between tags."""
        properties = self._tools[name].description["parameters"]["properties"]
        if len(properties) == 1:
            (argument, schema), value = next(iter(properties.items())), text.strip()
            if signatures.mismatch(value, schema):  # not a text: a number, a list
                try:
                    value = _json(value)
                except ValueError:
                    pass  # the check below says what is allowed
            return self._checked(name, {argument: value})
        try:
            arguments = _json(text) if text.strip() else {}
        except ValueError as error:
            return Call(name, {}, f"{name}: the arguments are not JSON: {error}")
        if not isinstance(arguments, dict):
            return Call(name, {}, f"{name}: the arguments are {messages.shown(arguments)}, not a JSON object")
        return self._checked(name, arguments)

    def _checked(self, name: str, arguments: Mapping[str, Any]) -> Call:
        if name not in self._tools:
            return Call("", {}, f"there is no tool {messages.shown(name)}.{_nearest(name, self._tools)}")
        parameters = self._tools[name].description["parameters"]
        properties = parameters["properties"]
        for argument in arguments:
            if argument not in properties:
                near = _nearest(argument, properties) if properties else " It takes none."
                return Call(name, {}, f"{name} has no argument {messages.shown(argument)}.{near}")
        for argument in parameters["required"]:
            if argument not in arguments:
                return Call(name, {}, f"{name}: the argument {argument!r} is missing")
        if (mismatch := self._tools[name].mismatch) is not None:
            problem = mismatch(arguments)
            return Call(name, {} if problem else arguments, problem and f"{name}: {problem}")
        for argument, value in arguments.items():
            if allowed := signatures.mismatch(value, properties[argument]):
                return Call(name, {}, f"{name}: {argument} is {messages.shown(value)}, must be {allowed}")
        return Call(name, signatures.converted(arguments, properties), "")

    def _cut(self, text: str) -> str:
        text = text.encode("utf-8", "replace").decode().replace("\0", "?")  # no binary data
        if len(text) <= self.longest:
            return text
        return f"{text[: self.longest]}... ({len(text) - self.longest:,} more characters)"


def _nearest(name: str, valid: Iterable[str]) -> str:
    names = sorted(valid)
    return f"{messages.hint(name, names)} Valid: {', '.join(names)}."


def _json(text: str) -> Any:
    """Return the value of a text of JSON; ValueError in words if it is none."""
    try:
        return _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg}, at character {error.pos}") from None


def _text(value: Any) -> str:
    """Return a result as text: a text as it is, plain data as JSON, and anything else as Python prints it."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(value)


def _failure(error: BaseException) -> str:
    """Return what a model reads after an exception of a tool; KeyboardInterrupt is raised."""
    if isinstance(error, KeyboardInterrupt):
        raise error
    if isinstance(error, ToolError):
        return str(error)
    try:
        return f"Error: {type(error).__name__}: {messages.printable(error)}"
    except Exception:  # its __str__ raises
        return f"Error: {type(error).__name__}: "
