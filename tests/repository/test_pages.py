"""Every page: links lead somewhere, commands exist with their flags, configs resolve, examples run."""

import itertools
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

import jax.numpy as jnp
import pytest

import rljax
from rljax import __main__, types
from rljax.config import files, page, resolve
from rljax.language import parse
from tests.support import compiler, tiny

ROOT = pathlib.Path(__file__).parents[2]
NAMES = subprocess.run(
    ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
).stdout.split()
PAGES = [ROOT / name for name in NAMES] or sorted(p for p in ROOT.rglob("*.md") if "site-packages" not in p.parts)
README = (ROOT / "README.md").read_text()
PLACEHOLDER = re.compile(r"^[A-Z]$|\b[A-Z][A-Z_]+\b|\.\.\.")  # such as MODEL, which the reader replaces


def text_of(path):
    """Return a page with continued lines of commands joined."""
    return re.sub(r"\\\n\s*", "", path.read_text())


def commands(text, start):
    """Return the words of every command of a page that begins with ``start``, in code blocks and in lines."""
    lines = re.findall(rf"(?m)(?:^ *|[`$(] ?|&& )({re.escape(start)}\b[^`\n]*)", text)
    lines += re.findall(rf'"({re.escape(start)}\b[^`\n"]*)"', text)  # quoted whole
    return [shlex.split(line.split("  #")[0].split(" | ")[0], comments=True) for line in lines]


@pytest.fixture(scope="module")
def helps():
    """Return {command: (names of its flags, exit code and text of -h)}, from the commands themselves."""
    code = """
import importlib, json, os, sys, tempfile
from absl import flags
from rljax import __main__
names = {}
for command, (module, _) in __main__.COMMANDS.items():
    module, before = importlib.import_module(module), set(flags.FLAGS)
    if hasattr(module, "define_flags"):
        module.define_flags()
    names[command] = sorted(set(flags.FLAGS) - before)
    for name in names[command]:
        delattr(flags.FLAGS, name)
    with tempfile.TemporaryFile() as file:
        if not (child := os.fork()):
            os.dup2(file.fileno(), 1)
            try:
                done = __main__.main([command, "-h"])
            except SystemExit as stopped:
                done = stopped.code
            print(end="", flush=True)
            os._exit(done or 0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        file.seek(0)
        names[command] = names[command], code, file.read().decode()
print(json.dumps(names))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("command", __main__.COMMANDS)
def test_help_of_a_command_begins_with_its_usage_and_exits_with_0(command, helps):
    _, code, text = helps[command]
    assert code == 0 and "helpfull" not in text and "__main__" not in text
    assert f"python -m rljax {command}" in text or (command == "train" and "python -m rljax --config" in text)


def test_a_command_that_defines_no_flags_has_help(tmp_path):
    (tmp_path / "plain.py").write_text(
        '"""The usage."""\n\ndef main(argv):\n    raise ValueError(f"{argv[1:]}: is not a word")\n'
    )
    code = 'from rljax import __main__ as m; m.COMMANDS["plain"] = ("plain", ""); m.main(["plain", "{}"])'
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    helped, failed = (
        subprocess.run([sys.executable, "-c", code.format(word)], env=environment, capture_output=True, text=True)
        for word in ("-h", "other")
    )
    assert (helped.returncode, helped.stdout, helped.stderr) == (0, "The usage.\n", "")
    assert (failed.returncode, failed.stdout) == (1, "") and "['other']: is not a word" in failed.stderr


@pytest.fixture(scope="module")
def flags(helps):
    """Return {command: names of its flags}."""
    names = {command: known for command, (known, _, _) in helps.items()}
    names["sweep"] = [*names["train"], "index", "count"]  # the commands that read their words themselves
    names["algorithms"] = ["page", "coverage"]
    return {command: {*known, "help"} for command, known in names.items()}


def test_the_map_is_short_and_names_files_that_exist():
    text = (ROOT / "rljax" / "README.md").read_text()
    names = re.findall(r"`((?:tests/)?[\w/]+(?:\.py|/))`", text)
    written = {"checkpoints/"}  # by a run
    bases = {name: ROOT if name.startswith("tests/") else ROOT / "rljax" for name in names}
    assert [name for name in {*names} - written - {"config.py"} if not (bases[name] / name).exists()] == []
    assert len(names) > 40 and len(text.splitlines()) <= 60


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_commands_exist_with_their_flags_and_configs_resolve(path, flags):
    for _, _, _, *words in commands(text_of(path), "python -m rljax"):
        name = "train" if not words or words[0].startswith("-") else words[0]
        assert name in __main__.COMMANDS, words
        for word in words:
            flag = word.lstrip("-").partition("=")[0]
            if word.startswith("--") and not flag.startswith("config."):
                assert flag.removeprefix("no") in flags[name] or flag in flags[name], (word, words)
        if name in ("train", "aot") and "--config" in words:
            check_config(words)
        if name == "sharding" and words[1:]:
            check_config(["--config", *words[1:]])


def check_config(words):
    """Resolve the config of a command line, or at least find its fields where values are placeholders."""
    name, _, argument = words[words.index("--config") + 1].partition(":")
    if PLACEHOLDER.search(name):
        return
    config = files.load(str(ROOT / name) if "/" in name else name, argument)
    edits = [w.removeprefix("--config.") for w in words if w.startswith("--config.")]
    edits += [after for word, after in itertools.pairwise(words) if word == "--set"]
    for edit in edits:
        field, value = parse.setting(edit)
        if PLACEHOLDER.search(str(value)):
            files.check(config, field)
        else:
            files.override(config, field, value)
    named = config.algorithm + config.seam.surrogate + config.seam.source + config.task
    if not re.search("(mine|vending|retried)\\.|data/|my\\.jsonl|my:", named):
        resolve.phases(config)


def test_the_page_of_fields_is_what_the_schema_says():
    message = "run: python -m rljax config --page > configs/README.md"
    assert (ROOT / "configs/README.md").read_text() == page.page(), message


# --- the README -------------------------------------------------------------------------------------


def test_the_readme_is_short_and_leads_to_every_page():
    assert len(README.splitlines()) <= 120
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", README)}
    folders = {p.parent for p in PAGES if p.name == "README.md" and p.parent != ROOT}
    ours = {f for f in folders if f.parent == ROOT / "rljax" or f.name in ("configs", "tpu", "notebooks")}
    assert {f / "README.md" for f in ours} <= linked


def test_the_loss_of_the_readme_is_one(tmp_path, monkeypatch):
    example = re.search(r"```python\n(import jax\.numpy.*?)```", README, re.S)[1]
    (tmp_path / "mine.py").write_text(example)
    monkeypatch.syspath_prepend(tmp_path)
    config = rljax.get_config("quickstart")
    config.algorithm = "mine.tapered_rloo(power=0.25)"
    (_, main) = resolve.phases(config)
    assert [p.spec.partition("(")[0] for p in main.algorithm.objectives[0].loss] == ["token", "tapered"]
    config.algorithm, config.seam.surrogate = "rloo()", "mine.tapered(0.25)"
    assert "tapered(power=0.25)" in [p.spec for p in resolve.phases(config)[1].algorithm.objectives[0].loss]
    config.seam.surrogate = "mine.taperd()"
    with pytest.raises(ValueError, match="Did you mean 'tapered'"):
        resolve.phases(config)


def test_the_source_of_the_page_draws_prompts_that_failed_again(tmp_path, monkeypatch):
    page = (ROOT / "rljax/transforms/SOURCES.md").read_text()
    (tmp_path / "retried.py").write_text(re.search(r"```python\n(.*?)```", page, re.S)[1])
    monkeypatch.syspath_prepend(tmp_path)
    setup = tiny.program(seam__source="retried.retried(share=0.75)").setups[0]  # checked on shapes
    source, reward = setup.algorithm.source, jnp.asarray([0.0, 0, 0, 1, 0, 0, 0, 0])
    index = jnp.asarray([5, 5, 6, 6, 7, 7, 8, 8], jnp.int32)
    rows = types.Rollout(mask=jnp.ones((8, 1)), reward=reward, group=index, index=index)
    pool, offered = source.init(rows, None), jnp.arange(4, dtype=jnp.int32)
    assert source.choose(pool, None, offered, None).index.tolist() == [0, 1, 2, 3]
    _, pool = source.select(rows, pool, 8, None)
    assert source.choose(pool, None, offered, None).index.tolist() == [5, 1, 7, 3]  # 6 has a success, 8 is too many


@pytest.mark.full
def test_the_python_example_runs():
    example = re.search(r"```python\n(import rljax\n.*?)```", README, re.S)[1]
    short = "config.phase.warm.steps = config.phase.main.steps = 2\nconfig.evaluation.final_prompts = 8\n"
    short += "config.phase.warm.evaluate = ''\nconfig.algorithm ="
    example = example.replace("config.algorithm =", short, 1)
    example += "print(result, result.program, result.state, rollout, sep=chr(10))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": compiler.QUICK}
    done = subprocess.run(
        [sys.executable, "-c", example], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "pass@4" in done.stdout
    texts = done.stdout.splitlines()[-4:]
    assert [text.partition("(")[0] for text in texts] == ["Result", "Program", "TrainState", "Rollout"]
    assert all(len(text) < 500 for text in texts) and "warm 1-2 sft, main 3-4 rloo" in texts[1]
