"""Rotary positions in config.json, both directions, as versions 4 and 5 of transformers name them.

Version 4 has ``rope_theta``, ``rope_scaling`` and, in Gemma 3, ``rope_local_base_freq`` for layers with a window.
Version 5 has ``rope_parameters``, in Gemma 3 one for each kind of layer. A file may have both if they agree.
"""

import math
from collections.abc import Mapping
from typing import Any

from rljax.language import messages
from rljax.models.architectures import Architecture
from rljax.models.checkpoints import keys

_LAYERS = ("full_attention", "sliding_attention")
_TYPES: Mapping[str, Mapping[str, str]] = keys.TABLE["rope"]  # rope_type -> key -> field of Architecture
_MSCALE = ("mscale", "mscale_all_dim")  # of yarn: another way to write the attention factor


def sections(config: Mapping[str, Any], default: tuple[int, ...]) -> tuple[dict[str, Any], tuple[int, ...]]:
    """Return a config.json without sections of frequencies, and the sections; "mrope" is the name of "default"."""
    plain, given = dict(config), []
    for key in ("rope_scaling", "rope_parameters"):
        inner = _mapping(config, key)
        given.append(inner.get("mrope_section"))
        plain[key] = {
            name: "default" if name in ("rope_type", "type") and value == "mrope" else value
            for name, value in inner.items()
            if name != "mrope_section"
        }
    chosen = keys.agreed("mrope_section", *given)
    return plain, default if chosen is None else tuple(keys.value({"mrope_section": chosen}, "mrope_section", list))


def read(config: Mapping[str, Any], theta: float, local_theta: float | None) -> dict[str, Any]:
    """Return the fields of ``Architecture`` that describe rotary positions.

    Args:
      config: the decoder's part of a config.json.
      theta: of the family, if the file has none.
      local_theta: the same of layers with a window; None: they are like the others.

    Raises:
      ValueError: a value is missing, unknown, or given twice and different.
    """
    parameters, scaling = _mapping(config, "rope_parameters"), _mapping(config, "rope_scaling")
    full, local = parameters, {}
    if local_theta is not None:
        if unknown := sorted(set(parameters) - set(_LAYERS)):
            raise ValueError(
                f"config.json: rope_parameters has {messages.shown(unknown[0])}; expected {' and '.join(_LAYERS)}"
            )
        full, local = (_mapping(parameters, kind) for kind in _LAYERS)
    given = (config.get("rope_theta"), scaling.get("rope_theta"), full.get("rope_theta"))
    fields = {"rope_theta": _theta("rope_theta", theta, *given)}
    fields |= keys.agreed("rope_scaling", *(_stretched(config, each) for each in (scaling, full) if each)) or {}
    if local_theta is not None:
        if _stretched(config, local):
            raise ValueError("config.json: rope_parameters.sliding_attention: rope_type must be 'default'")
        given = (config.get("rope_local_base_freq"), local.get("rope_theta"))
        fields["rope_local_theta"] = _theta("rope_local_base_freq", local_theta, *given)
    return fields


def _theta(key: str, default: float, *given: Any) -> float:
    theta = keys.agreed(key, *given)
    return default if theta is None else keys.value({key: theta}, key, "rope_theta")


def _mapping(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = config.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise ValueError(f"config.json: {key}={messages.shown(value)}: must be an object or null")
    return value or {}


def _stretched(config: Mapping[str, Any], scaling: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of one object that describes how wavelengths are stretched; {} if they are not."""
    kind = keys.agreed("rope_type", scaling.get("rope_type"), scaling.get("type")) or "default"
    if not isinstance(kind, str) or kind not in _TYPES:
        raise ValueError(
            f"config.json: rope_type={messages.shown(kind)} is not supported; choose one of {', '.join(_TYPES)}"
        )
    read = {"rope_type", "type", "rope_theta", *_TYPES[kind], *(_MSCALE if kind == "yarn" else ())}
    keys.check(scaling, read, {}, f"rope_type {kind!r}")
    if kind == "default":
        return {}
    if kind == "yarn":  # its reference code has a default for everything but the factor
        scaling = {"truncate": True, **scaling, "attention_factor": _attention_factor(scaling)}
        length = config.get("max_position_embeddings")
        for key, default in (("beta_slow", 1), ("beta_fast", 32), ("original_max_position_embeddings", length)):
            scaling[key] = scaling.get(key) or default
    fields = {f: keys.value(scaling, key, f) for key, f in _TYPES[kind].items()}
    return fields | ({"rope_rule": kind} if "rope_original" in fields else {})


def _attention_factor(scaling: Mapping[str, Any]) -> float:
    """Return YaRN's factor of cosine and sine: given, or 0.1 ln(factor) + 1 (arXiv 2309.00071, equation 22)."""
    if scaling.get("attention_factor") is not None:
        return scaling["attention_factor"]

    def size(weight: float) -> float:
        return 0.1 * weight * math.log(max(keys.value(scaling, "factor", "rope_factor"), 1)) + 1

    if all(map(scaling.get, _MSCALE)):
        over, under = (keys.value(scaling, key, "rope_scale") for key in _MSCALE)
        return size(over) / size(under)
    return size(1)


def write(a: Architecture, nested: bool, split: tuple[int, ...]) -> dict[str, Any]:
    """Return the keys of config.json for both versions of transformers.

    Args:
      a: the architecture.
      nested: whether the family describes layers with a window separately.
      split: the sections of frequencies; (): the family has none.
    """
    kind = a.rope_rule if a.rope_original else "linear" if a.rope_factor != 1 else "default"
    scaling = {"rope_type": kind}
    scaling |= {key: getattr(a, field) for key, field in _TYPES[kind].items()}
    config: dict[str, Any] = {
        "rope_theta": a.rope_theta,
        "rope_scaling": None if kind == "default" else scaling,
        "rope_parameters": {**scaling, "rope_theta": a.rope_theta},
    }
    if split:
        config["rope_scaling"] = {**scaling, "mrope_section": [*split]}
        config["rope_parameters"] |= {"mrope_section": [*split]}
    if nested:
        local = {"rope_type": "default", "rope_theta": a.rope_local_theta or a.rope_theta}
        config["rope_parameters"] = dict(zip(_LAYERS, (config["rope_parameters"], local), strict=True))
        config["rope_local_base_freq"] = local["rope_theta"]
    return config
