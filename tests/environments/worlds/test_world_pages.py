"""The page of worlds: its table against the constructors, its examples as worlds that run."""

import ast
import dataclasses
import inspect
import json
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.config import VerifierConfig
from rljax.environments.worlds import demonstrations, host, rules, text
from rljax.environments.worlds.host import limited, records, signatures, task
from rljax.environments.worlds.shipped import guess
from rljax.language import errors
from rljax.run import loop
from rljax.run.producers import verified
from rljax.training.producers import world_checks
from tests.algorithms import recipes
from tests.support import tiny

FOLDER = pathlib.Path(worlds.__file__).parent
PAGE = (FOLDER / "README.md").read_text()
KINDS = tuple(f"shipped/{kind}" for kind in ("games", "planning", "social"))
SHARED = {
    *("turns", "max_turns", "turn_length", "reply_length", "prompt_length", "completion_length", "exact", "chat"),
    *("path", "prompt", "answer", "reward", "heldout", "formats", "instruction", "final", "form", "weights"),
}  # settings of host worlds, which the page explains once
KEY_OF_TEST = jax.random.key(0)
KEY = jax.eval_shape(lambda: KEY_OF_TEST)


def example(part, module):
    """Import the one example of the page that contains a text."""
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if part in c]
    names = {"__name__": module}
    exec(compile(code, f"{module}.py", "exec"), names)
    return names


def reply(world):
    """Return the reply to the expert's first turn in a problem."""

    @jax.jit
    def first():
        state, seat = world.begin(jnp.int32(4), "train", KEY_OF_TEST), jnp.int32(0)
        return world.step(state, seat, *world.expert(state, seat, KEY_OF_TEST), KEY_OF_TEST)[1]

    return first()


def test_the_table_names_every_world_with_its_settings_and_recipes():
    rows = [[cell.strip() for cell in line.split("|")[1:5]] for line in PAGE.splitlines() if line.startswith("| `")]
    table = {row[0].strip("`"): row for row in rows}
    shipped = [name for name, path in environments.TASKS.items() if path.startswith("rljax.environments.worlds.")]
    assert sorted({*table} & {*environments.TASKS}) == sorted(shipped)
    for name in shipped:
        parameters = inspect.signature(environments.lookup(name)).parameters.values()
        on_host = environments.TASKS[name].startswith(host.__name__)
        listed = [p for p in parameters if not (on_host and p.name in SHARED)]
        settings = [f"`{p.name}`" if p.default is p.empty else f"`{p.name}={p.default!r}`" for p in listed]
        assert table[name][1] == ", ".join(settings), name
        trained = [recipe for recipe, call in recipes.ON_WORLDS.items() if call.startswith(f"{name}(")]
        assert table[name][3] == " ".join(f"`{recipe}`" for recipe in trained), name
    assert all(f"`{name}`" in PAGE for name in SHARED)


@pytest.mark.parametrize(
    "folder",
    [FOLDER / room for room in ("", "host", "host/shipped", "host/shipped/adapters", "shipped", *KINDS)],
    ids=lambda p: str(p.relative_to(FOLDER)),
)
def test_the_page_of_a_folder_names_every_file(folder):
    page = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {p.name for p in folder.glob("*.py")} - {"__init__.py"}
    assert {*re.findall(r"(?m)^``(\w+\.py)``", page)} == files


@pytest.mark.full
def test_the_world_of_the_page_is_sound_and_its_expert_pays_every_price():
    world = example("class Vending:\n    slip", "vending")["vending"](slip=0.0)
    world = world.bind(tokenizers.train(world.corpus()))
    world_checks.check(world, KEY)
    paid = []
    for split in ("train", "heldout"):
        index = jnp.arange(world.size(split), dtype=jnp.int32)
        shown = jax.jit(lambda i, split=split: demonstrations.conversations(world, i, split, KEY_OF_TEST))(index)
        ids = zip(np.asarray(shown.prompt.token[:, 0]), np.asarray(shown.prompt.mask[:, 0]), strict=True)
        prices = [int(world.tokenizer.decode(t[m > 0].tolist()).removesuffix(":")) for t, m in ids]
        paid += prices
        for price, token, mask in zip(prices, shown.token[:, 0], shown.mask[:, 0], strict=True):
            ids = np.asarray(token)[np.asarray(mask) > 0].tolist()
            coins = "".join(" " if i == world.tokenizer.eos else world.tokenizer.decode([i]) for i in ids).split()
            assert sum(map(int, coins)) == price
            assert {*coins} <= {"1", "2", "5", "10", "20", "50"}
    assert sorted(paid) == list(range(1, 100))  # the splits have no price in common


def test_the_wrapper_of_the_page_costs_each_turn():
    world = example("class Costly", "costly")["costly"](guess.guess(numbers=8, turns=3))
    world = world.bind(tokenizers.train(world.corpus()))
    world_checks.check(world, KEY)
    for paid, plain in zip(reply(world).reward, reply(world.inner).reward, strict=True):
        np.testing.assert_allclose(paid, plain - 0.05, atol=1e-6)


def test_the_host_world_and_the_tool_of_the_page():
    made = example("class Vending:\n    examples", "my_world")["Vending"]
    with limited.within(VerifierConfig(workers=0)):  # the page is no module that a process could import
        world = task.host_world(made, max_turns=8, turn_length=4, reply_length=16)
    machine = made()
    assert world.size("train") + world.size("heldout") == 99 and str(made().reset(66)).startswith("The price is 67")
    machine.reset(66)
    replies = [machine.step(text) for text in ("50", "x", "50", "10", "5", "2")]
    assert [t.done for t in replies] == [False] * 5 + [True] and [t.reward for t in replies] == [0.0] * 5 + [1.0]
    shop = example("class Order", "my_shop")["Order"]()
    told = [records.opening(shop.reset(23), shop.seats), records.observation(shop.step("Is 123 ready?"), "user", 2)]
    assert "123" in told[0].messages[0]["content"] and "123" not in told[0].others[0].messages[0]["content"]
    assert told[1].messages == told[1].others[0].messages and not told[1].done
    last = records.observation(shop.step("RETURN 123"), "user", 2)
    assert last.done and [seat.reward for seat in last.seats] == [1.0, 1.0] and not last.messages
    convert = example("@calls.tool", "my_tools")["convert"]
    described = signatures.describe(convert)
    assert described["name"] == "convert" and {*described["parameters"]["properties"]} == {"amount", "rate"}
    assert convert(2.0, 1.5) == "3.00"


@dataclasses.dataclass(frozen=True)
class _Wrong:
    """Rules with one mistake."""

    mistake: str = ""

    name, alphabet = "wrong", "0123456789:"
    prompt_length, turn_length, reply_length, max_turns = 3, 2, 2, 3
    parts = ("count",)

    def size(self, split):
        return 9

    def begin(self, index, split, key):
        if self.mistake == "begin":
            raise KeyError("nothing there")
        return {"left": index % 9 + 1, "number": 3}  # a number of Python becomes an array

    def prompt(self, state, seat):
        texts = {"string": "12:", "long prompt": rules.line("1234:"), "strange prompt": rules.line("1!")}
        return texts.get(self.mistake, rules.line(rules.decimal(state["left"], 2), ":"))

    def step(self, state, seat, text, key):
        mistakes = {"long reply": rules.line("123"), "strange reply": rules.line("!"), "text": "12"}
        fields = {"count": 1.0} if self.mistake != "no part" else {}
        answer = rules.Answer(mistakes.get(self.mistake, rules.line("1")), done=True, reward=True, parts=fields)
        changed = {
            "only the answer": answer,
            "another dtype": ({**state, "left": state["left"] * 0.5}, answer),
            "rewards of three seats": (state, answer.replace(reward=jnp.ones(3))),
            "a text as reward": (state, answer.replace(reward="1")),
            "half done": (state, answer.replace(done=0.5)),
            "a share as outcome": (state, answer.replace(outcome=state["left"] / 2)),
            "no outcome": (state, answer.replace(outcome=17)),
            "another seat": (state, answer.replace(next_seat=1)),
        }
        return changed.get(self.mistake, (state, answer))

    def expert(self, state, seat, key):
        return rules.line("123" if self.mistake == "long turn" else "1")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        ("begin", r"task 'wrong': begin: KeyError: 'nothing there'"),
        ("string", r"prompt is '12:': expected code points, int32 \[K\]"),
        ("long prompt", r"prompt writes '1234:': expected at most 3 characters"),
        ("strange prompt", r"prompt writes '!', which is not in the alphabet"),
        ("long turn", r"expert writes '123': expected at most 2 characters"),
        ("text", r"step: Answer.text is '12': expected code points"),
        ("no part", r"step: Reply.parts has \[\]: expected \['count'\]"),
        ("only the answer", r"step returns Answer: expected \(state, rules.Answer\)"),
        ("another dtype", r"the state was .*int32\[\].* and became .*float32\[\]"),
        ("rewards of three seats", r"Answer.reward is of shape \[3\]: expected a number, or \[1\]"),
        ("a text as reward", r"Answer.reward is '1': expected a number"),
        ("half done", r"Answer.done is 0.5: expected a bool"),
        ("a share as outcome", r"Answer.outcome is float32\[\]: expected a whole number"),
        ("no outcome", r"Answer.outcome is 17: expected a types.Outcome"),
        ("another seat", r"Answer.next_seat is 1: expected a seat below 1"),
    ],
)
def test_a_mistake_in_rules_is_named_in_one_line(mistake, words):
    with pytest.raises(ValueError, match=words) as caught:
        world = text.TextWorld(_Wrong(mistake))
        world_checks.check(world.bind(tokenizers.train(world.corpus())), KEY)
    assert isinstance(caught.value, errors.CodeError) or errors.is_message(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("mistake", ["long reply", "strange reply"])
def test_a_reply_that_cannot_be_told_makes_the_episode_invalid(mistake):
    sound, wrong = (text.TextWorld(_Wrong(m)) for m in ("", mistake))
    tokenizer = tokenizers.train(sound.corpus())
    for world, valid in ((sound, 1), (wrong, 0)):
        world = world.bind(tokenizer)
        world_checks.check(world, KEY)
        assert reply(world).valid == valid


@dataclasses.dataclass(frozen=True)
class _Unlucky(_Wrong):
    """Rules whose reward is not a number in one turn of eight."""

    name, parts = "unlucky", ()

    def step(self, state, seat, text, key):
        reward = jnp.where(jax.random.uniform(key) < 0.125, jnp.nan, 1.0)
        return state, rules.Answer(rules.line("1"), done=True, reward=reward, outcome=types.Outcome.CORRECT)


@environments.task
def unlucky() -> text.TextWorld:
    """Rewards that are not numbers; see ``_Unlucky``."""
    return text.TextWorld(_Unlucky())


@pytest.mark.full
def test_a_reward_that_is_no_number_costs_its_row_and_is_named(tmp_path):
    config = tiny.config(
        "reinforce()", task="tests.environments.worlds.test_world_pages.unlucky()", phase__main__steps=5
    )
    with pytest.warns(verified.VerifierWarning, match="task 'unlucky' failed on") as caught:
        loop.train(config, tmp_path / "run", progress=False, devices=jax.devices()[:1])
    told = [
        re.search(r"step (\d)[^:]*: task 'unlucky' failed on (\d+) rows, first on row (\d+)", str(w.message))
        for w in caught
    ]
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").open()]
    failed = {r["step"]: r["failed"] for r in records}
    assert sum(failed.values()) > 0 and all(r["skipped"] == 0 and r["reward"] == 1 for r in records)
    assert all(r["valid_rows"] == 32 - r["failed"] == 32 * (1 - r["outcome/crashed"]) for r in records)
    steps = [(int(m[1]), float(m[2])) for m in told if m]
    assert steps == [(step, count) for step, count in failed.items() if count][:3]  # then in the metric alone
