"""The keys of config.json: those that each family reads, and their defaults; those that change nothing; the others.

families.toml has the table of families, and says what its fields are. A family names the keys that it reads
(``Family.read``). Any other key must be harmless, or have a value
that means that nothing is different; a key that is in no list is refused. keys.toml has the lists.
"""

import dataclasses
import pathlib
import tomllib
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from rljax.language import hints, messages
from rljax.models.architectures import Architecture

_HINTS = typing.get_type_hints(Architecture, include_extras=True)

_TABLE = tomllib.loads(pathlib.Path(__file__).with_name("keys.toml").read_text())
HARMLESS, TOKENS, OUTER = (frozenset(_TABLE[name].split()) for name in ("harmless", "tokens", "outer"))
EXPECTED: Mapping[str, Sequence[Any]] = _TABLE["expected"]


def check(config: Mapping[str, Any], read: Collection[str], expected: Mapping[str, Sequence[Any]], of: str) -> None:
    """Check that every key is read, harmless, or has a value that changes nothing.

    Args:
      config: an object of config.json.
      read: the keys that are read.
      expected: key -> values that change nothing, in addition to null; they replace the values of ``EXPECTED``.
      of: what the object describes, for the message.

    Raises:
      ValueError: a key is unknown, or has another value; it is named.
    """
    expected = {**EXPECTED, **expected}
    for key, value in config.items():
        if key in read or key in HARMLESS:
            continue
        if key not in expected:
            raise ValueError(
                f"config.json: {messages.shown(key)} is unknown ({of}); remove it if it does not change what the model "
                f"computes.{messages.hint(key[:40], {*read, *HARMLESS, *expected})}"
            )
        if value is not None and value not in expected[key]:
            allowed = " or ".join(map(repr, (*expected[key], None)))
            raise ValueError(f"config.json: {key}={messages.shown(value)} is not supported ({of}): must be {allowed}")


def value(config: Mapping[str, Any], key: str, of: Any) -> Any:
    """Return the value of a key, checked against an annotation.

    Args:
      config: an object of config.json.
      key: the key.
      of: the annotation, or the name of a field of ``Architecture``, which has it.

    Raises:
      ValueError: the key is missing or null, or its value does not fit.
    """
    if config.get(key) is None:
        raise ValueError(f"config.json: {key!r} is missing or null")
    if problem := hints.mismatch(config[key], _HINTS[of] if isinstance(of, str) else of):
        raise ValueError(f"config.json: {key}={messages.shown(config[key])}: must be {problem}")
    return config[key]


def agreed(key: str, *values: Any) -> Any:
    """Return the value that is not None, None if there is none.

    Raises:
      ValueError: there are several, and they differ.
    """
    given = [value for value in values if value is not None]
    if any(value != given[0] for value in given):
        raise ValueError(f"config.json: {key} is given as {' and as '.join(map(messages.shown, given))}")
    return given[0] if given else None


TABLE: dict[str, Any] = tomllib.loads(pathlib.Path(__file__).with_name("families.toml").read_text())
SIZES, FIELDS, NULL, BIASES = (TABLE[name] for name in ("sizes", "fields", "null", "biases"))


@dataclasses.dataclass(frozen=True)
class Family:
    """What the models of a family share; ``mixed``: layers with and without a window can be in one model."""

    model: str  # the prefix of its classes in transformers
    defaults: Mapping[str, Any]  # keys that are read, other than SIZES, and the values of that class
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of Architecture
    mixed: bool = False
    every: int = 0  # one layer in so many has no window; 0: the family has no such rule
    ignored: tuple[str, ...] = ()  # keys that its reference code does not read
    expected: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)  # see ``keys.check``
    classifier: str = ""  # the prefix of its class for classification, if it differs
    tower: str = ""  # the form of its vision tower; with one, the keys are in ``text_config``
    sections: tuple[int, ...] = ()  # ``rope_sections`` of its class; with some, the keys may be in the outer config

    @property
    def read(self) -> set[str]:
        """The keys that are read."""
        return {*SIZES, *self.defaults, "layer_types", "model_type", "rope_parameters", "rope_scaling"}


def _family(fields: Mapping[str, Any]) -> Family:
    """Return a row of the table; TOML has no null, and no tuples."""
    defaults = {**fields["defaults"], **dict.fromkeys(fields.get("null", ()))}
    rest = tuples({name: value for name, value in fields.items() if name != "null"})
    return Family(**{**rest, "defaults": defaults, "fixed": tuples(fields.get("fixed", {}))})


def tuples(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields with a tuple in place of each list."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}


FAMILIES = {name: _family(fields) for name, fields in TABLE["families"].items()}
