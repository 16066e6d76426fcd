"""Families of public decoders: the config.json and the tensor names of each, and the ``Architecture`` they mean.

A family only names fields and tensors; the forward pass depends on none. Sources: the config.json and tensor names of
the published checkpoints, as the transformers library (4.57 and 5) reads them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from rljax.language import messages, settings
from rljax.models import towers
from rljax.models.architectures import MATRICES, Architecture
from rljax.models.checkpoints import keys, rope, vision
from rljax.models.checkpoints.keys import BIASES, FAMILIES, FIELDS, NULL, SIZES, Family

# fields that say how a model is computed and trained: not part of config.json
_COMPUTED = {"dtype", "param_dtype", "remat", "scan", "attention", "output", "bins"}
_COMPUTED |= {"decode_attention", "decode_weights"}
_COMPUTED |= {"adapter_rank", "adapter_scale", "adapter_modules"}
_DEFAULTS: dict[str, Any] = {
    f.name: f.default
    for f in dataclasses.fields(Architecture)
    if f.name not in _COMPUTED and f.default is not dataclasses.MISSING
}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
_PICTURE = ("image_token_index", "image_token_id")
_LAYERS = {"sliding_attention": "local", "full_attention": "global"}


def kind(config: Mapping[str, Any]) -> str:
    """Return the family that a config.json names, known or not; "" if it names none."""
    name = config.get("model_type")
    return name if isinstance(name, str) else ""


def kept(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a config.json that an architecture does not determine: tokens, names, training."""
    inner, text, tower = {}, config.get("text_config"), config.get("vision_config")
    if isinstance(tower, dict):  # the decoder's keys may be beside it
        beside = {key: value for key, value in config.items() if key != "vision_config"}
        inner = {"text_config": kept(text if isinstance(text, dict) else beside), "vision_config": kept(tower)}
    return {key: value for key, value in config.items() if key in keys.HARMLESS | keys.TOKENS} | inner


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the ``Architecture`` that a config.json describes.

    A key that the file lacks has the default of the family's class in transformers.

    Raises:
      ValueError: the family is unknown, or a key is missing, unknown or not supported; it is named.
    """
    name = kind(config)
    if name not in FAMILIES:
        raise ValueError(
            f"config.json: model_type={messages.shown(name)} is unknown; choose one of {', '.join(FAMILIES)}"
        )
    family, outer = FAMILIES[name], config
    sections: tuple[int, ...] = ()
    if family.tower:
        ids = [outer.get(key) for key in _PICTURE]  # two names of one key
        outer = {**outer, **dict.fromkeys(_PICTURE, keys.agreed(_PICTURE[0], *ids))} if any(ids) else outer
        config = _decoder(outer, family)
    if family.sections:
        config, sections = rope.sections(config, family.sections)
    keys.check(config, {*family.read, *family.ignored}, family.expected, f"model_type {name!r}")
    present = {key: value for key, value in config.items() if key in family.read}
    if present.get("num_local_experts") is not None:  # as transformers 5 names it
        present["num_experts"] = keys.agreed("num_experts", present.get("num_experts"), present["num_local_experts"])
    values = {**family.defaults, **present}
    if values["num_key_value_heads"] is None:
        values["num_key_value_heads"] = values.get("num_attention_heads")

    fields = {**_DEFAULTS, **family.fixed}
    for key, field in (SIZES | FIELDS).items():
        if key in family.read:
            null = key in NULL and values.get(key) is None
            fields[field] = NULL[key] if null else keys.value(values, key, field)
    fields |= _activation(values) | _window(values, family) | _scales(values, fields["width"])
    fields |= rope.read(config, family.defaults["rope_theta"], family.defaults.get("rope_local_base_freq"))
    for key, matrices in BIASES.items():
        if values.get(key) and keys.value(values, key, bool):
            fields["bias"] = (*fields["bias"], *matrices)
    fields["rope_sections"] = sections
    fields |= {"vision": vision.read(family.tower, outer, fields["width"])} if family.tower else {}
    try:
        built = Architecture(**fields)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None
    known = {f: type(default)(getattr(built, f)) for f, default in _DEFAULTS.items()}
    return known | ({"vision": fields["vision"]} if family.tower else {})


def _decoder(config: Mapping[str, Any], family: Family) -> Mapping[str, Any]:
    """Return the part of a multimodal config.json that describes the decoder."""
    name = config["model_type"]
    around = {*keys.OUTER, *keys.TOKENS, *_PICTURE, *vision.TOWERS[family.tower].outer}
    beside = {*family.read, *family.ignored} if family.sections else set()
    keys.check(config, around | beside, family.expected, f"model_type {name!r}")
    text, inner = config.get("text_config"), f"{name}_text"
    if beside and text is None:
        return {key: value for key, value in config.items() if key not in around - {"tie_word_embeddings"}}
    if not isinstance(text, Mapping) or text.get("model_type", inner) != inner:
        raise ValueError(f"config.json: text_config={messages.shown(text)}: must be an object of model_type {inner}")
    key = "tie_word_embeddings"
    tied = keys.agreed(key, config.get(key, family.defaults[key] or None), text.get(key))
    return {name: x for name, x in text.items() if name not in around} | ({} if tied is None else {key: tied})


def _activation(config: Mapping[str, Any]) -> dict[str, Any]:
    key = "hidden_activation" if "hidden_activation" in config else "hidden_act"
    if keys.value(config, key, str) not in _ACTIVATIONS:
        choices = ", ".join(_ACTIVATIONS)
        raise ValueError(f"config.json: {key}={messages.shown(config[key])} is not supported; choose one of {choices}")
    return {"activation": _ACTIVATIONS[config[key]]}


def _scales(config: Mapping[str, Any], width: int) -> dict[str, Any]:
    """Read the scales of Gemma; the embedding's has no key."""
    if "query_pre_attn_scalar" not in config:
        return {}
    scalar = keys.value(config, "query_pre_attn_scalar", settings.Positive)
    return {"embedding_scale": math.sqrt(width), "query_scale": scalar**-0.5}


def _window(config: Mapping[str, Any], family: Family) -> dict[str, Any]:
    """Read which layers attend to a window only."""
    on = "use_sliding_window" not in config or keys.value(config, "use_sliding_window", bool)
    window = config.get("sliding_window") if on else None
    if window is not None:
        keys.value(config, "sliding_window", settings.Count)
    every = (
        keys.value(config, "sliding_window_pattern", settings.Count)
        if "sliding_window_pattern" in config
        else family.every
    )
    first = keys.value(config, "max_window_layers", settings.Size) if "max_window_layers" in config else 0
    count = config["num_hidden_layers"]
    names = [
        "full_attention" if window is None or i < first or (every and (i + 1) % every == 0) else "sliding_attention"
        for i in range(count)
    ]
    given = config.get("layer_types")
    if given is not None and given != names:
        if not isinstance(given, list) or len(given) != count or any(name not in [*_LAYERS] for name in given):
            raise ValueError(
                f"config.json: layer_types={messages.shown(given)}: must be {count} of {', '.join(_LAYERS)}, "
                "one for each layer"
            )
        if not family.mixed:
            raise ValueError(
                "config.json: layer_types: layers with and without a window are not in one model of this family"
            )
        names = given
    pattern = towers.period([_LAYERS[name] for name in names])
    return {"pattern": pattern, "window": (window or 0) if "local" in pattern else 0}


def write(architecture: Architecture, family: str = "") -> dict[str, Any]:
    """Return a config.json that reads back as ``architecture``; with ``family`` "", of the first family that can.

    Versions 4 and 5 of transformers read the same model from it.

    Raises:
      ValueError: no family, or not the requested one, can express the architecture; names the fields that are lost.
    """
    if family and family not in FAMILIES:
        raise ValueError(f"family {family!r} is unknown; choose one of {', '.join(FAMILIES)}")
    shape, seeing = _shape(architecture), _seeing(architecture)
    if seeing and architecture.vision.placeholder < 0:
        raise ValueError("vision.placeholder=-1: config.json names the token of a picture; the tokenizer has none")
    lost: dict[str, list[str]] = {}
    for name in [family] if family else FAMILIES:
        if bool(FAMILIES[name].tower) != bool(seeing):
            lost |= {name: ["vision.layers"]} if family else {}
            continue
        config = _write(dataclasses.replace(architecture, **shape), name)
        known = read(config)
        back = _shape(Architecture(**known)) | {f"vision.{f}": x for f, x in known.get("vision", {}).items()}
        given = {f: x for f, x in seeing.items() if f in back}
        lost[name] = [f for f, value in (shape | given).items() if back[f] != value]
        if not lost[name]:
            return config
    nearest = min(lost, key=lambda name: len(lost[name]))
    raise ValueError(f"{nearest} cannot express {', '.join(lost[nearest])} of this architecture")


def _shape(a: Architecture) -> dict[str, Any]:
    """Return the fields that a config.json must express, those that have no effect with their defaults."""
    pattern = towers.period([a.pattern[i % len(a.pattern)] for i in range(a.layers)])
    fields = {name: getattr(a, name) for name in _DEFAULTS} | {
        "bias": tuple(name for name in MATRICES if name in a.bias),
        "pattern": pattern,
        "window": a.window if "local" in pattern else 0,
        "query_scale": a.query_scale or a.head_size**-0.5,
    }
    unused: tuple[str, ...] = ()
    if not a.experts:
        unused += ("experts_per_token", "expert_hidden", "normalise_experts")
    if not a.rope_original:
        unused += ("rope_low", "rope_high", "rope_rule")
    if not a.rope_original or a.rope_rule != "yarn":
        unused += ("rope_truncate",)
    stretched = a.rope_factor != 1 or a.rope_scale != 1
    if "local" not in pattern or (a.rope_local_theta == a.rope_theta and not stretched):
        unused += ("rope_local_theta",)
    return fields | {name: _DEFAULTS[name] for name in unused}


def _seeing(a: Architecture) -> dict[str, Any]:
    """Return the fields of a vision tower that a config.json must express; {} if there is no tower."""
    return {f"vision.{f}": x for f, x in dataclasses.asdict(a.vision).items()} if a.vision.layers else {}


def _write(a: Architecture, name: str) -> dict[str, Any]:
    """Return the config.json of a family that is nearest to an architecture."""
    family = FAMILIES[name]
    half = (a.head_size if "head_dim" in family.read else a.width // a.heads) // 2
    sections = a.rope_sections if sum(a.rope_sections) == half else (half, 0, 0)  # what does not fit is lost
    types = {kind: public for public, kind in _LAYERS.items()}
    activation = {kind: public for public, kind in _ACTIVATIONS.items()}[a.activation]
    config: dict[str, Any] = {
        **{key: getattr(a, field) for key, field in (SIZES | FIELDS).items()},
        **{key: getattr(a, field) or None for key, field in FIELDS.items() if key in NULL},
        **{key: set(matrices) <= set(a.bias) for key, matrices in BIASES.items()},
        **rope.write(a, "rope_local_base_freq" in family.defaults, sections if family.sections else ()),
        "hidden_act": activation,
        "hidden_activation": activation,
        "query_pre_attn_scalar": round(a.query_scale**-2),
        "use_sliding_window": bool(a.window),
        # a mixed family needs a number even if no layer has a window
        "sliding_window": a.window or (family.defaults.get("sliding_window") if family.mixed else None),
    }
    config = {key: value for key, value in config.items() if key in family.read}
    if family.mixed:
        config["layer_types"] = [types[a.pattern[i % len(a.pattern)]] for i in range(a.layers)]
    if a.output == "scalar":
        model = f"{family.classifier or family.model}ForSequenceClassification"
        labels = {f"LABEL_{i}": i for i in range(a.bins[2] if a.bins else 1)}
        tags = {"id2label": {str(i): label for label, i in labels.items()}, "label2id": labels}
    else:
        model, tags = f"{family.model}For{'ConditionalGeneration' if family.tower else 'CausalLM'}", {}
    if family.tower:
        config = {"text_config": {"model_type": f"{name}_text", **config}, "tie_word_embeddings": a.tied}
        config |= vision.write(family.tower, a.vision, a.width)
    return {"architectures": [model], "model_type": name, **config, **tags}


def names(architecture: Architecture) -> dict[tuple[str, ...], str]:
    """Return the tensor of each parameter: path in the tree of parameters -> name, with {layer} and {expert}.

    A tensor of two dimensions is [out, in]; the parameter is [in, out] with separate dimensions for heads. The
    embedding has the same shape in both.
    """
    a = architecture
    fields = {("embedding",): "model.embed_tokens.weight", ("final_norm",): "model.norm.weight"}
    if a.output != "logits":
        fields[("scalar",)] = "score.weight"
    if a.output != "scalar" and not a.tied:
        fields[("unembedding",)] = "lm_head.weight"
    layer = {
        "attention_norm": "input_layernorm.weight",
        "swiglu_norm": f"{'pre_feedforward' if a.post_norm else 'post_attention'}_layernorm.weight",
    }
    inside = "mlp.experts.{expert}." if a.experts else "mlp."
    matrices = {name: f"self_attn.{name[0]}_proj" for name in ("query", "key", "value")}
    matrices |= {"attention_output": "self_attn.o_proj"}
    matrices |= {name: f"{inside}{name}_proj" for name in ("gate", "up", "down")}
    layer |= {name: f"{public}.weight" for name, public in matrices.items()}
    layer |= {f"{name}_bias": f"{matrices[name]}.bias" for name in a.bias}
    if a.head_norm:
        layer |= {f"{name}_norm": f"self_attn.{name[0]}_norm.weight" for name in ("query", "key")}
    if a.post_norm:
        layer |= {
            "attention_post_norm": "post_attention_layernorm.weight",
            "swiglu_post_norm": "post_feedforward_layernorm.weight",
        }
    if a.experts:
        layer["router"] = "mlp.gate.weight"
    fields |= {("layers", name): "model.layers.{layer}." + public for name, public in layer.items()}
    return fields | vision.names(a)
