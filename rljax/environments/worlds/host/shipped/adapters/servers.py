"""Tools of MCP servers (Model Context Protocol, https://modelcontextprotocol.io). Worker processes load this module.

The server is a program that is started with the messages of the protocol on its standard input and output.
"""

import asyncio
import concurrent.futures
import contextlib
import functools
import importlib
import json
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.worlds import host
from rljax.environments.worlds.host import calls
from rljax.environments.worlds.host.shipped import tools
from rljax.language import messages, parse

_BEGUN = 60.0  # seconds in which a server must list its tools


class ServedTools(tools.ToolWorld):
    """``tools.ToolWorld`` with the tools of a server.

    The tools are listed once in each worker process. Each episode has a server of its own, which its first call starts;
    the episode's end ends the server. A server that ends before its episode makes the episode invalid. A call that
    takes more than ``seconds`` is answered so, and counted in ``failed``; the start of the server may take as many.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        functions: Sequence[str],
        seconds: float,
        *arguments: Any,
    ):
        """List the tools.

        Args:
          command: the program and its arguments.
          environment: variables of the server; of others it has only PATH, HOME and a few more.
          functions: the tools that are offered; (): all of the server.
          seconds: of a call.
          *arguments: of ``tools.ToolWorld``, after the functions.

        Raises:
          ValueError: the command does not start a server, or it has no such tool.
        """
        setting = tuple(command), tuple(sorted((environment or {}).items()))
        self._server = _Server(*setting, seconds)
        weakref.finalize(self, self._server.close)  # also of instances that begin no episode
        offered = {tool.name: tool for tool in _listed(*setting)}
        for name in functions:
            if name not in offered:
                raise ValueError(f"functions: the server has no tool {name!r}.{parse.nearest(name, offered)}")
        described: list[Any] = [_described(offered[name], self._server.call, seconds) for name in functions or offered]
        super().__init__(described, *arguments)

    def step(self, text: str) -> host.Observation:
        """Make the calls of a turn, or judge the answer; RuntimeError if the server has ended."""
        answered = super().step(text)
        if self._server.problem:
            raise RuntimeError(f"the MCP server: {self._server.problem}")
        return answered

    def close(self) -> None:
        """End the server."""
        self._server.close()


class _Server:
    """A server process, which the first request starts, and the session with it, in a thread with an event loop."""

    def __init__(self, command: tuple[str, ...], environment: tuple[tuple[str, str], ...], seconds: float):
        self._command, self._environment, self._seconds = command, dict(environment), seconds
        self._session: Any = None  # a future
        self._loop: Any = None
        self._closing: Any = None  # an event of the loop
        self.problem = ""  # why the server has ended

    def request(self, method: str, **arguments: Any) -> Any:
        """Return what a method of the session returns; TimeoutError if it takes too long."""
        if self._session is None:
            self._session = concurrent.futures.Future()
            threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True).start()
        session = self._session.result(self._seconds)
        answer = asyncio.run_coroutine_threadsafe(getattr(session, method)(**arguments), self._loop)
        try:
            return answer.result(self._seconds)
        finally:
            answer.cancel()

    def call(self, name: str, **arguments: Any) -> str:
        """Return the answer of a tool as text; ``calls.ToolError`` if it failed."""
        try:
            result = self.request("call_tool", name=name, arguments=arguments)
        except TimeoutError:
            raise calls.ToolError(f"Error: {name} gave no answer in {self._seconds:g} s") from None
        except Exception as error:
            answered = getattr(error, "error", None)  # by the server, unless the connection is closed
            if answered is None or answered.code == importlib.import_module("mcp.types").CONNECTION_CLOSED:
                self.problem = messages.printable(f"{type(error).__name__}: {error}")
            raise calls.ToolError(f"Error: {messages.printable(error)}") from None
        fields = result.model_dump(by_alias=True)  # in the words of the protocol, whatever the version of the package
        texts = [block["text"] if block["type"] == "text" else f"({block['type']})" for block in fields["content"]]
        text = "\n".join(texts) if texts else json.dumps(fields.get("structuredContent"), ensure_ascii=False)
        if fields["isError"]:
            raise calls.ToolError(text)
        return text

    def close(self) -> None:
        """End the server, and the thread; neither is waited for."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._closing.set)

    async def _serve(self) -> None:
        mcp, client = (importlib.import_module(name) for name in ("mcp", "mcp.client.stdio"))
        program, *arguments = self._command
        how = client.StdioServerParameters(command=program, args=arguments, env=self._environment)
        self._loop, self._closing = asyncio.get_running_loop(), asyncio.Event()
        try:
            with open(os.devnull, "w") as errors:
                async with client.stdio_client(how, errors) as streams, mcp.ClientSession(*streams) as session:
                    await session.initialize()
                    self._session.set_result(session)
                    await self._closing.wait()
        except Exception as error:
            while isinstance(error, BaseExceptionGroup):
                error = error.exceptions[0]
            if not self._session.done():
                self._session.set_exception(error)


@functools.cache
def _listed(command: tuple[str, ...], environment: tuple[tuple[str, str], ...]) -> tuple[Any, ...]:
    """Return the tools of a server, which is started for this."""
    server = _Server(command, environment, _BEGUN)
    types, listed, cursor = importlib.import_module("mcp.types"), [], None
    try:
        while True:
            page: Any = server.request("list_tools", params=cursor and types.PaginatedRequestParams(cursor=cursor))
            listed += page.tools
            if not (cursor := page.model_dump(by_alias=True).get("nextCursor")):
                break
    except Exception as error:
        problem = messages.printable(f"{type(error).__name__}: {error}")
        raise ValueError(f"command={messages.shown(command)} starts no MCP server: {problem}") from None
    finally:
        server.close()
    if not listed:
        raise ValueError(f"command={messages.shown(command)}: the server has no tools")
    return tuple(listed)


def _described(tool: Any, call: Callable[..., str], seconds: float) -> calls.Described:
    form = {"type": "object", "properties": {}, "required": [], **tool.model_dump(by_alias=True)["inputSchema"]}
    jsonschema = importlib.import_module("jsonschema")
    validator = jsonschema.validators.validator_for(form, jsonschema.Draft202012Validator)(form)

    def mismatch(arguments: Mapping[str, Any]) -> str:
        error = jsonschema.exceptions.best_match(validator.iter_errors(arguments))
        return error.message if error else ""

    description = {"name": tool.name, "description": tool.description or "", "parameters": form}
    return calls.Described(functools.partial(call, tool.name), description, mismatch, seconds)
