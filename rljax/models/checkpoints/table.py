"""The table of families: the keys of config.json that each reads, their defaults, and what all its models share.

families.toml has the table, and says what its fields are.
"""

import dataclasses
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

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
