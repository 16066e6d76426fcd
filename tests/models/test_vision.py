"""Pictures: the tower against NumPy, where its output goes, and log-probs of prompts with pictures."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models, sampling, types
from rljax.models import adapters, towers
from rljax.models.network import layer
from rljax.models.scores import packing, scoring

PLACEHOLDER, VOCABULARY = 7, 19
EYES = towers.Vision(layers=2, width=16, heads=2, hidden=12, patch=2, pixels=8, tokens=4, placeholder=PLACEHOLDER)
SMALL = models.Architecture(
    vocabulary=VOCABULARY, layers=2, width=16, heads=4, kv_heads=2, hidden=24, norm_epsilon=1e-3, vision=EYES
)
PROMPTS, SAMPLES, LENGTH = 3, 2, 5
_ = 0  # padding
# two pictures of four tokens, in three places
TEXT = np.array([[_, 1] + [7] * 4 + [2] + [7] * 4 + [3], [7] * 8 + [4, 5, 6, 1], [_, _, _] + [7] * 8 + [9]], np.int32)


def build(**changes) -> models.Model:
    return models.build(dataclasses.replace(SMALL, **changes))


@functools.cache
def parameters(architecture: models.Architecture):
    """Random values everywhere, the norms' scales among them."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(models.build(architecture).init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0.3, 0.4, x.shape), jnp.float32), shapes)


def pictures(rows: int = PROMPTS) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (rows, 2, 8, 8, 3)).astype(np.uint8)


def prompts() -> types.Prompts:
    mask = (TEXT != 0).astype(np.float32)
    return types.Prompts(jnp.asarray(TEXT), jnp.asarray(mask), jnp.arange(PROMPTS), jnp.asarray(pictures()))


# --- the tower --------------------------------------------------------------------------------------------


def norm(x, scale, epsilon=1e-6):
    return x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + epsilon) * scale


def turned(x, row, column):
    """Rotate the planes (i, i + K / 2): the first K / 4 by the row, the others by the column."""
    size = len(x)
    out = np.empty_like(x)
    for i in range(size // 2):
        place, number = (row, i) if i < size // 4 else (column, i - size // 4)
        angle = place * 10_000.0 ** (-2 * number / (size // 2))
        a, b = x[i], x[size // 2 + i]
        out[i], out[size // 2 + i] = a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)
    return out


def oracle(params, picture) -> np.ndarray:
    """What one picture is, token by token and head by head, in float64."""
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    w, side = p["tower"], 4
    x = []
    for row in range(side):
        for column in range(side):
            patch = picture[2 * row : 2 * row + 2, 2 * column : 2 * column + 2].astype(np.float64)
            x.append((patch / 127.5 - 1).transpose(2, 0, 1).reshape(-1) @ w["patch"])
    x = np.stack(x)
    for n in range(EYES.layers):
        q = {name: value[n] for name, value in w["layers"].items()}
        y = norm(x, q["attention_norm"])
        added = np.zeros_like(x)
        for head in range(EYES.heads):
            query, key = (
                np.stack([turned(v @ q[name][:, head], i // side, i % side) for i, v in enumerate(y)])
                for name in ("query", "key")
            )
            score = query @ key.T / np.sqrt(EYES.width // EYES.heads)
            weight = np.exp(score - score.max(axis=1, keepdims=True))
            mixed = weight / weight.sum(axis=1, keepdims=True) @ (y @ q["value"][:, head])
            added += mixed @ q["attention_output"][head]
        x = x + added
        y = norm(x, q["swiglu_norm"])
        gate = y @ q["gate"]
        x = x + (gate / (1 + np.exp(-gate)) * (y @ q["up"])) @ q["down"]
    x = norm(x, w["final_norm"]).reshape(side, side, -1)
    squares = [x[i : i + 2, j : j + 2].mean(axis=(0, 1)) for i in (0, 2) for j in (0, 2)]
    return np.stack(squares) @ p["projector"]["matrix"]


def test_what_a_picture_is_equals_the_oracle():
    model = build()
    params, image = parameters(SMALL), pictures(1)
    seen = jax.jit(model.look)(params, image)
    expected = np.concatenate([oracle(params, picture) for picture in image[0]])
    np.testing.assert_allclose(seen[0], expected, rtol=1e-4, atol=1e-4)
    # the output of a frozen tower can be computed beforehand
    np.testing.assert_allclose(model.look(params, model.features(params, image)), seen, rtol=1e-5, atol=1e-5)


def test_each_placeholder_is_replaced_in_order_and_nothing_else():
    model, params = build(), parameters(SMALL)
    seen = model.look(params, pictures())
    token = np.concatenate([TEXT, np.full((PROMPTS, 1), PLACEHOLDER)], axis=1)  # one more than there are pictures
    x = np.asarray(layer.embed(SMALL, params, token, seen))
    plain = np.asarray(params["embedding"])[token]
    for row in range(PROMPTS):
        here = np.flatnonzero(token[row] == PLACEHOLDER)
        np.testing.assert_array_equal(x[row, here[:-1]], np.asarray(seen)[row])
        rest = np.setdiff1d(np.arange(token.shape[1]), here[:-1])
        np.testing.assert_array_equal(x[row, rest], plain[row, rest])


def test_pictures_and_their_placeholders_may_change_places_together():
    """The tower reads each picture apart: exchanging the two exchanges their tokens."""
    model, params, image = build(), parameters(SMALL), pictures()
    seen, exchanged = model.look(params, image), model.look(params, image[:, ::-1])
    halves = np.split(np.asarray(seen), 2, axis=1)
    np.testing.assert_allclose(exchanged, np.concatenate(halves[::-1], axis=1), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["patch", "query", "down", "final_norm", "matrix"])
def test_gradients_of_the_tower_are_finite_differences_of_the_oracle_in_float64(name):
    params, image = parameters(SMALL), pictures(1)
    weights = np.random.default_rng(2).normal(size=(1, 8, 16))
    part = ("projector",) if name == "matrix" else ("tower", "layers") if name in ("query", "down") else ("tower",)
    gradient = functools.reduce(lambda tree, key: tree[key], (*part, name), gradients(weights.tobytes()))
    at = np.unravel_index(np.argmax(np.abs(gradient)), gradient.shape)

    def moved(step):
        def change(path, x):
            x = np.array(x, np.float64)
            if tuple(key.key for key in path) == (*part, name):
                x[at] += step
            return x

        changed = jax.tree_util.tree_map_with_path(change, params)
        return np.sum(weights[0] * np.concatenate([oracle(changed, picture) for picture in image[0]]))

    numeric = (moved(1e-5) - moved(-1e-5)) / 2e-5
    assert abs(numeric) > 0.1
    np.testing.assert_allclose(gradient[at], numeric, rtol=1e-3)


@functools.cache
def gradients(weights):
    """Return the gradient of the sum of what two pictures are times ``weights``, float64 bytes."""
    weights = jnp.asarray(np.frombuffer(weights).reshape(1, 8, 16), jnp.float32)
    value = lambda params: jnp.sum(weights * build().look(params, pictures(1)))  # noqa: E731
    return jax.device_get(jax.jit(jax.grad(value))(parameters(SMALL)))


# --- sampling and scoring ---------------------------------------------------------------------------------


@functools.cache
def drawn(model: models.Model):
    """Return completions of prompts with pictures."""
    config, ends = sampling.SamplerConfig(draw="gumbel"), sampling.Ends(stop=(1,), pad=0)
    row = jnp.arange(PROMPTS * SAMPLES)
    keys = sampling.row_keys(jax.random.key(3), 0, row // SAMPLES, row % SAMPLES)

    @jax.jit
    def run(params):
        return sampling.generate(model, params, prompts(), keys, config, ends, samples=SAMPLES, length=LENGTH)

    return jax.device_get(run(parameters(model.architecture)))


def rows_of(sample, image=None) -> types.Rollout:
    asked = prompts()
    context = jax.tree.map(lambda x: jnp.repeat(x, SAMPLES, axis=0), asked.context)
    return types.Rollout(
        mask=sample.mask,
        reward=np.zeros(len(sample.mask), np.float32),
        group=np.arange(len(sample.mask)) // SAMPLES,
        context=context if image is None else context.replace(image=jnp.asarray(image)),
        action=types.Action(sample.token),
    )


def score(model, rollout, how="whole"):
    places = None
    if how == "packed":
        length = np.sum(rollout.mask, axis=1).astype(np.int32).reshape(PROMPTS, SAMPLES)
        lane, offset = packing.first_fit(length, 2 * LENGTH)
        places = packing.Places(lane.reshape(-1), offset.reshape(-1), 1, SAMPLES, 2 * LENGTH)
    run = jax.jit(
        functools.partial(scoring.score, model, needs=types.Needs(), samples=SAMPLES * (how != "whole"), places=places)
    )
    return np.asarray(run(parameters(model.architecture), rollout).logp)


@pytest.mark.default_tier("shared")
@pytest.mark.parametrize("how", ["whole", "shared", "packed"])
def test_the_trainer_scores_what_the_sampler_reports_with_pictures(how):
    model = build()
    sample = drawn(model)
    logp = score(model, rows_of(sample), how)
    assert 0.3 < sample.mask.mean() < 1 and sample.behaviour_logp.min() < -1
    np.testing.assert_allclose(logp, sample.behaviour_logp, atol=1e-5)
    blank = np.zeros((PROMPTS * SAMPLES, 2, 8, 8, 3), np.uint8)
    assert np.abs(score(model, rows_of(sample, blank), how) - logp).max() > 1e-2  # the pictures are read


@pytest.mark.full
def test_rows_resumed_in_segments_are_those_written_at_once():
    model = build()
    whole, params = drawn(model), parameters(SMALL)
    config, ends = sampling.SamplerConfig(draw="gumbel"), sampling.Ends(stop=(1,), pad=0)
    row = jnp.arange(PROMPTS * SAMPLES)
    keys = sampling.row_keys(jax.random.key(3), 0, row // SAMPLES, row % SAMPLES)
    run = jax.jit(functools.partial(sampling.resume, model, config=config, ends=ends, segment=2))
    sample = jax.tree.map(jnp.zeros_like, whole)
    for start in range(0, LENGTH, 2):
        fresh = jnp.full(row.shape, start == 0)
        sample = run(params, prompts(), keys, sample, fresh)
    np.testing.assert_array_equal(sample.token, whole.token)
    np.testing.assert_allclose(sample.behaviour_logp, whole.behaviour_logp, atol=1e-5)


# --- what is trained --------------------------------------------------------------------------------------


def test_a_frozen_tower_has_no_gradient_and_adapters_are_merged():
    frozen = dataclasses.replace(SMALL, vision=dataclasses.replace(EYES, trained=False))
    part = adapters.trained(parameters(frozen))
    assert part["tower_frozen"]["patch"] is None and part["projector"]["matrix"] is not None
    adapted = dataclasses.replace(SMALL, adapter_rank=2, adapter_scale=0.5)
    params = parameters(adapted)
    names = {path[-1].key for path, _ in jax.tree_util.tree_leaves_with_path(adapters.trained(params))}
    assert names and all(name.endswith(adapters.IN) or name.endswith(adapters.OUT) for name in names)
    assert "query_adapter_in" in params["tower"]["layers"]
    plain, merged = adapters.merged(adapted, params)
    image = pictures(1)
    np.testing.assert_allclose(
        models.build(plain).look(merged, image), models.build(adapted).look(params, image), rtol=1e-3, atol=1e-3
    )


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"width": 18}, r"vision.width=18: must be divisible by 4 \* vision.heads = 8"),
        ({"patch": 3}, r"vision.pixels=8: must be divisible by vision.patch=3"),
        ({"tokens": 9}, r"vision.tokens=9: a picture of 4 x 4 patches makes 1, 4, 16 tokens"),
    ],
)
def test_sizes_that_do_not_fit_are_named(fields, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(EYES, **fields)


def test_pictures_of_another_size_or_without_a_tower_are_named():
    blind = dataclasses.replace(SMALL, vision=towers.Vision())
    with pytest.raises(ValueError, match=r"vision.layers=0: the prompts have pictures"):
        models.build(blind).look(parameters(blind), pictures())
    with pytest.raises(ValueError, match=r"image has shape .*: expected \[B, N, 8, 8, 3\]"):
        build().look(parameters(SMALL), np.zeros((1, 1, 4, 8, 3), np.uint8))
