"""Reading programs in what models write, and tests in the rows of data sets. Imports no jax, for worker processes."""

import ast
import dataclasses
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.language import messages

_PLAIN = """from math import inf, nan
def _plain(x):
    if isinstance(x, dict):
        return {k: _plain(v) for k, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, (list, tuple)) else x
"""  # JSON has these numbers, and no tuples
_FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)(?:^[ \t]*```[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Tests:
    """What a program has to do: ``pairs`` of input and output, or ``code`` with assertions."""

    pairs: tuple[tuple[str, str], ...] = ()
    code: tuple[str, ...] = ()


def read(reference: Any) -> Tests:
    """Return the tests of a row.

    Args:
      reference: code with assertions or a function ``check``, as in HumanEval; a list of assertions, as in MBPP; or
        {"inputs": [...], "outputs": [...]}, as in APPS, or {"input": ..., "output": ...}, as in CodeContests, also as
        JSON; an input or output is a text, or a list of lines. With a "fn_name", inputs are lists of its arguments.

    Raises:
      ValueError: it is none of these, or the code cannot be parsed.
    """
    if isinstance(reference, str) and reference.lstrip().startswith("{"):
        try:
            reference = json.loads(reference)
        except ValueError as error:
            raise ValueError(f"tests are not JSON: {error}") from None
    if isinstance(reference, Mapping):
        return _pairs(reference)
    code = (reference,) if isinstance(reference, str) else reference
    if not isinstance(code, Sequence) or not code or not all(isinstance(each, str) and each.strip() for each in code):
        raise ValueError(f"tests are {messages.shown(reference)}, expected code, a list of code, or inputs and outputs")
    try:
        trees = [ast.parse(each) for each in code]
    except SyntaxError as error:
        raise ValueError(f"tests are no Python: {error}") from None
    if not any(_asserts(node) for tree in trees for node in ast.walk(tree)):
        raise ValueError("tests have no assertion")
    return Tests(code=tuple(code))


def _asserts(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Attribute) and node.attr.startswith("assert"))


def _pairs(tests: Mapping[str, Any]) -> Tests:
    given, expected = (tests.get(name, tests.get(f"{name}s")) for name in ("input", "output"))
    if not (isinstance(given, list) and isinstance(expected, list) and len(given) == len(expected) > 0):
        raise ValueError("tests: 'inputs' and 'outputs' must be lists of one length above 0")
    if name := tests.get("fn_name"):
        calls = zip(given, expected, strict=True)  # APPS has a returned value as it is, or as the only one of a list
        return Tests(
            code=tuple(
                f"{_PLAIN}assert _plain({name}(*{a!r})) in {[b, *(b if isinstance(b, list) and len(b) == 1 else [])]!r}"
                for a, b in calls
            )
        )
    return Tests(pairs=tuple((_text(a), _text(b)) for a, b in zip(given, expected, strict=True)))


def _text(value: Any) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def program(completion: str, prompt: str = "", entry_point: str = "") -> str:
    """Return the program of a completion.

    Args:
      completion: its last fenced block of Python, else its last fenced block, else all of it is code.
      prompt: the beginning of a program, which the code may continue, or repeat in its own way.
      entry_point: the function that the prompt begins.
    """
    blocks = [(match[1].strip().lower(), match[2]) for match in _FENCE.finditer(completion)]
    python = [code for language, code in blocks if language.startswith("py")] or [code for _, code in blocks]
    code = python[-1] if python else completion
    if not (entry_point and code.strip()):
        return code
    whole = re.search(rf"^(?:async +)?def +{re.escape(entry_point)}\b", code, re.MULTILINE)
    before = prompt if not whole or parses(prompt) else ""
    return f"{before}\n{code}" if before else code


def parses(code: str) -> bool:
    """Return whether the code of a data set is Python."""
    try:
        return bool(ast.parse(code))
    except (SyntaxError, ValueError):
        return False


def words(text: str) -> list[list[str]]:
    """Return the words of each line; space within a line and at the ends does not count."""
    return [line.split() for line in text.strip().splitlines()]
