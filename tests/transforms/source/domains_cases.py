"""What the tests of domains share."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from rljax import types
from rljax.data import tokenizers
from rljax.environments.problems.shipped import arithmetic

SIZES = (5, 0, 40, 55)  # candidates of each domain

OF = np.random.default_rng(0).permutation(np.repeat(np.arange(len(SIZES)), SIZES))  # domain of each prompt


def problems(of=OF, domains=4):
    table = jnp.asarray(of, jnp.int32)
    return types.Problems(
        size=len(of),
        domains=domains,
        domain=lambda index: table[index],
        encode=lambda text: [],
        shuffled=lambda index: (index * 7 + 3) % len(of),
    )


def rollout(reward, domain, index=None, on_policy=None):
    """Return the rows of groups with rewards [P, G] of prompts of these domains [P]."""
    reward = np.asarray(reward, np.float32)
    each = functools.partial(np.repeat, repeats=reward.shape[1])
    return jax.tree.map(
        jnp.asarray,
        types.Rollout(
            mask=np.ones((reward.size, 1), np.float32),
            reward=reward.ravel(),
            group=each(np.arange(len(reward), dtype=np.int32)),
            index=each(np.arange(len(reward), dtype=np.int32) if index is None else np.asarray(index, np.int32)),
            domain=each(np.asarray(domain, np.int32)),
            outcome=(reward.ravel() > 0).astype(np.int32),  # types.Outcome
            on_policy=np.ones(reward.size, np.float32) if on_policy is None else np.asarray(on_policy, np.float32),
        ),
    )


def started(piece, of=OF, domains=4):
    return piece.init(rollout(np.zeros((2, 2)), [0, 0]), problems(of, domains))


def drawn(piece, pool, places=4096, key=0, of=OF, domains=4):
    return np.asarray(
        piece.choose(pool, problems(of, domains), jnp.zeros(places, jnp.int32), jax.random.key(key)).index
    )


def shares(piece, pool, **more):
    """Return how often each domain is drawn, of 4,096 draws."""
    return np.bincount(more.get("of", OF)[drawn(piece, pool, **more)], minlength=more.get("domains", 4)) / 4096


def close(got, want):
    """Compare frequencies of 4,096 draws with probabilities, at five standard deviations."""
    want = np.asarray(want, float)
    np.testing.assert_allclose(got, want, atol=5 * math.sqrt(0.25 / 4096))
    assert np.all(got[want == 0] == 0)


def steps_of(seed, count=6, prompts=7, samples=4):
    rng = np.random.default_rng(seed)
    for _ in range(count):
        yield rng.integers(0, 3, (prompts, samples)).astype(np.float32), rng.choice([0, 2, 3], prompts)


BYTES = tokenizers.make("bytes", ())


def bound(**arguments):
    return arithmetic.arithmetic(**arguments).bind(BYTES)
