"""Every attention implementation against its definition in NumPy, and the parts of a softmax against the whole."""

import functools
import importlib.util
import typing

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.network import attention

PALLAS = importlib.util.find_spec("jax.experimental.pallas.ops.tpu.splash_attention") is not None


class Case(typing.NamedTuple):
    """Operands in float32; see ``attention.attend``."""

    query: np.ndarray
    key: np.ndarray
    value: np.ndarray
    segment: np.ndarray
    prompt: attention.Prompt | None
    form: attention.Form = attention.Form(6**-0.5)

    @property
    def rows(self) -> attention.Rows:
        """Segments and positions: how many tokens of its segment, and of its prompt, stand before each."""
        before = np.stack([np.cumsum(row[:, None] == row[None, :], axis=0).diagonal() - 1 for row in self.segment])
        if self.prompt is not None:
            real = np.sum(np.asarray(self.prompt.mask) != 0, axis=1)
            before = before + np.repeat(real, len(before) // len(real))[:, None]
        return attention.Rows(self.segment, np.where(self.segment != 0, before, 0).astype(np.int32))

    def rounded(self, dtype) -> "Case":
        """Return the case with its operands in ``dtype``."""

        def cast(x):
            return jnp.asarray(x, dtype)

        prompt = self.prompt and self.prompt._replace(key=cast(self.prompt.key), value=cast(self.prompt.value))
        return Case(cast(self.query), cast(self.key), cast(self.value), self.segment, prompt, self.form)


def case(segment, prompt_mask, heads: int, kv_heads: int, size: int = 6, seed: int = 0, **form) -> Case:
    rng = np.random.default_rng(seed)
    segment = np.asarray(segment, np.int32)
    rows, width = segment.shape

    def draw(*shape):
        return rng.normal(size=shape).astype(np.float32)

    query, key, value = draw(rows, width, heads, size), *draw(2, rows, width, kv_heads, size)
    prompt = None
    if prompt_mask is not None:
        mask = np.asarray(prompt_mask, np.float32)
        position = (np.cumsum(mask, axis=1) - mask).astype(np.int32)
        prompt = attention.Prompt(*draw(2, *mask.shape, kv_heads, size), mask, position)
    return Case(2 * query, key, value, segment, prompt, attention.Form(**{"scale": size**-0.5, **form}))


def runs(rows: int, width: int, seed: int) -> np.ndarray:
    """Segments of random lengths side by side, padding behind them."""
    rng = np.random.default_rng(seed)
    out = np.zeros((rows, width), np.int32)
    for row in range(rows):
        edges = np.sort(rng.choice(np.arange(1, width), 5, replace=False))
        for i in range(4):
            out[row, edges[i] : edges[i + 1]] = i + 1  # padding on both sides
    return out


# right padding; left padding; several segments; interleaved segments; nothing but padding
SEGMENTS = [[1, 1, 1, 0, 0], [0, 0, 1, 1, 1], [3, 3, 7, 7, 0], [1, 2, 1, 2, 2], [0] * 5, [4] * 5]
LEFT_PADDED = [[0, 1, 1], [1, 1, 1], [0, 0, 1]]
NARROW = case(SEGMENTS, None, heads=4, kv_heads=2)
NARROW_SHARED = case(SEGMENTS, LEFT_PADDED, heads=4, kv_heads=2)
WIDE = case(runs(3, 130, 1), None, heads=2, kv_heads=2)
WIDE_SHARED = case(runs(4, 130, 2), LEFT_PADDED[:2], heads=4, kv_heads=1)
FORMED = case(SEGMENTS, LEFT_PADDED, heads=4, kv_heads=2, scale=0.7, cap=1.5, window=3)
WIDE_FORMED = case(runs(4, 130, 2), LEFT_PADDED[:2], heads=4, kv_heads=1, cap=2.0, window=9)
CASES = {
    "narrow": NARROW,
    "narrow-shared": NARROW_SHARED,
    "narrow-formed": FORMED,
    "wide": WIDE,
    "wide-shared": WIDE_SHARED,
    "wide-formed": WIDE_FORMED,
}

ONE_EACH = np.arange(128)[None, :] < np.array([[128], [60], [1], [100]])  # with a prompt splash reads one segment a row
SPLASH = {
    "rows": case(runs(3, 128, 3), None, heads=4, kv_heads=2, size=8),
    "shared": case(ONE_EACH * 1, LEFT_PADDED[:2], heads=2, kv_heads=1, size=8),
    "formed": case(ONE_EACH * 1, LEFT_PADDED[:2], heads=2, kv_heads=1, size=8, cap=1.5, window=17),
}


def oracle(case: Case, magnitude: bool = False) -> np.ndarray:
    """Softmax(cap tanh(scale q k / cap)) v, query by query in float64, 0 at padding; of |v| with ``magnitude``."""
    query, key, value = (np.asarray(x, np.float64) for x in case[:3])
    value = np.abs(value) if magnitude else value
    out = np.zeros(query.shape)
    (rows, _, heads, _), (scale, cap, window), position = query.shape, case.form[:3], case.rows.position
    for b in range(rows):
        for i in np.flatnonzero(case.segment[b]):
            reach = position[b, i] - window if window else -1
            before = []
            if case.prompt is not None:
                p = b // (rows // case.prompt.mask.shape[0])
                kept = (np.asarray(case.prompt.mask[p]) != 0) & (case.prompt.position[p] > reach)
                before = [np.asarray(x[p], np.float64)[kept] for x in case.prompt[:2]]
                before[1] = np.abs(before[1]) if magnitude else before[1]
            seen = [j for j in range(i + 1) if case.segment[b, j] == case.segment[b, i] and position[b, j] > reach]
            keys, values = key[b, seen], value[b, seen]
            if before:
                keys, values = np.concatenate([before[0], keys]), np.concatenate([before[1], values])
            for h in range(heads):
                g = h * key.shape[2] // heads  # consecutive query heads share a key-value head
                score = keys[:, g] @ query[b, i, h] * scale
                score = cap * np.tanh(score / cap) if cap else score
                weight = np.exp(score - score.max())
                out[b, i, h] = weight @ values[:, g] / weight.sum()
    return out


@functools.cache
def compiled(implementation: str, form: attention.Form):
    if implementation == "splash":  # no TPU here: the kernel's interpreter
        return jax.jit(functools.partial(attention.IMPLEMENTATIONS["splash"], form, interpret=True))
    return jax.jit(functools.partial(attention.attend, implementation, form))


def attended(implementation: str, case: Case) -> np.ndarray:
    """Return the attention, 0 at padding; it must be finite there too."""
    out = compiled(implementation, case.form)(*case[:3], case.rows, case.prompt)
    assert out.dtype == jnp.float32 and out.shape == case.query.shape
    assert np.all(np.isfinite(out))
    return np.where(case.segment[:, :, None, None] != 0, out, 0.0)


# --- values ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("implementation", ["plain", "blocked"])
def test_attention_is_its_definition(implementation, name):
    np.testing.assert_allclose(attended(implementation, CASES[name]), oracle(CASES[name]), rtol=1e-5, atol=1e-5)


@pytest.mark.full
@pytest.mark.skipif(not PALLAS, reason="this jax has no pallas splash kernel: splash attention is NOT checked")
@pytest.mark.parametrize("name", SPLASH)
def test_splash_in_its_interpreter_is_the_definition(name):
    np.testing.assert_allclose(attended("splash", SPLASH[name]), oracle(SPLASH[name]), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not PALLAS, reason="this jax has no pallas splash kernel: splash attention is NOT checked")
def test_splash_shares_a_prompt_whatever_the_segment_is_called():
    shared = SPLASH["shared"]._replace(segment=SPLASH["shared"].segment * np.array([[5], [1], [2], [1]], np.int32))
    np.testing.assert_allclose(attended("splash", shared), oracle(shared), rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="no GPU in this process: cuDNN attention is NOT checked")
@pytest.mark.parametrize("name", ["rows", "shared"])  # it has no cap
def test_cudnn_is_the_definition(name):
    narrow = SPLASH[name].rounded(jnp.bfloat16)
    bound = 2**-7 * oracle(narrow, magnitude=True) + 1e-5  # weights and result are rounded to bfloat16
    assert np.all(np.abs(attended("cudnn", narrow) - oracle(narrow)) <= bound)


@pytest.mark.full
@pytest.mark.parametrize("name", ["narrow-shared", "wide-shared"])
@pytest.mark.parametrize("implementation", ["plain", "blocked"])
def test_bfloat16_operands_cost_one_rounding_of_the_weights(implementation, name):
    # Products and sums are float32; each weight is rounded to 8 bits before it meets its value: by at most 2^-8
    # of itself, hence the result by at most 2^-8 sum w |v|.
    narrow = CASES[name].rounded(jnp.bfloat16)
    error = np.abs(attended(implementation, narrow) - oracle(narrow))
    assert np.all(error <= 2**-8 * oracle(narrow, magnitude=True) + 1e-5)
    assert error.max() > 1e-4  # and they were bfloat16


@pytest.mark.full
def test_keys_read_in_parts_are_weighed_as_in_one():
    # bfloat16 weights are rounded by up to 2^-8 of themselves: apart from the order of float32 sums, in the same way.
    query, key, value = (jnp.asarray(x, jnp.bfloat16) for x in WIDE[:3])
    query, key, value = query.transpose(0, 2, 1, 3), key.transpose(0, 2, 3, 1), value.transpose(0, 2, 1, 3)
    valid = jnp.asarray(np.tri(query.shape[2], dtype=bool))[None, None]
    cuts = [slice(0, 7), slice(7, 64), slice(64, 130)]
    parts = [attention.partial(WIDE.form, query, key[..., i], value[:, :, i], valid[..., i]) for i in cuts]
    row = attention.Rows(jnp.ones((3, 130), jnp.int32), WIDE.rows.position)
    whole = attention.attend("plain", WIDE.form, *(jnp.asarray(x, jnp.bfloat16) for x in WIDE[:3]), row)
    np.testing.assert_allclose(attention.merged(parts).transpose(0, 2, 1, 3), whole, rtol=1e-5, atol=1e-5)


def littered(case: Case, litter: float) -> Case:
    """Put ``litter`` into every key and value that no query may see: the padding of rows and prompts."""
    hidden = case.segment[:, :, None, None] == 0
    key, value = (np.where(hidden, litter, x) for x in (case.key, case.value))
    prompt = case.prompt
    if prompt is not None:
        hidden = prompt.mask[:, :, None, None] == 0
        prompt = prompt._replace(
            key=np.where(hidden, -litter, prompt.key), value=np.where(hidden, litter, prompt.value)
        )
    return case._replace(key=key.astype(np.float32), value=value.astype(np.float32), prompt=prompt)


@pytest.mark.parametrize(
    ("implementation", "clean"),
    [(i, CASES[n]) for i in ("plain", "blocked") for n in CASES]
    + [pytest.param("splash", c, marks=pytest.mark.skipif(not PALLAS, reason="no pallas")) for c in SPLASH.values()],
)
def test_what_is_masked_does_not_matter(implementation, clean):
    dirty = littered(clean, 1e9)
    assert np.any(dirty.key != clean.key)
    np.testing.assert_allclose(attended(implementation, dirty), attended(implementation, clean), rtol=1e-6, atol=1e-6)


def test_no_implementation_is_left_out():
    assert set(attention.IMPLEMENTATIONS) == {"plain", "blocked", "splash", "cudnn"}


# --- gradients ------------------------------------------------------------------------------------------


@functools.cache
def slope(implementation: str, form: attention.Form):
    def loss(operands, prompt_operands, beside, rows, weight):
        prompt = None if beside is None else attention.Prompt(*prompt_operands, *beside)
        return jnp.sum(weight * compiled(implementation, form)(*operands, rows, prompt))

    return jax.jit(jax.grad(loss, argnums=(0, 1)))


def gradient(implementation: str, case: Case):
    """Gradient wrt query, key, value and the prompt's key and value of a random sum over the real positions."""
    weight = np.random.default_rng(9).normal(size=case.query.shape) * (case.segment != 0)[:, :, None, None]
    prompt = case.prompt
    beside = ((), None) if prompt is None else (tuple(prompt[:2]), tuple(prompt[2:]))
    gradients = slope(implementation, case.form)(tuple(case[:3]), *beside, case.rows, weight.astype(np.float32))
    gradients = [np.asarray(x, np.float32) for x in jax.tree.leaves(gradients)]
    assert len(gradients) == (3 if prompt is None else 5) and all(np.any(x != 0) for x in gradients)
    return gradients


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_of_blocks_is_that_of_one_softmax(name):
    for dirty in (CASES[name], littered(CASES[name], 1e6)):
        for blocked, plain in zip(gradient("blocked", dirty), gradient("plain", dirty), strict=True):
            np.testing.assert_allclose(blocked, plain, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["narrow-shared", "narrow-formed"])
def test_the_plain_gradient_is_the_slope_of_the_definition(name):
    case, rng = CASES[name], np.random.default_rng(4)
    weight = np.random.default_rng(9).normal(size=case.query.shape)  # as in ``gradient``
    gradients = gradient("plain", case)
    prompt = case.prompt
    assert prompt is not None
    for which in range(5):
        operands = [np.asarray(x, np.float64) for x in (*case[:3], *prompt[:2])]
        direction = rng.normal(size=operands[which].shape)

        def moved(by, operands=operands, which=which, direction=direction):
            new = [x + by * direction if i == which else x for i, x in enumerate(operands)]
            there = case._replace(query=new[0], key=new[1], value=new[2])
            there = there._replace(prompt=attention.Prompt(*new[3:], *prompt[2:]))
            return np.sum(weight * oracle(there))

        expected = (moved(1e-5) - moved(-1e-5)) / 2e-5
        np.testing.assert_allclose(np.sum(gradients[which] * direction), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["narrow-shared", "wide-shared"])
def test_the_gradient_of_blocks_from_bfloat16_operands(name):
    # Four roundings stand between float32 and this gradient (the output's, the weights' or the scores', the
    # factor's, the result's), each of at most 2^-8: 2^-6 of the largest entry where nothing cancels.
    narrow = CASES[name].rounded(jnp.bfloat16)
    exact = gradient("plain", narrow.rounded(jnp.float32))
    for blocked, expected in zip(gradient("blocked", narrow), exact, strict=True):
        error = np.abs(blocked - expected).max()
        assert 0 < error <= 2**-6 * np.abs(expected).max()


@pytest.mark.default_tier(1)
@pytest.mark.skipif(not PALLAS, reason="this jax has no pallas splash kernel: splash attention is NOT checked")
@pytest.mark.parametrize("name", SPLASH)
def test_the_gradient_of_splash_is_that_of_one_softmax(name):
    for splash, plain in zip(gradient("splash", SPLASH[name]), gradient("plain", SPLASH[name]), strict=True):
        np.testing.assert_allclose(splash, plain, rtol=1e-5, atol=2e-5)


# --- decoding: a softmax in parts -----------------------------------------------------------------------


@functools.cache
def in_parts(edges: tuple[int, ...]):
    @jax.jit
    def run(query, key, value, valid):
        form, parts = attention.Form(6**-0.5), [attention.empty(query)]
        for start, stop in zip((0, *edges), (*edges, key.shape[3]), strict=True):
            cut = slice(start, stop)
            parts.append(attention.partial(form, query, key[..., cut], value[:, :, cut], valid[..., cut]))
        return attention.merged(parts)

    return run


@pytest.mark.parametrize("edges", [(), (3, 5), (1, 2, 3, 8)])
def test_parts_of_a_softmax_merge_into_the_whole(edges):
    rng = np.random.default_rng(6)
    query, key = 2 * rng.normal(size=(2, 3, 4, 6)), rng.normal(size=(2, 3, 6, 9))
    value, valid = rng.normal(size=(2, 3, 9, 6)), rng.random((2, 1, 4, 9)) < 0.6
    valid[0, :, :, 3:5] = False  # the whole of a part in one row
    valid[1, :, :, :3] = False  # ... of the first part, whose garbage is then weighed until another comes
    valid[:, :, :, 8] = True
    score = np.where(valid, query @ key / np.sqrt(6), -np.inf)
    weight = np.exp(score - score.max(axis=3, keepdims=True))
    expected = weight @ value / weight.sum(axis=3, keepdims=True)
    for litter in (0.0, 1e9):
        unseen = ~valid.any(axis=2)  # [2, 1, 9]: keys that no query sees
        dirty_key = np.where(unseen[:, :, None, :], litter, key)
        dirty_value = np.where(unseen[:, :, :, None], litter, value)
        operands = (np.asarray(x, np.float32) for x in (query, dirty_key, dirty_value))
        np.testing.assert_allclose(in_parts(edges)(*operands, valid), expected, rtol=1e-5, atol=1e-5)
    assert unseen.any()
