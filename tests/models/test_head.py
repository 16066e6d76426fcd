"""The chunked head against whole logits: values, gradients, a split vocabulary, and what is never held."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models, types
from rljax.models.scores import head, scoring
from tests.support import jaxprs

V, D, SHAPE = 40, 6, (2, 5)
TEMPERATURE = 0.7
CHUNKS = [8, 7, 40, 64]  # divides V; does not; V itself; more than V
NAMES = ("logp", "raw_logp", "log_normaliser", "entropy", "square_prob")

rng = np.random.default_rng(0)
HIDDEN = rng.normal(size=(*SHAPE, D)).astype(np.float32)
EMBEDDING = rng.normal(size=(V, D)).astype(np.float32)
TOKEN = rng.integers(0, V, SHAPE).astype(np.int32)
SUPPORT = rng.random((*SHAPE, V)) < 0.3
SUPPORT[0, 0] = False  # nothing stored: the token alone
KEPT = np.asarray(scoring.pack_bits(jnp.asarray(SUPPORT)))
WEIGHT = rng.normal(size=(len(NAMES), *SHAPE)).astype(np.float32)


def asked(chunk: int, dtype: str = "float32") -> head.Request:
    return head.Request(dtype, chunk, asked=("log_normaliser", *head.STATISTICS))


def chosen() -> np.ndarray:
    return np.arange(V) == TOKEN[:, :, None]


def oracle(embedding=EMBEDDING) -> dict[str, np.ndarray]:
    z = HIDDEN.astype(np.float64) @ embedding.T.astype(np.float64) / TEMPERATURE
    normaliser = np.log(np.exp(z).sum(axis=2))
    logp = z - normaliser[:, :, None]
    p = np.exp(logp)
    raw = logp[chosen()].reshape(SHAPE)
    return {
        "logp": raw - np.log((p * (SUPPORT | chosen())).sum(axis=2)),
        "raw_logp": raw,
        "log_normaliser": normaliser,
        "entropy": -(p * logp).sum(axis=2),
        "square_prob": (p * p).sum(axis=2),
    }


def whole(hidden, embedding, kept: bool) -> dict[str, jax.Array]:
    """Everything from the whole logits, differentiated by jax."""
    logp = jax.nn.log_softmax(hidden @ embedding.T / TEMPERATURE, axis=-1)
    raw = jnp.take_along_axis(logp, TOKEN[:, :, None], axis=2)[:, :, 0]
    p = jnp.exp(logp)
    out = {
        "logp": raw - jnp.log(jnp.sum(p, axis=2, where=SUPPORT | chosen())) if kept else raw,
        "log_normaliser": jax.nn.logsumexp(hidden @ embedding.T / TEMPERATURE, axis=-1),
        "entropy": -jnp.sum(p * logp, axis=2),
        "square_prob": jnp.sum(p * p, axis=2),
    }
    return out | {"raw_logp": raw} if kept else out


@functools.cache
def slope(chunk: int, kept: bool):
    """Compiled (hidden, embedding, weight [names, B, T]) -> scores, gradient; chunk 0 is the plain formula."""

    def loss(hidden, embedding, weight):
        if chunk:
            support = jnp.asarray(KEPT) if kept else None
            out = head.scores(asked(chunk), hidden, embedding, TOKEN, jnp.float32(TEMPERATURE), support)
        else:
            out = whole(hidden, embedding, kept)
        return sum(jnp.sum(w * out[n]) for n, w in zip(NAMES, weight, strict=True) if n in out), out

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


@pytest.mark.parametrize("chunk", CHUNKS)
def test_scores_are_those_of_whole_logits(chunk):
    _, out = slope(chunk, True)(HIDDEN, EMBEDDING, WEIGHT)
    assert set(out) == set(NAMES)
    for name, expected in oracle().items():
        np.testing.assert_allclose(out[name], expected, rtol=1e-5, atol=1e-5, err_msg=name)
    np.testing.assert_allclose(out["logp"][0, 0], 0, atol=1e-6)  # the token always counts as kept
    _, plain = slope(chunk, False)(HIDDEN, EMBEDDING, WEIGHT)
    assert "raw_logp" not in plain
    np.testing.assert_array_equal(plain["logp"], out["raw_logp"])


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "unfiltered"])
@pytest.mark.parametrize("chunk", CHUNKS)
def test_gradient_of_each_score_and_of_all_together(chunk, kept):
    every = np.ones(len(NAMES), bool)
    for names in (*np.eye(len(NAMES), dtype=bool), every):
        if not kept and not names[[0, 2, 3, 4]].any():
            continue  # raw_logp alone, where it is not returned
        weight = WEIGHT * names[:, None, None]
        (by_hidden, by_embedding), _ = slope(chunk, kept)(HIDDEN, EMBEDDING, weight)
        (hidden, embedding), _ = slope(0, kept)(HIDDEN, EMBEDDING, weight)
        assert np.any(hidden != 0) and np.any(embedding != 0)
        which = str([n for n, there in zip(NAMES, names, strict=True) if there])
        np.testing.assert_allclose(by_hidden, hidden, rtol=1e-5, atol=1e-5, err_msg=which)
        np.testing.assert_allclose(by_embedding, embedding, rtol=1e-5, atol=1e-5, err_msg=which)


def test_large_logits_and_bits_beyond_the_vocabulary():
    large = 60 * EMBEDDING  # exp of such logits overflows in float32
    run = jax.jit(functools.partial(head.scores, asked(7)))
    every = np.full_like(KEPT, 0xFFFFFFFF)  # as the sampler writes after the end: 64 bits for 40 tokens
    out = run(HIDDEN, large, TOKEN, jnp.float32(TEMPERATURE), every)
    expected = oracle(large)
    assert expected["log_normaliser"].max() > 100
    np.testing.assert_array_equal(out["logp"], out["raw_logp"])
    for name in NAMES[1:]:
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-5, atol=1e-4, err_msg=name)


def test_kept_logits_are_the_ones_made_again():
    def loss(keep, hidden, embedding):
        how = asked(7)._replace(keep=keep)
        return jnp.sum(jnp.sin(head.scores(how, hidden, embedding, TOKEN, jnp.float32(0.7))["logp"]))

    again, kept = (jax.jit(jax.grad(functools.partial(loss, k), (0, 1)))(HIDDEN, EMBEDDING) for k in (False, True))
    for a, b in zip(again, kept, strict=True):
        assert np.any(a != 0)
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-7)


def test_only_what_is_asked_for_is_returned():
    out = head.scores(head.Request("float32", 8), HIDDEN, EMBEDDING, TOKEN, jnp.float32(1))
    assert set(out) == {"logp"}


def test_a_score_that_nothing_computes_is_refused():
    head.check(types.Needs(entropy=True, square_prob=True, log_normaliser=True).requested)
    with pytest.raises(ValueError, match=r"types.Scores.top_prob is asked for.*STATISTICS .* has entropy, square_prob"):
        head.check(("entropy", "top_prob"))


def test_bfloat16_operands_cost_their_own_rounding_alone():
    # Products are exact and sums float32, so the numbers are those of float32 on rounded operands.
    (by_hidden, by_embedding), out = _narrow()(HIDDEN, EMBEDDING, WEIGHT)
    rounded = [x.astype(jnp.bfloat16).astype(np.float32) for x in (HIDDEN, EMBEDDING)]
    (hidden, embedding), expected = slope(0, True)(*rounded, WEIGHT)
    for name in NAMES:
        np.testing.assert_allclose(out[name], expected[name], rtol=1e-5, atol=1e-5)
    assert by_hidden.dtype == by_embedding.dtype == jnp.float32
    # The slope by z is rounded as well: 2^-8 of each term of sums that cancel.
    assert 1e-5 < np.abs(by_hidden - hidden).max() < 2**-6 * np.abs(hidden).max()
    assert 1e-5 < np.abs(by_embedding - embedding).max() < 2**-6 * np.abs(embedding).max()


@functools.cache
def _narrow():
    def loss(hidden, embedding, weight):
        out = head.scores(asked(8, "bfloat16"), hidden, embedding, TOKEN, jnp.float32(TEMPERATURE), jnp.asarray(KEPT))
        return sum(jnp.sum(w * out[n]) for n, w in zip(NAMES, weight, strict=True)), out

    return jax.jit(jax.grad(loss, argnums=(0, 1), has_aux=True))


@pytest.mark.parametrize("chunk", [8, 7])
def test_a_vocabulary_split_over_eight_devices(chunk):
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("tensor",))
    split = jax.device_put(EMBEDDING, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("tensor")))
    everywhere = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    hidden, weight = jax.device_put((HIDDEN, WEIGHT), everywhere)
    assert split.sharding.shard_shape(split.shape) == (V // 8, D)
    left, right = slope(chunk, True)(hidden, split, weight), slope(chunk, True)(HIDDEN, EMBEDDING, WEIGHT)
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-5), left, right)


# --- what is never held -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "unfiltered"])
def test_no_array_of_positions_by_vocabulary(kept):
    rows, width, many, small, chunk = 7, 11, 997, 3, 100
    token = jnp.zeros((1, rows, width), jnp.int32)
    support = jnp.zeros((1, rows, width, -(-many // 32)), jnp.uint32) if kept else None
    top = (jnp.zeros((1, rows, width, 20), jnp.int32),)

    def largest(chunk: int) -> int:
        """Elements of the largest array that value and gradient hold of one position."""

        def loss(hidden, embedding):
            out = head.scores(asked(chunk), hidden, embedding, token, jnp.float32(1), support, top)
            return sum(jnp.sum(x) for x in jax.tree.leaves(out))

        shapes = jnp.zeros((1, rows, width, small)), jnp.zeros((many, small))
        jaxpr = jax.make_jaxpr(jax.value_and_grad(loss, argnums=(0, 1)))(*shapes).jaxpr
        sizes = [v.aval.shape for e in jaxprs.equations(jaxpr) for v in e.outvars]
        # [rows, width, ...], or flat: the positions are the only thing here that 7 * 11 divides
        return max(math.prod(s) // (rows * width) for s in sizes if math.prod(s) % (rows * width) == 0 and s)

    assert largest(chunk) == chunk
    assert largest(many) >= many  # the walk does see them


@pytest.mark.full
def test_memory_does_not_grow_with_the_logits():
    rows, width, small = 8, 64, 16

    def held(vocabulary: int, chunk: int) -> int:
        """Bytes of temporaries in value and gradient of a loss of scores."""
        model = models.build(
            models.Architecture(vocabulary=vocabulary, layers=1, width=small, heads=2, kv_heads=1, hidden=16)
        )
        zero = jnp.zeros((rows, width), jnp.int32)
        rollout = types.Rollout(
            mask=jnp.ones((rows, width)),
            reward=jnp.zeros(rows),
            group=jnp.arange(rows),
            context=types.Context(zero[:, :4], jnp.ones((rows, 4))),
            action=types.Action(zero),
        )

        def loss(params):
            needs = types.Needs(entropy=True, square_prob=True, log_normaliser=True)
            out = scoring.score(model, params, rollout, needs, vocabulary=chunk)
            return sum(jnp.sum(x) for x in jax.tree.leaves(out))

        params = jax.eval_shape(model.init, jax.random.key(0))
        return jax.jit(jax.value_and_grad(loss)).lower(params).compile().memory_analysis().temp_size_in_bytes

    few, many = 2048, 4 * 2048
    logits = 4 * rows * width * (many - few)  # bytes by which they grow
    parts = 4 * 4 * small * (many - few)  # W cut into parts, its gradient in parts and whole, and their sum
    assert held(many, 256) - held(few, 256) - parts < 0.2 * logits
    assert held(many, 0) - held(few, 0) > logits  # whole logits do grow


@pytest.mark.parametrize("chunk", [7, pytest.param(64, marks=pytest.mark.full)])
def test_the_most_probable_tokens_and_all_others_as_one(chunk):
    """Against a sort in float64; the gradient of log-probs of another model at these tokens, in closed form."""
    count, weight = 5, np.random.default_rng(3).normal(size=(*SHAPE, 6))
    other = np.random.default_rng(4).normal(size=(V, D)).astype(np.float32)

    def loss(hidden, embedding):
        ids, given = head.most_probable(asked(chunk), HIDDEN, other, jnp.float32(TEMPERATURE), count)
        top = head.scores(asked(chunk), hidden, embedding, TOKEN, jnp.float32(TEMPERATURE), None, (ids,))["top"][0]
        return jnp.sum(jnp.asarray(weight, jnp.float32) * top), (ids, given, top)

    (by_hidden, by_embedding), (ids, *got) = jax.jit(jax.grad(loss, (0, 1), has_aux=True))(HIDDEN, EMBEDDING)
    z = [HIDDEN.astype(np.float64) @ w.T.astype(np.float64) / TEMPERATURE for w in (other, EMBEDDING)]
    p = [np.exp(x) / np.exp(x).sum(axis=2, keepdims=True) for x in z]
    order = np.argsort(-z[0], axis=2)
    np.testing.assert_array_equal(ids, order[:, :, :count])
    inside = np.any(np.arange(V) == order[:, :, :count, None], axis=2)
    for x, prob in zip(got, p, strict=True):
        rest = np.sum(np.where(inside, 0, prob), axis=2, keepdims=True)
        want = np.log(np.concatenate([np.take_along_axis(prob, order[:, :, :count], 2), rest], axis=2))
        np.testing.assert_allclose(x, want, rtol=1e-5, atol=1e-5)
    # d log p_i / d z_v = [i = v] - p_v, and of the rest p_v / rest [v among them] - p_v
    by_z = np.where(inside, 0, p[1]) / np.sum(np.where(inside, 0, p[1]), axis=2, keepdims=True) * weight[:, :, -1:]
    np.put_along_axis(by_z, order[:, :, :count], weight[:, :, :-1], axis=2)
    by_z = (by_z - p[1] * weight.sum(axis=2, keepdims=True)) / TEMPERATURE
    np.testing.assert_allclose(by_hidden, by_z @ EMBEDDING, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_embedding, np.einsum("btv,btd->vd", by_z, HIDDEN), rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_ties_and_a_rest_without_mass():
    """Equal logits: whichever are taken, the others have the rest; all taken: what is left counts for nothing."""
    level = np.zeros((V, D), np.float32)
    ids, logp = head.most_probable(asked(7), HIDDEN, level, jnp.float32(1), 3)
    assert np.all(np.diff(np.sort(ids, axis=2)) > 0)
    np.testing.assert_allclose(logp, np.broadcast_to(np.log([1 / V] * 3 + [1 - 3 / V]), logp.shape), rtol=1e-6)
    ids, logp = head.most_probable(asked(7), HIDDEN, EMBEDDING, jnp.float32(1), V)
    again = head.scores(asked(7), HIDDEN, EMBEDDING, TOKEN, jnp.float32(1), None, (ids,))["top"][0]
    np.testing.assert_allclose(again, logp, rtol=1e-5, atol=1e-5)
    assert np.all(np.exp(logp[:, :, -1]) < 1e-37) and np.all(np.isfinite(logp))
