"""Public checkpoints that read pictures: against transformers, in and out, and folders that are not what they say."""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from rljax import models, sampling, types
from rljax.models import adapters
from rljax.models.checkpoints import families, tensors, vision, weights
from rljax.models.network import attention, layer
from rljax.training import sharding
from tests.models.families_cases import SEEING, write
from tests.support.reference import families as reference

INPUTS = {name: reference.pictures(*entry[2:]) for name, entry in reference.TOWERS.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a family, written once."""
    return functools.cache(lambda name: write(tmp_path_factory.mktemp("towers") / name, name))


def architecture(config, **computed):
    """Return the architecture of a config.json, for the pictures of the reference where it does not name their size."""
    fields = families.read(config)
    if "pixels" not in fields["vision"]:
        fields["vision"] |= {"pixels": 16, "tokens": 16}
    return models.Architecture(**fields, **computed)


def read(path, **computed):
    """Return the model and the parameters of a folder."""
    model = models.build(architecture(weights.config(path), **computed))
    return model, weights.load(path, model.architecture)


@functools.partial(jax.jit, static_argnums=0)
def logits(model, params, token, mask, image):
    return model.logits(params, model.apply(params, token, mask, image))


def published(name, **text):
    """Return the config.json of a published model."""
    if name == "Qwen2.5-VL-3B-Instruct":
        return {
            **{"architectures": ["Qwen2_5_VLForConditionalGeneration"], "model_type": "qwen2_5_vl"},
            **{"attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "image_token_id": 151655},
            **{"vision_start_token_id": 151652, "vision_end_token_id": 151653, "vision_token_id": 151654},
            **{"video_token_id": 151656, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02},
            **{"intermediate_size": 11008, "max_position_embeddings": 128000, "max_window_layers": 70},
            **{"num_attention_heads": 16, "num_hidden_layers": 36, "num_key_value_heads": 2, "rms_norm_eps": 1e-06},
            **{"rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True, "use_cache": True},
            **{"torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_sliding_window": False},
            "vision_config": {
                **{"depth": 32, "hidden_act": "silu", "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16},
                **{"in_chans": 3, "out_hidden_size": 2048, "patch_size": 14, "spatial_merge_size": 2},
                **{"spatial_patch_size": 14, "window_size": 112, "fullatt_block_indexes": [7, 15, 23, 31]},
                **{"tokens_per_second": 2, "temporal_patch_size": 2},
            },
            "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
            "vocab_size": 151936,
        }
    return {
        **{"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "torch_dtype": "bfloat16"},
        **{"boi_token_index": 255999, "eoi_token_index": 256000, "image_token_index": 262144},
        **{"eos_token_id": [1, 106], "initializer_range": 0.02, "mm_tokens_per_image": 256},
        "text_config": {
            **{"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34},
            **{"rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024, **text},
        },
        "transformers_version": "4.50.0.dev0",
        "vision_config": {
            **{"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "num_attention_heads": 16},
            **{"model_type": "siglip_vision_model", "num_hidden_layers": 27, "patch_size": 14},
            "vision_use_head": False,
        },
    }


# --- what is computed -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEEING)
def test_logits_are_those_of_transformers(name, folder):
    model, params = read(folder(name), attention="blocked")
    # on the left, two places of padding, which move nothing
    token = jnp.pad(INPUTS[name][0], ((0, 0), (2, 0)))
    out = logits(model, params, token, token > 0, INPUTS[name][1])
    assert np.abs(out[:, -4:] - np.asarray(SEEING[name]["logits"])).max() < 1e-4


@pytest.mark.full
def test_a_token_of_a_picture_sees_its_picture():
    """Key by key: tiles that cut a picture, a window, three pictures of which two touch, padding, one left out."""
    tokens, width, window = 9, 128, 6
    a = models.Architecture(vocabulary=8, window=window, pattern=("local", "global"))
    seeing = dataclasses.replace(a.vision, layers=1, tokens=tokens, pixels=12, mutual=True, placeholder=7)
    a = dataclasses.replace(a, vision=seeing)
    token = np.ones((1, width), np.int32)
    for start in (20, 29, 60, 100):
        token[:, start : start + tokens] = 7
    mask = np.arange(width)[None] >= 5
    rows = attention.Rows(
        jnp.asarray(mask, jnp.int32), jnp.arange(width)[None], layer.last(a, token, jnp.zeros((1, 3 * tokens, 4)))
    )
    picture = np.full(width, -1)
    for number, start in enumerate((20, 29, 60)):
        picture[start : start + tokens] = number
    query, key, value = jax.random.normal(jax.random.key(0), (3, 1, width, 2, 4))
    for local in (False, True):
        seen = np.tri(width, dtype=bool) | ((picture[:, None] == picture) & (picture >= 0))
        place = np.arange(width)
        seen &= (not local) | (place[:, None] - place < window)
        z = np.where(seen & mask, np.einsum("sgk,tgk->gst", query[0], key[0]) * 0.5, -np.inf)[:, 5:]
        prob = np.exp(z - z.max(axis=2, keepdims=True))
        expected = np.einsum("gst,tgk->sgk", prob / prob.sum(axis=2, keepdims=True), value[0])
        form = dataclasses.replace(a, head_size=4).form(local)
        for name in ("plain", "blocked"):
            out = attention.attend(name, form, query, key, value, rows)
            np.testing.assert_allclose(out[0, 5:], expected, atol=1e-5)


@pytest.mark.full
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("name", SEEING)
def test_decoding_reads_what_the_whole_row_does(name, scan, folder):
    """Prompts with pictures, each read once for two rows, then tokens one by one; a rollout and shared prompts."""
    model, params = read(folder(name), attention="blocked", scan=scan)
    token, image = INPUTS[name]
    prompt, seen = jnp.pad(token, ((0, 0), (1, 0))), jnp.asarray(np.pad(token, ((0, 0), (1, 0))) > 0)
    completion = jax.random.randint(jax.random.key(1), (4, 8), 3, reference.PICTURE)
    whole = jnp.concatenate([jnp.repeat(prompt, 2, axis=0), completion], axis=1)
    expected = logits(model, params, whole, whole > 0, jnp.repeat(image, 2, axis=0))[:, prompt.shape[1] :]
    assert np.abs(logits(model, params, whole, whole > 0, None)[:, prompt.shape[1] :] - expected).max() > 0.1

    def decode(params, placed):
        ready = model.decode_params(params)
        if placed:
            left = jnp.roll(prompt, -1, axis=1)  # histories begin at column 0
            cache = model.history(4, prompt.shape[1], completion.shape[1])
            reads = (jnp.repeat(x, 2, axis=0) for x in (left, left > 0))
            cache = model.placed(ready, *reads, cache, jnp.arange(4), jnp.repeat(image, 2, axis=0))
        else:
            _, cache = model.prefill(ready, prompt, seen, 2, completion.shape[1], 3, image=image)

        def extend(cache, token):
            hidden, cache = model.extend(ready, token, jnp.ones((4,)), cache)
            return cache, model.logits(ready, hidden)

        return jnp.swapaxes(jax.lax.scan(extend, cache, completion.T)[1], 0, 1)

    for placed in (False, True):
        np.testing.assert_allclose(jax.jit(decode, static_argnums=1)(params, placed), expected, atol=2e-5)
    segment = jnp.ones(completion.shape, jnp.int32)
    _, shared = jax.jit(model.apply_shared)(params, prompt, seen, completion, segment, image)
    np.testing.assert_allclose(model.logits(params, shared), expected, atol=2e-5)


def tower64(v, tower, image):
    """Return a tower's output in float64, patch by patch in rows: arXiv 2303.15343, arXiv 2502.13923."""
    tower, qwen, side = jax.tree.map(lambda w: np.asarray(w, np.float64), tower), v.form == "qwen2.5", v.side

    def norm(x, weights, name):
        if qwen:
            return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * weights[name]
        x = x - x.mean(-1, keepdims=True)
        return x / np.sqrt(np.mean(x**2, axis=-1, keepdims=True) + 1e-6) * weights[name] + weights[f"{name}_bias"]

    row, column = (x.ravel() for x in np.indices((side, side)))
    colors = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
    mean, deviation = (np.asarray(color) if qwen else 0.5 for color in colors)
    x = ((image / 255 - mean) / deviation).reshape(side, v.patch, side, v.patch, 3).transpose(0, 2, 4, 1, 3)
    x = np.repeat(x.reshape(side * side, 3, 1, -1), 1 + qwen, axis=2).reshape(side * side, -1) @ tower["patch"]
    x = x if qwen else x + tower["patch_bias"] + tower["position"]
    size = v.width // v.heads
    frequency = 1e4 ** (-np.arange(0, size // 2, 2) / (size // 2))
    angle = np.concatenate([row[:, None] * frequency, column[:, None] * frequency], axis=1)

    def turn(x):
        first, second = np.split(x, 2, axis=-1)
        cosine, sine = np.cos(angle), np.sin(angle)
        turned = np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)
        return turned if qwen else x

    square = (row * v.patch) // max(v.window, 1), (column * v.patch) // max(v.window, 1)
    near = (square[0][:, None] == square[0]) & (square[1][:, None] == square[1])
    for i in range(v.layers):
        w = {name: x[i] for name, x in tower["layers"].items()}
        y = norm(x, w, "attention_norm")
        q, k, z = (np.einsum("sd,dhk->hsk", y, w[n]) + w[f"{n}_bias"][:, None] for n in ("query", "key", "value"))
        score = np.exp(turn(q) @ turn(k).swapaxes(1, 2) / math.sqrt(size)) * (
            near if v.window and i not in v.full else 1
        )
        mixed = (score / score.sum(-1, keepdims=True)) @ z
        x = x + np.einsum("hsk,hkd->sd", mixed, w["attention_output"]) + w["attention_output_bias"]
        y = norm(x, w, "swiglu_norm")
        up = y @ w["up"] + w["up_bias"]
        if qwen:
            gate = y @ w["gate"] + w["gate_bias"]
            up = gate / (1 + np.exp(-gate)) * up
        else:
            up = 0.5 * up * (1 + np.tanh(math.sqrt(2 / math.pi) * (up + 0.044715 * up**3)))
        x = x + up @ w["down"] + w["down_bias"]
    x = norm(x, tower, "final_norm").reshape(2 * (side // v.merged, v.merged) + (-1,))
    x = x.swapaxes(1, 2).reshape(v.tokens, v.merged**2, -1)
    return x.reshape(v.tokens, -1) if qwen else x.mean(axis=1)


@pytest.mark.full
@pytest.mark.parametrize("name", SEEING)
def test_the_gradient_of_a_tower_is_that_of_float64(name, folder):
    model, params = read(folder(name), remat="full")
    v, image = model.architecture.vision, INPUTS[name][1]
    weight = np.random.default_rng(0).normal(size=(v.tokens, v.joined))

    def loss(tower):
        return jnp.sum(model.features({**params, "tower": tower}, image[:1, :1])[0, 0] * weight)

    tower = params["tower"]
    wide = lambda: jax.tree.map(lambda w: np.array(w, np.float64), tower)  # noqa: E731
    np.testing.assert_allclose(model.features(params, image[:1, :1])[0, 0], tower64(v, wide(), image[0, 0]), atol=2e-5)
    gradient = jax.jit(jax.grad(loss))(tower)
    paths = [("patch",), ("layers", "up"), ("layers", "value_bias"), ("layers", "query"), ("final_norm",)]
    for path in [*paths, ("position",), ("layers", "attention_norm_bias")][: 5 if v.form == "qwen2.5" else 7]:
        at = tuple(n // 2 for n in functools.reduce(dict.__getitem__, path, tower).shape)
        values = []
        for step in (1e-5, -1e-5):
            moved = wide()
            functools.reduce(dict.__getitem__, path, moved)[at] += step
            values.append(np.sum(tower64(v, moved, image[0, 0]) * weight))
        slope = functools.reduce(dict.__getitem__, path, gradient)[at]
        np.testing.assert_allclose(slope, (values[0] - values[1]) / 2e-5, rtol=1e-3, atol=1e-4)


@pytest.mark.full
@pytest.mark.parametrize("form", ["siglip", "qwen2.5"])
def test_a_large_picture_is_read_in_blocks_of_queries(form):
    """32 x 32 patches: two blocks that see the whole picture, and windows of 8 x 8 patches."""
    eyes = dataclasses.replace(
        models.Architecture(vocabulary=8).vision,
        **{"form": form, "layers": 2, "width": 16, "heads": 2, "hidden": 16, "patch": 2, "pixels": 64, "tokens": 256},
        **{"window": 16, "full": (1,)} if form == "qwen2.5" else {},
    )
    model = models.build(models.Architecture(vocabulary=8, width=16, hidden=16, vision=eyes))
    params = jax.tree.map(lambda x: x + 0.1 * np.sin(np.arange(x.size)).reshape(x.shape), model.init(jax.random.key(0)))
    image = np.random.default_rng(0).integers(0, 256, (1, 1, 64, 64, 3)).astype(np.uint8)
    out = jax.jit(model.features)(params, image)[0, 0]
    np.testing.assert_allclose(out, tower64(eyes, params["tower"], image[0, 0]), atol=5e-5)


def test_a_picture_takes_as_many_positions_as_its_side():
    """Token by token: text counts on from the end of a picture, padding on both sides counts nothing."""
    eyes = dataclasses.replace(models.Architecture(vocabulary=8).vision, layers=1, placeholder=7, pixels=12, tokens=9)
    a = models.Architecture(vocabulary=8, width=32, rope_sections=(1, 1, 2), vision=eyes)
    token = np.array(
        [[0, 1, *[7] * 9, 2, *[7] * 18, 3, 0], [1, 2, 3, *[7] * 9, 4, 5, *[7] * 9, 6, 6, 1, 7, 2, 3, 4, 0, 0]]
    )
    real, seen = token > 0, jnp.zeros((2, 18, 4))
    place, shift = layer.places(a, token, real, seen), layer.shift(a, token, real, seen)
    for b, row in enumerate(token):
        at = number = 0
        for i, x in enumerate(row):
            if x == 7 and number < 18:
                inside = number % 9
                number += 1
                np.testing.assert_array_equal(place[:, b, i], [at, at + inside // 3, at + inside % 3])
                at += 3 * (inside == 8)
            elif x:
                np.testing.assert_array_equal(place[:, b, i], at)
                at += 1
        assert real[b].sum() - shift[b] == at
    np.testing.assert_array_equal(layer.places(a, token, real, None)[1], np.cumsum(real, axis=1) - real)


@pytest.mark.full
@pytest.mark.parametrize("name", SEEING)
def test_narrow_types_and_adapters_stay_near(name, folder):
    model, params = read(folder(name))
    token, image = INPUTS[name]
    mask = jnp.ones(token.shape)
    expected = logits(model, params, token, mask, image)
    spread = np.asarray(expected).std()
    for changes in ({"dtype": "bfloat16", "param_dtype": "bfloat16"}, {"decode_weights": "int8"}):
        other, ready = read(folder(name), **changes)
        ready = other.decode_params(ready)
        hidden, _ = other.prefill(ready, token, mask, 1, 1, image=image)
        near = np.abs(other.logits(ready, hidden) - expected)
        assert 0 < near.mean() < 0.1 * spread
    adapted, fresh = read(folder(name), adapter_rank=2, adapter_scale=0.5)
    np.testing.assert_array_equal(logits(adapted, fresh, token, mask, image), expected)
    keys = iter(jax.random.split(jax.random.key(0), 100))
    moved = jax.tree_util.tree_map_with_path(
        lambda path, x: 0.1 * jax.random.normal(next(keys), x.shape) if adapters.is_adapter(path) else x, fresh
    )
    plain, merged = adapters.merged(adapted.architecture, moved)
    out = logits(adapted, moved, token, mask, image)
    assert np.abs(out - expected).max() > 0.01
    np.testing.assert_allclose(logits(models.build(plain), merged, token, mask, image), out, atol=2e-4)


# --- in and out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
def test_the_published_qwen_has_the_shapes_of_its_report(nested):
    """Parameters: 3.75 billion, 0.67 of them read pictures; the file as published, and as transformers writes it."""
    config = published("Qwen2.5-VL-3B-Instruct")
    if nested:
        text = {key: x for key, x in config.items() if key not in ("vision_config", "image_token_id", "model_type")}
        config |= {"text_config": {**text, "model_type": "qwen2_5_vl_text"}}
    assert families.read(config) == models.preset("qwen2.5-vl-3b")
    a = models.Architecture(**families.read(config))
    shapes = jax.eval_shape(models.build(a).init, jax.random.key(0))
    count = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))  # noqa: E731
    eyes = count(shapes["tower"]) + count(shapes["projector"])
    assert round(count(shapes) / 1e7) == 375 and round(eyes / 1e7) == 67
    assert a.tower.pattern == ("local",) * 7 + ("global",) and a.vision.windows == 4 and a.vision.pixels == 448
    assert a.rope_sections == (16, 24, 24) and a.tied and a.window == 0 and a.vision.placeholder == 151655
    for name in ("model.layers.0.mlp.up_proj.weight", "visual.blocks.0.attn.qkv.bias", "visual.merger.mlp.0.weight"):
        new = f"model.{name}".replace("model.model.", "model.language_model.")
        assert vision.published("qwen2.5", name) == vision.short(name) == vision.short(new) == name


def test_a_published_config_has_the_shapes_of_its_report():
    """Parameters: 417 million of the tower, 3,880 million of the decoder (Gemma 3, arXiv 2503.19786, table 1)."""
    config = published("gemma-3-4b-it")
    a = architecture(config)
    assert families.read(config) == models.preset("gemma-3-4b-vision")
    assert {**families.read(config), "vision": None} == {**models.preset("gemma-3-4b"), "vision": None}
    shapes = jax.eval_shape(models.build(a).init, jax.random.key(0))
    count = lambda tree: sum(math.prod(x.shape) for x in jax.tree.leaves(tree))  # noqa: E731
    assert round(count(shapes["tower"]) / 1e6) == 417 and round(count(shapes) / 1e7) == 430
    assert (a.vision.tokens, a.vision.side, a.vision.placeholder, a.form(False).ahead) == (256, 64, 262144, 255)
    names = set(families.names(a).values())
    assert vision.published("siglip", "model.norm.weight") == "language_model.model.norm.weight"
    for name in names:
        old = vision.published("siglip", name)
        new = f"model.{old}".replace("model.language_model.model.", "model.language_model.")
        assert vision.short(old) == vision.short(new) == vision.short(new.replace("vision_model.", "")) == name


@pytest.mark.parametrize("name", SEEING)
def test_a_family_says_what_it_read(name):
    config = SEEING[name]["config"]
    for family in ("", config["model_type"]):
        assert families.read(families.write(architecture(config), family)) == families.read(config)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", SEEING)
def test_what_is_written_is_what_was_read_bit_for_bit(name, kind, tmp_path):
    made = {key: x.astype(kind) for key, x in reference.weights(SEEING[name]["tensors"]).items()}
    source = write(tmp_path / "in", name, lambda _: made, max_length=7)
    model, _ = read(source, param_dtype=kind)
    eyes = dataclasses.replace(model.architecture.vision, trained=kind == "float32")  # else frozen
    model = models.build(dataclasses.replace(model.architecture, vision=eyes))
    params = weights.load(source, model.architecture)
    assert ("tower" in params) == eyes.trained
    weights.save(str(tmp_path / "out"), model.architecture, params, like=source, shard_bytes=4000)
    written = {vision.short(key): x for key, x in tensors.index(str(tmp_path / "out")).items()}
    assert set(written) == {vision.short(key) for key in made if key != "lm_head.weight"}
    for key, x in made.items():
        np.testing.assert_array_equal(written[vision.short(key)].read().view(np.uint8), x.view(np.uint8))
    config = weights.config(str(tmp_path / "out"))
    assert families.read(config) == families.read(weights.config(source)) and config["max_length"] == 7
    critic = dataclasses.replace(model.architecture, output="scalar")
    params = {key: x for key, x in params.items() if key != "unembedding"} | {"scalar": jnp.arange(16, dtype=kind)}
    weights.save(str(tmp_path / "critic"), critic, params)
    jax.tree.map(np.testing.assert_array_equal, weights.load(str(tmp_path / "critic"), critic), params)


@pytest.mark.full
@pytest.mark.parametrize("name", SEEING)
def test_each_device_reads_its_share(name, folder):
    """On a mesh of two or four devices: the same tree, the same logits, decoded and scored."""
    whole, params = read(folder(name), attention="blocked")
    tensor = whole.architecture.kv_heads
    mesh = sharding.make_mesh({"fsdp": 2, "tensor": tensor}, jax.devices()[: 2 * tensor])
    model = models.build(whole.architecture, sharding.Layout(mesh))
    layout = sharding.param_sharding(mesh, model.axes, jax.eval_shape(model.init, jax.random.key(0)))
    laid = weights.load(folder(name), whole.architecture, layout)
    jax.tree.map(np.testing.assert_array_equal, laid, params)
    token, image = INPUTS[name]
    mask = jnp.ones(token.shape)
    expected = logits(whole, params, token, mask, image)
    np.testing.assert_allclose(logits(model, laid, token, mask, image), expected, atol=2e-5)

    @jax.jit
    def decode(params):
        ready = model.decode_params(params)
        _, cache = model.prefill(ready, token[:, :-1], mask[:, :-1], 1, 1, image=image)
        return model.logits(ready, model.extend(ready, token[:, -1], mask[:, -1], cache)[0])

    np.testing.assert_allclose(decode(laid), expected[:, -1], atol=2e-5)


def test_a_tower_is_never_left_out(tmp_path):
    """Neither at reading, nor at writing, nor by an implementation of attention that cannot see a picture."""
    config = SEEING["gemma3-4b"]["config"]
    a, path = architecture(config), write(tmp_path / "whole", "gemma3-4b")
    blind = dataclasses.replace(a, vision=models.Architecture(vocabulary=1).vision)
    with pytest.raises(ValueError, match=r"not expected multi_modal_projector\.mm_input_projection_weight"):
        weights.load(path, blind)
    cut = write(tmp_path / "cut", "gemma3-4b", lambda made: {k: x for k, x in made.items() if "tower" not in k})
    with pytest.raises(ValueError, match=r"missing vision_tower\.embeddings\.patch_embedding\.bias"):
        weights.load(cut, a)
    ours = dataclasses.replace(a, vision=dataclasses.replace(a.vision, form="plain"))
    with pytest.raises(ValueError, match=r"no public model has a vision tower of vision\.form='plain'"):
        weights.load(path, ours)
    with pytest.raises(ValueError, match=r"gemma3 cannot express vision\.form of this architecture"):
        families.write(ours)
    for known, family in ((a, "gemma3_text"), (blind, "gemma3")):
        with pytest.raises(ValueError, match=rf"{family} cannot express vision\.layers"):
            families.write(known, family)
    with pytest.raises(ValueError, match=r"vision\.placeholder=-1"):
        families.write(dataclasses.replace(a, vision=dataclasses.replace(a.vision, placeholder=-1)))
    with pytest.raises(ValueError, match=r"attention='splash' does not support vision\.mutual"):
        dataclasses.replace(a, attention="splash")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "clip_vision_model"}, "must be an object of model_type siglip_vision_model"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported .*must be 'gelu_pytorch_tanh'"),
        ({"vision_use_head": True}, "vision_use_head=True is not supported"),
        ({"image_size": 18}, r"vision\.pixels=18: must be divisible by vision\.patch=4"),
        ({"extra": 1}, "'extra' is unknown .vision_config of model_type 'siglip_vision_model'"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers='2': must be a whole number"),
    ],
)
def test_a_tower_that_is_not_that_of_its_family_is_refused(change, says):
    config = SEEING["gemma3-4b"]["config"]
    with pytest.raises(ValueError, match=says):
        families.read({**config, "vision_config": {**config["vision_config"], **change}})
    with pytest.raises(ValueError, match=r"final_logit_softcapping=30\.0 is not supported"):  # its class ignores it
        families.read({**config, "text_config": {**config["text_config"], "final_logit_softcapping": 30.0}})


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            {"rope_scaling": {"type": "mrope", "mrope_section": [16, 24]}},
            r"rope_sections=\(16, 24\): must be three numbers",
        ),
        ({"rope_scaling": {"type": "mrope", "mrope_section": ["a", 1, 2]}}, r"rope_sections"),
        ({"rope_parameters": {"rope_type": "default", "mrope_section": [24, 24, 16]}}, "mrope_section is given as"),
        ({"vision_config": {"out_hidden_size": 3584}}, "out_hidden_size=3584 is not supported .*must be 2048"),
        ({"vision_config": {"temporal_patch_size": 1}}, "temporal_patch_size=1 is not supported"),
        ({"vision_config": {"window_size": 100}}, r"vision\.window=100: must be divisible by 28"),
        ({"image_token_index": 7}, "image_token_index is given as"),
        ({"head_dim": 64}, "head_dim=64 is not supported"),
    ],
)
def test_a_folder_of_qwen_that_is_not_like_the_published_is_refused(change, says):
    config = published("Qwen2.5-VL-3B-Instruct")
    change |= {"vision_config": {**config["vision_config"], **change.get("vision_config", {})}}
    with pytest.raises(ValueError, match=says):
        families.read({**config, **change})


# --- beside transformers itself -------------------------------------------------------------------------


@pytest.mark.parametrize("name", reference.TOWERS)
def test_parity_with_transformers(name, tmp_path):
    """Folders that transformers made: logits, 32 greedy tokens after two pictures, the way back."""
    pytest.importorskip("torch", reason="pip install -e '.[parity]': parity with transformers is NOT checked")
    _, shapes = reference.build(name, tmp_path / "in")
    strong = lambda key: ".layers." in key and "vision" not in key  # noqa: E731  of the decoder
    lively = {key: x * (4 if strong(key) and x.ndim > 1 else 1) for key, x in reference.weights(shapes).items()}
    safetensors.numpy.save_file(lively, tmp_path / "in" / "model.safetensors", {"format": "pt"})
    model, params = read(str(tmp_path / "in"))
    token, image = INPUTS[name]
    computed = logits(model, params, token, jnp.ones(token.shape), image)
    expected, greedy = reference.seeing(tmp_path / "in", token, image, 32)
    assert np.abs(computed - expected).max() < 1e-4
    prompts = types.Prompts(token=token, mask=jnp.ones(token.shape), index=jnp.arange(2), image=image)
    ours = sampling.generate(
        model,
        params,
        prompts,
        jax.random.split(jax.random.key(0), 2),
        samples=1,
        length=32,
        config=sampling.SamplerConfig(temperature=0.0, cache_block=16),
        ends=sampling.Ends(),
    )
    np.testing.assert_array_equal(ours.token, greedy)
    assert len(np.unique(ours.token)) > 3

    weights.save(str(tmp_path / "out"), model.architecture, params, like=str(tmp_path / "in"))
    assert np.abs(computed - reference.seeing(tmp_path / "out", token, image)[0]).max() < 1e-4
