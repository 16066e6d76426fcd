"""How the rows of files become questions. A data set with a name is a ``Recipe`` and a call of ``build``."""

import dataclasses
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from rljax.data import rows
from rljax.environments.questions import columns, images, splits
from rljax.environments.questions.task import Overlong, Question, Questions
from rljax.environments.verifiers import answers, rewards
from rljax.language import messages, settings
from rljax.language.settings import Count, Size, setting

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
Role = Literal["system", "user", "assistant"]
Chat = bool | str | tuple[tuple[Role, str], ...] | None
Final = Literal["", "marked", "boxed"]

_DOMAINS = 1024  # the most values of a column of domains
_REFERENCE = ("", "reference", "target")  # names of a parameter that can only mean the reference


@dataclasses.dataclass(frozen=True)
class Lengths:
    """How long prompts and completions are."""

    prompt_length: Size = setting(0, "L, tokens; 0: the longest prompt, rounded up.")
    completion_length: Count = setting(256, "T, tokens, end-of-sequence included.")
    overlong: Overlong = setting(
        "error",
        "How longer prompts are treated: 'error'; 'drop' leaves out those of the training split, with a warning, while "
        "held-out ones are an error; 'drop_all' leaves out those of both splits.",
    )

    __post_init__ = settings.check


@dataclasses.dataclass(frozen=True)
class Recipe:
    """How a row is read and written; ``own.table`` explains the arguments that users set."""

    name: str
    prompt: str = "{question}"  # a column, or a format of columns
    answer: str = "answer"  # likewise; "": no reference
    demonstration: str = ""  # likewise; "": the answer
    reward: rewards.Reward = "exact"
    final: Final = ""  # the part of the answer that is the reference: "" all, or what follows #### or is in a box
    formats: answers.Formats = None
    instruction: str | None = None
    frame: str = "{}"  # around the prompt, in plain text
    lead: str = ""  # before a demonstration, in plain text
    edit: Callable[[str], str] = str  # a change of demonstrations
    domain: str = ""  # the column whose values are the domains; "": there is one domain
    looks: images.Looks = images.Looks()
    offered: tuple[str, ...] = ()  # keyword arguments of a reward function besides ``prompt`` that are no columns

    def questions(
        self, read: rows.Rows, judge: rewards.Rewards, styles: Sequence[answers.Format], folder: str
    ) -> list[Question]:
        """Return the rows as questions, each checked.

        Args:
          read: the rows.
          judge: the reward function.
          styles: how the reward function reads answers, in order of preference; (): it does not.
          folder: of pictures.

        Raises:
          ValueError: a column is missing or has a value of another type; names the file and the line.
        """
        prompt, answer, shown = (
            columns.Template(name, getattr(self, name)) for name in ("prompt", "answer", "demonstration")
        )
        domain = columns.Template("domain", self.domain)
        has = read.columns()
        for second in (part.second for part in judge.parts if part.second not in (answer.column, *_REFERENCE)):
            if second in has:
                raise ValueError(
                    f"reward: its second parameter, {second!r}, is the reference, {messages.shown(self.answer)}, and "
                    f"also the name of a column; call it reference, or write *, before it for the column"
                )
        for name in self.offered:
            if name in has and name in judge.columns:
                raise ValueError(f"reward: its argument {name!r} is also the name of a column; rename the column")
            if any(part.second == name for part in judge.parts):
                raise ValueError(f"reward: a second parameter is the reference; write *, before {name}")
        request = answers.STYLES[styles[0]].request if styles else ""
        after = request if self.instruction is None else self.instruction
        questions = []
        for number, row in enumerate(read):
            where = read.where(number)
            asked = prompt.read(row, where, number=False)
            text = self.frame.format("\n".join(filter(None, (asked.strip(), after))))
            seen = self.looks.sources(row, where, folder)
            text = images.marked(text, len(seen), where) if seen else text
            given = answer.value(row, where) if self.answer else ""
            if self.final or any(part.path in rewards.BUILT_IN for part in judge.parts):
                given = answer.read(row, where)
            reference = _final(given, self.final, where, self.answer) if self.final else given
            solution = self._solution(
                shown.read(row, where, number=False) if self.demonstration else "", reference, styles
            )
            taken = {k: v for k, v in row.items() if judge.every or k in judge.columns}
            if judge.every or "prompt" in judge.columns:
                taken["prompt"] = text
            for name in judge.required - taken.keys() - {*self.offered}:
                columns.find(row, name, where, "an argument of the reward function")
            of = domain.read(row, where) if self.domain else ""
            for check in judge.checks:
                check(reference, len(seen), where)
            questions.append(Question(asked, text, reference, solution, taken, where, of, seen))
        return questions

    def _solution(self, shown: str, reference: Any, styles: Sequence[answers.Format]) -> str | None:
        """Return a demonstration, which ends with the answer as the reward function reads it."""
        if not styles:
            plain = str(reference) if isinstance(reference, str | int | float) and reference != "" else None
            return self.lead + shown if shown else plain
        style, working = answers.STYLES[styles[0]], self.edit(shown).strip()
        if style.read(working) != reference:
            written = style.form.format(reference.strip())
            working = f"{working.partition(answers.MARK)[0].rstrip()}\n{written}".strip()
        return self.lead + working


def build(
    recipe: Recipe, path: Paths, heldout: float | Paths, chat: Chat, lengths: Lengths, format: str = ""
) -> Questions:
    """Read files as a task.

    Args:
      recipe: how rows are read.
      path: the files, as in ``rows.read``.
      heldout: the fraction of prompts that is held out, or files with the held-out rows.
      chat: write prompts by the chat template: True, False, None (if the tokenizer has one), the system prompt, or all
        messages before the question.
      lengths: of prompts and completions.
      format: of the files, as in ``rows.read``.

    Returns:
      The task, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, or a row is invalid.
      FileNotFoundError: a file does not exist.
    """
    fraction = isinstance(heldout, int | float)
    if heldout is True or (fraction and not 0 < heldout <= 1):
        raise ValueError(f"heldout={heldout}: must be above 0 and at most 1 (all rows are held out), or a file")
    if heldout == path:
        raise ValueError(f"heldout={str(heldout)!r} is the file of the training split; choose another one")
    before = messages_before(chat)
    names = list(recipe.reward) if isinstance(recipe.reward, Mapping) else [str(recipe.reward)]
    native: answers.Format | None = next((style for name, style in rewards.FORMATS.items() if name in names), None)
    if recipe.formats is not None and native is None:
        raise ValueError(f"formats: only the reward functions {' and '.join(rewards.FORMATS)} read a final answer")
    styles = () if native is None else answers.formats(recipe.formats, native, several=before is not None)
    judge = rewards.combine(recipe.reward, styles)
    compared = [part.path for part in judge.parts if part.path in rewards.BUILT_IN]
    if compared and not recipe.answer:
        raise ValueError(f"answer='': the reward function {compared[0]!r} compares with an answer; name its column")

    def read(files: Any) -> list[Question]:
        return recipe.questions(rows.read(files, format), judge, styles, images.folder(files))

    train = read(path)
    sources = splits.by_hash(train, heldout) if fraction else splits.by_file(train, read(heldout))
    return Questions(
        name=recipe.name,
        **vars(lengths),
        chat=before,
        plain=chat is None,
        sources=sources,
        reward=judge,
        parts=judge.names,
        domain_names=_domains(recipe.domain, [*train, *(() if fraction else sources["heldout"])]),
        looks=recipe.looks,
    )


def _domains(column: str, questions: Sequence[Question]) -> tuple[str, ...]:
    """Return the domains by first appearance; ValueError if they are too many."""
    first: dict[str, str] = {}
    for question in questions:
        first.setdefault(question.domain, question.where)
    if len(first) > _DOMAINS:
        name, where = list(first.items())[_DOMAINS]
        raise ValueError(
            f"{where}: domain={messages.shown(column)} has more than {_DOMAINS:,} values; {messages.shown(name)} is "
            "one too many"
        )
    return tuple(first)


def messages_before(chat: Chat) -> tuple[Mapping[str, str], ...] | None:
    """Return the messages before a question; None if there is no conversation."""
    if chat is None or isinstance(chat, bool):
        return None if chat is False else ()
    pairs = (("system", chat),) if isinstance(chat, str) else chat
    for pair in pairs:
        if len(pair) != 2 or pair[0] not in typing.get_args(Role) or not isinstance(pair[1], str):
            raise ValueError(
                f"chat: {pair!r} is not a message such as ('system', 'Be brief.'); the roles are"
                f" {', '.join(typing.get_args(Role))}"
            )
    return tuple({"role": role, "content": content} for role, content in pairs)


def _final(answer: str, final: Final, where: str, column: str) -> str:
    """Return the final answer of a worked solution; ValueError if there is none."""
    read, mark = (answers.final_answer, answers.MARK) if final == "marked" else (answers.boxed, answers.BOX)
    value = read(answer)
    if not any(c.isdigit() if final == "marked" else c.isalnum() for c in value):
        what = "number" if final == "marked" else "final answer"
        raise ValueError(f"{where}: {messages.shown(column)} has no {what} after {mark!r}")
    return value
