"""What a host world says, checked, as records that JSON can hold. Imports no jax, for worker processes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rljax.environments.verifiers import worker
from rljax.environments.worlds import host
from rljax.language import messages as shown

LONGEST = 1 << 20  # characters of what a world says at once; more is an error, since tokens of it would never fit
_MOST_MESSAGES = 256
_KEYS = ("role", "content", "name", "tool_call_id")
_FIELDS = tuple(field.name for field in dataclasses.fields(host.Observation))


@dataclasses.dataclass(frozen=True)
class Begun:
    """The opening of an episode."""

    messages: tuple[host.Message, ...] = ()  # () after a failure
    outcome: str = ""  # "", or after a failure one of worker.FAILURES
    error: str = ""  # the reason of a failure

    @property
    def valid(self) -> bool:
        """Whether the world began."""
        return not self.error

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the record that ``to_json`` wrote.

        Raises:
          ValueError: it did not write this.
        """
        return cls(**_checked(cls, value))


@dataclasses.dataclass(frozen=True)
class Told:
    """What follows a turn. After a failure nothing was said, nothing is paid, and the episode is over."""

    messages: tuple[host.Message, ...] = ()  # what the policy reads next; () if nothing is said
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    outcome: str = "wrong"  # lower-case name of a types.Outcome
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: str = ""  # the reason of a failure, whose outcome is one of worker.FAILURES

    @property
    def valid(self) -> bool:
        """Whether the world answered; if not, the episode does not count."""
        return not self.error

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.done or self.truncated or not self.valid

    @property
    def text(self) -> str:
        """The contents of the messages, on lines of their own."""
        return "\n".join(message["content"] for message in self.messages)

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the record that ``to_json`` wrote.

        Raises:
          ValueError: it did not write this.
        """
        return cls(**_checked(cls, value))


@dataclasses.dataclass(frozen=True)
class Value:
    """What is read of a world outside of an episode's turns: values of JSON, or the reason of a failure."""

    value: Any = None
    error: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON."""
        return {"value": self.value, "error": self.error}

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the record that ``to_json`` wrote; ValueError if it did not write this."""
        if not isinstance(value, Mapping) or {*value} != {"value", "error"} or not isinstance(value["error"], str):
            raise ValueError(f"not a record of what a world says: {shown.shown(value)}")
        return cls(**value)


def begun(outcome: str, error: str) -> Begun:
    """Return the record of an episode that could not begin."""
    return Begun(outcome=outcome, error=worker.failure(outcome, error).error or "no reason was given")


def failed(outcome: str, error: str) -> Told:
    """Return the record of a turn without an answer."""
    return Told(outcome=outcome, error=worker.failure(outcome, error).error or "no reason was given")


def opening(value: Any) -> Begun:
    """Return what ``reset`` returned as a record; ValueError or TypeError if it is none."""
    read = conversation(value, "user", "reset")
    if not any(message["content"] for message in read):
        raise ValueError("reset returned no text; the policy needs something to read")
    return Begun(read)


def observation(value: Any, role: str) -> Told:
    """Return what ``step`` returned as a record.

    Args:
      value: an ``Observation``, or a mapping with its fields.
      role: of a message that is given as a text.

    Returns:
      The record; its outcome is "" if the world gave none.

    Raises:
      ValueError: a field has a value that is not allowed, such as a reward that is not finite.
      TypeError: it is no observation, or a field is of another type.
    """
    if isinstance(value, Mapping):
        unknown = [name for name in value if name not in _FIELDS]
        if unknown or "text" not in value:
            wrong = f"has {shown.shown(unknown[0])}" if unknown else "lacks 'text'"
            raise ValueError(f"step returned a mapping that {wrong}; its names are {', '.join(_FIELDS)}")
        value = host.Observation(**value)
    if not isinstance(value, host.Observation):
        raise TypeError(f"step returned {shown.shown(value)} of type {type(value).__name__}; expected an Observation")
    done, truncated = _flag("done", value.done), _flag("truncated", value.truncated)
    if not isinstance(value.parts, Mapping):
        raise TypeError(f"step returned parts {shown.shown(value.parts)}; expected a mapping of named numbers")
    if taken := {"reward", "outcome"} & set(value.parts):
        raise ValueError(f"step returned a part named {taken.pop()!r}, which is a field of Observation")
    judged = {**value.parts, "reward": value.reward} | ({"outcome": value.outcome} if value.outcome != "" else {})
    answer = worker.read(judged)
    if answer.error:
        return failed(answer.outcome, answer.error)
    reply = conversation(value.text, role, "step")
    return Told(reply, answer.reward, done, truncated, answer.outcome, answer.parts)


def conversation(value: Any, role: str, where: str) -> tuple[host.Message, ...]:
    """Return a text, a message or several as messages; a text of no characters is none.

    Args:
      value: what a world says.
      role: of a message that is given as a text.
      where: the method, for errors.

    Raises:
      ValueError: a text has a null character or cannot be written in UTF-8, as binary data, or all are too long.
      TypeError: it is neither a text nor messages.
    """
    if isinstance(value, str):
        value = [{"role": role, "content": value}] if value else []
    given = [value] if isinstance(value, Mapping) else value
    if not isinstance(given, Sequence) or isinstance(given, (bytes, bytearray, memoryview)):
        kind = type(value).__name__
        raise TypeError(f"{where} said {shown.shown(value)} of type {kind}; expected a text or messages")
    if len(given) > _MOST_MESSAGES:
        raise ValueError(f"{where} said {len(given)} messages at once; allowed: {_MOST_MESSAGES}")
    read = tuple(_message(message, where) for message in given)
    if (length := sum(len(message["content"]) for message in read)) > LONGEST:
        raise ValueError(f"{where} said {length:,} characters at once; allowed: {LONGEST:,}")
    return read


def _message(message: Any, where: str) -> host.Message:
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message) <= set(_KEYS):
        allowed = "{'role': ..., 'content': ...}, with 'name' or 'tool_call_id' where a tool answers"
        raise TypeError(f"{where} said {shown.shown(message)}; a message is {allowed}")
    for key, text in message.items():
        if not isinstance(text, str):
            kind = type(text).__name__
            raise TypeError(f"{where} said a message with {key} {shown.shown(text)} of type {kind}; expected a text")
        if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
            raise ValueError(f"{where} said {shown.shown(text)}, binary data; expected a text")
    if not 0 < len(message["role"]) <= 100:
        raise ValueError(f"{where} said a message with role {shown.shown(message['role'])}")
    return {str(key): str.__str__(text) for key, text in message.items()}  # plain, also of subclasses


def _flag(name: str, value: Any) -> bool:
    if type(value).__name__ not in ("bool", "bool_"):  # also those of NumPy
        raise TypeError(f"step returned {name} {shown.shown(value)} of type {type(value).__name__}; expected a bool")
    return bool(value)


def _checked(kind: type, value: Any) -> dict[str, Any]:
    """Return the fields of a record from JSON, which may come from a worker that a world writes into."""
    try:
        names = {field.name for field in dataclasses.fields(kind)}
        fields = dict(value)
        if set(fields) != names or not isinstance(fields["error"], str):
            raise ValueError(f"expected {', '.join(sorted(names))}")
        failure = bool(fields["error"])
        if failure != (fields["outcome"] in worker.FAILURES):
            raise ValueError(f"outcome {shown.shown(fields['outcome'])} and error {shown.shown(fields['error'])}")
        fields["messages"] = conversation(fields["messages"], "user", "the world")
        if kind is Begun:
            if fields["outcome"] and not failure:
                raise ValueError(f"outcome {shown.shown(fields['outcome'])}")
            return fields
        if failure:
            return dataclasses.asdict(failed(fields["outcome"], fields["error"]))
        given = {**fields["parts"], "reward": fields["reward"]}
        answer = worker.read(given | ({"outcome": fields["outcome"]} if fields["outcome"] else {}))
        flags = {name: _flag(name, fields[name]) for name in ("done", "truncated")}
        return {**fields, **flags, "reward": answer.reward, "parts": answer.parts}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"not a record of what a world says: {error}") from error
