"""Host worlds of other libraries: ``gymnasium``, ``mcp``, ``openenv``."""

import functools
from typing import Any

from rljax.environments.questions import recipe
from rljax.environments.worlds.host import options, task
from rljax.environments.worlds.host.shipped import assisted
from rljax.environments.worlds.host.shipped import constructors as shipped
from rljax.environments.worlds.host.shipped.adapters import servers, text_envs
from rljax.language import dotted, messages, parse, settings


@settings.flat
def gymnasium(
    environment: str,
    actions: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    instruction: str = "",
    tagged: bool = False,
    games: options.Games = options.GAMES,
    lengths: options.Lengths = options.LONG,
) -> task.HostWorld:
    """Act in an environment of gymnasium (Towers et al., arXiv 2407.17032); see ``text_envs.Environment``.

    Args:
      environment: its id, such as "FrozenLake-v1", or with the module that registers it, "my_module:Shop-v0". Its
        observations are a space ``Text``, or it has the render mode "ansi"; its actions are ``Text`` or ``Discrete``.
      actions: a name for each action of a space ``Discrete``, in their order.
      settings: arguments of the environment.
      instruction: text before the first observation.
      tagged: whether the action is what the turn's last <action>...</action> holds, or the whole turn.
      games: the problems.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: gymnasium is not installed, has no such environment, or its observations or actions are not text.
    """
    messages.need("gymnasium", "gymnasium", "gymnasium")
    if ":" in environment:
        with parse.resolving("environment"):
            dotted.module(environment.partition(":")[0], "gymnasium")
    make = functools.partial(text_envs.Environment, environment, actions, settings, instruction, tagged)
    return _checked(shipped.of_games("gymnasium", make, games, lengths))


@settings.flat
def mcp(
    command: tuple[str, ...],
    path: recipe.Paths,
    asked: options.Asked = options.ASKED,
    *,
    functions: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
    seconds: float = 2.0,
    plan: str = "",
    lengths: options.Lengths = options.TURNS,
) -> task.HostWorld:
    """Read questions that are answered with the help of an MCP server's tools; see ``servers.ServedTools``.

    Args:
      command: the program that is the server, and its arguments, such as ("python", "server.py").
      path: the files of questions, as in ``jsonl``.
      asked: how questions are asked and judged.
      functions: the tools that are offered; (): all of the server.
      variables: environment variables of the server; of the run's it gets only PATH, HOME and a few more.
      seconds: of a call; of an episode's first call, the start of its server has as many.
      plan: a column with the calls of a demonstration; "": none.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: as ``tools``, mcp is not installed, the command starts no server, or it has no such tool.
      FileNotFoundError: a file does not exist.
    """
    messages.need("mcp", "mcp", "mcp")
    if not command:
        raise ValueError("command=(): names no program")
    if not 0 < seconds < 1e5:
        raise ValueError(f"seconds={seconds}: must be above 0 and below 100000")
    with parse.resolving("command"):
        dotted.program(command[0])
    examples = assisted.read("mcp", asked, path, assisted.listed("plan", plan))
    served = functools.partial(servers.ServedTools, command, variables, functions, seconds)
    return _checked(shipped.of_questions("mcp", served, examples, asked, lengths))


@settings.flat
def openenv(
    url: str,
    action: str,
    observation: str = "",
    fixed: dict[str, Any] | None = None,
    instruction: str = "",
    games: options.Games = options.GAMES,
    lengths: options.Lengths = options.LONG,
) -> task.HostWorld:
    """Act in an environment that a server of OpenEnv runs; see ``openenvs.Remote``.

    Args:
      url: of the server, which must be running, such as "http://localhost:8000".
      action: the field of an action that a turn is written to.
      observation: the field of an observation that the policy reads; "": all as JSON.
      fixed: other fields of every action.
      instruction: text before the first observation.
      games: the problems.
      lengths: of episodes.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: openenv-core is not installed, the address is none, no server answers there, or an observation has no
        such field.
    """
    messages.need("openenv", "openenv-core", "openenv", module="openenv")
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise ValueError(f"url={messages.shown(url)}: must begin with http://, https://, ws:// or wss://")
    from rljax.environments.worlds.host.shipped.adapters import openenvs  # imports openenv, which takes seconds

    make = functools.partial(openenvs.Remote, url, action, observation, fixed, instruction)
    world = _checked(shipped.of_games("openenv", make, games, lengths))
    world.text(0, "train")  # raises if no server answers
    return world


def _checked(world: task.HostWorld) -> task.HostWorld:
    """Return the world; ValueError if a worker process cannot make an instance."""
    _ = world.parts
    return world
