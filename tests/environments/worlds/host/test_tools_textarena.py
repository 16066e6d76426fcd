"""Worlds with tools: textarena; as tasks; in worker processes."""

import functools
import importlib.util
import json
import random

import numpy as np
import pytest

from rljax import environments
from rljax.data import tokenizers
from rljax.environments.config import VerifierConfig
from rljax.environments.worlds.host import episodes, records
from rljax.environments.worlds.host.shipped import arena, interpreter, passages, tools
from tests.data import test_public_tokenizer as public
from tests.environments.worlds.host import test_host_tokens
from tests.environments.worlds.host.tools_cases import NUMBER, QUESTION, demonstrate, needs_bm25s, play, written

needs_textarena = pytest.mark.skipif(importlib.util.find_spec("textarena") is None, reason="textarena is not installed")


# --- textarena ------------------------------------------------------------------------


@needs_textarena
def test_a_game_of_one_player():
    arena.Game("GuessTheNumber-v0").check()
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
@pytest.mark.parametrize("name", ["TicTacToe-v0", pytest.param("KuhnPoker-v0", marks=pytest.mark.full)])
def test_every_player_of_a_game_in_a_seat(name):
    def episode(seed):
        world = arena.Game(name, 2, opponent="self")
        random.seed(seed)
        opening = records.opening(world.reset(seed), world.seats)
        seat, turns = 0, []
        while not turns or not turns[-1][1].over:
            text = world._drawn()
            told = records.observation(world.step(text), "user", world.seats)
            turns.append((seat, told))
            if not told.over:  # only who writes next is told something: what the other wrote, if it is the other
                assert [bool(each.messages) for each in told.seats] == [s == told.next_seat for s in (0, 1)]
                assert told.next_seat == seat or text.strip("[]") in told.seats[told.next_seat].text
                seat = told.next_seat
        return opening, turns

    for seed in range(4):
        opening, turns = episode(seed)
        first, second = (each.messages[0]["content"] for each in opening.seats)
        assert {first[:16], second[:16]} == {"You are Player 0", "You are Player 1"}
        last = turns[-1][1]
        assert sum(each.reward for each in last.seats) == 0 and last.parts["turns"] == len(turns)
        assert all((each.outcome == "correct") == (each.reward > 0) for each in last.seats)
        assert (opening, turns) == episode(seed)


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
        (("TicTacToe-v0", 1, None, (), {}, "self"), "opponent='self': needs players of 2 or more and no seat"),
        (("TicTacToe-v0", 2, 1, (), {}, "self"), "got players=2, seat=1"),
    ):
        with pytest.raises(ValueError, match=message):
            arena.Game(*arguments).check()


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


# --- as tasks -------------------------------------------------------------------------


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


@pytest.mark.default_tier(1)
def test_python_tool_as_a_task(python, tmp_path):
    task = environments.lookup("python_tool")(chat=False).bind(BYTES)
    assert task.size("train") == 512 and task.size("heldout") == 64
    assert set(task.parts) == {*tools.COUNTS, "format", "answer"}
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


@pytest.mark.full
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


# --- in worker processes --------------------------------------------------------------


def through(make, example, turns, died=None):
    """Play an episode in a worker; with ``died``, its first turns, in another one, which then ends."""
    observations = []
    with episodes.Episodes(make, VerifierConfig(workers=1, timeout=20)) as first:
        begun = first.begin({0: example})[0]
        assert begun.valid, begun.error
        for number, turn in enumerate(turns[:died]):
            first.submit(0, number, turn)
            observations.append(first.ready(20)[0, number])
    if died is not None:
        with episodes.Episodes(make, VerifierConfig(workers=1, timeout=20)) as second:
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
