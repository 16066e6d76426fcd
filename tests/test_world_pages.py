"""The page of worlds: its table against the constructors, its examples as worlds that run."""

import ast
import inspect
import pathlib
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import environments, types
from rljax.algorithms import inputs
from rljax.data import tokenizers
from rljax.environments import worlds
from rljax.environments.worlds import demonstrations, guess, host, single
from rljax.environments.worlds.host import signatures, task
from rljax.language import dotted
from rljax.training import world_checks

FOLDER = pathlib.Path(worlds.__file__).parent
PAGE = (FOLDER / "README.md").read_text()
SHARED = {
    *("turns", "max_turns", "turn_length", "reply_length", "prompt_length", "completion_length", "exact", "chat"),
    *("path", "prompt", "answer", "reward", "heldout", "formats", "instruction", "final", "form", "weights"),
}  # settings of host worlds, which the page explains once
CHARACTERS = jax.eval_shape(lambda: jax.random.key(0))


def example(text, module):
    """Import the one example of the page that contains a text."""
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if text in c]
    names = {"__name__": module}
    exec(compile(code, f"{module}.py", "exec"), names)
    return names


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
        recipes = [recipe for recipe, call in inputs.ON_WORLDS.items() if call.startswith(f"{name}(")]
        assert table[name][3] == " ".join(f"`{recipe}`" for recipe in recipes), name
    assert all(f"`{name}`" in PAGE for name in SHARED)


@pytest.mark.parametrize("folder", [FOLDER, FOLDER / "host", FOLDER / "games"], ids=lambda p: p.name)
def test_the_page_of_a_folder_names_every_file(folder):
    text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text())) or ""
    files = {p.name for p in folder.glob("*.py")} - {"__init__.py"}
    assert {*re.findall(r"(?m)^``(\w+\.py)``", text)} == files  # folders have a page of their own


def test_the_world_of_the_page_is_sound_and_its_expert_pays_every_price():
    names = example("class Vending:\n    slip", "vending")
    made = names["vending"](slip=0.0)
    bound = made.bind(tokenizers.train(made.corpus()))
    world_checks.check(bound, CHARACTERS)
    for split in ("train", "heldout"):
        index = jnp.arange(bound.size(split), dtype=jnp.int32)
        talk = demonstrations.conversations(bound, index, split, jax.random.key(0))
        prices = [bound.text(int(i), split) for i in index]
        for price, token, mask in zip(prices, talk.token[:, 0], talk.mask[:, 0], strict=True):
            coins = bound.tokenizer.decode(np.where(mask > 0, token, bound.tokenizer.pad))
            written = "".join(bound.tokenizer.decode([int(t)]) or " " for t in token[mask > 0])
            assert sum(map(int, written.split())) == int(price.removesuffix(":")), (price, written, coins)
