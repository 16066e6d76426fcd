"""The work that is timed: model shapes by name, and a task that is nothing but tokens."""

import dataclasses
from collections.abc import Iterator
from typing import Any, Self

import jax
import jax.numpy as jnp

from rljax import environments, models, types
from rljax.config import files, schema
from rljax.data import tokenizers
from rljax.run import programs
from rljax.training import steps

# name -> (fields of config.model, vocabulary)
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "tiny": ({"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "hidden": 768}, 512),
    "small": ({"layers": 8, "width": 384, "heads": 6, "kv_heads": 2, "hidden": 1024}, 32_000),
    "qwen2-0.5b": (models.preset("qwen2.5-0.5b"), 151_936),
}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A tokenizer of nothing: ids and no text."""

    vocabulary: int
    eos: int = 1
    pad: int = 0
    stop: tuple[int, ...] = (1,)


@dataclasses.dataclass(frozen=True)
class Filler:
    """Random prompts without padding; the reward is the share of tokens in the upper half of the vocabulary."""

    prompt_length: int
    completion_length: int
    vocabulary: int = 0
    name: str = "filler"
    host: bool = False
    parts: tuple[str, ...] = ()

    def corpus(self) -> Iterator[str]:
        """Yield nothing: there is no text."""
        return iter(())

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Self:
        """Return a copy that knows the vocabulary."""
        return dataclasses.replace(self, vocabulary=tokenizer.vocabulary)

    def size(self, split: environments.Split) -> int:
        """Count prompts."""
        return 1 << 16

    def prompts(self, index: types.Array, split: environments.Split) -> types.Prompts:
        """Draw each prompt from its index."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(0), index)
        draw = jax.vmap(lambda key: jax.random.randint(key, (self.prompt_length,), 2, self.vocabulary))
        token = draw(keys)
        return types.Prompts(token=token, mask=jnp.ones(token.shape, jnp.float32), index=index)

    def verify(
        self, index: types.Array, split: environments.Split, token: types.Array, mask: types.Array
    ) -> types.Verdict:
        """Judge by token ids."""
        high = jnp.sum(mask * (token >= self.vocabulary // 2), axis=1) / jnp.sum(mask, axis=1)
        outcome = jnp.full(high.shape, int(types.Outcome.CORRECT), jnp.int32)
        return types.Verdict(reward=high, outcome=outcome, parts={})

    def demonstrations(
        self, index: types.Array, split: environments.Split, key: types.Key
    ) -> tuple[jax.Array, jax.Array]:
        """Draw completions of full length."""
        shape = (index.shape[0], self.completion_length)
        return jax.random.randint(key, shape, 2, self.vocabulary), jnp.ones(shape, jnp.float32)

    def text(self, index: int, split: environments.Split) -> str:
        """Name a prompt."""
        return f"prompt {index}"


def work(config: schema.ConfigDict, shape: str, prompt: int, length: int, lengths: str) -> steps.Step:
    """Return the step of a config's last phase on the model and the token counts asked for.

    ``lengths`` "fixed": no token ends a completion. "longtail": so many tokens do that a policy near its start, which
    is close to uniform, writes geometric lengths with a mean of a quarter of ``length``.
    """
    fields, vocabulary = SHAPES[shape]
    config = files.last_phase(config)
    config.model.update(fields)
    config.log.rollout_rows = 0
    tokenizer: Any = Tokens(vocabulary)
    program = programs.build(config, tokenizer, task=Filler(prompt, length))
    ending = tuple(range(1, 1 + round(4 * vocabulary / length))) if lengths == "longtail" else ()
    ends = dataclasses.replace(program.setups[-1].ends, stop=ending)
    return steps.make_step(dataclasses.replace(program.setups[-1], ends=ends))
