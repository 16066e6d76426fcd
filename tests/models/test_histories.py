"""Histories: rows that begin anew, read texts and keep what they have written have the states of the whole row."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import models

ROWS, WIDTH, COLUMNS = 3, 40, 6
SIZES = {"vocabulary": 30, "width": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_size": 8, "hidden": 48}


@pytest.mark.default_tier("scanned")
@pytest.mark.parametrize(
    "fields",
    [{"scan": False}, {"scan": True}, {"scan": True, "window": 5, "pattern": ("local", "global")}],
    ids=["unrolled", "scanned", "windows"],
)
def test_the_last_state_of_a_row_is_that_of_the_whole_row(fields):
    model = models.build(models.Architecture(**SIZES, **fields))
    params = model.init(jax.random.key(0))
    weights, random = model.decode_params(params), np.random.default_rng(0)
    append, extend, settle = (jax.jit(f) for f in (model.append, model.extend, model.settle))
    texts = [[] for _ in range(ROWS)]

    def read(cache, counts):
        token = random.integers(1, 30, (ROWS, COLUMNS))
        for text, row, n in zip(texts, token, counts, strict=True):
            text += row[:n].tolist()
        return append(weights, jnp.asarray(token), np.arange(COLUMNS) < np.array(counts)[:, None], cache)

    def write(cache, counts):
        for t in range(max(counts)):
            token, live = random.integers(1, 30, ROWS), np.array(counts) > t
            for text, x, used in zip(texts, token.tolist(), live, strict=True):
                text += [x] * int(used)
            hidden, cache = extend(weights, jnp.asarray(token), jnp.asarray(live), cache)
        return hidden, settle(cache)

    cache = model.history(ROWS, WIDTH, COLUMNS, 4)
    cache = read(cache, [5, 0, 6])
    _, cache = write(cache, [4, 6, 0])
    cache = model.emptied(read(cache, [2, 6, 0]), jnp.array([False, True, False]))
    texts[1] = []
    _, cache = write(cache, [1, 2, 6])
    hidden, _ = write(read(cache, [0, 3, 1]), [1, 1, 1])
    length = max(map(len, texts))
    token = jnp.array([text + [0] * (length - len(text)) for text in texts])
    whole = model.apply(params, token, jnp.array([[float(i < len(text)) for i in range(length)] for text in texts]))
    last = jnp.array([len(text) - 1 for text in texts])
    np.testing.assert_allclose(hidden, whole[jnp.arange(ROWS), last], atol=1e-5)
