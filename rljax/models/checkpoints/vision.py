"""Vision towers of public checkpoints: their part of config.json and the names of their tensors, both directions.

Sources: the configuration classes of transformers 4.57 and 5, and the published folders.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

from rljax.language import messages
from rljax.models.architectures import Architecture
from rljax.models.checkpoints import keys
from rljax.models.towers import Vision

_HINTS = typing.get_type_hints(Vision, include_extras=True)


@dataclasses.dataclass(frozen=True)
class Tower:
    """What ``vision_config`` and the outer config.json say of a tower: key -> field of ``Vision``."""

    model: str  # model_type of its vision_config
    sizes: Mapping[str, str]
    outer: Mapping[str, str]
    defaults: Mapping[str, Any]  # of the classes in transformers
    fixed: Mapping[str, Any]  # fields of ``Vision``
    expected: Mapping[str, tuple[Any, ...]]  # see ``keys.check``


TOWERS: dict[str, Tower] = {
    "siglip": Tower(
        "siglip_vision_model",
        {
            "hidden_size": "width",
            "image_size": "pixels",
            "intermediate_size": "hidden",
            "num_attention_heads": "heads",
            "num_hidden_layers": "layers",
            "patch_size": "patch",
        },
        {"mm_tokens_per_image": "tokens", "image_token_index": "placeholder"},
        {
            **{"hidden_size": 768, "image_size": 224, "intermediate_size": 3072, "num_attention_heads": 12},
            **{"num_hidden_layers": 12, "patch_size": 16, "mm_tokens_per_image": 256, "image_token_index": 262_144},
        },
        {"mutual": True},
        {
            **{"hidden_act": ("gelu_pytorch_tanh",), "layer_norm_eps": (1e-6,), "num_channels": (3,)},
            "vision_use_head": (False,),
        },
    ),
}


def read(form: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Vision`` that a config.json describes.

    Raises:
      ValueError: a key is missing, unknown or not supported; it is named.
    """
    tower, inner = TOWERS[form], config.get("vision_config")
    if not isinstance(inner, Mapping) or inner.get("model_type", tower.model) != tower.model:
        raise ValueError(
            f"config.json: vision_config={messages.shown(inner)}: must be an object of model_type {tower.model}"
        )
    keys.check(inner, tower.sizes, tower.expected, f"vision_config of model_type {tower.model!r}")
    fields = {"form": form, **tower.fixed}
    for given, names in ((inner, tower.sizes), (config, tower.outer)):
        fields |= {field: keys.value({**tower.defaults, **given}, key, _HINTS[field]) for key, field in names.items()}
    try:
        Vision(**fields)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None
    return fields


def write(form: str, vision: Vision) -> dict[str, Any]:
    """Return the keys of config.json that describe a tower of a form: ``vision_config`` and those beside it."""
    tower = TOWERS[form]
    inner = {key: getattr(vision, field) for key, field in tower.sizes.items()}
    inner |= {key: values[0] for key, values in tower.expected.items()}
    return {
        **{key: getattr(vision, field) for key, field in tower.outer.items()},
        "vision_config": {"model_type": tower.model, **inner},
    }


def names(a: Architecture) -> dict[tuple[str, ...], str]:
    """Return the tensor of each parameter of the tower, as ``families.names``; {} if no family has such a tower."""
    if not a.vision.layers or a.vision.form not in TOWERS:
        return {}
    tower, layer = (a.tower_name,), (a.tower_name, "layers")
    base = "vision_tower.encoder.layers.{layer}."
    matrices = {name: f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")}
    matrices |= {"attention_output": "self_attn.out_proj", "up": "mlp.fc1", "down": "mlp.fc2"}
    fields = {
        (*tower, "patch"): "vision_tower.embeddings.patch_embedding.weight",
        (*tower, "patch_bias"): "vision_tower.embeddings.patch_embedding.bias",
        (*tower, "position"): "vision_tower.embeddings.position_embedding.weight",
        ("projector", "matrix"): "multi_modal_projector.mm_input_projection_weight",
        ("projector", "norm"): "multi_modal_projector.mm_soft_emb_norm.weight",
    }
    fields |= {(*layer, name): f"{base}{public}.weight" for name, public in matrices.items()}
    fields |= {(*layer, f"{name}_bias"): f"{base}{public}.bias" for name, public in matrices.items()}
    norms = {(*layer, f"{name}_norm"): f"{base}layer_norm{i}" for i, name in ((1, "attention"), (2, "swiglu"))}
    for path, public in {**norms, (*tower, "final_norm"): "vision_tower.post_layernorm"}.items():
        fields |= {path: f"{public}.weight", (*path[:-1], f"{path[-1]}_bias"): f"{public}.bias"}
    return fields


# prefixes of multimodal folders, before and after the renaming in transformers 4.52 -> the names here
_PREFIXES = (
    (re.compile(r"^(model\.)?language_model\.(model\.)?(?=layers\.|norm\.|embed_tokens\.)"), "model."),
    (re.compile(r"^language_model\.(?=lm_head\.)"), ""),
    (re.compile(r"^(?:model\.)?(vision_tower|multi_modal_projector)\.(?:vision_model\.)?"), r"\1."),
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
