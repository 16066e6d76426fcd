"""The kernel of decoding, interpreted: it is the partial softmax over the columns in use, also inside a rollout."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.models.network import attention, reads
from tests.support import tiny

ROWS, KV, SIZE, WIDTH = 3, 2, 16, 2 * reads.COLUMNS
HEADS = {"model__width": 64, "model__heads": 4, "model__kv_heads": 2, "model__head_size": SIZE}


@pytest.mark.default_tier("1-0-0.0-float32", "5-63-0.0-float32", "17-64-0.0-float32", "4-127-2.0-bfloat16")
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    ("queries", "last", "cap"),
    [(1, 0, 0.0), (5, reads.COLUMNS - 1, 0.0), (17, reads.COLUMNS, 0.0), (4, WIDTH - 1, 2.0)],
)
def test_it_is_the_partial_softmax_over_the_columns_in_use(queries, last, cap, dtype):
    draws = jax.random.split(jax.random.key(last), 4)
    query = jax.random.normal(draws[0], (ROWS, KV, queries, SIZE)).astype(dtype)
    key = jax.random.normal(draws[1], (ROWS, KV, SIZE, WIDTH)).astype(dtype)
    value = jax.random.normal(draws[2], (ROWS, KV, WIDTH, SIZE)).astype(dtype)
    column = jnp.arange(WIDTH)[None, :]
    valid = jax.random.bernoulli(draws[3], 0.7, (ROWS, WIDTH)).at[:, 0].set(jnp.arange(ROWS) > 0) & (column <= last)
    form = attention.Form(SIZE**-0.5, cap)
    expected = attention.partial(form, query, key, value, valid[:, None, None])
    unused = (column > last // reads.COLUMNS * reads.COLUMNS + reads.COLUMNS - 1)[None, None]
    part = reads.decode(form, query, jnp.where(unused, jnp.nan, key), value, valid, jnp.int32(last), True)
    seen = np.asarray(jnp.any(valid, axis=1))  # the others have no softmax of their own
    for one, two in zip(part, expected, strict=True):
        np.testing.assert_allclose(one[seen], two[seen], rtol=1e-5 if dtype == jnp.float32 else 2e-2, atol=1e-5)
    assert np.all(np.asarray(part.largest[~seen]) < attention.MASKED / 2)


def rollout(**fields):
    made = tiny.program(task="arithmetic(completion_length=80)", **HEADS, **fields)
    (step,) = made.steps
    return jax.device_get(step.rollout(step.begin(None, made.key), made.key))


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({}, marks=pytest.mark.full),
        pytest.param({"mesh__data": 2}, marks=pytest.mark.full),
        pytest.param({"mesh__fsdp_tensor": 2, "sampler__layout": "resident"}, marks=pytest.mark.full),
        pytest.param({"sampler__compact": 3}, marks=pytest.mark.full),
        pytest.param({"model__window": 8, "model__pattern": ("local", "global")}, marks=pytest.mark.full),
    ],
)
def test_a_rollout_with_the_kernel_is_the_plain_one(fields):
    plain, kernel = rollout(**fields), rollout(model__decode_attention="kernel", **fields)
    np.testing.assert_array_equal(kernel.action.token, plain.action.token)
    np.testing.assert_allclose(kernel.behaviour_logp, plain.behaviour_logp, atol=1e-5)
    assert plain.mask.sum(axis=1).max() > reads.COLUMNS  # more than one block


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model__head_size": 24}, "decode_attention='kernel': head_size=24, must be 16, 32, 64"),
        ({"model__head_size": 16, "model__scan": True, "sampler__unroll": False}, "sampler.unroll=False.*kernel"),
    ],
)
def test_what_the_kernel_cannot_read_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny.program(model__decode_attention="kernel", **fields)
