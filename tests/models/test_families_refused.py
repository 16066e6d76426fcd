"""Public checkpoints that are not what they say, or that no family can be."""

import dataclasses
import pathlib

import numpy as np
import pytest

from rljax import models
from rljax.models.checkpoints import families, keys, tensors, weights
from tests.models.families_cases import STORED, write


def test_tensors_that_are_missing_or_do_not_fit_are_named(tmp_path):
    def change(made):
        made.pop("model.layers.1.self_attn.q_norm.weight")
        made["model.layers.0.mlp.up_proj.weight"] = np.zeros((24, 15), np.float32)
        return {**made, "model.layers.3.input_layernorm.weight": np.zeros(16, np.float32)}

    architecture = models.Architecture(**families.read(STORED["qwen3"]["config"]))
    with pytest.raises(ValueError) as error:
        weights.load(write(tmp_path, "qwen3", change), architecture)
    for part in (
        "missing model.layers.1.self_attn.q_norm.weight",
        "not expected model.layers.3.input_layernorm.weight",
        "model.layers.0.mlp.up_proj.weight is F32 (24, 15), expected (24, 16)",
    ):
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-7]), "truncated: its tensors end at byte"),
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
        (lambda path: path.write_bytes(b"\x05" + bytes(7) + b"hello"), "its header is not JSON"),
        (lambda path: path.rename(path.with_suffix(".bin")), "pickle, which is never read"),
        (lambda path: (path.parent / tensors.INDEX).write_text('{"weight_map": {"a": "b.safetensors"}}'), "is missing"),
    ],
)
def test_files_that_are_no_weights(spoil, says, tmp_path):
    path = write(tmp_path, "qwen3")
    spoil(pathlib.Path(path) / "model.safetensors")
    with pytest.raises(ValueError, match=says):
        tensors.index(path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "bert"}, "model_type='bert' is unknown; choose one of llama"),
        ({"model_type": ["qwen3"]}, "model_type='' is unknown"),
        ({"hidden_size": None}, "'hidden_size' is missing"),
        ({"num_hidden_layers": 10**7}, "num_hidden_layers=10000000: must be a whole number in"),
        ({"mlp_bias": True}, "mlp_bias=True is not supported .*must be False or None"),
        ({"hidden_act": "relu"}, "hidden_act='relu'"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 4.0}}, "rope_type='longrope'"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "extra": 1}}, "'extra' is unknown .rope_type 'yarn'"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 4.0}}, "'original_max_position_embeddings' is missing"),
        ({"rope_scaling": {"rope_type": "linear", "type": "yarn"}}, "rope_type is given as 'linear' and as 'yarn'"),
        (
            {
                "rope_scaling": {"type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0},
            },
            "rope_scaling is given as",
        ),
        ({"model_type": "qwen3_moe", "num_experts": 4, "decoder_sparse_step": 2}, "decoder_sparse_step"),
        ({"model_type": "qwen3_moe", "num_experts": 4, "num_local_experts": 8}, "num_experts is given as 4 and as 8"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention=True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantization_config"),
        ({"num_attention_head": 4}, "'num_attention_head' is unknown .*Did you mean 'num_attention_heads'"),
        ({"layer_types": ["full_attention"]}, "layer_types.*must be 3 of"),
        ({"layer_types": ["sliding_attention"] * 3}, "window=0"),
    ],
)
def test_a_config_that_this_decoder_cannot_be(change, says):
    with pytest.raises(ValueError, match=says) as error:
        families.read({**STORED["qwen3"]["config"], **change})
    assert len(str(error.value)) < 300 and "\n" not in str(error.value)


def test_no_key_is_in_two_lists():
    assert not keys.HARMLESS & set(keys.EXPECTED)
    for family in keys.FAMILIES.values():
        assert not family.read & (keys.HARMLESS - {"model_type"})
        assert not family.read & set(family.ignored) and not family.read & set(family.expected)
    assert families.kept({"eos_token_id": 2, "quantization_config": {}, "sliding_window": 4}) == {"eos_token_id": 2}


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "gemma3_text"])
def test_a_nonsense_value_is_a_clear_error_or_means_what_null_means(name):
    config = {**STORED["qwen3"]["config"], "model_type": name, "rope_parameters": None, "num_key_value_heads": 2}
    config = {key: value for key, value in config.items() if key in keys.FAMILIES[name].read}
    families.read(config)
    llama3 = {"factor": 8.0, "original_max_position_embeddings": 16, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    yarn = {"factor": 8.0, "original_max_position_embeddings": 16, "mscale": 1.0, "mscale_all_dim": 0.7}
    cases = [(config, key) for key in sorted({*keys.FAMILIES[name].read, "extra"} - {"model_type"})]
    cases += [({"rope_type": "llama3", **llama3}, key) for key in ("rope_type", "rope_theta", *llama3)]
    cases += [({"rope_type": "yarn", **yarn}, key) for key in (*yarn, "beta_fast", "attention_factor", "truncate")]
    for part, key in cases:
        for value in ("x", "", -1, -0.5, 1e400, float("nan"), 10**400, True, [], [[]], {}, {"x": [1]}, [None] * 3):
            changed = {**part, key: value}
            try:
                models.Architecture(**families.read(changed if part is config else {**config, "rope_scaling": changed}))
            except ValueError as error:
                assert "\n" not in str(error) and len(str(error)) < 400, str(error)


def test_an_architecture_that_no_family_can_say():
    fields = families.read(STORED["qwen3"]["config"])
    with pytest.raises(ValueError, match="qwen2_moe"):
        families.write(models.Architecture(**fields), "qwen2_moe")
    with pytest.raises(ValueError, match=r"cannot express .*post_norm"):
        families.write(models.Architecture(**{**fields, "bias": ("query",), "post_norm": True}))
    experts = models.Architecture(**families.read(STORED["qwen3-moe"]["config"]))
    windows = dataclasses.replace(experts, window=4, pattern=("local", "global"))
    with pytest.raises(ValueError, match="qwen3_moe cannot express pattern"):
        families.write(windows)
    same = dataclasses.replace(experts, window=4, pattern=("global", "global", "global", "local"))  # of three layers
    assert families.write(same) == families.write(experts)
