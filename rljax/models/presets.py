"""Architectures of published models, from their config.json: ``config.model.update(models.preset("qwen3-8b"))``.

With ``config.model.weights`` no preset is needed: the checkpoint's folder defines the architecture. A preset is the
same network with random weights, for a first run, a benchmark or a compilation without the files.
"""

from collections.abc import Mapping
from typing import Any

from rljax.models.checkpoints import families

_QWEN = {"rms_norm_eps": 1e-6, "rope_theta": 1e6, "vocab_size": 151_936}
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
_LLAMA31 = {"rms_norm_eps": 1e-5, "rope_theta": 5e5, "rope_scaling": _LLAMA3, "vocab_size": 128_256}
_MISTRAL = {"rms_norm_eps": 1e-5, "sliding_window": 4096, "vocab_size": 32_000}
_GEMMA = {"hidden_activation": "gelu_pytorch_tanh", "head_dim": 256, "query_pre_attn_scalar": 256}
_GEMMA2 = {**_GEMMA, "sliding_window": 4096, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
_GEMMA3 = {**_GEMMA, "rope_theta": 1e6, "rope_local_base_freq": 1e4}
_LINEAR8 = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
_A3B = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True}

# family; (width, layers, heads, kv heads, hidden); other fields of config.json
PRESETS: Mapping[str, tuple[str, tuple[int, int, int, int, int], dict[str, Any]]] = {
    "qwen2.5-0.5b": ("qwen2", (896, 24, 14, 2, 4864), {**_QWEN, "tie_word_embeddings": True}),
    "qwen2.5-1.5b": ("qwen2", (1536, 28, 12, 2, 8960), {**_QWEN, "tie_word_embeddings": True}),
    "qwen2.5-7b": ("qwen2", (3584, 28, 28, 4, 18_944), {**_QWEN, "vocab_size": 152_064}),
    "qwen2.5-32b": ("qwen2", (5120, 64, 40, 8, 27_648), {**_QWEN, "vocab_size": 152_064, "rms_norm_eps": 1e-5}),
    "qwen3-1.7b": ("qwen3", (2048, 28, 16, 8, 6144), {**_QWEN, "head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-4b": ("qwen3", (2560, 36, 32, 8, 9728), {**_QWEN, "head_dim": 128, "tie_word_embeddings": True}),
    "qwen3-8b": ("qwen3", (4096, 36, 32, 8, 12_288), {**_QWEN, "head_dim": 128}),
    "qwen3-30b-a3b": ("qwen3_moe", (2048, 48, 32, 4, 6144), {**_QWEN, "head_dim": 128, **_A3B}),
    "llama-2-7b": ("llama", (4096, 32, 32, 32, 11_008), {"rms_norm_eps": 1e-5, "vocab_size": 32_000}),
    "llama-3.1-8b": ("llama", (4096, 32, 32, 8, 14_336), _LLAMA31),
    "llama-3.1-70b": ("llama", (8192, 80, 64, 8, 28_672), _LLAMA31),
    "mistral-7b": ("mistral", (4096, 32, 32, 8, 14_336), _MISTRAL),
    "gemma-2-2b": ("gemma2", (2304, 26, 8, 4, 9216), {**_GEMMA2, "vocab_size": 256_000}),
    "gemma-3-1b": ("gemma3_text", (1152, 26, 4, 1, 6912), {**_GEMMA3, "sliding_window": 512, "vocab_size": 262_144}),
    "gemma-3-4b": (
        "gemma3_text",
        (2560, 34, 8, 4, 10_240),
        {**_GEMMA3, **_LINEAR8, "sliding_window": 1024, "vocab_size": 262_208},
    ),
    "qwen2.5-vl-3b": (
        "qwen2_5_vl",
        (2048, 36, 16, 2, 11_008),
        {
            **{**_QWEN, "tie_word_embeddings": True},
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vision_config": {"hidden_size": 1280, "out_hidden_size": 2048},
        },
    ),
}
# those that read pictures around the decoder of another one: family, decoder, its tower
_SEEING = {
    "gemma-3-4b-vision": (
        "gemma3",
        "gemma-3-4b",
        {
            **{"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16, "num_hidden_layers": 27},
            **{"image_size": 896, "patch_size": 14, "vision_use_head": False},
        },
    ),
}
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")


def preset(name: str) -> dict[str, Any]:
    """Return the fields of ``Architecture`` of a published model.

    Raises:
      ValueError: there is no preset of this name.
    """
    if name not in (*PRESETS, *_SEEING):
        raise ValueError(f"unknown preset {name!r}; choose one of {', '.join((*PRESETS, *_SEEING))}")
    outer, decoder, tower = _SEEING.get(name, ("", name, {}))
    family, sizes, rest = PRESETS[decoder]
    config = {"model_type": family, **dict(zip(_SIZES, sizes, strict=True)), **rest}
    return families.read({"model_type": outer, "text_config": config, "vision_config": tower} if outer else config)
