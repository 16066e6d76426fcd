"""The public families of decoders: how each writes an ``Architecture`` down, and what it calls the parameters.

A family is a way of naming fields and tensors; the forward pass knows none. Sources: the config.json and tensor names
of the published checkpoints, as the transformers library reads them.
"""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from rljax.models.architecture import Architecture


@dataclasses.dataclass(frozen=True)
class Family:
    """What every model of a family has, whatever its config says."""

    model_class: str  # of transformers
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # fields of Architecture
    says: tuple[str, ...] = ()  # what its config may say beside what every family's does
    tied: bool = False  # where the config does not say


_GEMMA: dict[str, Any] = {"norm_offset": 1.0, "post_norm": True}
FAMILIES: dict[str, Family] = {
    "llama": Family("LlamaForCausalLM"),
    "mistral": Family("MistralForCausalLM", says=("window",)),
    "qwen2": Family("Qwen2ForCausalLM", {"bias": True}, ("window",)),
    "qwen3": Family("Qwen3ForCausalLM", {"head_norm": True}, ("window",)),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", {"head_norm": True}, ("window", "experts")),
    "gemma2": Family("Gemma2ForCausalLM", _GEMMA, ("window", "scale"), tied=True),
    "gemma3_text": Family("Gemma3ForCausalLM", {**_GEMMA, "head_norm": True}, ("window", "scale"), tied=True),
}
# how a model is computed and trained, not what it is
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
    """Return the family that a config.json names, known or not; "" if none."""
    named = config.get("text_config", config).get("model_type") or ""
    return {"gemma3": "gemma3_text"}.get(named, named)  # the multimodal one holds the other


def read(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of ``Architecture`` that a config.json stands for.

    Raises:
      ValueError: an unknown family, a field missing, or something this decoder cannot do; the field is named.
    """
    config, family = config.get("text_config", config), kind(config)
    if family not in FAMILIES:
        raise ValueError(f"config.json: model_type={family!r} is unknown; there are {', '.join(FAMILIES)}")

    def given(name: str) -> Any:
        if config.get(name) is None:
            raise ValueError(f"config.json: {name!r} is missing (model_type {family!r})")
        return config[name]

    for name in ("attention_bias", "mlp_bias"):
        if config.get(name):
            raise ValueError(f"config.json: {name}=true is not built")
    activation = config.get("hidden_activation") or config.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ValueError(f"config.json: hidden_act={activation!r}; there are {', '.join(_ACTIVATIONS)}")
    width, heads = given("hidden_size"), given("num_attention_heads")
    found = {
        **_DEFAULTS,
        "vocabulary": given("vocab_size"),
        "layers": given("num_hidden_layers"),
        "width": width,
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "hidden": given("intermediate_size"),
        "head_size": config.get("head_dim") or width // heads,
        "tied": config.get("tie_word_embeddings", FAMILIES[family].tied),
        "norm_epsilon": config.get("rms_norm_eps", 1e-6),
        "activation": _ACTIVATIONS[activation],
        **FAMILIES[family].fixed,
        **_rope(config),
    }
    said = FAMILIES[family].says  # the rest is ignored, as the family's own code does
    if "window" in said:
        found |= _window(config, family)
    if "experts" in said:
        found |= _experts(config, given)
    if "scale" in said:
        found |= _scales(config, given)
    return found


def _scales(config: Mapping[str, Any], given: Any) -> dict[str, Any]:
    """Read what Gemma multiplies and caps; the embedding's factor has no field."""
    return {
        "embedding_scale": math.sqrt(given("hidden_size")),
        "query_scale": given("query_pre_attn_scalar") ** -0.5,
        "attention_cap": config.get("attn_logit_softcapping") or 0.0,
        "logit_cap": config.get("final_logit_softcapping") or 0.0,
    }


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read rotary positions as transformers 4 (rope_theta, rope_scaling) or 5 (rope_parameters) write them."""
    given = config.get("rope_parameters") or {}
    local = given.get("sliding_attention") or {}
    scaling = given.get("full_attention") or (given if "rope_type" in given else config.get("rope_scaling")) or {}
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    found = {"rope_theta": float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0)}
    theta = local.get("rope_theta") or config.get("rope_local_base_freq")
    if theta:
        found["rope_local_theta"] = float(theta)
    if kind == "default":
        return found
    if kind not in ("linear", "llama3"):
        raise ValueError(f"config.json: rope_type={kind!r}; there are default, linear, llama3")
    found["rope_factor"] = float(scaling["factor"])
    if kind == "llama3":
        found |= {
            "rope_original": int(scaling["original_max_position_embeddings"]),
            "rope_low": float(scaling["low_freq_factor"]),
            "rope_high": float(scaling["high_freq_factor"]),
        }
    return found


def _window(config: Mapping[str, Any], family: str) -> dict[str, Any]:
    """Read which layers see a window only."""
    window = config.get("sliding_window")
    if not window or config.get("use_sliding_window") is False:
        return {}
    names = config.get("layer_types")
    if names is None:
        layers, every = config["num_hidden_layers"], config.get("sliding_window_pattern")
        if family.startswith("gemma"):
            every = every or {"gemma2": 2, "gemma3_text": 6}[family]
            names = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(layers)]
        else:  # Qwen: those from max_window_layers on; Mistral: all
            first = config.get("max_window_layers", 0)
            names = ["sliding_attention" if i >= first else "full_attention" for i in range(layers)]
    unknown = set(names) - set(_LAYERS)
    if unknown:
        raise ValueError(f"config.json: layer_types has {sorted(unknown)[0]!r}; there are {', '.join(_LAYERS)}")
    pattern = _period([_LAYERS[name] for name in names])
    return {"window": window, "pattern": pattern} if "local" in pattern else {}


def _period(names: list[str]) -> tuple[str, ...]:
    """Return the shortest run of names that makes the whole when repeated and cut."""
    for length in range(1, len(names) + 1):
        if all(name == names[i % length] for i, name in enumerate(names)):
            return tuple(names[:length])
    raise ValueError("a model without layers")


def _experts(config: Mapping[str, Any], given: Any) -> dict[str, Any]:
    count = config.get("num_experts") or config.get("num_local_experts")  # transformers 4, 5
    if not count:
        return {}
    if config.get("decoder_sparse_step", 1) != 1 or config.get("mlp_only_layers"):
        raise ValueError("config.json: decoder_sparse_step and mlp_only_layers: experts in every layer, or in none")
    return {
        "experts": count,
        "experts_per_token": given("num_experts_per_tok"),
        "expert_hidden": given("moe_intermediate_size"),
        "normalise_experts": bool(config.get("norm_topk_prob", False)),
    }


def write(architecture: Architecture, family: str = "") -> dict[str, Any]:
    """Return a config.json that reads back as ``architecture``; ``family`` "" takes the first that can say it.

    Raises:
      ValueError: no family, or not this one, can say it; with the fields it would lose.
    """
    if family and family not in FAMILIES:
        raise ValueError(f"family {family!r}; there are {', '.join(FAMILIES)}")
    lost: dict[str, list[str]] = {}
    for name in [family] if family else FAMILIES:
        config = _write(architecture, name)
        back = read(config)
        lost[name] = [f for f, value in _shape(architecture).items() if back[f] != value]
        if not lost[name]:
            return config
    nearest = min(lost, key=lambda name: len(lost[name]))
    raise ValueError(f"{nearest} has no way to say {', '.join(lost[nearest])} of this architecture")


def _shape(a: Architecture) -> dict[str, Any]:
    """Return the fields that a config.json must say; unused ones as if they were not given."""
    found = {name: value for name, value in dataclasses.asdict(a).items() if name not in _COMPUTED}
    if not a.experts:
        found |= {name: _DEFAULTS[name] for name in ("experts_per_token", "expert_hidden", "normalise_experts")}
    if not a.rope_original:
        found |= {name: _DEFAULTS[name] for name in ("rope_low", "rope_high")}
    return found


def _write(a: Architecture, family: str) -> dict[str, Any]:
    names = {ours: theirs for theirs, ours in _LAYERS.items()}
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
    activation = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}[a.activation]
    config |= {"hidden_act": activation, "hidden_activation": activation}
    if family == "gemma3_text":
        local = {"rope_type": "default", "rope_theta": a.rope_local_theta or a.rope_theta}
        config["rope_parameters"] = {"full_attention": scaling, "sliding_attention": local}
    if "scale" in FAMILIES[family].says:
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
    """Return the tensor that each parameter is read from: path in our tree -> name, with {layer} and {expert}.

    A tensor of two dimensions is [out, in], ours [in, out] with heads taken apart; the embedding is the same.
    """
    a = architecture
    found = {("embedding",): "model.embed_tokens.weight", ("final_norm",): "model.norm.weight"}
    if a.output != "logits":
        found[("scalar",)] = "score.weight"
    if a.output != "scalar" and not a.tied:
        found[("unembedding",)] = "lm_head.weight"
    layer = {
        "attention_norm": "input_layernorm.weight",
        "query": "self_attn.q_proj.weight",
        "key": "self_attn.k_proj.weight",
        "value": "self_attn.v_proj.weight",
        "attention_output": "self_attn.o_proj.weight",
        "swiglu_norm": f"{'pre_feedforward' if a.post_norm else 'post_attention'}_layernorm.weight",
    }
    if a.bias:
        layer |= {f"{ours}_bias": f"self_attn.{ours[0]}_proj.bias" for ours in ("query", "key", "value")}
    if a.head_norm:
        layer |= {f"{ours}_norm": f"self_attn.{ours[0]}_norm.weight" for ours in ("query", "key")}
    if a.post_norm:
        layer |= {
            "attention_post_norm": "post_attention_layernorm.weight",
            "swiglu_post_norm": "post_feedforward_layernorm.weight",
        }
    inside = "mlp.experts.{expert}." if a.experts else "mlp."
    layer |= {ours: f"{inside}{ours}_proj.weight" for ours in ("gate", "up", "down")}
    if a.experts:
        layer["router"] = "mlp.gate.weight"
    return found | {("layers", ours): "model.layers.{layer}." + theirs for ours, theirs in layer.items()}
