"""Worlds of characters in plain Python: what follows a turn, as (reply, reward, done, outcome)."""

import collections
import itertools
import re

from rljax import types

CORRECT, WRONG, UNPARSEABLE = types.Outcome.CORRECT, types.Outcome.WRONG, types.Outcome.UNPARSEABLE


class _Calculator:
    """Needs no secret: the question is in the prompt."""

    def __init__(self, prompt, world, known):
        self.answer, self.width = eval(prompt.removesuffix("=")), world.reply_length
        self.parts = {"calls": 0, "malformed": 0}

    def turn(self, text):
        if match := re.fullmatch(r"=([0-9]{1,9})", text):
            hit = int(match[1]) == self.answer
            return None, float(hit), True, CORRECT if hit else WRONG
        if match := re.fullmatch(r"([0-9]{1,9})([*+])([0-9]{1,9})", text):
            left, right = int(match[1]), int(match[3])
            result = str(left * right if match[2] == "*" else left + right)
            if len(result) <= self.width:
                self.parts["calls"] += 1
                return result, 0.0, False, WRONG
        self.parts["malformed"] += 1
        return "?", 0.0, False, UNPARSEABLE


class _Maze:
    """Reads the map of the prompt."""

    def __init__(self, prompt, world, known):
        head, self.map = prompt.rsplit(" ", 1)
        start, goal = head.split(">")
        self.side = round(len(self.map) ** 0.5)
        assert self.side**2 == len(self.map)
        if ";" in goal:
            goal, *objects = goal.split(";")
            assert len(set(objects)) == len(objects) == world.rules.objects
            goal = dict(pair.split(" ") for pair in objects)[goal]
        self.cell, self.goal = self.number(start), self.number(goal)
        self.distance, self.view = self.search()[self.cell], world.rules.view
        self.parts = {"moves": 0, "bumps": 0, "malformed": 0}
        if world.rules.walls == 1:  # a spanning tree: connected, with one edge less than cells
            edges = sum({"#": 0, "-": 1, "|": 1, ".": 2}[c] for c in self.map)
            assert edges == len(self.map) - 1
        assert len(self.search()) == len(self.map)

    def number(self, name):
        return int(name[1]) - 1, ord(name[0]) - ord("a")

    def around(self, cell):
        """Return the open directions."""
        row, column = cell
        shown = dict(zip(itertools.product(range(self.side), repeat=2), self.map, strict=True))
        near = {"N": (row - 1, column), "E": (row, column + 1), "S": (row + 1, column), "W": (row, column - 1)}
        south, east = shown.get(near["N"], "#") in "|.", shown[cell] in "-."
        is_open = {"N": south, "E": east, "S": shown[cell] in "|.", "W": shown.get(near["W"], "#") in "-."}
        return {d: near[d] for d in "NESW" if is_open[d]}

    def search(self):
        """Return the distance of every cell from the goal."""
        distance, queue = {self.goal: 0}, collections.deque([self.goal])
        while queue:
            cell = queue.popleft()
            for near in self.around(cell).values():
                if near not in distance:
                    distance[near] = distance[cell] + 1
                    queue.append(near)
        return distance

    def turn(self, text):
        if not re.fullmatch("[NESW]+", text):
            self.parts["malformed"] += 1
            return "?", 0.0, False, UNPARSEABLE
        for letter in text:
            if self.cell == self.goal:
                break
            if letter not in self.around(self.cell):
                self.parts["bumps"] += 1
                break
            self.cell = self.around(self.cell)[letter]
            self.parts["moves"] += 1
        hit, (row, column) = self.cell == self.goal, self.cell
        view = "".join(self.around(self.cell)) if self.view == "ways" else ""
        return f"{chr(column + ord('a'))}{row + 1}{view}", float(hit), hit, CORRECT if hit else WRONG

    def finished(self):
        assert self.parts == {"moves": self.distance, "bumps": 0, "malformed": 0}  # a shortest path


class _Memory:
    """Reads the chunks of the prompts."""

    def __init__(self, prompt, world, known):
        self.asked, self.facts, self.note = prompt.split("|")[0], {}, ""
        self.alphabet, self.parts = world.rules.alphabet, {"right": 0.0}
        self.prompt = prompt

    def read(self, prompt):
        assert prompt.startswith(f"{self.asked}|{self.note}|")
        self.prompt = prompt

    def turn(self, text):
        chunk = self.prompt.rsplit("|", 1)[1]
        if chunk != "=":
            self.facts |= {key: value for key, value in zip(chunk[::2], chunk[1::2], strict=True)}
            self.note = "".join(c if c in self.alphabet else "?" for c in text)
            return "", 0.0, False, WRONG
        answer = "".join(self.facts[key] for key in self.asked)
        if not re.fullmatch(f"[0-9]{{{len(answer)}}}", text):
            return "", 0.0, True, UNPARSEABLE
        self.parts["right"] = sum(x == y for x, y in zip(text, answer, strict=True)) / len(answer)
        return "", float(text == answer), True, CORRECT if text == answer else WRONG


class _Guess:
    """The secret is what the expert named at last in the same problem."""

    def __init__(self, prompt, world, known):
        self.secret, self.turns, self.count = int(known[-1]), world.max_turns, 0
        self.efficiency, self.parts = world.rules.secret.efficiency, {"malformed": 0}
        assert self.secret < int(prompt.removesuffix("?")) == world.rules.secret.numbers

    def answer(self, text):
        if re.fullmatch("[0-9]+", text):
            return "+" if int(text) < self.secret else "-"
        return "?"

    def turn(self, text):
        self.count += 1
        hit = bool(re.fullmatch("[0-9]+", text)) and int(text) == self.secret
        reply = None if hit else self.answer(text)
        self.parts["malformed"] += reply == "?"
        paid = 1 - self.efficiency * (self.count - 1) / self.turns
        return reply, paid if hit else 0.0, hit, CORRECT if hit else UNPARSEABLE if reply == "?" else WRONG


class _TwentyQuestions(_Guess):
    """Answers questions."""

    def answer(self, text):
        if re.fullmatch("[0-9]+", text):
            return "n"
        if not re.fullmatch("b[0-9]+|/0*[1-9][0-9]*|d0*[0-9]", text):
            return "?"
        value = int(text[1:])
        yes = {
            "b": lambda: bin(self.secret)[2:][::-1][value : value + 1] == "1",
            "/": lambda: self.secret % value == 0,
            "d": lambda: str(value) in str(self.secret),
        }
        return "y" if yes[text[0]]() else "n"


class _Wordle:
    """The word is what the expert named at last in the same problem."""

    def __init__(self, prompt, world, known):
        self.word, self.parts = known[-1], {"malformed": 0}
        r = world.rules
        letters = "abcdefghijklmnopqrstuvwxyz"[: r.letters]
        self.words = r.words.split() or ["".join(w) for w in itertools.product(letters, repeat=r.length)]

    def turn(self, text):
        if text not in self.words:
            self.parts["malformed"] += 1
            return "?", 0.0, False, UNPARSEABLE
        hit = text == self.word
        return marks(text, self.word), float(hit), hit, CORRECT if hit else WRONG


def marks(guess, word):
    left = collections.Counter(w for g, w in zip(guess, word, strict=True) if g != w)
    signs = []
    for g, w in zip(guess, word, strict=True):
        signs.append("G" if g == w else "Y" if left[g] > 0 else "-")
        left[g] -= signs[-1] == "Y"
    return "".join(signs)


class _Retry:
    """The value is what any search in the same problem found; searches may find it or not."""

    def __init__(self, prompt, world, known):
        self.key, self.values, self.failed = prompt[1:-1], known, False
        self.bonus, self.parts, self.retries = world.rules.bonus, {"retries": 0, "searches": 0, "malformed": 0}, 0

    def turn(self, text):
        sign, number = text[:1], text[1:]
        if sign not in ("?", "=") or not re.fullmatch(f"[0-9]{{{len(self.key)}}}", number):
            self.parts["malformed"] += 1
            return "?", 0.0, False, UNPARSEABLE
        if sign == "?":
            self.parts["searches"] += 1
            self.retries += self.failed
            return {"-", self.values} if number == self.key else "-", 0.0, False, WRONG
        hit, self.parts["retries"] = number == self.values, self.retries
        return None, hit + self.bonus * self.retries, True, CORRECT if hit else WRONG

    def told(self, reply):
        self.failed = {"-": True, "?": self.failed}.get(reply, False)


ORACLES = {
    "calculator": ("calculator(turns=5)", _Calculator),
    "long": ("calculator(digits=4, terms=4)", _Calculator),
    "maze": ("maze()", _Maze),
    "colours": ("maze(side=5, moves=3, walls=0.5, objects=3, view='ways')", _Maze),
    "memory": ("memory()", _Memory),
    "guess": ("guess(numbers=63, efficiency=0.5)", _Guess),
    "twenty_questions": ("twenty_questions(numbers=50, heldout=0.2)", _TwentyQuestions),
    "wordle": ("wordle()", _Wordle),
    "words": ("wordle(words='allee eller label level abbey babel belle libel bible ebbed')", _Wordle),
    "retry": ("retry(found=0.7, turns=9, bonus=0.25)", _Retry),
}
