"""Worlds with tools: schemas, calls, the interpreter, search, games of textarena."""

import json
import random
from typing import Any, Literal

import pytest

from rljax.environments.worlds.host import calls, signatures
from tests.environments.worlds.host.tools_cases import BOX, add, everything, fail, shout

# --- schemas --------------------------------------------------------------------------


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


# --- calls ----------------------------------------------------------------------------


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
