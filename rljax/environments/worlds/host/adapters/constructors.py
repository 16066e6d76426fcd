"""Host worlds of other libraries: ``gymnasium``, ``mcp``, ``openenv``."""

import functools
import importlib.util
from typing import Any

from rljax.environments.questions import recipe
from rljax.environments.verifiers import answers, rewards
from rljax.environments.worlds.host import assisted, calls, task
from rljax.environments.worlds.host import constructors as shipped
from rljax.environments.worlds.host.adapters import servers, text_envs
from rljax.language import dotted, messages, parse
from rljax.language.settings import Count, Size


def gymnasium(
    environment: str,
    actions: tuple[str, ...] = (),
    settings: dict[str, Any] | None = None,
    instruction: str = "",
    tagged: bool = False,
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
    """Act in an environment of gymnasium (Towers et al., arXiv 2407.17032); see ``text_envs.Environment``.

    Args:
      environment: its id, such as "FrozenLake-v1", or with the module that registers it, "my_module:Shop-v0". Its
        observations are a space ``Text``, or it has the render mode "ansi"; its actions are ``Text`` or ``Discrete``.
      actions: a name for each action of a space ``Discrete``, in their order.
      settings: arguments of the environment.
      instruction: text before the first observation.
      tagged: whether the action is what the turn's last <action>...</action> holds, or the whole turn.
      size: number of training problems, each a seed of the environment.
      heldout: number of held-out problems.
      chat: write by the chat template: True, False, None (if the tokenizer has one).
      turns: the most turns of the policy.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens of an observation.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: as in ``tools``.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: gymnasium is not installed, has no such environment, or its observations or actions are not text.
    """
    _needs("gymnasium", "gymnasium", "gymnasium")
    if ":" in environment:
        with parse.resolving("environment"):
            dotted.module(environment.partition(":")[0], "gymnasium")
    make = functools.partial(text_envs.Environment, environment, actions, settings, instruction, tagged)
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return _checked(shipped.assemble("gymnasium", make, shipped.seeds(size, heldout), chat, exact, lengths))


def mcp(
    command: tuple[str, ...],
    path: recipe.Paths,
    prompt: str = "{question}",
    answer: str = "answer",
    reward: rewards.Reward = "exact",
    functions: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
    seconds: float = 2.0,
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
    """Read questions that are answered with the help of an MCP server's tools; see ``servers.ServedTools``.

    Args:
      command: the program that is the server, and its arguments, such as ("python", "server.py").
      path: the files of questions, as in ``jsonl``.
      prompt: as in ``tools``; so are answer, reward, plan, heldout, chat, form, weights, formats, instruction, final
        and the lengths.
      answer: the reference that the reward function compares with.
      reward: as in ``jsonl``.
      functions: the tools that are offered; (): all of the server.
      variables: environment variables of the server; of the run's it gets only PATH, HOME and a few more.
      seconds: of a call; of an episode's first call, the start of its server has as many.
      plan: a column with the calls of a demonstration; "": none.
      heldout: the fraction of prompts that is held out, or files.
      chat: messages before the question.
      form: how calls are written.
      weights: of the counts of calls in the reward.
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
      ValueError: as ``tools``, mcp is not installed, the command starts no server, or it has no such tool.
      FileNotFoundError: a file does not exist.
    """
    _needs("mcp", "mcp", "mcp")
    if not command:
        raise ValueError("command=(): names no program")
    if not 0 < seconds < 1e5:
        raise ValueError(f"seconds={seconds}: must be above 0 and below 100000")
    with parse.resolving("command"):
        dotted.program(command[0])
    how = recipe.Recipe("mcp", prompt, answer, reward=reward, final=final, formats=formats, instruction=instruction)
    examples = assisted.read(how, path, heldout, chat, assisted.listed("plan", plan))
    served = functools.partial(servers.ServedTools, command, variables, functions, seconds)
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    return _checked(shipped.asked("mcp", served, examples, form, weights or {}, chat, exact, lengths))


def openenv(
    url: str,
    action: str,
    observation: str = "",
    fixed: dict[str, Any] | None = None,
    instruction: str = "",
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
    """Act in an environment that a server of OpenEnv runs; see ``openenvs.Remote``.

    Args:
      url: of the server, which must be running, such as "http://localhost:8000".
      action: the field of an action that a turn is written to.
      observation: the field of an observation that the policy reads; "": all as JSON.
      fixed: other fields of every action.
      instruction: text before the first observation.
      size: number of training problems, each a seed of the environment.
      heldout: number of held-out problems.
      chat: write by the chat template: True, False, None (if the tokenizer has one).
      turns: the most turns of the policy.
      turn_length: the most tokens of a turn.
      reply_length: the most tokens of an observation.
      prompt_length: L, tokens; 0: the longest prompt, rounded up.
      completion_length: T, tokens of a row; 0: as many as ``turns`` turns need.
      exact: as in ``tools``.

    Returns:
      The world, not yet bound to a tokenizer.

    Raises:
      ValueError: openenv-core is not installed, the address is none, no server answers there, or an observation has no
        such field.
    """
    _needs("openenv", "openenv", "openenv-core")
    if not url.startswith(("http://", "https://", "ws://", "wss://")):
        raise ValueError(f"url={messages.shown(url)}: must begin with http://, https://, ws:// or wss://")
    from rljax.environments.worlds.host.adapters import openenvs  # imports openenv, which takes seconds

    make = functools.partial(openenvs.Remote, url, action, observation, fixed, instruction)
    lengths = (turns, turn_length, reply_length, prompt_length, completion_length)
    world = _checked(shipped.assemble("openenv", make, shipped.seeds(size, heldout), chat, exact, lengths))
    world.text(0, "train")  # raises if no server answers
    return world


def _checked(world: task.HostWorld) -> task.HostWorld:
    """Return the world; ValueError if a worker process cannot make an instance."""
    _ = world.parts
    return world


def _needs(name: str, module: str, package: str) -> None:
    if importlib.util.find_spec(module) is None:
        raise ValueError(f"{name} needs {package}: pip install {package}, or in the checkout pip install '.[{name}]'")
