"""The training prompts as a source sees them."""

import jax
import jax.numpy as jnp

from rljax import types
from rljax.data import shuffle, tokenizers
from rljax.training import phases

_CANDIDATES = 8  # stream of the root key


def of(setup: phases.Setup, key: types.Key) -> types.Problems:
    """Return the training prompts as the source sees them; ``key`` is the run's root key."""
    domain, parameters = (
        None if setup.stored is not None else getattr(setup.task, name, None) for name in ("domain", "parameters")
    )
    tokenizer, size = getattr(setup.task, "tokenizer", None), setup.size

    def encode(text: str) -> list[int]:
        if text and tokenizer is None:
            raise ValueError(f"{setup.algorithm.source.spec}: task {setup.task.name!r} has no tokenizer for {text!r}.")
        ids = tokenizers.continuation(tokenizer, "\n", text) if tokenizer is not None and text else []
        if tokenizer is not None and tokenizer.unk in ids:
            raise ValueError(f"{setup.algorithm.source.spec}: the tokenizer of the run cannot write {text!r}.")
        return ids

    return types.Problems(
        size=size,
        domains=1 if domain is None else getattr(setup.task, "domains", 1),
        domain=jnp.zeros_like if domain is None else lambda index: domain(index, "train"),
        encode=encode,
        shuffled=lambda index: shuffle.permute(index, size, jax.random.bits(jax.random.fold_in(key, _CANDIDATES))),
        rows=setup.rows_of_episode,
        parameters=None if parameters is None else lambda index: parameters(index, "train"),
    )
