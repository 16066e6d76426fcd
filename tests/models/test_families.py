"""Public checkpoints: every family against transformers, in and out, and files that are not what they say."""

import dataclasses
import functools
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from rljax import models, sampling, types
from rljax.config import resolve, schema
from rljax.data import tokenizers
from rljax.models.checkpoints import families, tensors, weights
from rljax.models.network import gated, layer
from rljax.run import programs
from rljax.training import phases, sharding
from tests.models.families_cases import STORED, write
from tests.support import tiny
from tests.support.reference import families as reference

TOKEN = jnp.asarray(reference.TOKEN)
ALL = jnp.ones(TOKEN.shape)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a family, written once."""
    return functools.cache(lambda name: write(tmp_path_factory.mktemp("families") / name, name))


def read(path, **computed):
    """Return the model and the parameters of a folder."""
    architecture = models.Architecture(**families.read(weights.config(path)), **computed)
    return models.build(architecture), weights.load(path, architecture)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, token, mask):
    return model.logits(params, model.apply(params, token, mask))


# --- what is computed -----------------------------------------------------------------------------------


@pytest.mark.default_tier(10)
@pytest.mark.parametrize("name", STORED)
def test_logits_are_those_of_transformers(name, folder):
    model, params = read(folder(name))
    # on the left, two places of padding, which move nothing
    token, mask = (jnp.pad(x, ((0, 0), (2, 0))) for x in (TOKEN, ALL))
    out = logits(model, params, token, mask)
    assert np.abs(out[:, -4:] - np.asarray(STORED[name]["logits"])).max() < 1e-4


@pytest.mark.full
@pytest.mark.parametrize("name", ["gemma2", "gemma3", "qwen3-moe", "mistral"])
def test_decoding_reads_what_the_whole_row_does(name, folder):
    """Prompts of two lengths, each read once for two rows, then tokens one by one past the window."""
    model, params = read(folder(name), attention="blocked")
    start = 4
    seen = (jnp.arange(start)[None, :] >= jnp.array([[0], [2]])).astype(jnp.float32)
    completion = jax.random.randint(jax.random.key(1), (4, 8), 0, reference.VOCABULARY)
    whole = jnp.concatenate([jnp.repeat(TOKEN[:, :start], 2, axis=0), completion], axis=1)
    mask = jnp.concatenate([jnp.repeat(seen, 2, axis=0), jnp.ones(completion.shape)], axis=1)
    expected = logits(model, params, whole, mask)[:, start:]

    @jax.jit
    def decode(params):
        ready = model.decode_params(params)
        _, cache = model.prefill(ready, TOKEN[:, :start], seen, 2, completion.shape[1], 3)

        def extend(cache, token):
            hidden, cache = model.extend(ready, token, jnp.ones((4,)), cache)
            return cache, model.logits(ready, hidden)

        return jnp.swapaxes(jax.lax.scan(extend, cache, completion.T)[1], 0, 1)

    np.testing.assert_allclose(decode(params), expected, atol=1e-5)
    _, shared = jax.jit(model.apply_shared)(
        params, TOKEN[:, :start], seen, completion, jnp.ones(completion.shape, jnp.int32)
    )
    np.testing.assert_allclose(model.logits(params, shared), expected, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("remat", ["none", "full"])
def test_a_loop_over_whole_patterns_computes_the_same(remat, folder):
    model, params = read(folder("gemma2"))  # local, global, local: one iteration of two layers, then one layer
    looped = models.build(models.Architecture(**families.read(STORED["gemma2"]["config"]), scan=True, remat=remat))
    loss = lambda model, params: jnp.sum(logits(model, params, TOKEN, ALL)[:, :, 3] ** 2)  # noqa: E731
    expected, gradients = (jax.jit(jax.grad(functools.partial(loss, m)))(params) for m in (model, looped))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4), gradients, expected)


def test_balance_of_experts_counts_what_the_router_chose(folder):
    model, params = read(folder("qwen3-moe"))
    a, router = model.architecture, params["layers"]["router"][1]
    y = jax.random.normal(jax.random.key(0), (3, 7, a.width))
    mask = np.ones((3, 7), np.float32)
    mask[1, 3:] = 0
    balance = jax.jit(functools.partial(gated.balance, a))(router, y, mask)
    z = np.asarray(y, np.float64)[mask > 0] @ np.asarray(router, np.float64)
    prob = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    chosen = np.argsort(-z, axis=1)[:, : a.experts_per_token]
    share = np.bincount(chosen.ravel(), minlength=a.experts) / chosen.size
    np.testing.assert_allclose(balance["loss"], a.experts * np.sum(share * prob.mean(axis=0)), rtol=1e-5)
    np.testing.assert_allclose(balance["fullest"], a.experts * share.max(), rtol=1e-6)
    np.testing.assert_allclose(balance["unused"], np.mean(share == 0), rtol=1e-6)
    whole = jax.jit(model.balance)(params, TOKEN, ALL)
    assert whole["loss"] > 0 and 1 <= whole["fullest"] <= a.experts / a.experts_per_token


@pytest.mark.full
@pytest.mark.parametrize("truncate", [True, False])
def test_yarn_is_that_of_the_paper(truncate):
    """Frequencies one by one: arXiv 2309.00071, with the ramp over indices of its reference code."""
    size, theta, factor, length, fast, slow = 16, 1e4, 4.0, 64, 8.0, 0.5
    scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": length}
    scaling |= {"beta_fast": fast, "beta_slow": slow, "truncate": truncate}
    config = {**STORED["qwen3"]["config"], "head_dim": size, "rope_scaling": scaling, "rope_theta": theta}
    del config["rope_parameters"]
    architecture = models.Architecture(**families.read(config))
    first, last = (size * math.log(length / (2 * math.pi * r)) / (2 * math.log(theta)) for r in (fast, slow))
    if truncate:
        first, last = math.floor(first), math.ceil(last)
    expected = []
    for i in range(size // 2):
        frequency = theta ** (-2 * i / size)
        ramp = min(max((i - max(first, 0)) / (last - max(first, 0)), 0), 1)
        expected.append(frequency * (1 - ramp) + frequency / factor * ramp)
    position = jnp.asarray([[0, 1, 5, 63]])
    rotations, local = layer.rotation(architecture, position)
    angle = np.asarray(position)[:, :, None, None] * np.asarray(expected)
    for computed, function in zip(rotations, (np.cos, np.sin), strict=True):
        np.testing.assert_allclose(computed, (0.1 * math.log(factor) + 1) * function(angle), atol=2e-5)
    assert local is rotations  # layers with a window are stretched too, unless they have a theta of their own


# --- in and out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STORED)
def test_a_family_says_what_it_read(name):
    fields = families.read(STORED[name]["config"])
    architecture = models.Architecture(**fields)
    for family in ("", STORED[name]["config"]["model_type"]):
        assert families.read(families.write(architecture, family)) == fields


VERSION4 = ("rope_theta", "rope_scaling", "rope_local_base_freq")


@pytest.mark.parametrize("name", STORED)
def test_both_versions_of_transformers_read_what_is_written(name):
    """Either form of the rotary settings alone says the same; with both that differ, neither is silently chosen."""
    fields = families.read(STORED[name]["config"])
    config = families.write(models.Architecture(**fields))
    assert families.read({key: value for key, value in config.items() if key != "rope_parameters"}) == fields
    assert families.read({key: value for key, value in config.items() if key not in VERSION4}) == fields
    with pytest.raises(ValueError, match="rope_theta is given as 123"):
        families.read({**config, "rope_theta": 123.0})


# text_config of google/gemma-3-{4b,12b,27b}-it as published: what differs from the class of transformers
_GEMMA3_ROPE = {"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024}
SPARSE = {
    "4b": {"hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 34, **_GEMMA3_ROPE},
    "12b": {
        **{"hidden_size": 3840, "intermediate_size": 15360, "num_hidden_layers": 48, **_GEMMA3_ROPE},
        **{"num_attention_heads": 16, "num_key_value_heads": 8},
    },
    "27b": {
        **{"hidden_size": 5376, "intermediate_size": 21504, "num_hidden_layers": 62, **_GEMMA3_ROPE},
        **{"num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168},
    },
}


@pytest.mark.parametrize("size", SPARSE)
def test_a_sparse_config_means_the_defaults_of_its_family(size):
    outer = {
        **{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16"},
        **{"boi_token_index": 255999, "eoi_token_index": 256000, "eos_token_id": [1, 106], "mm_tokens_per_image": 256},
        **{"image_token_index": 262144, "initializer_range": 0.02, "transformers_version": "4.50.0.dev0"},
        "vision_config": {"model_type": "siglip_vision_model", "image_size": 896, "patch_size": 14},
    }
    fields = families.read({**outer, "text_config": {"model_type": "gemma3_text", **SPARSE[size]}})
    assert fields.pop("vision")["layers"] == 12  # of the class of its tower
    full = {  # technical report of Gemma 3 (arXiv 2503.19786), and the full config.json of the 1B model
        **{"model_type": "gemma3_text", "vocab_size": 262208, "num_attention_heads": 8, "num_key_value_heads": 4},
        **{"head_dim": 256, "query_pre_attn_scalar": 256, "hidden_activation": "gelu_pytorch_tanh"},
        **{"rms_norm_eps": 1e-6, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6},
        **{"attn_logit_softcapping": None, "final_logit_softcapping": None, "attention_bias": False},
        **{"tie_word_embeddings": True, **SPARSE[size]},
    }
    assert families.read(full) == fields
    assert fields["pattern"] == ("local",) * 5 + ("global",) and fields["activation"] == "gelu"
    assert (fields["rope_theta"], fields["rope_local_theta"], fields["rope_factor"]) == (1e6, 1e4, 8.0)
    if size == "4b":
        assert fields == models.preset("gemma-3-4b")
    with pytest.raises(ValueError, match="text_config"):
        families.read(outer)
    with pytest.raises(ValueError, match="quantization_config"):
        families.read({**outer, "quantization_config": {"bits": 4}, "text_config": SPARSE[size]})


def test_what_a_file_does_not_say_is_as_in_transformers():
    qwen2 = {key: value for key, value in STORED["qwen2"]["config"].items() if key != "layer_types"}
    qwen2["sliding_window"] = 5
    del qwen2["use_sliding_window"]
    assert families.read(qwen2)["window"] == 0
    windows = {**qwen2, "use_sliding_window": True, "max_window_layers": 1}
    assert families.read(windows)["pattern"] == ("global", "local", "local")
    without = {"rope_parameters": {"rope_theta": 1e6}}  # no rope_type
    assert families.read({**qwen2, **without})["rope_theta"] == 1e6
    moe = {**STORED["qwen3-moe"]["config"], "sliding_window": 5, "use_sliding_window": True, "max_window_layers": 2}
    assert families.read(moe)["pattern"] == ("local",)  # its reference code does not read max_window_layers
    mistral = {key: value for key, value in STORED["mistral"]["config"].items() if key != "sliding_window"}
    assert families.read(mistral)["window"] == 4096 and not families.read({**mistral, "sliding_window": None})["window"]
    with pytest.raises(ValueError, match="attn_logit_softcapping=5"):  # its reference code does not apply it
        families.read({**STORED["gemma3"]["config"], "attn_logit_softcapping": 50.0})


@pytest.mark.parametrize("name", ["qwen2-tied", "qwen3-moe", "gemma3", "llama3.1"])
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_what_is_written_is_what_was_read_bit_for_bit(name, kind, tmp_path):
    def cast(made):
        return {key: x.astype(kind) for key, x in made.items()}

    source, made = tmp_path / "in", cast(reference.weights(STORED[name]["tensors"]))
    source.mkdir()
    safetensors.numpy.save_file(made, source / "model.safetensors")
    (source / "config.json").write_text(json.dumps(STORED[name]["config"]))
    (source / "tokenizer.json").write_text("{}")
    model, params = read(str(source), param_dtype=kind)
    assert weights.dtype(str(source)) == kind and {str(x.dtype) for x in jax.tree.leaves(params)} == {kind}
    # small files, so that there are several and an index
    weights.save(str(tmp_path / "out"), model.architecture, params, like=str(source), shard_bytes=4000)
    assert weights.config(str(tmp_path / "out"))["bos_token_id"] == 1  # kept from ``like``
    assert len(list((tmp_path / "out").glob("*.safetensors"))) > 1 and (tmp_path / "out" / "tokenizer.json").exists()
    written = tensors.index(str(tmp_path / "out"))
    assert set(written) == set(made)
    for key, x in made.items():
        assert written[key].dtype == {"float32": "F32", "bfloat16": "BF16"}[kind]
        np.testing.assert_array_equal(written[key].read().view(np.uint8), np.atleast_1d(x).view(np.uint8))
    with pytest.raises(ValueError, match="the folder exists already"):
        weights.save(str(tmp_path / "out"), model.architecture, params)


def test_each_device_reads_its_share(folder):
    architecture = models.Architecture(**families.read(STORED["qwen3-moe"]["config"]))
    mesh = sharding.make_mesh({"fsdp": 4, "tensor": 2})
    model = models.build(architecture, sharding.Layout(mesh))
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    layout = sharding.param_sharding(mesh, model.axes, shapes)
    laid = weights.load(folder("qwen3-moe"), architecture, layout)
    jax.tree.map(lambda x, s: x.sharding.is_equivalent_to(s, x.ndim) or pytest.fail(str(x.sharding)), laid, layout)
    whole = weights.load(folder("qwen3-moe"), architecture)
    jax.tree.map(np.testing.assert_array_equal, laid, whole)


def test_a_critic_reads_the_trunk_and_a_reward_model_its_head(tmp_path):
    def with_head(made):
        made.pop("lm_head.weight")
        return {**made, "score.weight": np.arange(16, dtype=np.float32)[None]}

    fields = families.read(STORED["qwen3"]["config"])
    scalar = models.Architecture(**fields, output="scalar")
    critic = weights.load(write(tmp_path / "policy", "qwen3"), scalar)
    assert not np.any(critic["scalar"]) and np.any(critic["layers"]["query"])
    reward = weights.load(write(tmp_path / "reward", "qwen3", with_head), scalar)
    np.testing.assert_array_equal(reward["scalar"], np.arange(16))
    weights.save(str(tmp_path / "out"), scalar, reward, like=str(tmp_path / "policy"))
    stored, config = tensors.index(str(tmp_path / "out")), weights.config(str(tmp_path / "out"))
    assert stored["score.weight"].shape == (1, 16) and "lm_head.weight" not in stored
    assert config["architectures"] == ["Qwen3ForSequenceClassification"] and config["id2label"] == {"0": "LABEL_0"}
    assert families.read(config) == fields and config["torch_dtype"] == config["dtype"] == "float32"
    for labels in ({"0": "NEG", "1": "NEU"}, None):  # of another classifier
        (tmp_path / "policy" / "config.json").write_text(json.dumps({**STORED["qwen3"]["config"], "id2label": labels}))
        place = str(tmp_path / f"labels-{labels is None}")
        weights.save(place, scalar, reward, like=str(tmp_path / "policy"))
        assert weights.config(place)["id2label"] == {"0": "LABEL_0"}
    older = write(tmp_path / "older", "qwen3", lambda made: {**with_head(made), "score.weight": np.arange(16.0)})
    np.testing.assert_array_equal(weights.load(older, scalar)["scalar"], np.arange(16))


@pytest.mark.full
def test_a_run_starts_from_a_folder(folder):
    config = tiny.config("grpo(kl=0.1)", phases=("main",), model__weights=folder("gemma3"))
    program = programs.build(config, tokenizers.train(resolve.phases(config)[0].task.corpus()), jax.devices()[:1])
    assert program.policy.architecture.window == 5 and program.policy.architecture.vocabulary == 40
    step = program.steps[0]
    given = program.initial()
    state = step.begin(None, program.key, given)
    _, params = read(folder("gemma3"))
    jax.tree.map(np.testing.assert_array_equal, state.params["policy"], params)
    jax.tree.map(np.testing.assert_array_equal, state.reference, params)
    rows = step.rollout(state, program.key)
    score = jax.jit(lambda params: phases.score(step.setup, "policy", params, rows, types.Needs()).logp)
    gap = np.abs(score(params) - rows.behaviour_logp)[np.asarray(rows.mask) > 0]
    assert gap.size and gap.max() < 1e-5


def test_the_embedding_must_hold_the_tokenizer(folder):
    model = resolve.check(schema.default()).model
    model = dataclasses.replace(model, architecture=dataclasses.replace(model.architecture, vocabulary=40))
    with pytest.raises(ValueError, match=r"config\.model\.vocabulary=40 .*must be at least 41"):
        model.network(41)


# --- beside transformers itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.CONFIGS)
def test_parity_with_transformers(name, tmp_path):
    """Folders that transformers made, weights large enough for lively text: logits, 64 greedy tokens, the way back."""
    torch = pytest.importorskip("torch", reason="pip install -e '.[parity]': parity with transformers is NOT checked")
    transformers = pytest.importorskip("transformers")
    _, shapes = reference.build(name, tmp_path / "in")
    lively = {key: x * (1 + (x.ndim > 1)) for key, x in reference.weights(shapes).items()}
    safetensors.numpy.save_file(lively, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    model, params = read(str(tmp_path / "in"))
    computed = logits(model, params, TOKEN, ALL)
    assert np.abs(computed - reference.logits(tmp_path / "in", reference.TOKEN)).max() < 1e-4

    published = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "in", dtype=torch.float32).eval()
    out = published.generate(
        torch.tensor(reference.TOKEN, dtype=torch.long),
        attention_mask=torch.ones(reference.TOKEN.shape),
        max_new_tokens=64,
        do_sample=False,
        eos_token_id=None,
    )
    prompts = types.Prompts(token=TOKEN, mask=ALL, index=jnp.arange(2))
    ours = sampling.generate(
        model,
        params,
        prompts,
        jax.random.split(jax.random.key(0), 2),
        samples=1,
        length=64,
        config=sampling.SamplerConfig(temperature=0.0, cache_block=16),
        ends=sampling.Ends(),
    )
    np.testing.assert_array_equal(ours.token, out[:, TOKEN.shape[1] :].numpy())
    assert len(np.unique(ours.token)) > 3

    weights.save(str(tmp_path / "out"), model.architecture, params)
    assert np.abs(computed - reference.logits(tmp_path / "out", reference.TOKEN)).max() < 1e-4
