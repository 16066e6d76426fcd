"""Worlds with tools: schemas, calls, the interpreter, search, games of textarena."""

import functools
import importlib.util
import json
import math
import pickle
import random
import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest

from rljax import environments
from rljax.data import tokenizers
from rljax.environments.questions import recipe
from rljax.environments.verifiers import rewards
from rljax.environments.verifiers.sandbox import start
from rljax.environments.worlds.host import arena, assisted, calls, episodes, interpreter, passages, signatures, tools
from tests import test_host_tokens
from tests import test_public_tokenizer as public

needs_bm25s = pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="bm25s is not installed")
needs_textarena = pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="textarena is not installed")


def add(x: int, y: int = 1) -> int:
    """Add two numbers.

    Args:
        x: The first.
        y: The second,
            which may be left out.

    Returns:
        Their sum.
    """
    return x + y


def shout(text: str) -> str:
    """Write a text in capitals.

    Args:
        text: The text.
    """
    return text.upper()


def fail(code: int) -> str:
    """Fail in one of several ways.

    Args:
        code: Which.
    """
    if code == 0:
        sys.exit("out")
    if code == 1:
        raise calls.ToolError("as told")
    return {2: "\ud800\0", 3: {1, 2}, 4: math.nan, 5: "long " * 100, 6: None}[code]


def everything(
    a: list[int], b: dict[str, float], c: Literal["x", "y"], d: int | None, e: int | str, f: tuple[int, str], g: Any
) -> str:
    """Take everything.

    Args:
        a: A.
        b: B.
        c: C.
        d: D.
        e: E.
        f: F.
        g: G.
    """
    return repr((a, b, c, d, e, f, g))


# --- schemas -------------------------------------------------------------------------------------


def test_the_schema_of_a_function():
    assert signatures.describe(add) == {
        "name": "add",
        "description": "Add two numbers.",
        "parameters": {
            "type": "object",
            "properties": {
                "x": {"type": "integer", "description": "The first."},
                "y": {"type": "integer", "description": "The second, which may be left out."},
            },
            "required": ["x"],
        },
    }
    assert {
        k: {**v, "description": ""} for k, v in signatures.describe(everything)["parameters"]["properties"].items()
    } == {
        "a": {"type": "array", "items": {"type": "integer"}, "description": ""},
        "b": {"type": "object", "additionalProperties": {"type": "number"}, "description": ""},
        "c": {"type": "string", "enum": ["x", "y"], "description": ""},
        "d": {"type": "integer", "nullable": True, "description": ""},
        "e": {"type": ["integer", "string"], "description": ""},
        "f": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "description": ""},
        "g": {"description": ""},
    }


@pytest.mark.full
@pytest.mark.parametrize("function", [add, shout, fail, everything])
def test_the_schema_is_that_of_transformers(function):
    utils = pytest.importorskip("transformers.utils")
    theirs = utils.get_json_schema(function)["function"]
    theirs.pop("return", None)
    assert signatures.describe(function) == theirs


def test_values_fit_a_schema_as_in_jsonschema():
    oracle = pytest.importorskip("jsonschema")
    draw = random.Random(0)
    hints = (
        int,
        float,
        str,
        bool,
        list,
        dict,
        list[int],
        list[str | int],
        dict[str, bool],
        int | str,
        list[list[float]],
    )
    hints += (Literal["a", "b"], Literal[1, 2], Literal["a", 1], list[int] | str, Any, type(None), dict[str, list[int]])
    fitting = 0
    for _ in range(1500):
        form, given = signatures.schema(draw.choice(hints)), value(draw)
        fits = oracle.Draft202012Validator(form).is_valid(given)
        assert (signatures.mismatch(given, form) == "") == fits, (form, given)
        fitting += fits
    assert 150 < fitting < 1350


def test_functions_that_are_no_tools():
    def bare(x: int):
        return x

    def unexplained(x: int):
        """Do."""

    def unannotated(x):
        """Do.

        Args:
            x: X.
        """

    def starred(*x: int):
        """Do.

        Args:
            x: X.
        """

    def odd(x: set[int]):
        """Do.

        Args:
            x: X.
        """

    cases = ((bare, "no docstring"), (unexplained, "no line under Args"), (unannotated, "no annotation"))
    for function, message in (*cases, (starred, "by its name"), (odd, "no JSON schema"), (lambda: 0, "with a name")):
        with pytest.raises(ValueError, match=message):
            calls.Toolbox([function])
    for functions, settings, message in (
        ([add, add], {}, "two tools"),
        ([], {}, "no tool"),
        ([add], {"form": "xml"}, "form='xml'"),
        ([add], {"longest": 0}, "longest=0"),
        ([add], {"most": 0}, "most=0"),
    ):
        with pytest.raises(ValueError, match=message):
            calls.Toolbox(functions, **settings)


# --- calls ---------------------------------------------------------------------------------------

BOX = calls.Toolbox([add, shout, fail, everything], longest=400)


def answers(text, box=BOX):
    return [box.answer(call) for call in box.calls(text)]


def called(call, box=BOX):
    return answers(f"<tool_call>{call if isinstance(call, str) else json.dumps(call)}</tool_call>", box)


def test_several_calls_of_a_turn_in_their_order():
    text = "First " + BOX.write("add", x=1, y=2) + " then " + BOX.write("shout", text="a</tool_call>b<tool_call>")
    text += '<tool_call> {"name": "add", "arguments": "{\\"x\\": 4.0}"}'  # a text of JSON; cut before its end
    assert [answer.text for answer in answers(text)] == ["3", "A</TOOL_CALL>B<TOOL_CALL>", "5"]
    assert not any(answer.malformed or answer.failed for answer in answers(text))
    few = answers(BOX.write("add", x=1) * 5, calls.Toolbox([add], most=2))
    assert [a.malformed for a in few] == [False, False, True] and "a turn may have 2 calls" in few[2].text
    assert answers("no call") == [] and answers("add(1)") == []


def test_thoughts_hold_no_calls():
    call = BOX.write("add", x=1)
    assert len(answers(f"<think>{call}</think>{call}")) == 1
    assert answers(f"<think>{call}") == [] and len(answers(f"{call} is wrong.</think>{call}")) == 1


def test_a_malformed_call_is_answered_by_what_is_wrong():
    for call, words in (
        ("{'name': 'add'}", "not JSON: Expecting property name"),
        ("{}", 'has no "name"'),
        ("[1]", 'has no "name"'),
        ('{"name": "add", "arguments": {"x": NaN}}', "NaN is no number"),
        ('{"name": "add", "arguments": {"x": 1}} trailing', "not JSON: Extra data"),
        ("", "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        ({"name": 3}, 'has no "name"'),
        (
            {"name": "ad", "arguments": {"x": 1}},
            "no tool 'ad'. Did you mean 'add'? Valid: add, everything, fail, shout.",
        ),
        ({"name": "add", "arguments": [1]}, '"arguments" is [1], not an object'),
        ({"name": "add"}, "the argument 'x' is missing"),
        ({"name": "add", "arguments": {"x": 1, "z": 2}}, "add has no argument 'z'. Valid: x, y."),
        ({"name": "add", "arguments": {"x": "1"}}, "add: x is '1', must be a whole number"),
        ({"name": "add", "arguments": {"x": True}}, "add: x is True, must be a whole number"),
        ({"name": "add", "arguments": {"x": 1.5}}, "add: x is 1.5, must be a whole number"),
        ({"name": "shout", "arguments": {"text": None}}, "shout: text is None, must be a text"),
    ):
        (answer,) = called(call)
        assert answer.malformed and not answer.failed and answer.text.startswith("Error: ") and words in answer.text


def test_arguments_of_every_type():
    good = {"a": [1, 2.0], "b": {"k": 1}, "c": "y", "d": None, "e": "t", "f": [1, "u"], "g": [None]}
    (answer,) = called({"name": "everything", "parameters": good})
    assert answer.text == repr(([1, 2], {"k": 1}, "y", None, "t", (1, "u"), [None])) and not answer.malformed
    for name, bad, words in (
        ("a", ["1"], "a list of which each is a whole number"),
        ("b", {"k": "1"}, "an object of which each is a number"),
        ("c", "z", 'one of "x", "y"'),
        ("d", "1", "a whole number or null"),
        ("e", None, "a whole number or a text"),
        ("f", [1], "a list of 2: a whole number, a text"),
    ):
        (answer,) = called({"name": "everything", "arguments": good | {name: bad}})
        assert answer.malformed and f"{name} is " in answer.text and f"must be {words}" in answer.text


def test_results_and_errors_are_text():
    for code, text, failed in (
        (0, "Error: SystemExit: out", True),
        (1, "as told", True),
        (2, "??", False),
        (3, "{1, 2}", False),
        (4, "NaN", False),
        (5, ("long " * 100)[:400] + "... (100 more characters)", False),
        (6, "null", False),
        (7, "Error: KeyError: 7", True),
    ):
        (answer,) = called({"name": "fail", "arguments": {"code": code}})
        assert (answer.text, answer.failed, answer.malformed) == (text, failed, False)


def test_other_forms():
    tags = calls.Toolbox([add, shout, fail], form="tags")
    assert [a.text for a in answers('<shout>a b</shout> and <fail>1</fail><add>{"x": 2}</add>', tags)] == [
        "A B",
        "as told",
        "3",
    ]
    assert [a.text for a in answers("<shout>cut", tags)] == ["CUT"] and answers("<b>x</b>", tags) == []
    assert [a.malformed for a in answers("<add>1</add><add>{</add><fail>x</fail><add/>", tags)] == [True, True, True]
    assert tags.write("fail", code=3) == "<fail>3</fail>" and tags.write("shout", text="a") == "<shout>a</shout>"
    bare = calls.Toolbox([add], form="bare")
    assert [a.text for a in answers(' {"name": "add", "parameters": {"x": 2}} ', bare)] == ["3"]
    assert answers("2", bare) == [] and answers("{", bare)[0].malformed
    assert "add(" not in bare.instruction and '"name": "add"' in bare.instruction and "<shout>text" in tags.instruction


def value(draw, depth=0):
    kinds = [None, True, 1, 2.0, "a", [], {}, draw.randint(-(10**20), 10**20), draw.uniform(-1, 1), word(draw)]
    if depth < 3:
        kinds += [[value(draw, depth + 1) for _ in range(draw.randint(0, 3))], {word(draw): value(draw, depth + 1)}]
    return draw.choice(kinds)


def word(draw):
    return "".join(draw.choice(("<tool_call>", "</tool_call>", "\\", '"', "{", "}", "é", "\n", "a")) for _ in range(4))


def test_what_is_written_is_read_back():
    draw = random.Random(0)
    for _ in range(300):
        arguments = dict.fromkeys("abcdef", None) | {"a": [1], "b": {}, "c": "x", "e": word(draw), "f": [1, ""]}
        arguments["g"] = value(draw)
        (call,) = BOX.calls(
            f"{draw.choice(('', 'So: '))}{BOX.write('everything', **arguments)}{draw.choice(('', ' end'))}"
        )
        assert call.problem == "" and call.arguments == arguments | {"f": (1, "")}


@pytest.mark.parametrize("form", ["json", "bare", "tags"])
def test_fuzzed_turns_always_have_answers(form):
    box, draw = calls.Toolbox([add, shout, everything], form=form), random.Random(form)
    pieces = (
        "<tool_call>",
        "</tool_call>",
        "<add>",
        "</add>",
        "<think>",
        "</think>",
        '{"name": "add"',
        "}",
        "[",
        "1e999",
    )
    for _ in range(600):
        text = box.write("add", x=draw.randint(-9, 9), y=2) * draw.choice((1, 1, 2, 40))
        for _ in range(draw.randint(1, 4)):
            at = draw.randint(0, len(text))
            noise = "".join(chr(draw.randrange(0x110000)) for _ in range(draw.choice((1, 5))))
            text = text[:at] + draw.choice((*pieces, noise, "9" * 5000)) + text[at + draw.choice((0, 0, 1, 9)) :]
        parsed = answers(text, box)
        assert len(parsed) <= 9 and all(a.text.encode() and not (a.malformed and a.failed) for a in parsed)
        assert all(a.malformed or a.text.lstrip("-").isdigit() for a in parsed if a.name == "add")


# --- a world with tools --------------------------------------------------------------------------

NUMBER = rewards.combine("number")
QUESTION = {"prompt": "2 + 3?", "reference": "5", "plan": [("add", {"x": 2, "y": 3})], "solution": "#### 5"}


def play(world, turns, example=QUESTION):
    said = [world.reset(example)]
    return said[0], [world.step(turn) for turn in turns]


def test_a_question_with_calls():
    world = tools.ToolWorld([add], NUMBER)
    said, (first, second, third, last) = play(
        world, [BOX.write("add", x=2, y=3), "<tool_call>{</tool_call>" + BOX.write("add", x=2), "<tool_call>", "#### 5"]
    )
    assert said == "2 + 3?" and world.tools[0]["function"]["name"] == "add" and world.turn_end == ()
    assert first.text == [{"role": "tool", "name": "add", "content": "5"}] and not first.done and first.reward == 0
    assert [m["role"] for m in second.text] == ["tool", "tool"] and second.text[1]["content"] == "3"
    assert second.parts | {"format": 0} == {"calls": 3, "malformed": 1, "failed": 0, "retries": 1, "format": 0}
    assert third.parts["malformed"] == 2 and (last.reward, last.outcome, last.done) == (1.0, "correct", True)
    assert last.parts["calls"] == 4 and set(last.parts) == set(world.parts)
    assert play(world, ["#### 6"])[1][0].outcome == "wrong"
    assert play(world, ["#### 6"])[1][0].parts["calls"] == 0  # the counts begin anew


def test_weights_of_counts():
    call = BOX.write("add", x=2, y=3)
    world = tools.ToolWorld([add], NUMBER, weights={"malformed": -0.5, "retries": 0.25})
    _, observations = play(world, [call, call, "<tool_call>", "#### 5"])
    assert [o.reward for o in observations] == [0, 0, -0.5, 1.25] and observations[-1].outcome == "correct"
    for weights, message in (({"retrys": 1.0}, "Did you mean 'retries'"), ({"calls": math.nan}, "not a number")):
        with pytest.raises(ValueError, match=message):
            tools.ToolWorld([add], NUMBER, weights=weights)


def grouped(completions, reference):
    return [1.0] * len(completions)


def broken(completion, reference):
    return {"reward": 0.0, "outcome": "crashed"}


def test_rewards_of_a_world():
    with pytest.raises(ValueError, match="all completions of a prompt"):
        tools.ToolWorld([add], rewards.combine(grouped))
    with pytest.raises(RuntimeError, match="crashed"):
        play(tools.ToolWorld([add], rewards.combine(broken)), ["5"])


def searched(completion, reference, *, transcript):
    """Pay the answer, if its text was a result of a tool before it."""
    assert transcript.turns[-1] == completion
    return float(completion == reference and any(completion in call.result for call in transcript.calls))


def recounted(completion, reference, *, transcript):
    made = [list(call) for call in transcript.calls]
    return {"reward": 1.0, "same": json.loads(reference) == [list(transcript.turns), made]}


def taken(completion, transcript):
    return 1.0


@calls.tool
def drain(items: list[int]) -> int:
    """Remove all items and return how many there were.

    Args:
      items: numbers.
    """
    count = len(items)
    items.clear()
    return count


def test_a_reward_function_gets_the_transcript(tmp_path):
    box = calls.Toolbox([add, drain])
    turns = [
        box.write("add", x=2, y=3) + box.write("drain", items=[1, 2]),
        box.write("add", x=2, y="a") + "<tool_call>{",
        "x",
    ]
    world = tools.ToolWorld([add, drain], rewards.combine(recounted))
    _, seen = play(world, turns, {"prompt": "?", "reference": "[]"})
    wrong = [message["content"].removeprefix("Error: ") for message in seen[1].text]
    made = [[0, "add", {"x": 2, "y": 3}, "5", ""], [0, "drain", {"items": [1, 2]}, "2", ""]]
    made += [[1, "add", {}, "", f"Error: {wrong[0]}"], [1, "", {}, "", f"Error: {wrong[1]}"]]
    _, seen = play(world, turns, {"prompt": "?", "reference": json.dumps([turns, made])})
    assert seen[-1].parts["same"] == 1 and "y is 'a'" in wrong[0] and "not JSON" in wrong[1]

    both = {"tests.test_tools:searched": 0.5, "number": 0.5}  # one asks for the transcript, the other one does not
    path = written(tmp_path / "a.jsonl", *({"question": f"{n}?", "answer": f"{n}"} for n in range(9)))
    data = assisted.read(recipe.Recipe("tools", reward=both), path, 0.5, None, assisted.listed("plan", ""))
    world = tools.ToolWorld([add], data.reward)
    example = data.splits["train"][0]
    paid = [
        play(world, turns, example)[1][-1].reward
        for turns in (
            [example["reference"]],
            [box.write("add", x=int(example["reference"]), y=0), example["reference"]],
        )
    ]
    assert paid[1] - paid[0] == 0.5
    for function, row, message in (
        ("searched", {"transcript": "t"}, "rename the column"),
        ("taken", {}, "write ., before"),
    ):
        path = written(tmp_path / "b.jsonl", *({"question": f"{n}?", "answer": f"{n}"} | row for n in range(9)))
        how = recipe.Recipe("tools", reward=f"tests.test_tools:{function}")
        with pytest.raises(ValueError, match=message):
            assisted.read(how, path, 0.5, None, assisted.listed("plan", ""))


def demonstrate(world, example):
    said, observation, turns = world.reset(example), None, []
    while observation is None or not observation.done:
        turns.append(world.expert())
        observation = world.step(turns[-1])
        assert len(turns) < 20
    return said, turns, observation


@pytest.mark.parametrize("form", ["json", "bare", "tags"])
def test_a_demonstration(form):
    said, turns, last = demonstrate(tools.ToolWorld([add, shout], NUMBER, form), QUESTION)
    assert last.outcome == "correct" and last.parts["calls"] == 1 and len(turns) == 2 and turns[1] == "#### 5"
    assert ("Tools:" in str(said)) == (form == "tags")
    with pytest.raises(ValueError, match="no demonstration"):
        demonstrate(tools.ToolWorld([add], NUMBER, form), {"prompt": "?", "reference": "5"})


def written(path, *questions):
    path.write_text("".join(json.dumps(row) + "\n" for row in questions))
    return str(path)


def test_questions_of_files(tmp_path):
    call = {"name": "add", "arguments": {"x": 2, "y": 3}}
    rows = [{"question": f"{n}?", "answer": str(n), "calls": [call] * n, "words": f"w{n}", "hint": n} for n in range(3)]
    train, heldout = written(tmp_path / "a.jsonl", *rows[:2]), written(tmp_path / "b.jsonl", rows[2])
    how = recipe.Recipe("tools", reward=hinted)
    data = assisted.read(how, train, heldout, "Be brief.", assisted.listed("plan", "calls"))
    assert data.splits["heldout"][0] == {
        "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2?"}],
        "reference": "2",
        "columns": {"hint": 2},
        "plan": [["add", {"x": 2, "y": 3}]] * 2,
        "solution": "2",
    }
    assert [len(example["plan"]) for example in data.splits["train"]] == [0, 1]
    world = tools.ToolWorld([add], data.reward)
    assert demonstrate(world, data.splits["heldout"][0])[2].reward == 2
    asked = assisted.read(how, train, heldout, None, assisted.column("query", "", "search", "query"))
    other = assisted.read(how, train, heldout, None, assisted.column("query", "on {words}", "search", "query"))
    assert (
        asked.splits["heldout"][0]["plan"] == [["search", {"query": "2?"}]]
        and asked.splits["heldout"][0]["prompt"] == "2?"
    )
    assert other.splits["heldout"][0]["plan"] == [["search", {"query": "on w2"}]]
    with pytest.raises(ValueError, match=r"a.jsonl:1: 'answer' \(plan\) is 0, expected"):
        assisted.read(how, train, heldout, None, assisted.listed("plan", "answer"))


def hinted(completion, reference, *, hint):
    return hint * float(completion == reference)


def test_calculations_have_their_values():
    made = assisted.calculations(digits=3, operands=4, seed=0, chat=None)
    every = [example for examples in made.splits.values() for example in examples]
    assert len({example["prompt"] for example in every}) == len(every) == 576
    for example in every:
        [[name, arguments]] = example["plan"]
        assert name == "python" and example["reference"] == str(eval(arguments["code"]))
        assert (
            example["prompt"].startswith(f"What is {arguments['code']}?")
            and made.reward(example["solution"], example["reference"])["reward"] == 1
        )
    again, other = (assisted.calculations(3, 4, seed, None).splits for seed in (0, 1))
    assert made.splits == again != other
    with pytest.raises(ValueError, match="operands=1"):
        assisted.calculations(3, 1, 0, None)


# --- the interpreter -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def python():
    """Return a function that runs the cells of a new episode and returns the answers."""
    try:
        start.check(unsafe=False)
    except ValueError as error:
        pytest.skip(str(error))

    def run(*cells, **settings):
        box = calls.Toolbox([interpreter.Interpreter(**settings).begin()])
        return [box.answer(calls.Call("python", {"code": cell}, "")) for cell in cells]

    return run


def test_cells_share_their_names(python):
    outputs = python(
        "x = 3\nprint('hi')", "x += 1\nx", "x * 10", "import os\nopen('f', 'w').write(str(x))", "open('f').read()"
    )
    assert [a.text for a in outputs] == ["hi", "4", "40", "1", "'4'"] and not any(a.failed for a in outputs)
    assert python("x")[0].text == "NameError: name 'x' is not defined (line 1)"  # a new episode
    one, other = (python("import random\nrandom.random()")[0].text for _ in range(2))
    assert one == other


def test_cells_that_fail(python):
    outputs = python(
        "y = 1\n1 / 0\ny = 2",
        "y",
        "def f(:",
        "raise SystemExit(3)",
        "import os\nz = 1\nos._exit(0)",
        "z",
        "input()",
        "y",
    )
    assert [a.failed for a in outputs] == [True, False, True, True, True, True, True, False]
    assert outputs[0].text == "ZeroDivisionError: division by zero (line 2)" and outputs[-1].text == "1"
    assert "SyntaxError" in outputs[2].text and "SystemExit" in outputs[3].text and "names are lost" in outputs[4].text
    assert "NameError" in outputs[5].text and "EOFError" in outputs[6].text


def test_cells_that_take_too_much(python):
    outputs = python("x = 1\nwhile True: pass", "print('a' * 100)", "bytearray(10**10)", seconds=0.3, longest=10)
    assert outputs[0].failed and outputs[0].text == "the code was stopped after 0.3 s; its names are lost"
    assert outputs[1].text == "a" * 10 + "... (91 more characters)" and not outputs[1].failed
    assert outputs[2].text.startswith("MemoryErr")
    assert "wrote too much" in python("import os\nwhile True: os.write(1, b'a' * 10**6)")[0].text
    with pytest.raises(ValueError, match="seconds=0"):
        interpreter.Interpreter(seconds=0)


def test_a_cell_reaches_no_file_and_no_network(python):
    outputs = python("import os\nos.listdir('/')", "import socket\nsocket.create_connection(('1.1.1.1', 80), 0.2)")
    assert "work" not in outputs[0].text and "home" not in outputs[0].text and outputs[1].failed


def test_the_interpreter_in_a_world(python):
    example = {"prompt": "7 * 8?", "reference": "56", "plan": [("python", {"code": "7 * 8"})], "solution": "#### 56"}
    world = tools.ToolWorld([interpreter.Interpreter()], NUMBER)
    assert demonstrate(world, example)[2].outcome == "correct"
    _, (first, _) = play(world, [world._box.write("python", code="7 * 8"), "#### 56"], example)
    assert first.text[0]["content"] == "56"


# --- search --------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lands").mkdir()
    (tmp_path / "lands" / "france.txt").write_text("The capital of France is Paris.\n\nParis lies on the Seine.\n")
    (tmp_path / "peru.md").write_text("The capital of Peru is Lima.")
    (tmp_path / "twins.txt").write_text("zebra one\n\nzebra two\n\nzebra ten")
    (tmp_path / "picture.png").write_bytes(b"\x89zebra")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe zebras \0 other")
    return str(tmp_path)


def oracle(texts, query, k1=1.5, b=0.75):
    """Return the scores of BM25 in Lucene's form, written from the formula."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for text in texts:
        total = 0.0
        for term in query:
            having = sum(term in other for other in texts)
            weight = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            count = text.count(term)
            total += weight * count / (count + k1 * (1 - b + b * len(text) / mean))
        scores.append(total)
    return scores


@needs_bm25s
def test_search_ranks_by_bm25(folder):
    every = passages.split(folder, 6)
    assert [(p.name, p.text) for p in every if p.name != "bad.txt"] == [
        ("lands/france.txt", "The capital of France is Paris."),
        ("lands/france.txt", "Paris lies on the Seine."),
        ("peru.md", "The capital of Peru is Lima."),
        ("twins.txt", "zebra one zebra two zebra ten"),
    ]
    tool = passages.Search(folder, passages=9, words=6)
    texts = passages._tokens([f"{p.name} {p.text}" for p in every])
    for query in ("capital Peru", "paris seine", "zebra", "the capital of paris"):
        scores = oracle(texts, passages._tokens([query])[0])
        order = [i for i in sorted(range(len(every)), key=lambda i: (-scores[i], i)) if scores[i] > 0]
        assert tool.find(query) == [every[i] for i in order] and order
    assert tool.find("") == tool.find("the of") == tool.find("qwxz") == []


@needs_bm25s
def test_equal_scores_come_in_the_order_of_places(folder):
    tool = passages.Search(folder, passages=2, words=2)
    assert [p.text for p in tool.find("zebra")] == ["zebra one", "zebra two"]


@needs_bm25s
def test_search_as_a_tool(folder):
    example = {"prompt": "Capital of Peru?", "reference": "Lima", "solution": "Lima"}
    example["plan"] = [("search", {"query": "capital Peru"})]
    world = tools.ToolWorld([passages.Search(folder, passages=1)], rewards.combine("exact"), "tags")
    assert world.turn_end == ("</search>",) and world.role == "user"
    said, turns, last = demonstrate(world, example)
    assert (
        "<search>query</search>: Search a collection" in said[0]["content"]
        and turns[0] == "<search>capital Peru</search>"
    )
    assert last.outcome == "correct" and last.parts["retries"] == 0
    _, observations = play(world, ["<search>qwxz</search>", "<search>Peru</search>", "Lima"], example)
    assert observations[0].text == "\n<result>no passage has a word of the query</result>\n"
    assert observations[1].text == "\n<result>[1] peru.md: The capital of Peru is Lima.</result>\n"
    parts = observations[-1].parts
    assert (parts["calls"], parts["failed"], parts["retries"]) == (2, 1, 1)  # the retry can be rewarded


@needs_bm25s
def test_search_without_texts_and_without_jax(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (("nowhere",), "no such folder"),
        ((str(tmp_path / "empty"),), "have no text"),
        ((folder, 0), "passages=0"),
    ):
        with pytest.raises(ValueError, match=message):
            passages.Search(*arguments)
    code = (
        "import pickle, sys; pickle.loads(bytes.fromhex(sys.argv[1])); assert not {'jax', 'jaxlib'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, pickle.dumps(passages.Search(folder)).hex()], check=True)


# --- textarena -----------------------------------------------------------------------------------


@needs_textarena
def test_a_game_of_one_player():
    arena.check("GuessTheNumber-v0", 1, None, (), {})
    for seed in range(5):
        said, turns, last = demonstrate(arena.Game("GuessTheNumber-v0"), seed)
        assert "between 1 and 20" in said and (last.reward, last.outcome) == (1.0, "correct")
        assert last.parts == {"turns": len(turns), "invalid": 0.0} and len(turns) <= 5  # binary search in 20 numbers
    world = arena.Game("GuessTheNumber-v0", settings={"max_number": 7})
    _, (first, second) = play(world, ["seven", "[99]"], 0)
    assert "invalid move" in first.text and not first.done
    assert second.done and second.parts == {"turns": 2.0, "invalid": 1.0} and second.outcome == "wrong"


@needs_textarena
def test_a_game_against_an_opponent():
    def episode(seed):
        world, draw = arena.Game("TicTacToe-v0", 2), random.Random(seed)
        random.seed(seed)
        said, observations, squares = world.reset(seed), [], [str(n) for n in range(9)]
        while not (observations and observations[-1].done):
            text = observations[-1].text if observations else said
            board = text.rpartition("Current Board:")[2].partition("Available")[0]
            observations.append(world.step(draw.choice([n for n in squares if n in board])))
        return said, observations

    outcomes = set()
    for seed in range(12):
        said, observations = episode(seed)
        assert said.startswith(f"You are Player {seed % 2}") and ("[Player 0]" in said) == (seed % 2 == 1)
        assert observations[-1].parts["invalid"] == 0 and len(observations) <= 5
        assert all(f"[Player {seed % 2}]" not in o.text for o in observations)  # not what it wrote itself
        outcomes.add((observations[-1].outcome, observations[-1].reward))
        assert (said, observations) == episode(seed)
    assert outcomes >= {("correct", 1.0), ("wrong", -1.0)} and outcomes <= {
        ("correct", 1.0),
        ("wrong", -1.0),
        ("wrong", 0.0),
    }


@needs_textarena
def test_games_that_cannot_be_played():
    for arguments, message in (
        (("TicTacTo-v0", 2, None, (), {}), "Did you mean 'TicTacToe-v0'"),
        (("TicTacToe-v0", 3, None, (), {}), "cannot begin: AssertionError"),
        (("TicTacToe-v0", 2, 2, (), {}), "seat=2"),
        (("TicTacToe-v0", 0, None, (), {}), "players=0"),
        (("TicTacToe-v0", 2, None, (), {"size": 3}), "unexpected keyword"),
        (("TicTacToe-v0", 2, 1, ("[9]",), {}), "allow none of actions"),
        (("SimpleTak-v0", 2, None, (), {}), "what may the other players"),
    ):
        with pytest.raises(ValueError, match=message):
            arena.check(*arguments)


@needs_textarena
@pytest.mark.full
@pytest.mark.parametrize(
    "name", [n for n in arena.ACTIONS if n not in ("ReverseTicTacToe", "IteratedStagHunt", "LeducHoldem")]
)
def test_every_game_with_known_actions_ends(name):
    for seed in range(2):
        world = arena.Game(f"{name}-v0", 2)
        random.seed(seed)
        world.reset(seed)
        for _ in range(200):
            observation = world.step(world._drawn())
            if observation.done:
                break
        assert observation.done and observation.parts["invalid"] == 0 and abs(observation.reward) <= 1


# --- as tasks --------------------------------------------------------------------------------------

BYTES = tokenizers.make("bytes", ())


def shown_rows(task, index=(0, 1)):
    """Return the demonstrations of a bound task: of each, the text of turns and that of replies."""
    token, mask = task.demonstrations(list(index), "train")
    rows = zip(token.tolist(), mask.tolist(), strict=True)
    split = [
        [[i for i, m in zip(row, each, strict=True) if (m > 0) == sampled] for sampled in (True, False)]
        for row, each in rows
    ]
    return [[BYTES.decode(part) for part in parts] for parts in split]


def test_python_tool_as_a_task(python, tmp_path):
    task = environments.lookup("python_tool")(chat=False).bind(BYTES)
    assert task.size("train") == 512 and task.size("heldout") == 64 and set(task.parts) == {*tools.COUNTS, "format"}
    example = task.example(0, "train")
    for (turns, replies), index in zip(shown_rows(task), (0, 1), strict=True):
        example = task.example(index, "train")
        call = json.dumps({"name": "python", "arguments": example["plan"][0][1]})
        assert turns == f"<tool_call>\n{call}\n</tool_call>#### {example['reference']}"
        assert replies.strip("\0\n") == f"<result>{example['reference']}</result>"
    assert '"name": "python"' in task.text(0, "train") and task.turn_end == ("</tool_call>",)
    path = written(
        tmp_path / "q.jsonl", *({"question": f"{n} * 2?", "answer": str(2 * n), "code": f"{n} * 2"} for n in range(30))
    )
    world = environments.lookup("python_tool")(path, code="code", heldout=0.3, form="tags", chat=False).bind(BYTES)
    assert "<python>" in shown_rows(world)[0][0] and world.turn_end == ("</python>",)
    for settings, message in (
        ({"turns": 0}, "turns=0"),
        ({"seconds": -1.0}, "seconds=-1"),
        ({"weights": {"call": 1.0}}, "Did you mean 'calls'"),
        ({"form": "xml"}, "form='xml'"),
    ):
        with pytest.raises(ValueError, match=message):
            environments.lookup("python_tool")(**settings)
    with pytest.raises(ValueError, match="no chat template"):
        environments.lookup("python_tool")().bind(BYTES)


def test_a_chat_template_shows_the_tools(python, tmp_path):
    tokenizer = tokenizers.load(public.write(tmp_path, "byte level", chat_template=test_host_tokens.TOOLS))
    task = environments.lookup("python_tool")().bind(tokenizer)
    prompts, (token, mask) = task.prompts([0], "train"), task.demonstrations([0], "train")
    asked = tokenizer.decode(prompts.token[0][prompts.mask[0] > 0].tolist())
    text = tokenizer.decode(
        token[0][: int(np.flatnonzero(mask[0])[-1])][mask[0][: int(np.flatnonzero(mask[0])[-1])] == 0].tolist()
    )
    assert '"name": "python"' in asked and "Tools:" not in task.text(0, "train") and task.turn_end == ()
    assert task.example(0, "train")["reference"] in text and "<result>" not in text


@needs_bm25s
def test_search_as_a_task(folder, tmp_path):
    path = written(tmp_path / "q.jsonl", *({"question": f"Capital of Peru, {n}?", "answer": "Lima"} for n in range(30)))
    task = environments.lookup("search")(folder, path, form="tags", chat=False, passages_shown=1, heldout=0.2).bind(
        BYTES
    )
    turns, replies = shown_rows(task)[0]
    assert turns.startswith("<search>Capital of Peru, ") and turns.endswith("</search>Lima")
    assert replies.strip("\0\n") == "<result>[1] peru.md: The capital of Peru is Lima.</result>"


@needs_textarena
def test_textarena_as_a_task():
    task = environments.lookup("textarena")("GuessTheNumber-v0", size=9, heldout=3, chat=False).bind(BYTES)
    assert (task.size("train"), task.size("heldout"), task.example(0, "heldout")) == (9, 3, 2**30)
    turns, replies = shown_rows(task)[0]
    assert turns.startswith("[10][") and "The target number is" in replies
    two = environments.lookup("textarena")("TicTacToe-v0", 2, chat=False)
    assert two.text(0, "train").startswith("You are Player 0") and two.text(1, "train").startswith("You are Player 1")
    with pytest.raises(ValueError, match="has no demonstrations"):
        two.bind(BYTES).demonstrations([0], "train")


def test_tools_by_their_paths(tmp_path, monkeypatch):
    source = "from rljax.environments.worlds.host import calls\n\n\n@calls.tool\ndef twice(x: int) -> int:\n"
    source += '    """Double.\n\n    Args:\n        x: X.\n    """\n    return 2 * x\n\n\ndef other(x: int): ...\n'
    (tmp_path / "my_own_tools.py").write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    call = [{"name": "twice", "arguments": {"x": 2}}]
    path = written(
        tmp_path / "q.jsonl", *({"question": f"Twice 2, {n}?", "answer": "4", "plan": call} for n in range(30))
    )
    make = environments.lookup("tools")
    task = make("my_own_tools.twice", path, plan="plan", heldout=0.3, chat=False).bind(BYTES)
    assert shown_rows(task)[0] == [
        '<tool_call>\n{"name": "twice", "arguments": {"x": 2}}\n</tool_call>4',
        shown_rows(task)[0][1],
    ]
    for name, message in (
        ("my_own_tools.other", "is not a tool"),
        ("my_own_tools.twic", "Did you mean 'twice'"),
        ("shutil.rmtree", "rmtree"),
    ):
        with pytest.raises(ValueError, match=message):
            make(name, path)


# --- in worker processes ---------------------------------------------------------------------------


def through(make, example, turns, died=None):
    """Play an episode in a worker; with ``died``, its first turns, in another one, which then ends."""
    observations = []
    with episodes.Episodes(make, 1, timeout=20) as first:
        begun = first.begin({0: example})[0]
        assert begun.valid, begun.error
        for number, turn in enumerate(turns[:died]):
            first.submit(0, number, turn)
            observations.append(first.ready(20)[0, number])
    if died is not None:
        with episodes.Episodes(make, 1, timeout=20) as second:
            second.resume(0, example, begun, list(zip(turns, observations, strict=False)))
            for number, turn in enumerate(turns[died:], died):
                second.submit(0, number, turn)
                observations.append(second.ready(20)[0, number])
    return begun, observations


@needs_bm25s
@pytest.mark.full
def test_an_interpreter_and_a_search_in_workers(folder, python):
    functions = (interpreter.Interpreter(), passages.Search(folder, passages=1))
    make = functools.partial(tools.ToolWorld, functions, NUMBER)
    box = make()._box
    cells = [
        box.write("python", code="x = 20"),
        box.write("python", code="x += 1\nx"),
        box.write("search", query="Peru"),
    ]
    begun, observations = through(make, QUESTION, [*cells, box.write("python", code="x"), "#### 5"], died=2)
    assert begun.messages == ({"role": "user", "content": "2 + 3?"},)
    assert [t.text for t in observations] == ["", "21", "[1] peru.md: The capital of Peru is Lima.", "21", ""]
    assert observations[-1].outcome == "correct" and observations[-1].done and observations[-1].parts["retries"] == 2


@needs_textarena
@pytest.mark.full
def test_a_game_goes_on_in_another_worker():
    make = functools.partial(arena.Game, "IteratedMatchingPennies-v0", 2)
    turns = ["[heads]", "[tails]"] * 2
    assert through(make, 3, turns, died=2) == through(make, 3, turns)
