"""Show examples as the model sees them: the ids as text with special tokens, the reference, the demonstration."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import rich.console
import rich.text
from absl import flags

from rljax import environments
from rljax.data import tokenizers
from rljax.environments.verifiers import worker
from rljax.language import messages
from rljax.run.data import subjects


def main(subject: str) -> None:
    """Print examples of a config or a task."""
    f, console = flags.FLAGS, subjects.console()
    loaded = subjects.load(subject, f.set)
    task: Any = loaded.task.bind(loaded.tokenizer)
    size = task.size(f.split)
    if f.index >= size:
        raise ValueError(f"--index={f.index}: the {f.split} split has {size:,} prompts, counted from 0")
    console.print(
        f"{loaded.name}: {size:,} {f.split} prompts; the prompt, then the demonstration, as the model sees them"
    )
    for index in range(f.index, min(f.index + f.count, size)):
        _show(console, task, loaded.tokenizer, index, f.split)


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
        shown = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in part)
        marked = special and not console.is_terminal
        text.append(f"[[{shown}]]" if marked else shown, f"{style} reverse" if special else style)
    return text


def _reward(task: Any, tokenizer: tokenizers.Tokenizer, index: int, split: Any, reply: list[int]) -> str:
    """Return what the verifier says of a demonstration."""
    if environments.scored_on_device(task):
        token, mask = map(jnp.asarray, tokenizers.padded([reply], task.completion_length, tokenizer.pad))
        return f"{float(task.verify(jnp.array([index]), split, token, mask).reward[0]):g}"
    columns = environments.columns(task, index, split)
    (answer,) = worker.score(task.reward, [tokenizer.decode(reply)], task.target(index, split), columns)
    parts = [f"{name} {value:g}" for name, value in answer.parts.items()]
    return ", ".join(filter(None, [f"{answer.reward:g}", answer.outcome, *parts])) + f"\n{answer.error}".rstrip()
