"""The timed work: model shapes by name, and a task of random tokens."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp

from rljax import environments, models, types
from rljax.config import files, schema
from rljax.data import tokenizers
from rljax.environments import traits
from rljax.run import programs
from rljax.training import steps

# name -> (fields of config.model, vocabulary)
SHAPES: dict[str, tuple[dict[str, Any], int]] = {
    "tiny": ({"layers": 4, "width": 256, "heads": 4, "kv_heads": 2, "hidden": 768}, 512),
    "small": ({"layers": 8, "width": 384, "heads": 6, "kv_heads": 2, "hidden": 1024}, 32_000),
    "qwen2-0.5b": (models.preset("qwen2.5-0.5b"), 151_936),
    "qwen3-8b": (models.preset("qwen3-8b"), 151_936),
}


@dataclasses.dataclass(frozen=True)
class Tokens:
    """A tokenizer with ids but no text."""

    vocabulary: int
    eos: int = 1
    pad: int = 0
    stop: tuple[int, ...] = (1,)


@dataclasses.dataclass(frozen=True)
class Filler:
    """Random prompts without padding; the reward is the fraction of tokens in the upper half of the vocabulary."""

    prompt_length: int
    completion_length: int
    vocabulary: int = 0
    name: str = "filler"
    host: bool = False
    parts: tuple[str, ...] = ()

    def corpus(self) -> Iterator[str]:
        """Yield nothing, as the task has no text."""
        return iter(())

    def bind(self, tokenizer: tokenizers.Tokenizer) -> Self:
        """Return a copy with the tokenizer's vocabulary size."""
        return dataclasses.replace(self, vocabulary=tokenizer.vocabulary)

    def size(self, split: environments.Split) -> int:
        """Return the number of prompts."""
        return 1 << 16

    def prompts(self, index: types.Array, split: environments.Split) -> types.Prompts:
        """Return prompts whose random tokens are determined by ``index``."""
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(jax.random.key(0), index)
        token = jax.vmap(lambda key: jax.random.randint(key, (self.prompt_length,), 2, self.vocabulary))(keys)
        return types.Prompts(token=token, mask=jnp.ones(token.shape, jnp.float32), index=index)

    def verify(
        self, index: types.Array, split: environments.Split, token: types.Array, mask: types.Array
    ) -> types.Verdict:
        """Return the fraction of each row's tokens in the upper half of the vocabulary as its reward.

        Args:
          index: ``[B]`` int32, unused.
          split: unused.
          token: ``[B, T]`` int32 completions.
          mask: ``[B, T]`` float32, 1 on completion tokens.

        Returns:
          Verdicts of ``B`` rows, all with the outcome "correct".
        """
        high = jnp.sum(mask * (token >= self.vocabulary // 2), axis=1) / jnp.sum(mask, axis=1)
        outcome = jnp.full(high.shape, int(types.Outcome.CORRECT), jnp.int32)
        return types.Verdict(reward=high, outcome=outcome, parts={})

    def demonstrations(
        self, index: types.Array, split: environments.Split, key: types.Key
    ) -> tuple[jax.Array, jax.Array]:
        """Return random completions of full length.

        Args:
          index: ``[B]`` int32, of which only the length counts.
          split: unused.
          key: a random key.

        Returns:
          Tokens ``[B, T]`` int32 and their mask ``[B, T]`` float32.
        """
        shape = (index.shape[0], self.completion_length)
        return jax.random.randint(key, shape, 2, self.vocabulary), jnp.ones(shape, jnp.float32)

    def text(self, index: int, split: environments.Split) -> str:
        """Return a prompt's name in place of its text."""
        return f"prompt {index}"


def config() -> schema.ConfigDict:
    """Return the config of the timed step without a model: on-policy GRPO with one update and AdamW."""
    config = schema.default()
    config.algorithm = "grpo(kl=0.0)"
    config.phase.main.optimizer = "adamw(learning_rate=1e-4)"
    return config


def set_model(config: schema.ConfigDict, shape: str) -> None:
    """Set the fields of ``config.model`` to the values of a name in ``SHAPES``."""
    config.model.update(SHAPES[shape][0])


def work(
    config: schema.ConfigDict, shape: str, prompt: int, length: int, lengths: str, devices: Sequence[Any] | None = None
) -> steps.Step:
    """Return the step of a config's last phase with given token counts.

    Args:
      config: a config, on which ``set_model`` was called.
      shape: a name in ``SHAPES``, for its vocabulary.
      prompt: tokens per prompt.
      length: maximum tokens per completion.
      lengths: "fixed": no token ends a completion. "longtail": several tokens end one, so that a newly initialized
        policy, which is close to uniform, has geometric lengths with a mean of a quarter of ``length``.
      devices: the devices of the mesh; None: all devices.

    Returns:
      The step.
    """
    _, vocabulary = SHAPES[shape]
    config = files.last_phase(config)
    config.log.rollout_rows = 0
    tokenizer: Any = Tokens(vocabulary)
    return _ended(programs.build(config, tokenizer, devices, Filler(prompt, length)), lengths)


def of_config(
    config: schema.ConfigDict,
    lengths: str,
    tokenizer: tokenizers.Tokenizer | None = None,
    devices: Sequence[Any] | None = None,
) -> steps.Step:
    """Return the step of a config's last phase with its model and task.

    A task that the host scores is replaced by ``Filler`` with equal lengths.

    Args:
      config: a config.
      lengths: "fixed" or "longtail", as in ``work``.
      tokenizer: the config's tokenizer; None: make it.
      devices: the devices of the mesh; None: all devices.

    Returns:
      The step.

    Raises:
      ValueError: an invalid config, or a world that is played on the host.
    """
    config = files.last_phase(config)
    program = programs.build(config, tokenizer, devices)
    task = program.tasks[-1]
    about = traits.traits(task)
    if about.host and not about.whole:
        raise ValueError(f"bench: task {task.name!r} is played on the host; tune times steps on the devices only.")
    if about.host:
        filler = Filler(task.prompt_length, task.completion_length)
        program = programs.build(config, program.tokenizer, devices, filler)
    return _ended(program, lengths)


def _ended(program: programs.Program, lengths: str) -> steps.Step:
    """Return the step of a program's last phase with a kind of lengths, see ``work``."""
    setup, tokenizer = program.setups[-1], program.tokenizer
    share = 4 * tokenizer.vocabulary / setup.task.completion_length
    count = max(1, round(share)) if lengths == "longtail" else 0
    stop = tuple(token for token in range(tokenizer.vocabulary) if token != tokenizer.pad)[:count]
    return steps.make_step(dataclasses.replace(setup, ends=dataclasses.replace(setup.ends, stop=stop, strings=None)))
