"""Calls that a worker runs at once: each in a thread, and what they return that is awaitable in one event loop.

A coroutine needs no thread while it waits, so the number of calls at once is not that of threads.
"""

import asyncio
import contextlib
import inspect
import os
import pickle
import threading
import traceback
from collections.abc import Callable
from concurrent import futures
from typing import Any, BinaryIO

from rljax.environments.workers import worker

Called = Callable[[str, bytes], tuple[Any, str]]


def serve(requests: BinaryIO, called: Called, send: Callable[[Any], None], concurrency: int) -> None:
    """Answer lists of calls as ``worker.serve`` does, several at once. Does not return.

    A call without a method is answered by the event loop at once, which shows that the process is not blocked.

    Args:
      requests: the lists, pickled.
      called: ``worker.called`` of the object.
      send: sends an answer; the event loop alone calls it.
      concurrency: the most threads.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.set_default_executor(futures.ThreadPoolExecutor(concurrency))

    def read() -> None:
        try:
            while True:
                asyncio.run_coroutine_threadsafe(_answer(pickle.load(requests), called, send), loop)
        finally:
            os._exit(0)  # the pool has closed the pipe

    threading.Thread(target=read, daemon=True).start()
    while not loop.is_closed():
        with contextlib.suppress(SystemExit, KeyboardInterrupt):  # raised by a task of the code
            loop.run_forever()


async def _answer(calls: list[tuple[int, str, bytes]], called: Called, send: Callable[[Any], None]) -> None:
    """Answer calls in order."""
    try:
        for serial, method, arguments in calls:
            send([serial, *(await _called(called, method, arguments) if method else (None, ""))])
    except BaseException:  # an answer that cannot be sent ends the worker, as it does without concurrency
        os._exit(0)


async def _called(called: Called, method: str, arguments: bytes) -> tuple[Any, str]:
    try:
        value, error = await asyncio.to_thread(called, method, arguments)
        return worker.plain(await value) if inspect.isawaitable(value) else value, error
    except BaseException:  # the code may cancel any task
        return None, worker.shortened(traceback.format_exc())
