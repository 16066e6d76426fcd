"""Tasks over a user's own rows: one function, under the name of each format of files."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

from rljax.environments.questions import images, recipe
from rljax.environments.questions.task import Questions
from rljax.environments.verifiers import answers, rewards
from rljax.language import settings

_TFDS = "tfds:"
_LENGTHS, _LOOKS = recipe.Lengths(), images.Looks()


@settings.flat
def table(
    path: recipe.Paths,
    prompt: str = "{question}",
    answer: str = "answer",
    reward: rewards.Reward = "exact",
    heldout: float | recipe.Paths = 0.1,
    chat: recipe.Chat = None,
    system: str = "",
    demonstration: str = "",
    instruction: str | None = None,
    formats: answers.Formats = None,
    final: recipe.Final = "",
    lengths: recipe.Lengths = _LENGTHS,
    domain: str = "",
    looks: images.Looks = _LOOKS,
    *,
    format: str = "",
) -> Questions:
    """Read questions from files.

    Args:
      path: a file, a pattern such as 'data/train-*.jsonl', a folder, or several of these; local or gs://. Of ``tfds``
        NAME/SPLIT.
      prompt: the question: a column, or a text with columns in it, 'Translate: {text}'. ``reward_model.ground_truth``
        is a member of an object in a column, ``prompt.0.content`` one of a list.
      answer: the reference that the reward function compares with: a column, whose value is passed as it is, or a text
        with columns in it; '': none.
      reward: 'module:function'; 'exact' (the whole completion); 'number' or 'boxed' (a final answer, as GSM8K and
        MATH); 'rendered()' (a drawing, see ``verifiers.rendered``); or several with weights, {'my:correct': 1.0,
        'my:brief': 0.2}. See ``verifiers.rewards``.
      heldout: the fraction of prompts that is held out, by a hash of the prompt, 1 for all; or held-out files.
      chat: write prompts by the tokenizer's chat template: True, False, None (if it has one), or the messages before
        the question, (("user", "..."), ("assistant", "...")).
      system: a system prompt, with ``chat``.
      demonstration: the completion to imitate, by recipes that train on demonstrations: as ``prompt``; '': the answer.
      instruction: text on a separate line after the question; None: a sentence that asks for the final answer as
        'number' or 'boxed' reads it, otherwise none.
      formats: how 'number' and 'boxed' read a final answer; see ``answers.read``.
      final: the part of the answer that is the reference: '', all of it; 'marked', after ####; 'boxed', the last box.
      lengths: of prompts and completions.
      domain: a column with a text or a number in every row. Its values, at most 1,024, are the domains of the
        prompts, numbered by first appearance; metrics are split by them, and some sources draw by them.
      looks: of pictures.
      format: of the files, as in ``rows.read``.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a row lacks a column or has a value of another type.
      FileNotFoundError: a file does not exist.
    """
    if system:
        if chat is False or isinstance(chat, str):
            raise ValueError(f"system={system!r}: needs chat, which is {chat!r}")
        chat = (("system", system), *(chat if isinstance(chat, tuple) else ()))
    if format == "tfds":
        paths = path if isinstance(path, tuple | list) else (path,)
        path = tuple(_TFDS + str(p).removeprefix(_TFDS) for p in paths)
        if not isinstance(heldout, float | int):
            several = heldout if isinstance(heldout, tuple | list) else (heldout,)
            heldout = tuple(_TFDS + str(p).removeprefix(_TFDS) for p in several)
    fields = {"domain": domain, "looks": looks, "offered": (images.OFFERED,) if looks.image else ()}
    how = recipe.Recipe(format or "rows", prompt, answer, demonstration, reward, final, formats, instruction, **fields)
    return recipe.build(how, path, heldout, chat, lengths, format)


def _of(format: str) -> Callable[..., Questions]:
    """Return ``table`` for one format."""

    @functools.wraps(table)
    def constructor(*args: Any, **kwargs: Any) -> Questions:
        return table(*args, **kwargs, format=format)

    parameters = inspect.signature(table).parameters.values()
    signature = inspect.Signature([p for p in parameters if p.name != "format"])
    setattr(constructor, "__signature__", signature)  # noqa: B010  an attribute that the type of a function lacks
    return constructor


jsonl, parquet, hugging_face, array_record, tfds = map(_of, ("jsonl", "parquet", "arrow", "array_record", "tfds"))
