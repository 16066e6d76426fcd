"""The table of families: the keys of config.json that each reads, their defaults, and what all its models share.

Sources: the configuration classes of transformers 4.57 and 5.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# keys of every file, unless the family has a default, and fields of Architecture
SIZES = {
    "vocab_size": "vocabulary",
    "hidden_size": "width",
    "intermediate_size": "hidden",
    "num_hidden_layers": "layers",
    "num_attention_heads": "heads",
}
# keys that a family may read, and fields of Architecture
FIELDS = {
    "num_key_value_heads": "kv_heads",
    "head_dim": "head_size",
    "tie_word_embeddings": "tied",
    "rms_norm_eps": "norm_epsilon",
    "attn_logit_softcapping": "attention_cap",
    "final_logit_softcapping": "logit_cap",
    "num_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_hidden",
    "norm_topk_prob": "normalise_experts",
}
NULL = {"head_dim": 0, "attn_logit_softcapping": 0.0, "final_logit_softcapping": 0.0}  # what null means
ATTENTION = ("query", "key", "value", "attention_output")
BIASES = {"attention_bias": ATTENTION, "mlp_bias": ("gate", "up", "down")}


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


_COMMON = {"tie_word_embeddings": False, "rms_norm_eps": 1e-6, "rope_theta": 1e4, "head_dim": None}
_LLAMA = {**_COMMON, "hidden_act": "silu", "num_key_value_heads": None}
_QWEN_MOE = {**_LLAMA, "num_key_value_heads": 4, "use_sliding_window": False, "sliding_window": 4096}
_QWEN = {**_QWEN_MOE, "num_key_value_heads": 32, "max_window_layers": 28}
_EXPERTS = {"num_experts": 128, "num_local_experts": None, "num_experts_per_tok": 8, "moe_intermediate_size": 768}
_GEMMA = {
    **_COMMON,
    "tie_word_embeddings": True,
    "hidden_activation": "gelu_pytorch_tanh",
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "attention_bias": False,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
_GEMMA2 = {**_GEMMA, "vocab_size": 256_000, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = {
    **_GEMMA,
    "vocab_size": 262_208,
    "final_logit_softcapping": None,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "sliding_window_pattern": 6,
}
_GEMMA_FIXED = {"norm_offset": 1.0, "post_norm": True}
_SILU = ("hidden_activation",)
_WINDOWS = {"use_sliding_window": (True,)}
FAMILIES: dict[str, Family] = {
    "llama": Family("Llama", {**_LLAMA, "attention_bias": False, "mlp_bias": False}, ignored=_SILU),
    "mistral": Family(
        "Mistral",
        {**_LLAMA, "num_key_value_heads": 8, "sliding_window": 4096},
        ignored=_SILU,
        expected=_WINDOWS,
    ),
    "qwen2": Family("Qwen2", _QWEN, {"bias": ATTENTION[:3]}, mixed=True, ignored=_SILU),
    "qwen3": Family(
        "Qwen3",
        {**_QWEN, "head_dim": 128, "attention_bias": False},
        {"head_norm": True},
        mixed=True,
        ignored=_SILU,
    ),
    "qwen3_moe": Family(
        "Qwen3Moe",
        {**_QWEN_MOE, **_EXPERTS, "norm_topk_prob": False, "attention_bias": False},
        {"head_norm": True},
        ignored=(*_SILU, "max_window_layers"),
    ),
    "gemma2": Family(
        "Gemma2",
        _GEMMA2,
        _GEMMA_FIXED,
        mixed=True,
        every=2,
        ignored=("hidden_act",),
        expected={**_WINDOWS, "sliding_window_pattern": (2,)},
    ),
    "gemma3_text": Family(
        "Gemma3",
        _GEMMA3,
        {**_GEMMA_FIXED, "head_norm": True},
        mixed=True,
        ignored=("hidden_act",),
        expected=_WINDOWS,
        classifier="Gemma3Text",
    ),
}
FAMILIES["gemma3"] = dataclasses.replace(
    FAMILIES["gemma3_text"],
    defaults={key: value for key, value in _GEMMA3.items() if key != "final_logit_softcapping"},  # not applied there
    tower="siglip",
    classifier="Gemma3",
)
FAMILIES["qwen2_5_vl"] = Family(
    "Qwen2_5_VL",
    {
        **{key: value for key, value in _QWEN.items() if key != "head_dim"},
        **{"vocab_size": 152_064, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "rope_theta": 1e6},
        "max_window_layers": 80,
    },
    {"bias": ATTENTION[:3]},
    mixed=True,
    ignored=_SILU,
    expected={"head_dim": ()},
    tower="qwen2.5",
    sections=(16, 24, 24),
)
