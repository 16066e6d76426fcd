"""Show examples as the model sees them: the ids as text with special tokens, the reference, the demonstration."""

from typing import Any

import jax
import numpy as np
import rich.console
import rich.text
from absl import flags

from rljax import environments
from rljax.data import tokenizers
from rljax.language import messages
from rljax.run.data import subjects


def main(subject: str) -> None:
    """Print examples of a config or a task."""
    f, console = flags.FLAGS, subjects.console()
    loaded = subjects.load(subject, f.set)
    task = loaded.task.bind(loaded.tokenizer)
    size = task.size(f.split)
    if f.index >= size:
        raise ValueError(f"--index={f.index}: the {f.split} split has {size:,} prompts, counted from 0")
    console.print(
        f"{loaded.name}: {size:,} {f.split} prompts; the prompt, then the demonstration, as the model sees them"
    )
    for index in range(f.index, min(f.index + f.count, size)):
        _show(console, task, loaded.tokenizer, index, f.split)


def _show(
    console: rich.console.Console,
    task: environments.Task,
    tokenizer: tokenizers.Tokenizer,
    index: int,
    split: environments.Split,
) -> None:
    place = np.array([index], np.int32)
    prompts = jax.device_get(task.prompts(place, split))
    token, mask = jax.device_get(task.demonstrations(place, split, jax.random.key(0)))
    prompt, reply = prompts.token[0][prompts.mask[0] > 0].tolist(), token[0][mask[0] > 0].tolist()
    console.print()
    console.print(f"--- {split} {index} ---")
    console.print(_text(console, tokenizer, prompt, "cyan") + _text(console, tokenizer, reply, "bold"))
    facts = [f"prompt: {len(prompt):,} of {task.prompt_length:,} tokens"]
    if reply:
        facts.append(f"demonstration: {len(reply):,} of {task.completion_length:,} tokens")
    if environments.scored_on_host(task):
        facts.append(f"reference: {messages.shown(task.target(index, split))}")
    if reply:
        facts.append(f"reward of the demonstration: {_reward(task, tokenizer, index, split, token, mask)}")
    console.print("\n".join(facts), style="yellow")


def _text(console: rich.console.Console, tokenizer: tokenizers.Tokenizer, ids: list[int], style: str) -> rich.text.Text:
    """Return ids as text with special tokens; between ``[[ ]]`` if the console has no colours."""
    text = rich.text.Text()
    for part, special in tokenizers.visible(tokenizer, ids):
        shown = "".join(c if c.isprintable() or c == "\n" else f"\\x{ord(c):02x}" for c in part)
        marked = special and not console.is_terminal
        text.append(f"[[{shown}]]" if marked else shown, f"{style} reverse" if special else style)
    return text


def _reward(
    task: environments.Task,
    tokenizer: tokenizers.Tokenizer,
    index: int,
    split: environments.Split,
    token: Any,
    mask: Any,
) -> str:
    """Return what the verifier says of a demonstration."""
    if environments.scored_on_device(task):
        verdict = jax.device_get(task.verify(np.array([index], np.int32), split, token, mask))
        return f"{float(verdict.reward[0]):g}"
    assert environments.scored_on_host(task)
    try:
        result = task.reward(tokenizer.decode(token[0][mask[0] > 0].tolist()), task.target(index, split))
    except Exception as error:  # the user's function
        return f"{type(error).__name__}: {messages.printable(error)}"
    return messages.shown(dict(result) if hasattr(result, "items") else result)
