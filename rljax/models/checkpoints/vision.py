"""Vision towers of public checkpoints: their part of config.json and the names of their tensors, both directions.

Sources: the configuration classes of transformers 4.57 and 5, and the published folders.
"""

import dataclasses
import re
import typing
from collections.abc import Mapping
from typing import Any

from rljax.language import messages
from rljax.models import towers
from rljax.models.architectures import Architecture
from rljax.models.checkpoints import keys

_HINTS = typing.get_type_hints(towers.Vision, include_extras=True)


@dataclasses.dataclass(frozen=True)
class Tower:
    """What ``vision_config`` and the outer config.json say of a tower."""

    model: tuple[str, ...]  # model_type of its vision_config; others that are read
    sizes: Mapping[str, tuple[str, Any]]  # its keys -> field of ``Vision``, and the default of its class
    outer: Mapping[str, tuple[str, Any]]  # keys of the outer config.json
    fixed: Mapping[str, Any]  # fields of ``Vision``
    expected: Mapping[str, tuple[Any, ...]]  # see ``keys.check``
    ignored: tuple[str, ...] = ()  # keys that its reference code does not read
    output: str = ""  # the key that has the decoder's width


TOWERS: dict[str, Tower] = {
    "siglip": Tower(
        ("siglip_vision_model",),
        {
            **{"hidden_size": ("width", 768), "intermediate_size": ("hidden", 3072), "image_size": ("pixels", 224)},
            **{"num_attention_heads": ("heads", 12), "num_hidden_layers": ("layers", 12), "patch_size": ("patch", 16)},
        },
        {"mm_tokens_per_image": ("tokens", 256), "image_token_index": ("placeholder", 262_144)},
        {"mutual": True, "window": 0, "full": ()},
        {
            **{"hidden_act": ("gelu_pytorch_tanh",), "layer_norm_eps": (1e-6,), "num_channels": (3,)},
            "vision_use_head": (False,),
        },
    ),
    "qwen2.5": Tower(
        ("qwen2_5_vl_vision", "qwen2_5_vl"),
        {
            **{"hidden_size": ("width", 3584), "intermediate_size": ("hidden", 3420), "window_size": ("window", 112)},
            **{"depth": ("layers", 32), "num_heads": ("heads", 16), "patch_size": ("patch", 14)},
            "fullatt_block_indexes": ("full", (7, 15, 23, 31)),
        },
        {"image_token_id": ("placeholder", 151_655)},
        {"mutual": False},
        {
            **{"hidden_act": ("silu",), "in_channels": (3,), "spatial_merge_size": (2,), "temporal_patch_size": (2,)},
            "rope_parameters": ({"rope_theta": 10_000.0, "rope_type": "axial"},),
        },
        ("in_chans", "spatial_patch_size", "tokens_per_second"),
        "out_hidden_size",
    ),
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
    return (_siglip if a.vision.form == "siglip" else _qwen)((a.tower_name,), (a.tower_name, "layers"))


def _siglip(tower: tuple[str, ...], layer: tuple[str, ...]) -> dict[tuple[str, ...], str]:
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


def _qwen(tower: tuple[str, ...], layer: tuple[str, ...]) -> dict[tuple[str, ...], str]:
    """Name query, key and value as if they had tensors of their own; see ``weights``."""
    base = "visual.blocks.{layer}."
    matrices = {name: f"attn.{name[0]}" for name in ("query", "key", "value")} | {"attention_output": "attn.proj"}
    matrices |= {name: f"mlp.{name}_proj" for name in ("gate", "up", "down")}
    fields = {
        (*tower, "patch"): "visual.patch_embed.proj.weight",
        (*tower, "final_norm"): "visual.merger.ln_q.weight",
        (*layer, "attention_norm"): f"{base}norm1.weight",
        (*layer, "swiglu_norm"): f"{base}norm2.weight",
    }
    for name, public in (("inner", 0), ("matrix", 2)):
        fields["projector", name] = f"visual.merger.mlp.{public}.weight"
        fields["projector", f"{name}_bias"] = f"visual.merger.mlp.{public}.bias"
    fields |= {(*layer, name): f"{base}{public}.weight" for name, public in matrices.items()}
    return fields | {(*layer, f"{name}_bias"): f"{base}{public}.bias" for name, public in matrices.items()}


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
