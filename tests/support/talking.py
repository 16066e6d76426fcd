# ruff: noqa: D102 (the tests say what each method is for)
"""Host worlds for tests; imported by worker processes."""

import asyncio
import itertools
import os
import random
import signal
import sys
import threading
import time

from rljax.environments.worlds.host import Observation

PID = os.getpid()


class Echo:
    """Answers what it is told to do; an episode has ``turns`` turns."""

    parts = ("turn",)

    def __init__(self, turns=2):
        self.turns, self.turn = turns, 0

    def reset(self, example):
        if example == "hang":
            time.sleep(60)
        if example == "empty":
            return ""
        self.turn = 0
        return f"Begin {example}."

    def step(self, text):
        self.turn += 1
        answer = getattr(self, text.partition(" ")[0], lambda: f"{text}{self.turn}")()
        if isinstance(answer, Observation):
            return answer
        return Observation(answer, reward=0.5, done=self.turn == self.turns, parts={"turn": self.turn})

    def hang(self):
        time.sleep(60)

    def doze(self):
        time.sleep(0.3)
        return "awake"

    def slow(self):
        time.sleep(1.2)
        return "at last"

    def fail(self):
        raise RuntimeError("the tool is broken")

    def leave(self):
        sys.exit(3)

    def die(self):
        os._exit(3)

    def eat(self):
        return str(len(bytearray(16 << 30)))

    def print(self):
        print("x" * 100_000)
        os.write(1, b'[1, null, ""]\n')
        return "printed"

    def binary(self):
        return b"\x00\x01"

    def null(self):
        return "a\0b"

    def endless(self):
        return "x" * (1 << 21)

    def infinite(self):
        return Observation("", reward=float("nan"))

    def nothing(self):
        return Observation("", done="yes")

    def says(self):
        return Observation("", outcome="crashed")

    def rolls(self):
        return str(random.random())

    def where(self):
        return str(PID)


class Count:
    """Asks for the numbers from 1 on; its expert counts."""

    examples = 20

    def reset(self, example):
        self.next = 1
        self.last = 2 + example % 2
        return f"Count to {self.last}:"

    def step(self, text):
        right = text == str(self.next)
        self.next += 1
        done = not right or self.next > self.last
        return Observation("+" if right else "-", reward=float(right and done), done=done)

    def expert(self):
        return str(self.next)


class Cuts(Count):
    """Cuts what is too long; it inherits its methods."""

    cut, role = True, "tool"


class Awaited(Count):
    """``Count`` with coroutines. A task that ``reset`` starts runs on while ``step`` waits, in the episode's loop."""

    async def reset(self, example):
        self.loop, self.ticks = asyncio.get_running_loop(), 0
        self.clock = asyncio.create_task(self.tick())
        return super().reset(example)

    async def tick(self):
        while True:
            self.ticks += 1
            await asyncio.sleep(0)

    async def step(self, text):
        before = self.ticks
        await asyncio.sleep(0.001)
        if asyncio.get_running_loop() is not self.loop or self.ticks == before:
            raise RuntimeError("another loop")
        return super().step(text)

    async def expert(self):
        return super().expert()

    async def close(self):
        self.clock.cancel()


class Meeting:
    """A turn waits until four of the process wait."""

    barrier = threading.Barrier(4)

    def reset(self, example):
        return "?"

    def step(self, text):
        self.barrier.wait()
        return Observation(text, done=True)


class AwaitedMeeting(Meeting):
    """``Meeting`` with coroutines."""

    barrier = asyncio.Barrier(4)

    async def step(self, text):
        await self.barrier.wait()
        return Observation(text, done=True)


def meet(text, target):
    """Return a reward after three others have been asked for one."""
    Meeting.barrier.wait()
    return float(text)


class Rough:
    """Its coroutines block the event loop, end the process, or are cancelled; the tasks that they leave are counted."""

    left = 0

    async def reset(self, example):
        self.task = asyncio.create_task(self.wait())
        return "?"

    async def wait(self):
        try:
            await asyncio.sleep(60)
        finally:
            Rough.left += 1

    async def step(self, text):
        await asyncio.sleep(0.05)
        if text == "block":
            time.sleep(60)
        if text == "die":
            os._exit(3)
        if text == "leave":
            await asyncio.create_task(self.leave())
        if text == "cancel":
            asyncio.current_task().cancel()
        await asyncio.sleep(0.05)
        return Observation(f"{text} {Rough.left}", done=text != "go on")

    async def leave(self):
        sys.exit(3)


class Stuck(Count):
    """Hangs, eats memory or ends its process in one of its methods."""

    def __init__(self, where="", how="hang"):
        self.place, self.how = where, how
        self.stick("the constructor")

    def stick(self, here):
        if here == self.place:
            Echo().step(self.how)

    def reset(self, example):
        self.stick("reset()")
        return super().reset(example)

    def step(self, text):
        self.stick("step()")
        return super().step(text)

    def expert(self):
        self.stick("expert()")
        return super().expert()

    def corpus(self):
        yield "abc"
        self.stick("corpus()")


class Shifty:
    """Gives another opening each time."""

    times = itertools.count()

    def reset(self, example):
        return f"{os.getpid()} {next(self.times)}"

    def step(self, text):
        if text == "hang":
            time.sleep(60)
        return Observation("ok")


class Guess:
    """The world ``guess`` on the host: the same secrets, answers and rewards. ``MOOD`` makes it fail, by problem."""

    parts = ("malformed",)
    calls = 0  # in this process

    def __init__(self, secrets, turns):
        self.secrets, self.turns = secrets, turns

    def reset(self, example):
        self.example, self.turn, self.malformed = example, 0, 0
        if self._mood("deaf"):
            raise RuntimeError("deaf")
        return "10?"

    def step(self, text):
        Guess.calls += 1
        mood = self._mood()
        if mood == "slow" and self.turn == 0:
            time.sleep(1.2)
        if mood == "hang":
            time.sleep(60)
        if os.environ.get("KILLED_AT") == str(Guess.calls):
            os.kill(os.getpid(), signal.SIGKILL)  # the run itself, if it has no workers
        if mood == "broken" and self.turn == 1:
            raise RuntimeError("the guess is broken")
        self.turn += 1
        readable = len(text) <= 3 and text.isascii() and text.isdigit()
        self.malformed += not readable
        hit = readable and int(text) == self.secrets[self.example]
        sign = "?" if not readable else "-" if int(text) > self.secrets[self.example] else "+"
        return Observation(
            "++" if mood == "long" else sign,
            reward=float(hit),
            done=hit,
            truncated=not hit and self.turn == self.turns,
            outcome="correct" if hit else "wrong" if readable else "unparseable",
            parts={"malformed": self.malformed},
        )

    def _mood(self, name=""):
        moods = dict(each.split("=") for each in os.environ.get("MOOD", "").split())
        mood = moods.get(str(self.example), "")
        return mood == name if name else mood

    def expert(self):
        return str(self.secrets[self.example])
