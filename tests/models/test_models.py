"""The transformer against NumPy written from its definition."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models
from tests.support import jaxprs

SMALL = models.Architecture(
    vocabulary=37, layers=2, width=16, heads=4, kv_heads=2, hidden=24, head_size=6, norm_epsilon=1e-3
)


def _model(**changes) -> models.Model:
    return models.build(dataclasses.replace(SMALL, **changes))


def _params(model: models.Model, seed: int = 0):
    """Random values everywhere, the norms' scales and the scalar head among them."""
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(model.init, jax.random.key(0))
    return jax.tree.map(lambda x: jnp.asarray(rng.normal(0.3, 0.4, x.shape), jnp.float32), shapes)


@functools.cache
def _jit(model: models.Model, what: str):
    return jax.jit(getattr(model, what))


# --- the oracle -----------------------------------------------------------------------------------


def _softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def _norm(x, scale, epsilon):
    return x / np.sqrt(np.mean(x * x) + epsilon) * scale


def _turn(x, position, theta):
    """Rotate the plane of coordinates (i, i + K/2) by position * theta^(-2i/K)."""
    half = len(x) // 2
    out = np.empty_like(x)
    for i in range(half):
        angle = position * theta ** (-2 * i / len(x))
        out[i] = x[i] * np.cos(angle) - x[half + i] * np.sin(angle)
        out[half + i] = x[i] * np.sin(angle) + x[half + i] * np.cos(angle)
    return out


def _oracle(architecture: models.Architecture, params, tokens, maps: list | None = None) -> np.ndarray:
    """Hidden states of one unpadded row, token by token and head by head, in float64; adds attention to ``maps``."""
    a = architecture
    p = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
    x = np.stack([p["embedding"][t] for t in tokens])
    for n in range(a.layers):
        w = {name: value[n] for name, value in p["layers"].items()}
        normed = [_norm(row, w["attention_norm"], a.norm_epsilon) for row in x]
        added = np.zeros_like(x)
        for head in range(a.heads):
            group = head * a.kv_heads // a.heads  # consecutive query heads share a key-value head
            keys = [_turn(row @ w["key"][:, group], i, a.rope_theta) for i, row in enumerate(normed)]
            values = [row @ w["value"][:, group] for row in normed]
            attention = np.zeros((len(x), len(x)))
            for i, row in enumerate(normed):
                query = _turn(row @ w["query"][:, head], i, a.rope_theta)
                weight = _softmax(np.array([query @ keys[j] for j in range(i + 1)]) / np.sqrt(a.head_size))
                attention[i, : i + 1] = weight
                mixed = sum(weight[j] * values[j] for j in range(i + 1))
                added[i] += mixed @ w["attention_output"][head]
            if maps is not None:
                maps.append(attention)
        x = x + added
        for i, row in enumerate(x):
            inner = _norm(row, w["swiglu_norm"], a.norm_epsilon)
            gate = inner @ w["gate"]
            x[i] = row + (gate / (1 + np.exp(-gate)) * (inner @ w["up"])) @ w["down"]
    return np.stack([_norm(row, p["final_norm"], a.norm_epsilon) for row in x])


# --- the transformer ---------------------------------------------------------------------------

# Rows padded on the right, the left, both, inside, and not at all.
MASK = np.array(
    [[1, 1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1, 0], [1, 0, 1, 1, 0, 0, 1], [1] * 7], np.float32
)
TOKEN = np.random.default_rng(1).integers(0, SMALL.vocabulary, MASK.shape).astype(np.int32)


@pytest.mark.parametrize(
    "changes",
    [{}, {"tied": False, "kv_heads": 4}, {"kv_heads": 1, "head_size": 0, "rope_theta": 100.0}],
    ids=["tied", "untied-multi-head", "multi-query"],
)
def test_forward_is_the_architecture_whatever_the_padding(changes):
    model = _model(**changes)
    params = _params(model)
    hidden = _jit(model, "apply")(params, TOKEN, MASK)
    logits = _jit(model, "logits")(params, hidden)
    unembedding = np.asarray(params["embedding"]).T if model.architecture.tied else np.asarray(params["unembedding"])
    for row, keep in enumerate(MASK > 0):
        expected = _oracle(model.architecture, params, TOKEN[row][keep])
        np.testing.assert_allclose(hidden[row][keep], expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(logits[row][keep], expected @ unembedding, rtol=1e-4, atol=1e-4)
    assert np.all(np.isfinite(hidden))


STEP = np.array(
    [[0, 1, 1, 2, 0, 0, 0], [0, 0, 0, 1, 2, 2, 3], [0, 0, 1, 1, 2, 3, 0], [0, 0, 1, 2, 0, 0, 3], [0, 1, 2, 2, 3, 3, 4]],
    np.int32,
)


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_later_steps_attend_to_a_step_as_the_weights_of_all_heads_say(apart):
    model = _model()
    params = _params(model)
    attended = jax.jit(functools.partial(model.attended, steps=5, apart=apart))(params, TOKEN, MASK, STEP)
    for row, keep in enumerate(MASK > 0):
        maps, step = [], STEP[row][keep]
        _oracle(model.architecture, params, TOKEN[row][keep], maps)
        for k in range(1, 6):
            later = [
                np.sum([a[step == j][:, step == k].mean() for j in range(k + apart, step.max() + 1)]) for a in maps
            ]
            expected = max(later) if np.any(step == k) else 0.0
            np.testing.assert_allclose(attended[row, k - 1], expected, rtol=1e-4, atol=1e-6)


def test_what_the_tokens_of_all_steps_attend_to_sums_to_1():
    model = _model(layers=1, heads=1, kv_heads=1)
    step = np.where(STEP, STEP, MASK).astype(np.int32)  # the first step begins with the row
    attended = model.attended(_params(model), TOKEN, MASK, step, steps=4, apart=0)
    length = np.sum(step[:, :, None] == np.arange(1, 5), axis=1)
    np.testing.assert_allclose(np.sum(length * attended, axis=1), step.max(axis=1), rtol=1e-5)


def test_padding_ids_change_nothing():
    model = _model()
    params = _params(model)
    other = np.where(MASK > 0, TOKEN, np.array([[-7], [99], [5], [0], [1]]))
    hidden = _jit(model, "apply")(params, TOKEN, MASK)
    changed = _jit(model, "apply")(params, other, MASK)
    np.testing.assert_array_equal(np.asarray(hidden)[MASK > 0], np.asarray(changed)[MASK > 0])


@pytest.mark.default_tier(1)
@pytest.mark.parametrize(("block", "scan"), [(0, True), (2, True), (0, False), (2, False)])
def test_cached_decode_equals_full_forward(block, scan):
    model = _model(scan=scan)
    params = _params(model)
    prompt = np.array([[0, 0, 1, 1], [1, 1, 1, 1]], np.float32)
    live = np.array([[1] * 5, [1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 0]], np.float32)  # two rows of each
    rng = np.random.default_rng(2)
    text, token = rng.integers(0, SMALL.vocabulary, (2, 4)), rng.integers(0, SMALL.vocabulary, (4, 5))
    whole = np.concatenate([np.repeat(prompt, 2, 0), live], axis=1)
    full = _jit(model, "apply")(params, np.concatenate([np.repeat(text, 2, 0), token], axis=1), whole)

    @jax.jit
    def decode(params):
        weights = model.decode_params(params)
        hidden, cache = model.prefill(weights, jnp.asarray(text), prompt, 2, 6, block)  # a column more than needed

        def body(i, carry):
            cache, out = carry
            hidden, cache = model.extend(weights, jnp.asarray(token)[:, i], jnp.asarray(live)[:, i], cache)
            return cache, out.at[:, i].set(hidden)

        return hidden, *jax.lax.fori_loop(0, 5, body, (cache, jnp.zeros((4, 5, SMALL.width))))

    hidden, cache, out = decode(params)
    states = np.concatenate([np.repeat(hidden, 2, 0), out], axis=1)
    np.testing.assert_allclose(states[whole > 0], np.asarray(full)[whole > 0], rtol=1e-5, atol=1e-5)
    assert cache.length == 5
    np.testing.assert_array_equal(cache.mask, np.concatenate([live, np.zeros((4, 1))], axis=1) > 0)
    prompts, blocks = ([cache.prompt], [cache.completion]) if scan else (cache.prompt, cache.completion[0])
    assert all(key.shape[-4] == 2 for key, _ in prompts)  # never one for each row
    assert [key.shape[-1] for key, _ in blocks] == ([2, 2, 2] if block and not scan else [6])


def _loss(model, params, mask):
    hidden = model.apply(params, TOKEN, mask)
    return jnp.sum(jnp.where(mask[:, :, None] > 0, jnp.sin(model.logits(params, hidden)), 0.0))


@functools.cache
def _gradient(remat: str):
    model = _model(remat=remat)
    empty = MASK.copy()
    empty[0] = 0  # a row that is all padding
    return jax.jit(jax.grad(functools.partial(_loss, model)))(_params(model), empty)


def test_the_estimate_of_what_a_backward_pass_keeps_is_that_of_the_compiler_within_a_factor_of_two():
    a = models.Architecture(vocabulary=16, layers=2, width=64, hidden=192, scan=False, attention="blocked")
    model, rows = models.build(a), jax.ShapeDtypeStruct((16, 64), jnp.int32)
    params = jax.eval_shape(model.init, jax.random.key(0))
    gradient = jax.grad(lambda p, t: jnp.sum(jnp.square(model.apply(p, t, jnp.ones(t.shape)))))
    kept = jax.jit(gradient).lower(params, rows).compile().memory_analysis().temp_size_in_bytes
    assert 0.5 <= a.saved(16 * 64, 64) / kept <= 2.0


@pytest.mark.default_tier(1)
@pytest.mark.parametrize("remat", ["full", "dots"])
def test_remat_keeps_the_gradient(remat):
    for left, right in zip(jax.tree.leaves(_gradient("none")), jax.tree.leaves(_gradient(remat)), strict=True):
        assert np.all(np.isfinite(left)) and np.any(left != 0)
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-4)


def test_bfloat16_computes_close_and_reduces_in_float32():
    wide, narrow = _model(), _model(dtype="bfloat16")
    params = _jit(wide, "init")(jax.random.key(3))
    expected = _jit(wide, "apply")(params, TOKEN, MASK)
    hidden = _jit(narrow, "apply")(params, TOKEN, MASK)
    assert hidden.dtype == jnp.bfloat16
    assert _jit(narrow, "logits")(params, hidden).dtype == jnp.float32
    # Two layers of a relative error of 2^-9 per rounding, entries of size 1.
    difference = np.abs(np.asarray(hidden, np.float32) - expected)[MASK > 0]
    assert 0 < difference.max() < 0.06

    seen = set()
    jaxpr = jax.make_jaxpr(functools.partial(_loss, narrow))(params, jnp.asarray(MASK)).jaxpr
    for equation in jaxprs.equations(jaxpr):
        if equation.primitive.name in ("dot_general", "reduce_sum", "reduce_max", "exp", "logistic", "rsqrt"):
            seen.add(equation.primitive.name)
            assert equation.outvars[0].aval.dtype != jnp.bfloat16, equation
    assert {"dot_general", "reduce_sum", "exp", "rsqrt"} <= seen


@pytest.mark.parametrize("changes", [{}, {"tied": False}, {"output": "scalar"}], ids=str)
def test_axes_match_parameters(changes):
    model = _model(**changes)
    params = jax.eval_shape(model.init, jax.random.key(0))
    names = model.axes
    flat = jax.tree_util.tree_leaves_with_path(names, is_leaf=lambda leaf: isinstance(leaf, tuple))
    assert [path for path, _ in flat] == [path for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    for (_, name), leaf in zip(flat, jax.tree.leaves(params), strict=True):
        assert leaf.dtype == jnp.float32 and len(name) == leaf.ndim
    assert names["layers"]["query"] == ("layers", "width", "heads", "head_size")
    assert params["layers"]["query"].shape == (2, 16, 4, 6)
    assert ("unembedding" in params) == (changes == {"tied": False})
    assert model == _model(**changes) and hash(model) == hash(_model(**changes))


def test_scalar_starts_at_zero():
    model = _model(output="scalar")
    head = jax.jit(lambda key: model.init(key)["scalar"])(jax.random.key(0))
    hidden = jnp.ones((2, 3, SMALL.width))
    np.testing.assert_array_equal(model.scalar({"scalar": head}, hidden), np.zeros((2, 3)))
    with pytest.raises(ValueError, match="output='logits'"):
        model.logits({}, hidden)
    with pytest.raises(ValueError, match="output='scalar'"):
        _model().scalar({}, hidden)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 0}, "layers=0"),
        ({"vocabulary": 0}, "vocabulary=0: a model needs at least 1 id"),
        ({"width": 2.5}, "width=2.5"),
        ({"kv_heads": 3}, "heads=4 must be divisible by kv_heads=3"),
        ({"head_size": 5}, "head_size=5 must be even"),
        ({"head_size": 0, "width": 18}, "width=18 must be divisible by heads=4"),
        ({"norm_epsilon": 0.0}, "norm_epsilon"),
        ({"dtype": "float16"}, "must be one of 'float32', 'bfloat16'"),
        ({"remat": "some"}, "must be one of 'none', 'full', 'dots'"),
        ({"output": "value"}, "logits, scalar, both"),
    ],
)
def test_architecture_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        _model(**changes)


def test_apply_refuses_shapes_that_do_not_fit():
    model = _model()
    params = _params(model)
    with pytest.raises(ValueError, match="expected one shape"):
        model.apply(params, TOKEN, MASK[:, :3])
    with pytest.raises(ValueError, match="P dividing B"):
        model.apply_shared(params, TOKEN[:2], MASK[:2], TOKEN, MASK.astype(np.int32))
