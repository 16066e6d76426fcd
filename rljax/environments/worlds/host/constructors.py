"""Worlds that ship on the host: ``tools``, ``python_tool``, ``search``, ``textarena``."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.questions import recipe
from rljax.environments.verifiers import answers, rewards
from rljax.environments.verifiers.sandbox import start
from rljax.environments.worlds.host import arena, assisted, calls, interpreter, limited, passages, task
from rljax.environments.worlds.host import tools as world
from rljax.language import dotted, parse
from rljax.language.settings import Count, Size

_CHARACTERS = 8  # of a token, at most: an answer of a tool is cut after so many for each token of a reply
_MOST = 4  # calls of a turn; of the interpreter, each takes at most ``seconds``
_HELD_OUT = 1 << 30  # the first seed of held-out games


def tools(
    functions: str | tuple[str, ...],
    path: recipe.Paths,
    prompt: str = "{question}",
    answer: str = "answer",
    reward: rewards.Reward = "exact",
    plan: str = "",
    heldout: float | recipe.Paths = 0.1,
    chat: recipe.Chat = None,
    form: calls.Form = "json",
    weights: dict[str, float] | None = None,
    formats: answers.Formats = None,
    instruction: str | None = None,
    final: recipe.Final = "",
    turns: Count = 4,
    turn_length: Count = 128,
    reply_length: Count = 128,
    prompt_length: Size = 0,
    completion_length: Size = 0,
    exact: bool = True,
) -> task.HostWorld:
    """Read questions that are answered with the help of tools; see ``tools.ToolWorld``.

    Args:
      functions: dotted paths of functions under ``@calls.tool``, such as "my_tools.convert".
      path: the files, as in ``jsonl``.
      prompt: the question: a column, or a text with columns in braces.
      answer: the reference that the reward function compares with, likewise.
      reward: as in ``jsonl``.
      plan: a column with the calls of a demonstration, [{"name": ..., "arguments": {...}}, ...]; "": none.
      heldout: the fraction of prompts that is held out, or files.
      chat: as in ``jsonl``; False: plain text, in which the tools are named after the question. None with the form
        "tags": plain text if the tokenizer has no chat template; with the others, it must have one, which shows tools.
      form: how calls are written: "json", "bare" or "tags"; see ``calls``.
      weights: of "calls", "malformed", "failed" and "retries" in the reward.
      formats: how "number" and "boxed" read a final answer.
      instruction: text after the question; None: a sentence that asks for the format of the answer.
      final: the part of the answer that is the reference, as in ``jsonl``.
      turns: the most turns, the answer included.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens of the answers to the calls of a turn.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: refuse a chat template that writes earlier turns differently later, such as one that drops thoughts.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, a function is no tool, or a row is invalid.
      FileNotFoundError: a file does not exist.
    """
    paths = (functions,) if isinstance(functions, str) else functions
    how = recipe.Recipe("tools", prompt, answer, reward=reward, final=final, formats=formats, instruction=instruction)
    examples = assisted.read(how, path, heldout, chat, assisted.listed("plan", plan))
    called = [_tool(each) for each in paths]
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return _assisted("tools", called, examples, form, weights or {}, chat, exact, lengths)


def python_tool(
    path: recipe.Paths = "",
    prompt: str = "{question}",
    answer: str = "answer",
    reward: rewards.Reward = "number",
    code: str = "",
    heldout: float | recipe.Paths = 0.1,
    chat: recipe.Chat = None,
    form: calls.Form = "json",
    weights: dict[str, float] | None = None,
    seconds: float = 1.0,
    memory: float = 0.5,
    unsafe: bool = False,
    digits: Count = 4,
    operands: Count = 3,
    formats: answers.Formats = None,
    instruction: str | None = None,
    final: recipe.Final = "",
    turns: Count = 4,
    turn_length: Count = 128,
    reply_length: Count = 128,
    prompt_length: Size = 0,
    completion_length: Size = 0,
    exact: bool = True,
) -> task.HostWorld:
    """Read questions that are answered with the help of a Python interpreter; see ``interpreter.Interpreter``.

    Args:
      path: the files, as in ``jsonl``; "": sums and products of ``operands`` numbers of up to ``digits`` digits.
      prompt: as in ``tools``; so are answer, reward, heldout, chat, form, weights, formats, instruction, final and the
        lengths.
      answer: the reference that the reward function compares with.
      reward: as in ``jsonl``.
      code: a column with the code that a demonstration runs before it answers; "": it answers at once.
      heldout: the fraction of prompts that is held out, or files.
      chat: messages before the question.
      form: how calls are written.
      weights: of the counts of calls in the reward.
      seconds: wall time of a call, earlier cells of the episode included.
      memory: GiB of address space of a call.
      unsafe: run code although the kernel refuses the namespaces that protect this machine from it.
      digits: of questions that are made here.
      operands: likewise.
      formats: how "number" and "boxed" read a final answer.
      instruction: text after the question.
      final: the part of the answer that is the reference.
      turns: the most turns, the answer included.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens of the answers to the calls of a turn.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: refuse a chat template that writes earlier turns differently later, such as one that drops thoughts.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: as ``tools``, or the kernel refuses namespaces and not ``unsafe``.
      FileNotFoundError: a file does not exist.
    """
    tool = interpreter.Interpreter(seconds, memory, _CHARACTERS * reply_length, unsafe)
    start.check(unsafe)
    if path:
        how = recipe.Recipe(
            "python_tool", prompt, answer, reward=reward, final=final, formats=formats, instruction=instruction
        )
        plan = assisted.column("code", code, "python", "code") if code else assisted.listed("code", "")
        examples = assisted.read(how, path, heldout, chat, plan)
    else:
        examples = assisted.calculations(digits, operands, 0, chat)
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return _assisted("python_tool", [tool], examples, form, weights or {}, chat, exact, lengths)


def search(
    folder: str,
    path: recipe.Paths,
    prompt: str = "{question}",
    answer: str = "answer",
    reward: rewards.Reward = "exact",
    query: str = "",
    heldout: float | recipe.Paths = 0.1,
    chat: recipe.Chat = None,
    form: calls.Form = "json",
    weights: dict[str, float] | None = None,
    passages_shown: Count = 3,
    words: Count = 60,
    formats: answers.Formats = None,
    instruction: str | None = None,
    final: recipe.Final = "",
    turns: Count = 4,
    turn_length: Count = 128,
    reply_length: Count = 512,
    prompt_length: Size = 0,
    completion_length: Size = 0,
    exact: bool = True,
) -> task.HostWorld:
    """Read questions that are answered with the help of a search in texts; see ``passages.Search``.

    Args:
      folder: a local folder of .txt and .md files.
      path: the files of questions, as in ``jsonl``.
      prompt: as in ``tools``; so are answer, reward, heldout, chat, form, weights, formats, instruction, final and the
        lengths. ``weights={'retries': 0.1}`` pays for a search that is tried again (ReZero, arXiv 2504.11001).
      answer: the reference that the reward function compares with.
      reward: as in ``jsonl``.
      query: a column with the words that a demonstration searches for; "": the question.
      heldout: the fraction of prompts that is held out, or files.
      chat: messages before the question.
      form: how calls are written; "tags" is that of Search-R1 (arXiv 2503.09516).
      weights: of the counts of calls in the reward.
      passages_shown: passages of an answer.
      words: of a passage.
      formats: how "number" and "boxed" read a final answer.
      instruction: text after the question.
      final: the part of the answer that is the reference.
      turns: the most turns, the answer included.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens of the answers to the calls of a turn.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: refuse a chat template that writes earlier turns differently later, such as one that drops thoughts.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: as ``tools``, bm25s is not installed, or the folder has no texts.
      FileNotFoundError: a file does not exist.
    """
    tool = passages.Search(folder, passages_shown, words)
    how = recipe.Recipe("search", prompt, answer, reward=reward, final=final, formats=formats, instruction=instruction)
    examples = assisted.read(how, path, heldout, chat, assisted.column("query", query, "search", "query"))
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return _assisted("search", [tool], examples, form, weights or {}, chat, exact, lengths)


def textarena(
    game: str,
    players: Count = 1,
    seat: int | None = None,
    actions: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    size: Count = 1000,
    heldout: Count = 100,
    chat: bool | None = None,
    turns: Count = 10,
    turn_length: Count = 64,
    reply_length: Count = 256,
    prompt_length: Size = 0,
    completion_length: Size = 0,
    exact: bool = True,
) -> task.HostWorld:
    """Play a game of textarena (Guertler et al., arXiv 2504.11442); see ``arena.Game``.

    Args:
      game: its name, such as "GuessTheNumber-v0".
      players: number of players; those besides the policy write actions drawn at random.
      seat: the player that the policy is; None: each in turn, by the number of the problem.
      actions: what the other players may write; (): known of some games.
      settings: arguments of the game.
      size: number of training problems, each a seed of the game.
      heldout: number of held-out problems.
      chat: write by the chat template: True, False, None (if the tokenizer has one).
      turns: the most turns of the policy.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens that the game says after a turn.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: as in ``tools``.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: textarena is not installed, has no such game or cannot begin it, or an argument is out of range.
    """
    arena.check(game, players, seat, actions, settings or {})
    make = functools.partial(arena.Game, game, players, seat, actions, settings)
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return assemble("textarena", make, seeds(size, heldout), chat, exact, lengths)


def seeds(size: int, heldout: int) -> dict[str, Sequence[int]]:
    """Return problems that are seeds; ValueError if a split has none.

    Args:
      size: number of training problems.
      heldout: number of held-out problems.
    """
    return {
        "train": range(_least("size", size)),
        "heldout": range(_HELD_OUT, _HELD_OUT + _least("heldout", heldout)),
    }


def _assisted(name: str, functions: Sequence[Any], *arguments: Any) -> task.HostWorld:
    made = asked(name, functools.partial(world.ToolWorld, tuple(functions)), *arguments)
    made.make()  # raises if an argument is out of range
    return made


def asked(
    name: str,
    make: Callable[..., Any],
    examples: assisted.Examples,
    form: calls.Form,
    weights: Mapping[str, float],
    chat: recipe.Chat,
    exact: bool,
    lengths: tuple[int, ...],
) -> task.HostWorld:
    """Return a world of questions that are answered with the help of tools.

    Args:
      name: of the task.
      make: makes an instance from the arguments of ``tools.ToolWorld`` after the functions.
      examples: the questions, and what judges answers.
      form: how calls are written.
      weights: of the counts of calls in the reward.
      chat: as in ``tools``.
      exact: as in ``tools``.
      lengths: turns, turn_length, reply_length, prompt_length, completion_length.

    Raises:
      ValueError: an argument is out of range.
    """
    longest = _CHARACTERS * lengths[2]
    make = functools.partial(make, examples.reward, form, longest, _MOST, dict(weights), chat is False)
    template = False if chat is False else None if form == "tags" else True
    return assemble(name, make, examples.splits, template, exact, lengths)


def assemble(
    name: str,
    make: Callable[[], Any],
    problems: Mapping[str, Sequence[Any]],
    template: bool | None,
    exact: bool,
    lengths: tuple[int, ...],
) -> task.HostWorld:
    """Return the task of a class on text.

    Args:
      name: of the task.
      make: makes an instance.
      problems: the examples of each split.
      template: write by the chat template: True, False, None (if the tokenizer has one).
      exact: as in ``tools``.
      lengths: turns, turn_length, reply_length, prompt_length, completion_length.

    Raises:
      ValueError: a length is out of range.
    """
    fields = ("turns", "turn_length", "reply_length", "prompt_length", "completion_length")
    for field, value, low in zip(fields, lengths, (1, 1, 1, 0, 0), strict=True):
        _least(field, value, low)
    calls = limited.Calls(make)
    return task.HostWorld(name, make, calls, problems, *lengths, template=template, exact=exact)


def _least(field: str, value: int, low: int = 1) -> int:
    if value < low:
        raise ValueError(f"{field}={value}: must be {low} or more")
    return value


def _tool(path: str) -> Callable[..., Any]:
    """Return the tool at a dotted path."""
    with parse.resolving("functions"):
        return dotted.load(path, "tool")
