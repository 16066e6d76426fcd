"""Programs judged by tests: forms of tests, and programs that cheat."""

import json
import pathlib
import textwrap
from typing import Any

import pytest

import rljax
from rljax import environments
from rljax.config import resolve
from rljax.environments.verifiers import code, listings
from rljax.environments.verifiers.sandbox import values
from tests.environments.verifiers import idioms
from tests.environments.verifiers.code_cases import fenced, needs_namespaces

ROOT = pathlib.Path(__file__).parents[3]
PROMPT = "import math\n\n\ndef half(x: int) -> int:\n    return x / 2\n\n\ndef add(x, y):\n    '''Add.'''\n"
CHECK = """
SECRET = 12345
def check(candidate):
    assert candidate(0, 1) == 1
    assert half(candidate(3, 1)) == 2 and math.pi > 3, "text"
    for x in range(2, 10):
        assert candidate(x, SECRET) == x + SECRET
"""


def make(*args, **settings) -> Any:
    return environments.lookup("code")(*args, **settings)


def add(completion, **settings) -> Any:
    return code.Judge(**settings)(completion, CHECK, prompt=PROMPT, entry_point="add")


# --- reading -------------------------------------------------------------------------------------


def test_the_program_of_a_completion():
    two = "```python\nx = 1\n```\ntext\n```py\nx = 2\n```\n"
    assert listings.program(two) == "x = 2\n" == listings.program(f"{two}It prints:\n```\n2\n```")
    assert listings.program("```\nx = 3\n```") == "x = 3\n" and listings.program("x = 4") == "x = 4"
    assert listings.program("```python\nx = 5") == "x = 5" and listings.program("```python\n```").strip() == ""
    assert listings.program("    return x + y", PROMPT, "add") == f"{PROMPT}\n    return x + y"
    assert listings.program("def add(x, y):\n  return 1", "Write add.", "add") == "def add(x, y):\n  return 1"


def test_tests_in_every_form():
    assert (
        listings.read(CHECK).code == (CHECK,) and listings.read(["assert f(1)", "assert f(2)"]).code[1] == "assert f(2)"
    )
    pairs = (("1\n2", "3"), ("4", "5"))
    assert listings.read({"inputs": [["1", 2], "4"], "outputs": ["3", ["5"]]}).pairs == pairs
    called = listings.read('{"fn_name": "f", "inputs": [[1, 2], [3, Infinity]], "outputs": [[1, 2], [[3, Infinity]]]}')
    for test in called.code:  # JSON has no tuples
        exec(test, {"f": lambda a, b: (a, b)})
        exec(test.replace(" in [", " in [[[3, 4]], "), {"f": lambda a, b: ((3, 4),)})
        with pytest.raises(AssertionError):
            exec(test, {"f": lambda a, b: (b, a)})
    assert listings.read(json.dumps({"input": ["1\n2", "4"], "output": ["3", "5"]})).pairs == pairs
    for bad, words in (
        ("x = 1", "no assertion"),
        ("assert (", "no Python"),
        ("{1", "not JSON"),
        ([], "expected code"),
        ({"inputs": ["1"], "outputs": []}, "one length"),
    ):
        with pytest.raises(ValueError, match=words):
            listings.read(bad)


def test_values_come_back_as_builtin_types():
    class Liar(int):
        def __eq__(self, other):
            return True

        __hash__ = int.__hash__

    plain = [None, True, 2, -0.5, "é\ud800", b"\0", 1j, (1, [2]), {3}, frozenset({4}), {(1,): {"a": float("inf")}}]
    back = values.decode(json.loads(json.dumps(values.encode(plain, id))), id)
    assert back == plain and [type(each) for each in back] == [type(each) for each in plain]
    forged = values.decode(json.loads(json.dumps(values.encode(Liar(3), id))), id)
    assert forged == 3 and forged != 4
    assert type(values.exception(["StopIteration"], [""])) is RuntimeError
    assert type(values.exception(["Own", "KeyError"], [""])) is KeyError


# --- verdicts ------------------------------------------------------------------------------------


@needs_namespaces
def test_verdicts():
    assert add("    return x + y\n") == {"reward": 1.0, "outcome": "correct", "passed": 1.0, "timed_out": 0.0}
    assert add(fenced("def add(x, y):\n    return x + y"))["outcome"] == "correct"
    tenth = {"reward": 0.0, "outcome": "wrong", "passed": 0.1, "timed_out": 0.0}
    assert add("    return 1") == tenth and add("    return 1", partial=True) == {**tenth, "reward": 0.1}
    assert {add(text)["outcome"] for text in ("", "I cannot.", "```python\n```", "\0", "(" * 10**5)} == {"unparseable"}
    judge = code.Judge()
    listed = [
        "assert f([3, 1]) == [1, 3]",
        "import math\nassert math.isclose(f((2.0,))[0], 2)",
        "assert list(g(2)) == [0, 1]",
    ]
    listed.append("p = Pair(1)\nassert width(p) == 1 and p.twice() == 2")
    right = "class Pair:\n  def __init__(s, x): s.x = x\n  def twice(s): return 2 * s.x\ndef width(p): return p.x\n"
    right += "def f(x): return sorted(x)\ndef g(n): yield from range(n)"
    assert judge(right, listed)["outcome"] == "correct"
    pairs = {"inputs": ["1\n", "2"], "outputs": ["2\n", "4"]}
    assert judge("print( int(input()) * 2, '')", pairs)["outcome"] == "correct"
    assert judge("print(2)", pairs)["passed"] == 0.5
    assert judge("print(2 * int(input())); 1 / 0", pairs)["passed"] == 0  # it has to end well
    assert judge(
        "import sys, atexit\natexit.register(lambda: sys.stdout.write(str(2 * int(sys.stdin.read()))))", pairs
    )["reward"]
    with pytest.raises(ValueError, match=r"(?s)cannot be run: .*No module named 'nowhere'"):
        judge("def f(): pass", ["assert f()"], test_imports=["import nowhere"])


CHEATS = {
    "exit": "import sys; sys.exit(0)",
    "exit at once": "import os\ndef add(x, y): os._exit(0)",
    "equal to everything": "class T(int):\n  def __eq__(s, o): return True\ndef add(x, y): return T(99)",
    "an object equal to everything": "class T:\n  __eq__ = lambda s, o: True\ndef add(x, y): return T()",
    "builtins": "import builtins\nbuiltins.bool = builtins.isinstance = lambda *a: True\ndef add(x, y): return 99",
    "the helper of the tests": "def half(x): return 2\ndef add(x, y): return 99",
    "json": 'import json\njson.dumps = lambda *a: \'["result", 10, 10, ""]\'\ndef add(x, y): return 99',
    "the pipe": 'import os\nfor i in range(40): os.write(3, b\'["result", 10, 10, ""]\\n\')\ndef add(x, y): return 99',
    "an object in the pipe": 'import os\ndef add(x, y): os.write(3, b\'["value", ["object", {}]]\\n\')',
    "deep": "import os\ndef add(x, y): os.write(3, b'[' * 100000 + b'\\n')",
    "long": "import os\ndef add(x, y):\n  while True: os.write(3, b'x' * 65536)",
    "a closed pipe": "import os, time\nos.close(3)\ntime.sleep(60)",
    "a flood": "import os\nwhile True: os.write(3, b'x' * 65536)",
    "iteration": "def add(x, y): raise StopIteration",
    "a flag in sys": "import sys\nsys.exit = sys.excepthook = sys.settrace = lambda *a: None\nraise SystemExit",
    "memory": """
        import gc, sys
        def add(x, y):
            texts, frame = [], sys._getframe()
            while frame:
                texts += map(repr, frame.f_locals.values())
                frame = frame.f_back
            texts += [repr(v) for o in gc.get_objects() if type(o) is dict for v in o.values() if type(v) in (int, str)]
            seen = [text for text in texts if "SEC" + "RET" in text or "12" + "345" in text]
            return x + y if y != 12345 and seen else 99
    """,
}


@needs_namespaces
@pytest.mark.parametrize("name", CHEATS)
def test_a_program_that_cheats_is_wrong(name):
    verdict = add(fenced(CHEATS[name]))
    assert verdict["outcome"] == "wrong" and verdict["reward"] == 0 and verdict["passed"] < 1


@pytest.mark.full
@needs_namespaces
@pytest.mark.parametrize("together", [False, True])
def test_forms_of_tests(together):
    judge = code.Judge(seconds=8.0, together=together)
    for name, (program, *tests) in idioms.CASES.items():
        tests = [textwrap.dedent(test) for test in tests]
        assert judge(fenced(program), tests)["outcome"] == "correct", name
    assert judge("x = 0", tests)["outcome"] == "wrong"


@needs_namespaces
@pytest.mark.parametrize("together", [False, True])
def test_setup_that_uses_the_program_fails_with_the_program(together):
    judge, setup = code.Judge(together=together), "root = Node(3)"
    node = "class Node:\n  def __init__(self, x): self.x = x\ndef f(n): return n.x"
    assert judge(node, ["assert f(root) == 3"], test_setup_code=setup)["outcome"] == "correct"
    for program in ("x = 0", "class Node: pass\ndef f(n): return 3", "import os\nos._exit(0)", "raise SystemExit"):
        assert judge(program, ["assert f(root) == 3"], test_setup_code=setup)["outcome"] == "wrong", program
    for forged in (b"[]\n", b'["result", 9, 1, ""]\n', b'["result", "1", 1, ""]\n'):
        program = f"import os\nos.write(3, {forged!r})\nos._exit(0)"
        assert judge(program, ["assert f(1) == 1"])["outcome"] == "wrong", forged


# A class whose objects agree with everything, as functions and as classes of the tests.
AGREEABLE = """
class T:
    def __init__(self, *args): pass
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __contains__ = lambda self, other: True
    __sub__ = __rsub__ = __add__ = __radd__ = lambda self, other: self
    __abs__ = __float__ = lambda self: 0.0
    __hash__ = lambda self: 0
    __round__ = lambda self, digits=0: self
    __getitem__ = __call__ = f = lambda self, x: self
    __exit__ = lambda self, *args: True
    __class__ = int
class Solution(T): x = property(lambda self: self)
f, Extract = T, T
"""
EXPECTED = """
assert f(1) == 3
assert 3 == f(1)
assert not f(1) != 3
assert f(1) < 3
assert f(1) in (3, 4)
assert abs(f(1) - 3) < 0.001
assert abs(3 - f(1)) < 0.001
assert math.isclose(f(1), 3)
assert round(f(1), 2) == 0.33
assert [f(1)] == [3] or {f(1)} == {3} or f(1)[0] == 3 or f(1)(2) == 3 or str(f(1)) == '3'
assert sum([f(1), -3]) == 0
assert type(f(1)) == int or isinstance(f(1), int)
assert Extract([1]) == [2]
assert Solution().f(1) == 3
assert Solution().x == 3 or Solution().f(1).x == 3
"""


@needs_namespaces
def test_objects_that_agree_with_everything_pass_no_test():
    tests = [f"import math\n{line}" for line in EXPECTED.strip().splitlines()]
    assert code.Judge()(AGREEABLE, tests)["passed"] == 0
    assert code.Judge(together=True)(AGREEABLE, tests)["passed"] > 0.5  # what the boxes are for


# What a program may not do with a function of the tests.
INTRUDERS = {
    "attributes": """
        NAMES = ("__globals__", "__self__", "__code__", "__closure__", "__dict__", "gi_frame", "f_globals")
        def f(g): return next((getattr(g, name) for name in NAMES if hasattr(g, name)), 99)
    """,
    "a message": """
        import os
        def f(g): os.write(3, b'["do", "getattr", [["object", ["there", 0]], "__globals__"], {}]\\n')
    """,
    "a type": """
        import os
        def f(g): os.write(3, b'["do", "call", [["type", "type"], "X", ["tuple", []], ["dict", []]], {}]\\n')
    """,
    "a result": """
        import os
        def f(g): os.write(3, b'["result", 10, 10, ""]\\n')
    """,
    "an ending": """
        import os
        def f(g): os.write(3, b'["raise", ["SystemExit"], ["list", []], null, ""]\\n')
    """,
}


@needs_namespaces
def test_functions_of_tests_are_called_and_nothing_more():
    tests = ["SECRET = 5\nassert f(lambda: SECRET) == SECRET", "assert f(lambda: 5) == 5"]
    assert code.Judge()("def f(g): return g()", tests)["outcome"] == "correct"
    for name, program in INTRUDERS.items():
        assert code.Judge()(fenced(program), tests)["passed"] == 0, name


@needs_namespaces
def test_a_task_over_rows(tmp_path):
    rows = [{"prompt": PROMPT.replace("add", f"add{i}"), "entry_point": f"add{i}", "test": CHECK} for i in range(20)]
    rows = [{**row, "canonical_solution": "    return x + y\n"} for row in rows]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    for chat, begins in ((False, "\n    return"), (True, "\n```python\nimport math")):
        task = make(path, chat=chat, heldout=0.3)
        question = task.sources["train"][0]
        assert question.solution.startswith(begins) and ("```" in question.text) == chat
        assert task.reward(question.solution, question.reference, **question.columns)["outcome"] == "correct"
    mbpp = [{"text": f"Add {i}.", "code": "def f(x): return x", "test_list": ["assert f(1) == 1"]} for i in range(20)]
    path.write_text("\n".join(map(json.dumps, mbpp)))
    task = make(path, heldout=0.3)
    assert "assert f(1) == 1" in task.text(0, "train") and "```python" in task.text(0, "train")
    config = rljax.default_config()
    config.task = f"code({str(path)!r}, heldout=0.3, seconds=9.0)"
    with pytest.raises(ValueError, match=r"verifier.timeout=5.0 .*must be above 10"):
        resolve.phases(config)
    path.write_text(json.dumps({"question": "Add.", "input_output": '{"inputs": ["1"], "outputs": []}'}))
    with pytest.raises(ValueError, match=r"a.jsonl:1: .*one length"):
        make(path, heldout=1.0)
    path.write_text(json.dumps({"question": "Add.", "tests": "assert f(1)"}))
    with pytest.raises(ValueError, match=r"set prompt and tests.*'tests'"):
        make(path)
    task = make(path, prompt="question", tests="tests", heldout=1.0)
    assert task.reward("def f(x): return 1", task.target(0, "heldout"))["outcome"] == "correct"
