"""Environments of other libraries as host worlds, each with its package; without the package, its tests skip."""

import json
import re
import socket
import subprocess
import sys
import time

import jax
import pytest

from rljax import environments
from rljax.config import resolve
from rljax.environments.config import VerifierConfig
from rljax.environments.worlds.host import episodes, limited
from rljax.language import dotted
from rljax.run import loop
from rljax.run.records import metrics
from tests.support import tiny

LENGTHS = "turns=3, turn_length=12, reply_length=96"
SUM = f"gymnasium('tests.support.text_envs:TestSum-v0', size=9, heldout=3, {LENGTHS})"
ACTIONS = ("left", "down", "right", "up")
REMOTE = """
import sys
from openenv.core.env_server import http_server, interfaces, types

class Guess(types.Action):
    text: str

class Hint(types.Observation):
    hint: str

class Sum(interfaces.Environment):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.numbers = (seed or 0) % 7, 5
        return Hint(hint="{}+{}=".format(*self.numbers))

    def step(self, action, timeout_s=None, **kwargs):
        right = action.text == str(sum(self.numbers))
        return Hint(hint="right" if right else "wrong", reward=float(right), done=right)

    @property
    def state(self):
        return types.State()

import uvicorn
app = http_server.create_fastapi_app(Sum, Guess, Hint, max_concurrent_envs=16)
uvicorn.run(app, port=int(sys.argv[1]), log_level="error")
"""
MCP = f"mcp({{!r}}, {{!r}}, plan='calls', chat=False, heldout=0.3, seconds=5.0, {LENGTHS})"
SERVER = '''
import os, time
try:
    from mcp.server import MCPServer
except ImportError:  # version 1
    from mcp.server.fastmcp import FastMCP as MCPServer

server, kept = MCPServer("shelf"), []

@server.tool()
def put(item: str, copies: int = 1) -> str:
    """Put a thing on the shelf."""
    kept.extend([item] * copies)
    return ", ".join(kept)

@server.tool()
def fail(how: str) -> str:
    """Fail."""
    if how == "end":
        os._exit(3)
    if how == "wait":
        time.sleep(60)
    raise ValueError("no " + how)

server.run("stdio")
'''


def config(task, workers=1):
    """Return the config of one step of bytes in worker processes."""
    c = tiny.config(task=task, mesh__data=1, batch__prompts=2, batch__samples=2, phase__main__steps=1)
    c.tokenizer.kind = "bytes"
    c.verifier.update({"workers": workers, "timeout": 30.0})
    return c


def played(world, example, *turns, workers=0):
    """Return the opening of episodes of a problem, and for each the answers to its turns."""
    with episodes.Episodes(world.make, VerifierConfig(workers=workers, timeout=30.0)) as opened:
        begun, answers = opened.begin(dict.fromkeys(range(len(turns)), example)), [[] for _ in turns]
        for episode, texts in enumerate(turns):
            for number, text in enumerate(texts):
                opened.submit(episode, number, text)
                while not (ready := opened.ready(5.0)):
                    pass
                answers[episode].append(ready[episode, number])
        opened.end(begun)
    return begun[0].messages[0]["content"], *answers


# --- gymnasium -----------------------------------------------------------------------------------


def test_an_episode_of_gymnasium_is_that_of_the_environment():
    library = pytest.importorskip("gymnasium")
    settings = {"is_slippery": True, "map_name": "4x4"}
    direct = library.make("FrozenLake-v1", render_mode="ansi", **settings)
    world = environments.lookup("gymnasium")("FrozenLake-v1", ACTIONS, settings, "Reach G.", tagged=True)
    turns = ["Down", "right"]
    texts = [*(f"I go.<action> {turn} </action>" for turn in turns), "left", "<action>jump</action>"]
    begun, told = played(world, 7, texts, workers=1)
    direct.reset(seed=7)

    def shown():
        return re.sub(r"\x1b\[41m(.)\x1b\[0m", r"<red>\1</red>", direct.render())

    assert begun == (f"Reach G.\nWrite one of left, down, right, up, between <action> and </action>.\n{shown()}")
    for turn, answer in zip(turns, told[:2], strict=True):
        _, reward, done, cut, _ = direct.step(ACTIONS.index(turn.lower()))
        assert (answer.text, answer.reward, answer.done, answer.truncated) == (shown(), reward, done, cut)
    assert told[2].text == "Write the action between <action> and </action>.\n"
    assert told[3].text == "Write one of left, down, right, up.\n"
    assert told[3].parts == {"turns": 4.0, "invalid": 2.0} and told[3].valid and not told[3].over


def test_texts_are_actions_and_observations_of_a_registered_environment():
    pytest.importorskip("gymnasium")
    world = resolve.phases(config(SUM))[0].task
    begun, *_ = played(world, 5, [])
    one, two = map(int, re.findall(r"\d", begun))
    _, told, cut = played(world, 5, ["1 0", "99", f" {one + two}\n"], ["99"] * 3)
    assert [t.reward for t in told] == [0, 0, 1] and told[2].done and told[2].outcome == "correct"
    assert told[0].text == "An action is a text of 1 to 2 characters from '0123456789'.\n"
    assert told[1].text == f"{one}+{two}="
    assert cut[2].truncated and not cut[2].done and cut[2].outcome == "wrong"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"environment": "FrozenLak-v1"}, "gymnasium has no environment 'FrozenLak-v1'. Did you mean 'FrozenLake-v1'"),
        ({"environment": "CartPole-v1"}, "'CartPole-v1' has observations Box.* and no render mode 'ansi'"),
        ({"environment": "FrozenLake-v1"}, "actions=(): 'FrozenLake-v1' needs 4 different names"),
        ({"environment": "FrozenLake-v1", "actions": (*"aabc",)}, "'FrozenLake-v1' needs 4 different names"),
        ({"environment": "FrozenLake-v1", "settings": {"mapp": 1}}, "'FrozenLake-v1' cannot be made: TypeError"),
        ({"environment": "tests.support.text_envs:Nothing-v0"}, "gymnasium has no environment"),
        ({"environment": "tests.support.talking:Nothing-v0"}, "'tests.support.talking' does not import gymnasium"),
        ({"environment": "tests.support.text_envs:TestSum-v0", "actions": ("a",)}, "are any text"),
        ({"environment": "FrozenLake-v1", "actions": ACTIONS, "size": 0}, "size=0: must be a whole number in"),
    ],
)
def test_environments_that_are_refused(arguments, words):
    pytest.importorskip("gymnasium")
    with limited.within(VerifierConfig(workers=0)), pytest.raises(ValueError, match=words.replace("()", r"\(\)")):
        environments.lookup("gymnasium")(**arguments)


# --- mcp -----------------------------------------------------------------------------------------


@pytest.fixture
def server(tmp_path):
    """Return the command of a server and a file of questions."""
    pytest.importorskip("mcp")
    (tmp_path / "server.py").write_text(SERVER)
    rows = [
        {"question": f"Put {n}.", "answer": "a", "calls": [{"name": "put", "arguments": {"item": "a"}}]}
        for n in range(9)
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return (sys.executable, str(tmp_path / "server.py")), str(tmp_path / "rows.jsonl")


def written(name, **arguments):
    return f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>"


@pytest.mark.full
def test_a_policy_calls_the_tools_of_a_server(server):
    command, rows = server
    task = MCP.format(command, rows)
    world = resolve.phases(config(task, workers=0))[0].task
    example = world.example(0, "train")
    texts = [
        written("put", item="a"),
        written("put", item="b", copies=2) + written("put", item=1),
        written("fail", how="x"),
        "a",
    ]
    begun, told, other = played(world, example, texts, [texts[0], written("fail", how="end")], workers=1)
    assert '"name": "put", "description": "Put a thing on the shelf."' in begun
    assert told[0].text == "\n<result>a</result>\n" and "<result>a, b, b</result>" in told[1].text
    assert "put: 1 is not of type 'string'" in told[1].text and "Error executing tool fail" in told[2].text
    assert told[3].done and told[3].reward == 1
    counts = {"calls": 4.0, "malformed": 1.0, "failed": 1.0, "retries": 1.0}
    assert {name: told[3].parts[name] for name in counts} == counts
    assert other[0].text == told[0].text  # an episode has a server of its own
    assert other[1].outcome == "crashed" and "the MCP server: M" in other[1].error


@pytest.mark.full
def test_servers_that_are_refused(server):
    command, rows = server
    for arguments, words in (
        ({"command": ("no_such_program",)}, r"command=\('no_such_program',\) starts no MCP server: FileNotFoundError"),
        ({"command": (sys.executable, "-c", "")}, "starts no MCP server: "),
        ({"command": ()}, "names no program"),
        ({"command": command, "functions": ("putt",)}, "the server has no tool 'putt'. Did you mean 'put'"),
        ({"command": command, "seconds": 0.0}, "seconds=0.0"),
    ):
        with limited.within(VerifierConfig(workers=0)), pytest.raises(ValueError, match=words):
            environments.lookup("mcp")(path=rows, heldout=0.3, **arguments)
    with dotted.only(()), pytest.raises(ValueError, match=r"starts the program 'python'.*allow_code=python"):
        environments.lookup("mcp")(("python", "server.py"), rows)


@pytest.mark.full
def test_a_slow_call_is_answered(server):
    command, rows = server
    with limited.within(VerifierConfig(workers=0)):
        world = environments.lookup("mcp")(command, rows, chat=False, heldout=0.3, seconds=3.0)
    assert world.longest == 12
    _, told = played(world, world.example(0, "train"), [written("put", item="a"), written("fail", how="wait")])
    assert told[1].text == "\n<result>Error: fail gave no answer in 3 s</result>\n" and told[1].parts["failed"] == 1


# --- openenv -------------------------------------------------------------------------------------


@pytest.mark.full
def test_an_episode_is_played_by_a_server_of_openenv(tmp_path):
    pytest.importorskip("openenv")
    (tmp_path / "server.py").write_text(REMOTE)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    open_env = environments.lookup("openenv")
    with limited.within(VerifierConfig(workers=0)):
        with pytest.raises(ValueError, match=r"world 'openenv' \(train problem 0\) does not begin.*onnect"):
            open_env(url, "text")
        with pytest.raises(ValueError, match="url='localhost:80': must begin with http"):
            open_env("localhost:80", "text")
    with subprocess.Popen(
        [sys.executable, str(tmp_path / "server.py"), str(port)], stderr=subprocess.DEVNULL
    ) as server:
        try:
            while server.poll() is None and socket.socket().connect_ex(("127.0.0.1", port)):
                time.sleep(0.1)
            with limited.within(VerifierConfig(workers=0)):
                task = f"openenv({url!r}, 'text', 'hint', instruction='Add.', {LENGTHS})"
                world = resolve.phases(config(task, workers=0))[0].task
                with pytest.raises(ValueError, match=r"the environment's has no field 'hnt'. Did you mean 'hint'"):
                    open_env(url, "text", "hnt")
            begun, told, wrong = played(world, 3, ["9", " 8\n"], ["7"], workers=1)
            assert begun == "Add.\n3+5=" and [t.text for t in told] == ["wrong", "right"] and wrong[0].text == "wrong"
            assert [t.reward for t in told] == [0, 1] and told[1].done and told[1].outcome == "correct"
            _, failed = played(open_env(url, "txt"), 3, ["9"])
            assert failed[0].outcome == "crashed" and "an action with the fields txt: " in failed[0].error
        finally:
            server.kill()


# --- training ------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("name", ["gymnasium", "mcp"])
def test_adapters_train(name, server, tmp_path):
    pytest.importorskip(name)
    task = MCP.format(*server) if name == "mcp" else SUM
    result = loop.train(config(task), tmp_path / "run", progress=False, devices=jax.devices()[:1])
    assert [(h["step"], h["valid_rows"]) for h in result.history] == [(1, 4)]
    turns = {r["turn"] for r in metrics.StepLog(tmp_path / "run" / "turns.jsonl").read()}
    assert turns == {-1, 0, 1, 2} if name == "gymnasium" else turns >= {-1, 0}
