"""Worlds that ship on the host: ``tools``, ``python_tool``, ``search``, ``textarena``."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from rljax.environments.questions import recipe
from rljax.environments.verifiers.sandbox import start
from rljax.environments.worlds.host import limited, options, task
from rljax.environments.worlds.host.shipped import arena, assisted, interpreter, passages
from rljax.environments.worlds.host.shipped import tools as world
from rljax.language import dotted, parse, settings
from rljax.language.settings import Count

_CHARACTERS = 8  # of a token, at most: an answer of a tool is cut after so many for each token of a reply
_MOST = 4  # calls of a turn; of the interpreter, each takes at most ``seconds``
_HELD_OUT = 1 << 30  # the first seed of held-out games


@settings.flat
def tools(
    functions: str | tuple[str, ...],
    path: recipe.Paths,
    asked: options.Asked = options.ASKED,
    *,
    plan: str = "",
    lengths: options.Lengths = options.TURNS,
) -> task.HostWorld:
    """Read questions that are answered with the help of tools; see ``tools.ToolWorld``.

    Args:
      functions: dotted paths of functions under ``@calls.tool``, such as "my_tools.convert".
      path: the files, as in ``jsonl``.
      asked: how questions are asked and judged.
      plan: a column with the calls of a demonstration, [{"name": ..., "arguments": {...}}, ...]; "": none.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: an argument is out of range, a function is no tool, or a row is invalid.
      FileNotFoundError: a file does not exist.
    """
    examples = assisted.read("tools", asked, path, assisted.listed("plan", plan))
    called = [_tool(each) for each in ((functions,) if isinstance(functions, str) else functions)]
    return _assisted("tools", called, examples, asked, lengths)


@settings.flat
def python_tool(
    path: recipe.Paths = "",
    asked: options.Asked = options.NUMBERS,
    *,
    code: str = "",
    seconds: float = 1.0,
    memory: float = 0.5,
    unsafe: bool = False,
    digits: Count = 4,
    operands: Count = 3,
    lengths: options.Lengths = options.TURNS,
) -> task.HostWorld:
    """Read questions that are answered with the help of a Python interpreter; see ``interpreter.Interpreter``.

    Args:
      path: the files, as in ``jsonl``; "": sums and products of ``operands`` numbers of up to ``digits`` digits.
      asked: how questions are asked and judged.
      code: a column with the code that a demonstration runs before it answers; "": it answers at once.
      seconds: wall time of a call, earlier cells of the episode included.
      memory: GiB of address space of a call.
      unsafe: run code although the kernel refuses the namespaces that protect this machine from it.
      digits: of questions that are made here.
      operands: likewise.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: as ``tools``, or the kernel refuses namespaces and not ``unsafe``.
      FileNotFoundError: a file does not exist.
    """
    tool = interpreter.Interpreter(seconds, memory, _CHARACTERS * lengths.reply_length, unsafe)
    start.check(unsafe)
    if path:
        plan = assisted.column("code", code, "python", "code") if code else assisted.listed("code", "")
        examples = assisted.read("python_tool", asked, path, plan)
    else:
        examples = assisted.calculations(digits, operands, 0, asked.chat)
    return _assisted("python_tool", [tool], examples, asked, lengths)


@settings.flat
def search(
    folder: str,
    path: recipe.Paths,
    asked: options.Asked = options.ASKED,
    *,
    query: str = "",
    passages_shown: Count = 3,
    words: Count = 60,
    lengths: options.Lengths = options.PASSAGES,
) -> task.HostWorld:
    """Read questions that are answered with the help of a search in texts; see ``passages.Search``.

    The form "tags" is the form of Search-R1 (arXiv 2503.09516).

    Args:
      folder: a local folder of .txt and .md files.
      path: the files of questions, as in ``jsonl``.
      asked: how questions are asked and judged.
      query: a column with the words that a demonstration searches for; "": the question.
      passages_shown: passages of an answer.
      words: of a passage.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: as ``tools``, bm25s is not installed, or the folder has no texts.
      FileNotFoundError: a file does not exist.
    """
    tool = passages.Search(folder, passages_shown, words)
    examples = assisted.read("search", asked, path, assisted.column("query", query, "search", "query"))
    return _assisted("search", [tool], examples, asked, lengths)


@settings.flat
def textarena(
    game: str,
    players: Count = 1,
    seat: int | None = None,
    actions: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    opponent: arena.Opponent = "random",
    games: options.Games = options.GAMES,
    lengths: options.Lengths = options.LONG,
) -> task.HostWorld:
    """Play a game of textarena (Guertler et al., arXiv 2504.11442); see ``arena.Game``.

    Args:
      game: its name, such as "GuessTheNumber-v0".
      players: number of players.
      seat: the player that the policy is; None: each in turn, by the number of the problem.
      actions: what the other players may write; (): known of some games.
      settings: arguments of the game.
      opponent: who plays the other players: actions drawn at random, or in self-play a seat for each player.
      games: the problems.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: textarena is not installed, has no such game or cannot begin it, or an argument is out of range.
    """
    made = functools.partial(arena.Game, game, players, seat, actions, settings, opponent)
    made().check()
    return of_games("textarena", made, games, lengths)


def of_games(name: str, make: Callable[[], Any], games: options.Games, lengths: options.Lengths) -> task.HostWorld:
    """Return a world whose problems are seeds.

    Args:
      name: of the task.
      make: makes an instance.
      games: the problems.
      lengths: of episodes.
    """
    seeds = {"train": range(games.size), "heldout": range(_HELD_OUT, _HELD_OUT + games.heldout)}
    return task.HostWorld(name, make, limited.Calls(make), seeds, lengths, games.chat)


def of_questions(
    name: str, make: Callable[..., Any], examples: assisted.Examples, asked: options.Asked, lengths: options.Lengths
) -> task.HostWorld:
    """Return a world of questions that are answered with the help of tools.

    Args:
      name: of the task.
      make: makes an instance from the arguments of ``tools.ToolWorld`` after the functions.
      examples: the questions, and what judges answers.
      asked: how questions are asked.
      lengths: of episodes.
    """
    longest, weights = _CHARACTERS * lengths.reply_length, dict(asked.weights or {})
    make = functools.partial(make, examples.reward, asked.form, longest, _MOST, weights, asked.chat is False)
    return task.HostWorld(name, make, limited.Calls(make), examples.splits, lengths, asked.template)


def _assisted(name: str, functions: Sequence[Any], *arguments: Any) -> task.HostWorld:
    made = of_questions(name, functools.partial(world.ToolWorld, tuple(functions)), *arguments)
    made.make()  # raises if an argument is out of range
    return made


def _tool(path: str) -> Callable[..., Any]:
    """Return the tool at a dotted path."""
    with parse.resolving("functions"):
        return dotted.load(path, "tool")
