"""What the transformers library says of small models with given weights: makes ``families.json``.

    pip install -e '.[parity]' && python -m tests.support.reference.families

``weights``, ``TOKEN`` and ``pictures`` are what the test builds its folder and inputs from, without torch.
"""

import json
import math
import pathlib
import tempfile
import zlib

import numpy as np

PATH = pathlib.Path(__file__).with_suffix(".json")
VOCABULARY, LENGTH = 40, 12
TOKEN = np.random.default_rng(0).integers(0, VOCABULARY, (2, LENGTH)).astype(np.int32)
_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
_YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
_EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
_GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
    "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10_000.0},
}
# name -> (class of transformers' config, fields); windows are shorter than the tokens
CONFIGS = {
    "llama2": ("LlamaConfig", {"num_key_value_heads": 4}),
    "llama3.1": ("LlamaConfig", {"rope_parameters": _LLAMA3}),
    "mistral": ("MistralConfig", {"sliding_window": 5, "head_dim": 4}),
    "qwen2-tied": ("Qwen2Config", {"tie_word_embeddings": True}),
    "qwen2": (
        "Qwen2Config",
        {"tie_word_embeddings": False, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    ),
    "qwen3": ("Qwen3Config", {"head_dim": 6}),
    "qwen3-moe": ("Qwen3MoeConfig", {"head_dim": 6, **_EXPERTS, "norm_topk_prob": True}),
    "qwen3-moe-unnormalised": ("Qwen3MoeConfig", {"head_dim": 4, **_EXPERTS, "norm_topk_prob": False}),
    "gemma2": (
        "Gemma2Config",
        {
            "head_dim": 6,
            "sliding_window": 5,
            "query_pre_attn_scalar": 9,
            "final_logit_softcapping": 3.0,
            "attn_logit_softcapping": 2.0,
        },
    ),
    "gemma3": (
        "Gemma3TextConfig",
        {
            "head_dim": 6,
            "sliding_window": 5,
            "query_pre_attn_scalar": 9,
            "rope_parameters": _GEMMA3_ROPE,
            "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        },
    ),
    "qwen2-yarn": (
        "Qwen2Config",
        {"rope_parameters": _YARN, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "llama-biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
}
PICTURE = VOCABULARY - 1  # the token of a picture, in these models
_TEXT = {key: value for key, value in _SHAPE.items() if not key.endswith("token_id")}
_SIGLIP = {
    **{"model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 20, "num_hidden_layers": 2},
    **{"num_attention_heads": 2, "image_size": 16, "patch_size": 4, "vision_use_head": False},
}
# models that read pictures: name -> (class of transformers' config, fields, side of a picture, tokens of one)
TOWERS = {
    "gemma3-4b": (
        "Gemma3Config",
        {
            "text_config": {**_TEXT, **CONFIGS["gemma3"][1]},
            "vision_config": _SIGLIP,
            **{"mm_tokens_per_image": 4, "image_token_index": PICTURE, "boi_token_index": 37, "eoi_token_index": 38},
        },
        16,
        4,
    ),
    "qwen2.5-vl": (
        "Qwen2_5_VLConfig",
        {
            **{**_TEXT, "num_attention_heads": 2, "num_key_value_heads": 1, "rope_theta": 100.0},
            "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
            "vision_config": {
                **{"depth": 3, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 16},
                **{"patch_size": 2, "window_size": 8, "fullatt_block_indexes": [1]},
            },
            **{"image_token_id": PICTURE, "vision_start_token_id": 37, "vision_end_token_id": 38},
            **{"video_token_id": 36, "tie_word_embeddings": True},
        },
        16,
        16,
    ),
}


def pictures(side, tokens):
    """Return tokens [2, L] with two pictures in each row, at other places, and the pictures [2, 2, side, side, 3]."""
    rng = np.random.default_rng(1)
    token = rng.integers(3, 36, (2, 8 + 2 * tokens)).astype(np.int32)
    for row, starts in enumerate(((1, 4 + tokens), (2, 5 + tokens))):
        for start in starts:
            token[row, start - 1 : start + tokens] = [37, *[PICTURE] * tokens]
    return token, rng.integers(0, 256, (2, 2, side, side, 3)).astype(np.uint8)


def weights(shapes):
    """Return a float32 array for each tensor, drawn by its name: norms and biases too are not what they start as."""
    results = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(zlib.crc32(name.encode()))
        scale = 0.3 if len(shape) == 1 else math.prod(shape[1:]) ** -0.5
        results[name] = (scale * rng.normal(size=shape) + (len(shape) == 1) * 0.5).astype(np.float32)
    return results


def build(name, folder):
    """Save a model with random weights from transformers; return its config.json and tensors' shapes."""
    import safetensors
    import torch
    import transformers

    torch.manual_seed(0)
    if name in TOWERS:
        kind, config, *_ = TOWERS[name]
        auto = transformers.AutoModelForImageTextToText
    else:
        (kind, fields), auto = CONFIGS[name], transformers.AutoModelForCausalLM
        config = {**_SHAPE, **fields}
    auto.from_config(getattr(transformers, kind)(**config)).float().save_pretrained(folder)
    with safetensors.safe_open(pathlib.Path(folder) / "model.safetensors", "pt") as file:
        shapes = {key: list(file.get_slice(key).get_shape()) for key in sorted(file.keys())}
    return json.loads((pathlib.Path(folder) / "config.json").read_text()), shapes


def logits(folder, token, mask=None):
    """Return transformers' float32 logits of a folder's model."""
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    token, mask = torch.tensor(token, dtype=torch.long), None if mask is None else torch.tensor(mask)
    with torch.no_grad():
        return model.eval()(token, attention_mask=mask).logits.numpy()


def seeing(folder, token, image, length=0):
    """Return transformers' logits of tokens with pictures and, greedily, the ``length`` tokens that follow."""
    import torch
    import transformers

    auto = transformers.AutoModelForImageTextToText
    model = auto.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    token = torch.tensor(token, dtype=torch.long)
    given = {"input_ids": token, "attention_mask": torch.ones_like(token), **pixels(model.config, token, image)}
    with torch.no_grad():
        z = model(**given).logits.numpy()
        rest = model.generate(**given, max_new_tokens=length or 1, do_sample=False, eos_token_id=None)
    return z, rest[:, token.shape[1] :].numpy()


def transformers_4():
    """Return whether the version of transformers is below 5."""
    import transformers

    return transformers.__version__.startswith("4.")


def pixels(config, token, image):
    """Return pictures as the processor of a model gives them."""
    import torch

    x = image.reshape(-1, *image.shape[2:]).astype(np.float32)
    if config.model_type == "qwen2_5_vl":
        count, side, patch = len(x), x.shape[1] // config.vision_config.patch_size, config.vision_config.patch_size
        colors = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])  # of its processor
        mean, deviation = (np.asarray(color, np.float32) for color in colors)
        frames = np.repeat(((x / 255 - mean) / deviation).transpose(0, 3, 1, 2)[:, None], 2, axis=1)
        blocks = frames.reshape(count, 1, 2, 3, side // 2, 2, patch, side // 2, 2, patch)
        blocks = blocks.transpose(0, 1, 4, 7, 5, 8, 3, 2, 6, 9).reshape(count * side * side, -1)
        given = {"pixel_values": torch.tensor(blocks), "image_grid_thw": torch.tensor([[1, side, side]] * count)}
        return given | ({} if transformers_4() else {"mm_token_type_ids": (token == PICTURE).long()})
    x = torch.tensor(x / 127.5 - 1).permute(0, 3, 1, 2)
    return {"pixel_values": x, "token_type_ids": (token == PICTURE).long()}


def main():
    """Write ``families.json``."""
    import safetensors.numpy

    results = {}
    for name in (*CONFIGS, *TOWERS):
        with tempfile.TemporaryDirectory() as folder:
            config, shapes = build(name, folder)
            tensors = weights(shapes)
            safetensors.numpy.save_file(tensors, pathlib.Path(folder) / "model.safetensors", {"format": "pt"})
            values = seeing(folder, *pictures(*TOWERS[name][2:]))[0] if name in TOWERS else logits(folder, TOKEN)
        results[name] = {
            "config": {k: v for k, v in config.items() if k not in ("transformers_version", "use_cache")},
            "tensors": shapes,
            "logits": [[[round(float(z), 6) for z in row] for row in rows] for rows in values[:, -4:]],
        }
    PATH.write_text("{" + ",\n".join(f"{json.dumps(k)}: {json.dumps(v)}" for k, v in results.items()) + "}\n")


if __name__ == "__main__":
    main()
