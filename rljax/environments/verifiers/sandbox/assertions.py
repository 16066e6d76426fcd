"""Tests: every assertion is counted, and names that the tests do not define refer to the program."""

import ast
import builtins
import sys
import traceback
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rljax.environments.verifiers.sandbox import mirrors, values

MODULE = "tests"  # of the classes that tests define
_RECORD, _SAME, _KIND = "_record_assertion", "_same_object", "_kind_of"
_RAISES = ("assertRaises", "assertRaisesRegex", "raises")


class _Names(dict):
    """Names of the tests; others are looked up in the program."""

    def __init__(self, lookup: Callable[[str], Any]):
        super().__init__({"__name__": MODULE, "__builtins__": builtins, _SAME: mirrors.same, _KIND: mirrors.kind})
        self._lookup, self.asked = lookup, False

    def __missing__(self, name: str) -> Any:
        self.asked |= not hasattr(builtins, name)
        return self._lookup(name)


def judge(job: Mapping[str, Any], lookup: Callable[[str], Any]) -> tuple[int, int, str]:
    """Run tests.

    Args:
      job: ``prelude``, code whose imports and functions tests use; ``tests``, a list of code: assertions, functions
        ``test...`` and classes of unittest; ``entry_point``, the argument of the function ``check`` if the tests define
        one.
      lookup: returns what the program calls by a name; KeyError where a builtin name or none is meant; NameError.

    Returns:
      Assertions and tests that hold; all of them, where code that raises counts as one that does not hold; the
      traceback if the tests could not be started.
    """
    counts = [0, 0]

    def record(holds: bool) -> None:
        counts[0] += holds
        counts[1] += 1

    names = _Names(lookup)
    names[_RECORD] = record
    try:
        trees = [ast.parse(test) for test in job["tests"]]
        exec(compile(_own(job["prelude"], job["entry_point"]), "prelude.py", "exec"), names)
        code = [compile(ast.fix_missing_locations(_Recorded().visit(tree)), "tests.py", "exec") for tree in trees]
    except Exception:  # code that uses the program may fail because of the program
        return 0, int(names.asked), "" if names.asked else traceback.format_exc()
    for each in code:
        _attempt(record, lambda each=each: exec(each, names))
    if "check" in names and job["entry_point"]:
        _attempt(record, lambda: names["check"](names[job["entry_point"]]))
    for name in _functions(trees):
        if name in names:
            _attempt(record, lambda name=name: record(_finished(names[name])))
    if "unittest" in sys.modules:
        _run_cases(record, list(names.values()))
    return counts[0], counts[1], ""


def connected(transfer: Callable[[Any], Any], tests: Sequence[str]) -> Callable[[str], Any]:
    """Return the function that looks up names in a program of another box.

    Args:
      transfer: sends a message and returns the next one.
      tests: code; the exceptions that it catches by name become classes of this box.
    """
    nodes = [node for test in tests for node in ast.walk(ast.parse(test))]
    classes = _classes(nodes)
    caught = {name: type(name, (Exception,), {"__getattr__": _attribute}) for name in _caught(nodes)}
    known: dict[str, Any] = {}

    def raised(kinds: Sequence[Any], args: Sequence[Any], error: Any) -> Exception:
        for kind in kinds:
            if isinstance(kind, str) and hasattr(builtins, kind):
                break
            if isinstance(kind, str) and kind in caught:
                rebuilt = values.exception(kinds, args)
                made = type(kind, (caught[kind], type(rebuilt)), {})(*args)
                made.__dict__["of_program"] = error
                return made
        return values.exception(kinds, args)

    peer = mirrors.Peer(transfer, {}, MODULE, guarded=True, raised=raised)

    def lookup(name: str) -> Any:
        if hasattr(builtins, name):  # no program takes the place of what tests rely on
            raise KeyError(name)
        if name in caught:
            return caught[name]
        if name not in known:
            mirror = mirrors.Mirror(peer.ask, name, opened=name in classes)
            value = peer.ask("read", mirror)
            if not isinstance(value, mirrors.Mirror):
                return value  # data, which the program may change
            known[name] = mirror
        return known[name]

    return lookup


def _attribute(error: Any, name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(error.__dict__["of_program"], name)


def _attempt(record: Callable[[bool], None], action: Callable[[], Any]) -> None:
    try:
        action()
    except Exception:  # of the program, or of the test because a value is not of the expected type
        record(False)


def _finished(test: Callable[[], Any]) -> bool:
    """Run a function of tests to its end."""
    value = test()
    if isinstance(value, types.CoroutineType):
        import asyncio

        asyncio.run(value)
    return True


def _functions(trees: Sequence[ast.Module]) -> list[str]:
    """Return the functions of tests without arguments that the tests do not use themselves."""
    used = {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [
        node.name
        for tree in trees
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test")
        if node.name not in used and not ast.unparse(node.args)
    ]


def _run_cases(record: Callable[[bool], None], values: Sequence[Any]) -> None:
    """Run the classes of unittest among the names of tests."""
    import unittest

    for case in values:
        if isinstance(case, type) and issubclass(case, unittest.TestCase) and case.__module__ == MODULE:
            result = unittest.TestResult()
            unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
            bad = [test for test, _ in (*result.failures, *result.errors)] + result.unexpectedSuccesses
            failed = len({str(getattr(test, "test_case", test)) for test in bad})
            for place in range(max(result.testsRun, failed)):
                record(place >= failed)


def _own(source: str, entry_point: str) -> ast.Module:
    """Return code without what the program defines: its function, and classes, so that objects are of one class."""
    tree = ast.parse(source)
    tree.body = [
        node
        for node in tree.body
        if not isinstance(node, ast.ClassDef) and not (isinstance(node, ast.FunctionDef) and node.name == entry_point)
    ]
    return tree


def _caught(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the names of exceptions that tests catch or expect and do not define."""
    places = [node.type for node in nodes if isinstance(node, ast.ExceptHandler) and node.type]
    for node in nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _RAISES:
            places += node.args[:1]
    used = {node.id for place in places for node in ast.walk(place) if isinstance(node, ast.Name)}
    defined = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom | ast.Import):
            defined |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
    return used - defined - set(dir(builtins))


def _classes(nodes: Sequence[ast.AST]) -> set[str]:
    """Return the capitalized names that tests use as classes: objects made of them have attributes or are compared.

    A capitalized name alone does not say so: some sets have functions with such names, and a program that defines a
    class in their place would compare itself with what is expected.
    """
    changed = [node for node in nodes if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load)]
    used = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute) or node in changed}
    classes = {name for name in used if name.isidentifier()}
    for node in nodes:
        if isinstance(node, ast.Call) and (ast.unparse(node) in used):
            classes.add(ast.unparse(node.func))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == "isinstance":
            classes.add(ast.unparse(node.args[-1]))
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            if any(ast.unparse(target) in used for target in node.targets):
                classes.add(ast.unparse(node.value.func))
        elif isinstance(node, ast.Compare):
            sides = [_called_in(side) for side in (node.left, *node.comparators)]
            classes |= set.intersection(*sides)
    return {name for name in classes if name[:1].isupper()}


def _called_in(tree: ast.AST) -> set[str]:
    return {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}


class _Recorded(ast.NodeTransformer):
    """``assert x`` becomes: record whether x holds, and go on. Identity and classes are asked of the program."""

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Return the statement that takes the place of an assertion."""
        self.generic_visit(node)
        tree = ast.parse(f"try:\n    {_RECORD}(bool(0))\nexcept Exception:\n    {_RECORD}(False)")
        statement = tree.body[0]
        assert isinstance(statement, ast.Try) and isinstance(statement.body[0], ast.Expr)
        call: Any = statement.body[0].value
        call.args[0].args[0] = node.test
        return ast.copy_location(statement, node)

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """Return a statement where an exception that comes before ``assert False`` is an assertion that holds."""
        last = node.body[-1]
        expected = isinstance(last, ast.Assert) and isinstance(last.test, ast.Constant) and not last.test.value
        self.generic_visit(node)
        if expected:
            for handler in node.handlers:
                handler.body.append(ast.Expr(_called(_RECORD, ast.Constant(value=True))))
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """Return a call in place of ``is`` and ``is not``."""
        self.generic_visit(node)
        if len(node.ops) > 1 or not isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node
        call = _called(_SAME, node.left, node.comparators[0])
        return ast.copy_location(
            call if isinstance(node.ops[0], ast.Is) else ast.UnaryOp(op=ast.Not(), operand=call), node
        )

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Return a call in place of ``type(x)``, and none in place of ``unittest.main()``."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id == "type" and len(node.args) == 1:
            return ast.copy_location(_called(_KIND, *node.args), node)
        if ast.unparse(node.func) == "unittest.main":
            return ast.copy_location(ast.Constant(value=None), node)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """Return a call in place of ``x.__class__``."""
        self.generic_visit(node)
        if node.attr == "__class__" and isinstance(node.ctx, ast.Load):
            return ast.copy_location(_called(_KIND, node.value), node)
        return node

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        """Return nothing in place of an import from the program, as some sets have it."""
        plain = all(alias.name != "*" and not alias.asname for alias in node.names)
        return None if plain and node.module == "solution" else node


def _called(name: str, *args: ast.expr) -> ast.Call:
    return ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=list(args), keywords=[])
