"""What a module reads in place of a row: the row with texts, and the task's solution, behind its prompt or its end."""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import traits
from rljax.language import messages
from rljax.models.config import READING, ModuleConfig
from rljax.models.scores import packing
from rljax.transforms.source import edits

SOLUTION, PROMPT = "{solution}", "{prompt}"

Array = types.Array
Ids = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Reading:
    """The settings ``prompt``, ``cut``, ``after`` and ``words`` of a module as token ids; None is the solution."""

    prompt: tuple[Ids | None, ...]
    cut: Ids
    after: tuple[Ids | None, ...]
    words: tuple[int, int] | None
    asked: bool = False  # the prompt is the task's own, whatever the row was sampled under

    @property
    def solution(self) -> bool:
        """Whether it contains the solution."""
        return None in (*self.prompt, *self.after)


def build(
    fields: ModuleConfig, tokenizer: tokenizers.Tokenizer, task: environments.Task, stored: bool, where: str
) -> Reading | None:
    """Return what a module reads; None: the rows as they are.

    Args:
      fields: the settings of the module.
      tokenizer: the run's.
      task: the phase's.
      stored: whether the rows of the phase are read from a file.
      where: the name of the module in errors.

    Raises:
      ValueError: a text that the tokenizer cannot write, a word that is not one token, not two different words, or a
        solution that the program cannot compute.
    """
    if not any(getattr(fields, field) for field in READING):
        return None
    asked, behind = fields.prompt.startswith(PROMPT), fields.prompt.removeprefix(PROMPT)
    _check_templates(fields, where)
    prompt = _parts(tokenizer, behind, f"{where}.prompt")
    after = _parts(tokenizer, fields.after, f"{where}.after")
    words = [_word(tokenizer, fields.after.split(SOLUTION)[-1], word, f"{where}.words") for word in fields.words]
    if words and (len(words) != 2 or words[0] == words[1]):
        raise ValueError(f"{where}.words={messages.shown(fields.words)}: expected two different words, yes and no.")
    cut = _ids(tokenizer, "", fields.cut, f"{where}.cut")
    reading = Reading(prompt, cut, after, (words[0], words[1]) if words else None, asked)
    if reading.solution or asked:
        about = traits.traits(task)
        reasons = {
            "has rows of a file": stored,
            "runs on the host": about.host,
            "is a world": not about.whole,
            "has no demonstrations": reading.solution
            and not (hasattr(task, "demonstrations") or hasattr(task, "solutions")),
        }
        for reason in (reason for reason, holds in reasons.items() if holds):
            field = "prompt" if asked or None in prompt else "after"
            raise ValueError(
                f"{where}.{field}: the program computes {SOLUTION} and {PROMPT} for tasks of one turn that run in it; "
                f"{task.name!r} {reason}."
            )
    return reading


def _check_templates(fields: ModuleConfig, where: str) -> None:
    """Check that placeholders stand only where they are filled in."""
    rest = {"prompt": fields.prompt.removeprefix(PROMPT), "cut": fields.cut, "after": fields.after}
    rest |= {"words": "".join(fields.words)}
    for field, text in rest.items():
        for placeholder in (PROMPT, SOLUTION):
            if placeholder in text and (placeholder == PROMPT or field in ("cut", "words")):
                raise ValueError(
                    f"{where}.{field}: {placeholder} stands here, and only prompt may begin with {PROMPT}, only prompt "
                    f"and after contain {SOLUTION}."
                )


def _ids(tokenizer: tokenizers.Tokenizer, before: str, text: str, where: str) -> Ids:
    ids = tokenizers.continuation(tokenizer, before or "\n", text) if text else []
    if tokenizer.unk in ids:
        raise ValueError(f"{where}: the tokenizer of the run cannot write {messages.shown(text)}.")
    return tuple(ids)


def _parts(tokenizer: tokenizers.Tokenizer, template: str, where: str) -> tuple[Ids | None, ...]:
    first, *rest = (_ids(tokenizer, "", text, where) for text in template.split(SOLUTION))
    parts: list[Ids | None] = [first]
    for ids in rest:
        parts += [None, ids]
    return tuple(part for part in parts if part != ())


def _word(tokenizer: tokenizers.Tokenizer, before: str, word: str, where: str) -> int:
    ids = _ids(tokenizer, before, word, where)
    if len(ids) != 1:
        raise ValueError(f"{where}: {messages.shown(word)} is {len(ids)} tokens of the run's tokenizer, expected one.")
    return ids[0]


@dataclasses.dataclass(frozen=True)
class _Part:
    """Tokens of B rows."""

    token: Array  # [B, K] int32
    mask: Array  # [B, K]
    solution: bool = False


def read(
    reading: Reading, rows: types.Rollout, task: environments.Task, split: environments.Split
) -> tuple[types.Rollout, Array, Array]:
    """Return rows as a module reads them.

    Args:
      reading: what it reads.
      rows: B rows of L prompt tokens and T completion tokens.
      task: the task, whose demonstration of a prompt is the same whenever it is asked for.
      split: of the prompts ``rows.index``.

    Returns:
      B rows of T + K columns, in which what follows a completion, or its thought, begins right behind its last token;
      where the completion is, bool ``[B, T]``; where the solution behind it is, bool ``[B, T + K]``.
    """
    assert rows.context is not None and rows.action is not None
    shown = _solutions(task, rows, split) if reading.solution else None
    kept = packing.written(rows.mask)
    if reading.cut:
        end = edits.last_place(rows.action.token, jnp.sum(kept, axis=1), reading.cut)
        kept &= jnp.arange(kept.shape[1])[None, :] < end[:, None]
    first = rows.context.training
    if reading.asked:
        assert rows.index is not None
        prompts = task.prompts(rows.index, split)
        first = prompts.token, prompts.mask
    prompt = _behind(_Part(*first), reading.prompt, shown)
    if shown is not None and reading.cut:
        shown = shown[0], shown[1] & edits.behind(shown[0], jnp.sum(shown[1], axis=1), reading.cut)
    after = _behind(_Part(rows.action.token, kept.astype(rows.mask.dtype)), reading.after, shown)
    token, mask, _ = _joined(prompt, left=True)
    context = types.Context(token, mask, image=rows.context.image)
    token, mask, solved = _joined(after, left=False)
    return rows.replace(mask=mask, context=context, action=types.Action(token=token)), kept, solved


def _solutions(task: environments.Task, rows: types.Rollout, split: environments.Split) -> tuple[Array, Array]:
    """Return the solution of each row's prompt without its end: tokens and where they are, ``[B, T]`` each.

    It is the task's ``solutions(index, split)``, which are right, where it has this function; else a demonstration.
    """
    assert rows.index is not None
    solutions = getattr(task, "solutions", None)
    if solutions is not None:
        token, mask = solutions(rows.index, split)
    else:
        key = jax.random.key(0, impl="threefry2x32")

        def one(number: Array) -> tuple[Array, Array]:
            token, mask = task.demonstrations(number[None], split, jax.random.fold_in(key, number))
            return token[0], mask[0]

        token, mask = jax.vmap(one)(rows.index)
    shown = types.Action(token=token, length=jnp.sum(mask > 0, axis=1, dtype=jnp.int32))
    token, mask = edits.solution(shown, jnp.arange(token.shape[0]), 1.0)
    return token, mask > 0


def _behind(first: _Part, parts: Sequence[Ids | None], shown: tuple[Array, Array] | None) -> list[_Part]:
    count, kind = first.token.shape[0], first.mask.dtype
    whole = [first]
    for ids in parts:
        if ids is None:
            assert shown is not None
            whole.append(_Part(shown[0], shown[1].astype(kind), solution=True))
        else:
            token = jnp.broadcast_to(jnp.asarray(ids, jnp.int32), (count, len(ids)))
            whole.append(_Part(token, jnp.ones(token.shape, kind)))
    return whole


def _joined(parts: Sequence[_Part], left: bool) -> tuple[Array, Array, Array]:
    """Return parts side by side with all padding on one side: token, mask, and where the solution is."""
    token, mask = (jnp.concatenate([getattr(part, name) for part in parts], axis=1) for name in ("token", "mask"))
    solved = jnp.concatenate([(part.mask > 0) & part.solution for part in parts], axis=1)
    order = jnp.argsort((mask > 0) == left, axis=1, stable=True)
    token, mask, solved = (jnp.take_along_axis(x, order, axis=1) for x in (token, mask, solved))
    return token, mask, solved


def apart(reading: Reading, scores: types.Scores, kept: Array, solved: Array) -> types.Scores:
    """Return the scores of completions ``[B, T]``, 0 elsewhere, and of the solutions behind them ``[B, T + K]``.

    Args:
      reading: what was read; ``after_logp`` is absent if it has no solution behind the rows.
      scores: of rows as ``read`` returns them.
      kept: where the completions are.
      solved: where the solutions are.
    """

    def column(x: Array) -> Array:
        if x.ndim == 1:
            return x
        return jnp.where(kept.reshape(kept.shape + (1,) * (x.ndim - 2)), x[:, : kept.shape[1]], 0)

    first = jax.tree.map(column, scores)
    if scores.logp is None or None not in reading.after:
        return first
    return first.replace(after_logp=jnp.where(solved, scores.logp, 0.0), after_mask=solved.astype(scores.logp.dtype))
