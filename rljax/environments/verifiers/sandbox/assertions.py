"""Tests in a box of their own: every assertion is counted, and names that are not theirs call the program."""

import ast
import builtins
import functools
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.verifiers.sandbox import values

_RECORD = "_record_assertion"


class Remote:
    """A function of the program, or an object that it made, by its name or number."""

    def __init__(self, call: Callable[..., Any], target: str | int):
        """Take the function that calls the program."""
        self._call, self._target = call, target

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call it in the program."""
        return self._call(self._target, "", args, kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a method of it."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *args, **kwargs: self._call(self._target, name, args, kwargs)

    def __iter__(self) -> Any:
        """Iterate over a copy of its items."""
        return iter(self._call(self._target, "__iter__", (), {}))


def judge(job: Mapping[str, Any], ask: Callable[..., Any]) -> tuple[int, int, str]:
    """Run tests.

    Args:
      job: ``prelude``, code whose imports and functions tests use; ``tests``, a list of code; ``entry_point``, the
        argument of the function ``check`` if the tests define one.
      ask: sends the program a name or number, an attribute, arguments and keyword arguments; returns its answer.

    Returns:
      Assertions that hold; assertions, where code that raises counts as one that does not hold; the traceback if the
      tests could not be started.
    """
    counts = [0, 0]

    def record(holds: bool) -> None:
        counts[0] += holds
        counts[1] += 1

    def call(target: str | int, attribute: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        sent = {name: values.encode(value, _number) for name, value in kwargs.items()}
        answer = ask(target, attribute, [values.encode(value, _number) for value in args], sent)
        if answer[0] == "value":
            return values.decode(answer[1], functools.partial(Remote, call))
        raise values.exception(answer[1], answer[2])

    names: dict[str, Any] = {"__name__": "tests", _RECORD: record}
    try:
        exec(compile(_without_classes(job["prelude"]), "prelude.py", "exec"), names)
        trees = [_Recorded().visit(ast.parse(test)) for test in job["tests"]]
        for name in {job["entry_point"], *_free(trees, names)} - {""}:
            names[name] = Remote(call, name)
        code = [compile(ast.fix_missing_locations(tree), "tests.py", "exec") for tree in trees]
    except Exception:
        return 0, 0, traceback.format_exc()
    for each in code:
        _attempt(record, lambda each=each: exec(each, names))
    if "check" in names and job["entry_point"]:
        _attempt(record, lambda: names["check"](names[job["entry_point"]]))
    return counts[0], counts[1], ""


def _attempt(record: Callable[[bool], None], action: Callable[[], Any]) -> None:
    try:
        action()
    except Exception:  # of the program, or of the test because a value is not of the expected type
        record(False)


def _number(value: Any) -> int:
    """Return the number of an object of the program, which only goes back to it."""
    if isinstance(value, Remote) and isinstance(value._target, int):
        return value._target
    raise TypeError(f"a test passes a {type(value).__name__}; only plain data reaches the program")


def _without_classes(source: str) -> ast.Module:
    """Return code without its classes, whose instances could not be passed; they are those of the program."""
    tree = ast.parse(source)
    tree.body = [node for node in tree.body if not isinstance(node, ast.ClassDef)]
    return tree


def _free(trees: Sequence[ast.AST], known: Mapping[str, Any]) -> set[str]:
    """Return the names that tests use and do not define."""
    used, defined = set(), {*known, *dir(builtins)}
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else defined).add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            defined.add(node.name)
        elif isinstance(node, ast.arg):
            defined.add(node.arg)
        elif isinstance(node, ast.alias):
            defined.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.ExceptHandler) and node.name:
            defined.add(node.name)
    return used - defined


class _Recorded(ast.NodeTransformer):
    """``assert x`` becomes: record whether x holds, and go on."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Return the statement that takes the place of an assertion."""
        tree = ast.parse(f"try:\n    {_RECORD}(bool(0))\nexcept Exception:\n    {_RECORD}(False)")
        statement = tree.body[0]
        assert isinstance(statement, ast.Try) and isinstance(statement.body[0], ast.Expr)
        call: Any = statement.body[0].value
        call.args[0].args[0] = node.test
        return ast.copy_location(statement, node)
