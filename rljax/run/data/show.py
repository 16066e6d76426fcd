"""Show examples as the model sees them: the ids as text with special tokens, the reference, the demonstration."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.text

from rljax import environments
from rljax.data import tokenizers
from rljax.environments.verifiers import outcomes
from rljax.environments.workers import worker
from rljax.language import messages
from rljax.run.data import subjects
from rljax.run.reports.pages import images


def examples(
    subject: str,
    console: rich.console.Console,
    *,
    changes: Sequence[str] = (),
    split: environments.Split = "train",
    index: int = 0,
    count: int = 3,
) -> None:
    """Print examples of a config or a task.

    Args:
      subject: the config or the task.
      console: where to print.
      changes: "field=value" of the config.
      split: of the examples.
      index: the first example.
      count: how many.
    """
    loaded = subjects.load(subject, changes)
    task: Any = loaded.task.bind(loaded.tokenizer)
    size = task.size(split)
    if index >= size:
        raise ValueError(f"--index={index}: the {split} split has {size:,} prompts, counted from 0")
    console.print(f"{loaded.name}: {size:,} {split} prompts; each with its demonstration, as the model sees them")
    for number in range(index, min(index + count, size)):
        _show(console, task, loaded.tokenizer, number, split)


def _show(console: rich.console.Console, task: Any, tokenizer: tokenizers.Tokenizer, index: int, split: Any) -> None:
    place = np.array([index], np.int32)
    prompts = jax.device_get(task.prompts(place, split))
    prompt, reply = prompts.token[0][prompts.mask[0] > 0].tolist(), []
    try:
        token, mask = jax.device_get(task.demonstrations(place, split, jax.random.key(0)))
        reply = token[0][mask[0] > 0].tolist()
    except ValueError as error:  # not every task over rows has them
        console.print(messages.printable(error), style="yellow")
    console.print(f"\n--- {split} {index} ---")
    for image in () if prompts.image is None else prompts.image[0]:
        height, width, _ = image.shape
        console.print(images.blocks(image) if console.color_system else f"[picture of {width} x {height} pixels]")
    console.print(_text(console, tokenizer, prompt, "cyan") + _text(console, tokenizer, reply, "bold"))
    facts = [f"prompt: {len(prompt):,} of {task.prompt_length:,} tokens"]
    if environments.scored_on_host(task):
        facts.append(f"reference: {messages.shown(task.target(index, split))}")
        if columns := environments.columns(task, index, split):
            facts.append(f"columns of the reward function: {messages.shown(dict(columns))}")
    if reply:
        facts.append(f"demonstration: {len(reply):,} of {task.completion_length:,} tokens")
        facts.append(f"reward of the demonstration: {_reward(task, tokenizer, index, split, reply)}")
    console.print("\n".join(facts), style="yellow")


def _text(console: rich.console.Console, tokenizer: tokenizers.Tokenizer, ids: list[int], style: str) -> rich.text.Text:
    """Return ids as text with special tokens; between ``[[ ]]`` if the console has no colours."""
    text = rich.text.Text()
    for part, special in tokenizers.visible(tokenizer, ids):
        shown = messages.escaped(part)
        marked = special and not console.is_terminal
        text.append(f"[[{shown}]]" if marked else shown, f"{style} reverse" if special else style)
    return text


def _reward(task: Any, tokenizer: tokenizers.Tokenizer, index: int, split: Any, reply: list[int]) -> str:
    """Return what the verifier says of a demonstration."""
    if environments.scored_on_device(task):
        token, mask = map(jnp.asarray, tokenizers.padded([reply], task.completion_length, tokenizer.pad))
        return f"{float(task.verify(jnp.array([index]), split, token, mask).reward[0]):g}"
    columns = environments.columns(task, index, split)
    given = [tokenizer.decode(reply)], task.target(index, split), columns
    answers, error = worker.answered(outcomes.Scorer(task.reward), "score", given)
    (answer,) = answers or [outcomes.failure("crashed", error)]
    parts = [f"{name} {value:g}" for name, value in answer.parts.items()]
    return ", ".join(filter(None, [f"{answer.reward:g}", answer.outcome, *parts])) + f"\n{answer.error}".rstrip()
