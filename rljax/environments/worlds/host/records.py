"""What a host world says, checked, as records that JSON can hold. Imports no jax, for worker processes."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rljax.environments.verifiers import outcomes
from rljax.environments.worlds import host
from rljax.language import messages as shown

LONGEST = 1 << 20  # characters of what a world says at once; more is an error, since tokens of it would never fit
_MOST_MESSAGES = 256
_KEYS = ("role", "content", "name", "tool_call_id")
_FIELDS = tuple(field.name for field in dataclasses.fields(host.Observation))


class _Said:
    """What the records have in common: each is of seat 0, and holds the records of the other seats."""

    error: str
    others: tuple[Any, ...]

    @property
    def valid(self) -> bool:
        """Whether the world answered; if not, the episode does not count."""
        return not self.error

    @property
    def seats(self) -> tuple[Self, ...]:
        """The record of each seat."""
        return self, *self.others

    @classmethod
    def failed(cls, outcome: str, error: str) -> Self:
        """Return the record of a world that did not answer."""
        return cls(outcome=outcome, error=outcomes.failure(outcome, error).error or "no reason was given")  # pyright: ignore[reportCallIssue]

    def to_json(self) -> dict[str, Any]:
        """Return the record as an object of JSON."""
        return dataclasses.asdict(self)  # pyright: ignore[reportArgumentType]  each kind is a dataclass

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Return the record that ``to_json`` wrote.

        Raises:
          ValueError: it did not write this.
        """
        return cls(**_checked(cls, value))


@dataclasses.dataclass(frozen=True)
class Begun(_Said):
    """The opening of an episode."""

    messages: tuple[host.Message, ...] = ()  # () after a failure
    outcome: str = ""  # "", or after a failure one of outcomes.FAILURES
    error: str = ""  # the reason of a failure
    others: tuple["Begun", ...] = ()  # what the seats from 1 on read first


@dataclasses.dataclass(frozen=True)
class Answer(_Said):
    """What follows a turn, for seat 0. After a failure nothing was said or paid, and the episode is over."""

    messages: tuple[host.Message, ...] = ()  # what the policy reads next; () if nothing is said
    reward: float = 0.0
    done: bool = False
    truncated: bool = False
    outcome: str = "wrong"  # lower-case name of a types.Outcome
    parts: Mapping[str, float] = dataclasses.field(default_factory=dict)
    error: str = ""  # the reason of a failure, whose outcome is one of outcomes.FAILURES
    others: tuple["Answer", ...] = ()  # what follows it for the seats from 1 on
    next_seat: int | None = None  # who writes next; None: the seat that follows

    @property
    def over(self) -> bool:
        """Whether the episode has ended."""
        return self.done or self.truncated or not self.valid

    @property
    def text(self) -> str:
        """The contents of the messages, on lines of their own."""
        return "\n".join(message["content"] for message in self.messages)


def opening(value: Any, seats: int = 1) -> Begun:
    """Return what ``reset`` of so many seats returned as a record; ValueError or TypeError if it is none."""
    if seats > 1:
        first, *others = (opening(_of_seat("reset", "text", value, seat, seats)) for seat in range(seats))
        return dataclasses.replace(first, others=tuple(others))
    read = conversation(value, "user", "reset")
    if not any(message["content"] for message in read):
        raise ValueError("reset returned no text; the policy needs something to read")
    return Begun(read)


def observation(value: Any, role: str, seats: int = 1) -> Answer:
    """Return what ``step`` returned as a record.

    Args:
      value: an ``Observation``, or a mapping with its fields.
      role: of a message that is given as a text.
      seats: of the world.

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
    if _no_seat(value.next_seat, seats):
        raise ValueError(f"step returned next_seat {shown.shown(value.next_seat)}; expected a seat below {seats}")
    answers = [_answer(_seat(value, seat, seats) if seats > 1 else value, role) for seat in range(seats)]
    if failure := next((each for each in answers if each.error), None):
        return failure
    following = None if value.next_seat is None else int(value.next_seat)
    return dataclasses.replace(answers[0], others=tuple(answers[1:]), next_seat=following)


def _no_seat(value: Any, seats: int) -> bool:
    return isinstance(value, bool) or (value is not None and value not in range(seats))


def _seat(value: host.Observation, seat: int, seats: int) -> host.Observation:
    """Return what an observation of several seats holds for one."""

    def of(name: str, given: Any) -> Any:
        return _of_seat("step", name, given, seat, seats)

    parts: Any = value.parts
    if isinstance(parts, Mapping):
        parts = {name: of(f"part {shown.shown(name)}", number) for name, number in parts.items()}
    fields = {name: of(name, getattr(value, name)) for name in ("text", "reward", "outcome")}
    return dataclasses.replace(value, parts=parts, **fields)


def _of_seat(where: str, name: str, given: Any, seat: int, seats: int) -> Any:
    """Return the value of a seat: of a list, its entry; another value holds for every seat."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        return given
    if len(given) != seats:
        raise ValueError(
            f"{where} returned {name} {shown.shown(given)}; expected one value, or a list of {seats}, one for each seat"
        )
    return given[seat]


def _answer(value: host.Observation, role: str) -> Answer:
    """Return an observation of one seat as a record."""
    done, truncated = _flag("done", value.done), _flag("truncated", value.truncated)
    if not isinstance(value.parts, Mapping):
        raise TypeError(f"step returned parts {shown.shown(value.parts)}; expected a mapping of named numbers")
    if taken := {"reward", "outcome"} & set(value.parts):
        raise ValueError(f"step returned a part named {taken.pop()!r}, which is a field of Observation")
    judged = {**value.parts, "reward": value.reward} | ({"outcome": value.outcome} if value.outcome != "" else {})
    answer = outcomes.read(judged)
    if answer.error:
        return Answer.failed(answer.outcome, answer.error)
    reply = conversation(value.text, role, "step")
    return Answer(reply, answer.reward, done, truncated, answer.outcome, answer.parts)


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
    if type(value).__name__ not in ("bool", "bool_"):  # also NumPy's
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
        if failure != (fields["outcome"] in outcomes.FAILURES):
            raise ValueError(f"outcome {shown.shown(fields['outcome'])} and error {shown.shown(fields['error'])}")
        fields["messages"] = conversation(fields["messages"], "user", "the world")
        others = ({**other, "others": ()} for other in fields["others"])  # which have none of their own
        fields["others"] = tuple(kind(**_checked(kind, other)) for other in others)
        if kind is Begun:
            if fields["outcome"] and not failure:
                raise ValueError(f"outcome {shown.shown(fields['outcome'])}")
            return fields
        if failure:
            return dataclasses.asdict(Answer.failed(fields["outcome"], fields["error"]))
        given = {**fields["parts"], "reward": fields["reward"]}
        answer = outcomes.read(given | ({"outcome": fields["outcome"]} if fields["outcome"] else {}))
        if _no_seat(following := fields["next_seat"], 1 + len(fields["others"])):
            raise ValueError(f"next_seat {shown.shown(following)}")
        flags = {name: _flag(name, fields[name]) for name in ("done", "truncated")}
        return {**fields, **flags, "reward": answer.reward, "parts": answer.parts}
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ValueError(f"not a record of what a world says: {error}") from error
