"""Families of public decoders: the config.json and the tensor names of each, and the ``Architecture`` they mean.

A family only names fields and tensors; the forward pass depends on none. Sources: the config.json and tensor names of
the published checkpoints, as the transformers library reads them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from rljax.models.architectures import Architecture


@dataclasses.dataclass(frozen=True)
class Family:
    """The properties that all models of a family share."""

    model_class: str  # of transformers
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of Architecture
    optional: tuple[str, ...] = ()  # groups of fields that its config may have: window, scale, experts
    tied: bool = False  # if the config has no tie_word_embeddings


_GEMMA: dict[str, Any] = {"norm_offset": 1.0, "post_norm": True}
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM", optional=("window",)),
    "qwen2": Family("Qwen2ForCausalLM", {"bias": True}, ("window",)),
    "qwen3": Family("Qwen3ForCausalLM", {"head_norm": True}, ("window",)),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", {"head_norm": True}, ("window", "experts")),
    "gemma2": Family("Gemma2ForCausalLM", _GEMMA, ("window", "scale"), tied=True),
    "gemma3_text": Family("Gemma3ForCausalLM", {**_GEMMA, "head_norm": True}, ("window", "scale"), tied=True),
}
# fields that say how a model is computed and trained: not part of config.json
_COMPUTED = {"dtype", "param_dtype", "decode_weights", "remat", "scan", "attention", "output"}
_COMPUTED |= {"adapter_rank", "adapter_scale", "adapter_modules"}
_DEFAULTS: dict[str, Any] = {
    f.name: f.default
    for f in dataclasses.fields(Architecture)
    if f.name not in _COMPUTED and f.default is not dataclasses.MISSING
}
_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
_LAYERS = {"sliding_attention": "local", "full_attention": "global"}


def kind(config: Mapping[str, Any]) -> str:
    """Return the family that a config.json names, known or not; "" if it names none."""
    name = config.get("text_config", config).get("model_type") or ""
    return {"gemma3": "gemma3_text"}.get(name, name)  # the multimodal config contains the text config


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of the ``Architecture`` that a config.json describes.

    Raises:
      ValueError: the family is unknown, a field is missing, or its value is not supported; the field is named.
    """
    config, family = config.get("text_config", config), kind(config)
    if family not in FAMILIES:
        raise ValueError(f"config.json: model_type={family!r} is unknown; choose one of {', '.join(FAMILIES)}")

    def required(name: str) -> Any:
        if config.get(name) is None:
            raise ValueError(f"config.json: {name!r} is missing (model_type {family!r})")
        return config[name]

    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ValueError(f"config.json: {name}=true is not supported")
    activation = config.get("hidden_activation") or config.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ValueError(
            f"config.json: hidden_act={activation!r} is not supported; choose one of {', '.join(_ACTIVATIONS)}"
        )
    width, heads = required("hidden_size"), required("num_attention_heads")
    fields = {
        **_DEFAULTS,
        "vocabulary": required("vocab_size"),
        "layers": required("num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "hidden": required("intermediate_size"),
        "head_size": config.get("head_dim") or width // heads,
        "tied": config.get("tie_word_embeddings", FAMILIES[family].tied),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "activation": _ACTIVATIONS[activation],
        **FAMILIES[family].fixed,
        **_rope(config),
    }
    optional = FAMILIES[family].optional  # other groups are ignored, as in the family's reference code
    if "window" in optional:
        fields |= _window(config, family)
    if "experts" in optional:
        fields |= _experts(config, required)
    if "scale" in optional:
        fields |= _scales(config, required)
    return fields


def _scales(config: Mapping[str, Any], required: Any) -> dict[str, Any]:
    """Read the scales and caps of Gemma; the scale of the embedding has no field in config.json."""
    return {
        "embedding_scale": math.sqrt(required("hidden_size")),
        "query_scale": required("query_pre_attn_scalar") ** -0.5,
        "attention_cap": config.get("attn_logit_softcapping") or 0.0,
        "logit_cap": config.get("final_logit_softcapping") or 0.0,
    }


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read rotary positions as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) write them."""
    parameters = config.get("rope_parameters") or {}
    local = parameters.get("sliding_attention") or {}
    scaling = (
        parameters.get("full_attention")
        or (parameters if "rope_type" in parameters else config.get("rope_scaling"))
        or {}
    )
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    fields = {"rope_theta": float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)}
    theta = local.get("rope_theta") or config.get("rope_local_base_freq")
    if theta:
        fields["rope_local_theta"] = float(theta)
    if kind == "default":
        return fields
    if kind not in ("linear", "llama3"):
        raise ValueError(f"config.json: rope_type={kind!r} is not supported; choose one of default, linear, llama3")
    fields["rope_factor"] = float(scaling["factor"])
    if kind == "llama3":
        fields |= {
            "rope_original": int(scaling["original_max_position_embeddings"]),
            "rope_low": float(scaling["low_freq_factor"]),
            "rope_high": float(scaling["high_freq_factor"]),
        }
    return fields


def _window(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Read which layers attend to a window only."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    names = config.get("layer_types")
    if names is None:
        layers, every = config["num_hidden_layers"], config.get("sliding_window_pattern")
        if family.startswith("gemma"):
            every = every or {"gemma2": 2, "gemma3_text": 6}[family]
            names = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
        else:  # Qwen: layers from max_window_layers on; Mistral: all layers
            first = config.get("max_window_layers", 0)
            names = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    unknown = set(names) - set(_LAYERS)
    if unknown:
        raise ValueError(f"config.json: layer_types has {sorted(unknown)[0]!r}; choose from {', '.join(_LAYERS)}")
    pattern = _period([_LAYERS[name] for name in names])
    return {"window": window, "pattern": pattern} if "local" in pattern else {}


def _period(names: list[str]) -> tuple[str, ...]:
    """Return the shortest sequence that gives ``names`` when it is repeated and truncated."""
    for length in range(1, len(names) + 1):
        if all(name == names[i % length] for i, name in enumerate(names)):
            return tuple(names[:length])
    raise ValueError("config.json: the model has no layers")


def _experts(config: Mapping[str, Any], required: Any) -> dict[str, Any]:
    count = config.get("num_experts") or config.get("num_local_experts")  # transformers 4, 5
    if not count:
        return {}
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise ValueError(
            "config.json: decoder_sparse_step and mlp_only_layers: either every layer has experts, or none"
        )
    return {
        "experts": count,
        "experts_per_token": required("num_experts_per_tok"),
        "expert_hidden": required("moe_intermediate_size"),
        "normalise_experts": bool(config.get("norm_topk_prob", False)),
    }


def write(architecture: Architecture, family: str = "") -> dict[str, Any]:
    """Return a config.json that reads back as ``architecture``; with ``family`` "", of the first family that can.

    Raises:
      ValueError: no family, or not the requested one, can express the architecture; names the fields that are lost.
    """
    if family and family not in FAMILIES:
        raise ValueError(f"family {family!r} is unknown; choose one of {', '.join(FAMILIES)}")
    lost: dict[str, list[str]] = {}
    for name in [family] if family else FAMILIES:
        config = _write(architecture, name)
        back = read(config)
        lost[name] = [f for f, value in _shape(architecture).items() if back[f] != value]
        if not lost[name]:
            return config
    nearest = min(lost, key=lambda name: len(lost[name]))
    raise ValueError(f"{nearest} cannot express {', '.join(lost[nearest])} of this architecture")


def _shape(a: Architecture) -> dict[str, Any]:
    """Return the fields that a config.json must express; unused ones have their defaults."""
    fields = {name: value for name, value in dataclasses.asdict(a).items() if name not in _COMPUTED}
    if not a.experts:
        fields |= {name: _DEFAULTS[name] for name in ("experts_per_token", "expert_hidden", "normalise_experts")}
    if not a.rope_original:
        fields |= {name: _DEFAULTS[name] for name in ("rope_low", "rope_high")}
    return fields


def _write(a: Architecture, family: str) -> dict[str, Any]:
    names = {name: public for public, name in _LAYERS.items()}
    scaling: dict[str, Any] = {"rope_type": "default", "rope_theta": a.rope_theta}
    if a.rope_factor != 1:
        scaling |= {"rope_type": "linear", "factor": a.rope_factor}
    if a.rope_original:
        scaling |= {
            "rope_type": "llama3",
            "low_freq_factor": a.rope_low,
            "high_freq_factor": a.rope_high,
            "original_max_position_embeddings": a.rope_original,
        }
    config: dict[str, Any] = {
        "architectures": [FAMILIES[family].model_class],
        "model_type": family,
        "vocab_size": a.vocabulary,
        "num_hidden_layers": a.layers,
        "hidden_size": a.width,
        "num_attention_heads": a.heads,
        "num_key_value_heads": a.kv_heads,
        "intermediate_size": a.hidden,
        "head_dim": a.head_size,
        "tie_word_embeddings": a.tied,
        "rms_norm_eps": a.norm_epsilon,
        "rope_parameters": scaling,
        "attention_bias": False,
    }
    activation = {name: public for public, name in _ACTIVATIONS.items()}[a.activation]
    config |= {"hidden_act": activation, "hidden_activation": activation}
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": a.rope_local_theta or a.rope_theta}
        config["rope_parameters"] = {"full_attention": scaling, "sliding_attention": local}
    if "scale" in FAMILIES[family].optional:
        config |= {
            "query_pre_attn_scalar": round((a.query_scale or a.head_size**-0.5) ** -2),
            "attn_logit_softcapping": a.attention_cap or None,
            "final_logit_softcapping": a.logit_cap or None,
        }
    config["sliding_window"] = a.window or None
    if family not in ("llama", "mistral"):
        config |= {"layer_types": [names[a.pattern[i % len(a.pattern)]] for i in range(a.layers)]}
        config |= {"use_sliding_window": bool(a.window)}
    if a.experts:
        config |= {
            "num_experts": a.experts,
            "num_experts_per_tok": a.experts_per_token,
            "moe_intermediate_size": a.expert_hidden,
            "norm_topk_prob": a.normalise_experts,
        }
    return config


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
        "query": "self_attn.q_proj.weight",
        "key": "self_attn.k_proj.weight",
        "value": "self_attn.v_proj.weight",
        "attention_output": "self_attn.o_proj.weight",
        "swiglu_norm": f"{'pre_feedforward' if a.post_norm else 'post_attention'}_layernorm.weight",
    }
    if a.bias:
        layer |= {f"{name}_bias": f"self_attn.{name[0]}_proj.bias" for name in ("query", "key", "value")}
    if a.head_norm:
        layer |= {f"{name}_norm": f"self_attn.{name[0]}_norm.weight" for name in ("query", "key")}
    if a.post_norm:
        layer |= {
            "attention_post_norm": "post_attention_layernorm.weight",
            "swiglu_post_norm": "post_feedforward_layernorm.weight",
        }
    inside = "mlp.experts.{expert}." if a.experts else "mlp."
    layer |= {name: f"{inside}{name}_proj.weight" for name in ("gate", "up", "down")}
    if a.experts:
        layer["router"] = "mlp.gate.weight"
    return fields | {("layers", name): "model.layers.{layer}." + public for name, public in layer.items()}
