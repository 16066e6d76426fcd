# ruff: noqa: D102 (the tests say what each method is for)
"""Host worlds for tests; imported by worker processes."""

import itertools
import os
import random
import sys
import time

from rljax.environments.worlds.host import Observation

PID = os.getpid()


class Echo:
    """Answers what it is told to do; an episode has ``turns`` turns."""

    parts = ("turn",)

    def __init__(self, turns=2):
        self.turns = turns

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
        os.write(1, b"[1, null]\n")
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


class Shifty:
    """Gives another opening each time."""

    times = itertools.count()

    def reset(self, example):
        return f"{os.getpid()} {next(self.times)}"

    def step(self, text):
        if text == "hang":
            time.sleep(60)
        return Observation("ok")
