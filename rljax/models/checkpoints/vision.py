"""Vision towers of public checkpoints: their part of config.json and the names of their tensors, both directions.

Sources: the configuration classes of transformers 4.57 and 5, and the published folders.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.language import messages
from rljax.models import towers
from rljax.models.architectures import Architecture
from rljax.models.checkpoints import keys

_HINTS = typing.get_type_hints(towers.Vision, include_extras=True)


@dataclasses.dataclass(frozen=True)
class Tower:
    """What ``vision_config`` and the outer config.json say of a tower, and the names of its tensors; families.toml."""

    model: Sequence[str]  # model_type of its vision_config; others that are read
    sizes: Mapping[str, tuple[str, Any]]  # its keys -> field of ``Vision``, and the default of its class
    outer: Mapping[str, tuple[str, Any]]  # keys of the outer config.json
    fixed: Mapping[str, Any]  # fields of ``Vision``
    expected: Mapping[str, Sequence[Any]]  # see ``keys.check``
    names: Mapping[str, str]  # paths of parameters, such as "tower.layers.query" -> names of tensors
    ignored: Sequence[str] = ()  # keys that its reference code does not read
    output: str = ""  # the key that has the decoder's width


TOWERS = {
    form: Tower(**{**fields, "fixed": keys.tuples(fields["fixed"])}) for form, fields in keys.TABLE["towers"].items()
}


def read(form: str, config: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Return the fields of ``Vision`` that a config.json describes; ``width`` is the decoder's.

    Raises:
      ValueError: a key is missing, unknown or not supported; it is named.
    """
    tower, inner = TOWERS[form], config.get("vision_config")
    model = tower.model[0]
    if not isinstance(inner, Mapping) or inner.get("model_type", model) not in tower.model:
        raise ValueError(f"config.json: vision_config={messages.shown(inner)}: must be an object of model_type {model}")
    known, expected = {*tower.sizes, *tower.ignored}, {**tower.expected, tower.output: (width,)}
    keys.check(inner, known, expected, f"vision_config of model_type {model!r}")
    fields = {"form": form, **tower.fixed}
    for given, names in ((inner, tower.sizes), (config, tower.outer)):
        for key, (field, default) in names.items():
            value = given.get(key, default)
            value = {key: tuple(value) if isinstance(value, list) else value}
            fields[field] = keys.value(value, key, _HINTS[field])
    try:
        towers.read(fields)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None
    return fields


def write(form: str, vision: towers.Vision, width: int) -> dict[str, Any]:
    """Return the keys of config.json that describe a tower of a form: ``vision_config`` and those beside it."""
    tower = TOWERS[form]
    outer, inner = ({k: getattr(vision, field) for k, (field, _) in x.items()} for x in (tower.outer, tower.sizes))
    inner |= {key: values[0] for key, values in tower.expected.items()} | {"model_type": tower.model[0]}
    return {**outer, "vision_config": inner | ({tower.output: width} if tower.output else {})}


def names(a: Architecture) -> dict[tuple[str, ...], str]:
    """Return the tensor of each parameter of the tower, as ``families.names``; {} if no family has such a tower."""
    if not a.vision.layers or a.vision.form not in TOWERS:
        return {}
    names = TOWERS[a.vision.form].names
    return {tuple(path.replace("tower", a.tower_name).split(".")): public for path, public in names.items()}


# prefixes of multimodal folders, before and after the renaming in transformers 4.52 -> the names here
_PREFIXES = (
    (re.compile(r"^(model\.)?language_model\.(model\.)?(?=layers\.|norm\.|embed_tokens\.)"), "model."),
    (re.compile(r"^language_model\.(?=lm_head\.)"), ""),
    (re.compile(r"^(?:model\.)?(vision_tower|multi_modal_projector|visual)\.(?:vision_model\.)?"), r"\1."),
)


def short(name: str) -> str:
    """Return the name of a tensor without the prefixes that multimodal folders have."""
    for pattern, to in _PREFIXES:
        name = pattern.sub(to, name)
    return name


def published(form: str, name: str) -> str:
    """Return the name that a tensor has in a published folder with a tower: the inverse of ``short``."""
    if form == "siglip" and name.startswith(("model.", "lm_head.")):
        return f"language_model.{name}"
    return name.replace("vision_tower.", "vision_tower.vision_model.", 1)
