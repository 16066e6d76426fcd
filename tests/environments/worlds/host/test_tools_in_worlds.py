"""Worlds with tools: a world with tools; the interpreter; search."""

import asyncio
import dataclasses
import functools
import json
import math
import pickle
import subprocess
import sys

import pytest

from rljax.environments.verifiers import rewards
from rljax.environments.worlds.host import calls, instances, options
from rljax.environments.worlds.host.shipped import assisted, interpreter, passages, tools
from tests.environments.worlds.host.tools_cases import (
    BOX,
    NUMBER,
    QUESTION,
    add,
    demonstrate,
    fail,
    needs_bm25s,
    oracle,
    play,
    shout,
    written,
)

# --- a world with tools ---------------------------------------------------------------


def test_a_question_with_calls():
    world = tools.ToolWorld([add], NUMBER)
    said, (first, second, third, last) = play(
        world, [BOX.write("add", x=2, y=3), "<tool_call>{</tool_call>" + BOX.write("add", x=2), "<tool_call>", "#### 5"]
    )
    assert said == "2 + 3?" and world.tools[0]["function"]["name"] == "add" and world.turn_end == ()
    assert first.text == [{"role": "tool", "name": "add", "content": "5"}] and not first.done and first.reward == 0
    assert [m["role"] for m in second.text] == ["tool", "tool"] and second.text[1]["content"] == "3"
    read = {"format": 0, "answer": 0}
    assert second.parts | read == {"calls": 3, "malformed": 1, "failed": 0, "retries": 1, **read}
    assert third.parts["malformed"] == 2 and (last.reward, last.outcome, last.done) == (1.0, "correct", True)
    assert last.parts["calls"] == 4 and set(last.parts) == set(world.parts)
    assert play(world, ["#### 6"])[1][0].outcome == "wrong"
    assert play(world, ["#### 6"])[1][0].parts["calls"] == 0  # the counts begin anew


def test_tools_that_are_coroutines_answer_as_functions_do():
    def awaited(function):
        @functools.wraps(function)
        async def later(**arguments):
            await asyncio.sleep(0)
            return function(**arguments)

        return later

    fails = [BOX.write("fail", code=code) for code in (0, 1, 6)]
    turns = [BOX.write("add", x=2, y=3), "".join([*fails, BOX.write("shout", text="a")]), "<tool_call>", "#### 5"]
    told = []
    for functions in ([add, fail, shout], [awaited(add), awaited(fail), shout]):
        game = instances.Instances(functools.partial(tools.ToolWorld, functions, NUMBER))
        told.append([game.begin(0, QUESTION, (0, 0)), *(game.step(0, n, turn) for n, turn in enumerate(turns))])
        game.end(0)
    assert told[0] == told[1] and told[1][2].parts["failed"] == 2 and told[1][4].outcome == "correct"


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

    both = {
        "tests.environments.worlds.host.test_tools_in_worlds:searched": 0.5,
        "number": 0.5,
    }  # one asks for the transcript, the other one does not
    path = written(tmp_path / "a.jsonl", *({"question": f"{n}?", "answer": f"{n}"} for n in range(9)))
    data = assisted.read("tools", options.Asked(reward=both, heldout=0.5), path, assisted.listed("plan", ""))
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
        how = options.Asked(reward=f"tests.environments.worlds.host.test_tools_in_worlds:{function}", heldout=0.5)
        with pytest.raises(ValueError, match=message):
            assisted.read("tools", how, path, assisted.listed("plan", ""))


@pytest.mark.parametrize("form", ["json", "bare", "tags"])
def test_a_demonstration(form):
    said, turns, last = demonstrate(tools.ToolWorld([add, shout], NUMBER, form), QUESTION)
    assert last.outcome == "correct" and last.parts["calls"] == 1 and len(turns) == 2 and turns[1] == "#### 5"
    assert ("Tools:" in str(said)) == (form == "tags")
    with pytest.raises(ValueError, match="no demonstration"):
        demonstrate(tools.ToolWorld([add], NUMBER, form), {"prompt": "?", "reference": "5"})


def test_questions_of_files(tmp_path):
    call = {"name": "add", "arguments": {"x": 2, "y": 3}}
    rows = [{"question": f"{n}?", "answer": str(n), "calls": [call] * n, "words": f"w{n}", "hint": n} for n in range(3)]
    train, heldout = written(tmp_path / "a.jsonl", *rows[:2]), written(tmp_path / "b.jsonl", rows[2])
    how = options.Asked(reward=hinted, heldout=heldout)
    data = assisted.read("tools", dataclasses.replace(how, chat="Be brief."), train, assisted.listed("plan", "calls"))
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
    asked = assisted.read("tools", how, train, assisted.column("query", "", "search", "query"))
    other = assisted.read("tools", how, train, assisted.column("query", "on {words}", "search", "query"))
    assert (
        asked.splits["heldout"][0]["plan"] == [["search", {"query": "2?"}]]
        and asked.splits["heldout"][0]["prompt"] == "2?"
    )
    assert other.splits["heldout"][0]["plan"] == [["search", {"query": "on w2"}]]
    with pytest.raises(ValueError, match=r"a.jsonl:1: 'answer' \(plan\) is 0, expected"):
        assisted.read("tools", how, train, assisted.listed("plan", "answer"))


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


# --- the interpreter ------------------------------------------------------------------


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


# --- search ---------------------------------------------------------------------------


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
