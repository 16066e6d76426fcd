"""Programs judged by tests: HumanEval, MBPP, APPS, CodeContests and rows of the same form. Nothing is downloaded."""

import dataclasses
from typing import NamedTuple

from rljax.data import rows
from rljax.environments.questions import recipe
from rljax.environments.questions.task import Question, Questions
from rljax.environments.verifiers import code as verifier
from rljax.environments.verifiers import listings
from rljax.environments.verifiers.sandbox import start
from rljax.language import parse, settings

_REQUEST = "Write the whole program in one block that begins with ```python and ends with ```."
_FENCED = "```python\n{{{}}}\n```"


class _Form(NamedTuple):
    """A published form of rows."""

    tests: str  # the column that tells the forms apart
    prompt: str
    solution: str  # column, if the rows have it


_FORMS = (
    _Form("test", "prompt", "canonical_solution"),  # HumanEval (Chen et al., arXiv 2107.03374), with entry_point
    _Form("test_list", "{text}\nExample: {test_list.0}", "code"),  # MBPP (Austin et al., arXiv 2108.07732)
    _Form("input_output", "question", "solution"),  # APPS (Hendrycks et al., arXiv 2105.09938)
    _Form("public_tests", "description", "solution"),  # CodeContests (Li et al., arXiv 2203.07814)
)
_LENGTHS = recipe.Lengths(completion_length=512)


@settings.flat
def code(
    path: recipe.Paths,
    prompt: str = "",
    tests: str = "",
    heldout: float | recipe.Paths = 0.1,
    chat: recipe.Chat = False,
    seconds: float = 3.0,
    memory: float = 0.5,
    partial: bool = False,
    unsafe: bool = False,
    together: bool = False,
    demonstration: str = "",
    instruction: str | None = None,
    lengths: recipe.Lengths = _LENGTHS,
) -> Questions:
    """Read problems whose answers are programs, which are run against tests in a sandbox.

    Args:
      path: the files, as in ``jsonl``.
      prompt: a column, or a text with columns; '': the prompt of the form of the rows, which the column of tests tells:
        HumanEval (``test``), MBPP (``test_list``), APPS (``input_output``) or CodeContests (``public_tests``).
      tests: the column of tests, as in ``verifiers.listings.read``; '': the column of the form.
      heldout: the fraction of prompts that is held out, or files.
      chat: as in ``jsonl``. Without it, a row with an ``entry_point`` is code to continue.
      seconds: wall time of a program for all its tests; ``verifier.timeout`` must be 1 s longer.
      memory: GiB of address space of each process of a program.
      partial: the reward is the fraction of tests that pass, instead of 1 if all pass and otherwise 0.
      unsafe: run programs although the kernel refuses the namespaces that protect this machine from them.
      together: run the tests in the process of the program, as other code does: for sets whose tests need it, and for
        programs that do not cheat.
      demonstration: the completion to imitate, as ``prompt``; '': the solution of the form, if all rows have one.
      instruction: text on a separate line after the prompt; None: a sentence that asks for a fenced block, except
        where code is to be continued.
      lengths: of prompts and completions.

    Returns:
      The task, not yet bound to a tokenizer; its reward function is ``verifiers.code.Judge``.

    Raises:
      ValueError: an argument is out of range, a row is invalid, or the kernel refuses namespaces and not ``unsafe``.
      FileNotFoundError: a file does not exist.
    """
    for field, value in (("seconds", seconds), ("memory", memory)):
        if not 0 < value < 1e5:
            raise ValueError(f"{field}={value}: must be above 0 and below 100000")
    read = rows.read(path)
    has = {name for name, count in read.columns().items() if count == len(read)}
    form = next((form for form in _FORMS if form.tests in has), None)
    if form is None and not (prompt and tests):
        known = [form.tests for form in _FORMS]
        near = parse.nearest(tests or known[0], has)
        raise ValueError(f"{read.where(0)}: no column of tests ({', '.join(known)}): set prompt and tests.{near}")
    start.check(unsafe)
    form = form or _FORMS[0]
    continued = chat is False and not tests and form.tests == "test"
    fenced = _FENCED.format(form.solution)
    if form.tests == "test":
        fenced = fenced.replace("\n", "\n{prompt}", 1)
    solution = {True: f"{{{form.solution}}}", False: fenced}[continued] if form.solution in has else ""
    text = next((name for name in ("text", "prompt") if name in has), "text")  # of MBPP and its sanitized part
    how = recipe.Recipe(
        "code",
        prompt=prompt or form.prompt.replace("{text}", f"{{{text}}}"),
        answer=tests or form.tests,
        demonstration=demonstration or solution,
        reward=verifier.Judge(seconds, memory, partial, unsafe, together),
        instruction=("" if continued else _REQUEST) if instruction is None else instruction,
        lead="\n",
    )
    task = recipe.build(how, path, heldout, chat, lengths)
    shown = bool(how.demonstration)
    sources = {split: [_checked(question, shown) for question in each] for split, each in task.sources.items()}
    return dataclasses.replace(task, sources=sources, parts=("passed", "timed_out"))


def _checked(question: Question, shown: bool) -> Question:
    """Return a question whose tests can be read, and whose prompt for the reward function is the file's."""
    try:
        listings.read(question.reference)
    except ValueError as error:
        raise ValueError(f"{question.where}: {error}") from None
    columns = {**question.columns, "prompt": question.prompt}
    return question._replace(columns=columns, solution=question.solution if shown else None)
