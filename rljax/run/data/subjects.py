"""What a user names: a config, a task or a file."""

import glob
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from rljax import environments
from rljax.config import files, resolve, schema
from rljax.data import storage, tokenizers
from rljax.data.rows import files as formats
from rljax.environments.config import VerifierConfig
from rljax.language import parse
from rljax.run import programs


class Subject(NamedTuple):
    """A task, not bound, and the tokenizer and the verifier of its run."""

    name: str
    task: environments.Task
    tokenizer: tokenizers.Tokenizer
    verifier: VerifierConfig


def names_config(text: str) -> bool:
    """Return whether a text names a config or a task, and not files of rows."""
    if is_task(text) or text.partition(":")[0].endswith(".py"):
        return True
    return not (text.startswith("tfds:") or glob.has_magic(text) or formats.of(text) or storage.exists(text))


def is_task(text: str) -> bool:
    """Return whether a text is a call that names a task."""
    return re.fullmatch(r"[\w.:]+\(.*\)", text, re.DOTALL) is not None


def load(text: str, changes: Sequence[str]) -> Subject:
    """Return the task of a config's last phase, or of a call such as "gsm8k('DIR')" in the default config.

    Args:
      text: the config or the call.
      changes: "field=value" of the config.

    Returns:
      The task and the tokenizer.

    Raises:
      ValueError: the errors of the config, of the task and of the tokenizer.
    """
    jax.config.update("jax_platforms", "cpu")  # nothing here is worth a device
    if is_task(text):
        config = schema.default()
        config.task = text
    else:
        config = files.load(*text.split(":", 1))
    for change in changes:
        files.override(config, *parse.setting(change))
    resolved = resolve.run(config)
    last, tokenizer = resolved.phases[-1], programs.make_tokenizer(resolved)
    return Subject(last.settings.task, last.task, tokenizer, last.settings.verifier)


def splits(task: Any) -> tuple[str, ...]:
    """Return the splits that a task has."""
    return tuple(getattr(task, "sources", ("train", "heldout")))


def lengths(subject: Subject, split: Any, most: int) -> tuple[list[int], list[int]]:
    """Return the tokens of each prompt of a split and of each demonstration, as they are before they are cut."""
    task: Any = subject.task
    if hasattr(task, "lengths"):
        return task.lengths(subject.tokenizer, split)
    task = task.bind(subject.tokenizer)
    index = jax.numpy.arange(min(task.size(split), most))
    masks = task.prompts(index, split).mask, task.demonstrations(index, split, jax.random.key(0))[1]
    prompts, demonstrations = (jax.numpy.sum(mask > 0, axis=1).tolist() for mask in masks)
    return prompts, demonstrations
