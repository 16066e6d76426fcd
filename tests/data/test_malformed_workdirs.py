"""Files of others that are not what they should be: work directories; the commands."""

import gzip
import io
import json
import subprocess
import sys

import pytest
import rich.console

from rljax.config import files, schema
from rljax.run.evaluation import loading
from rljax.run.records import checkpoints
from rljax.run.reports import show_rollouts
from tests.data.malformed_cases import DATA, DEEP, FOLDERS, problem, problems, sound
from tests.run.records import test_checkpoint

# --- work directories -----------------------------------------------------------------


def test_a_stored_config_that_was_changed_is_refused_in_one_line():
    sound = json.loads(files.dumps(schema.default()))
    assert files.differences(files.from_dict(sound), schema.default()) == []
    changes = (
        *({name: value} for name in ("batch", "model", "phase") for value in (None, 7, "x", [])),
        *({"batch": {"prompts": value}} for value in (None, "8", 2.5, -1, [8])),
        *({"phase": {"main": value}} for value in (None, 7, [])),
        *({"phase": {"main": {"steps": value}}} for value in ("8", [8], {})),
        *({"phase": {"main": {"batch": value}}} for value in ("8", [8], {"rows": 8}, {"prompts": "8"})),
        *({"phases": value} for value in (None, "main", [7])),
        *({"seed": value} for value in (None, "0", 0.5)),
        {"unknown": 1},
        {"model": {"unknown": 1}},
    )
    for change in changes:
        assert problem(files.from_dict, {**sound, **change}) == "", change
    for value in (None, [], "x", 7):
        assert problem(files.from_dict, value) == ""


@pytest.mark.full
@pytest.mark.parametrize(
    "extras",
    [{}, {"config": 7, "tokenizer": ""}, {"config": {}, "tokenizer": 7}, {"config": {"seed": "x"}, "tokenizer": ""}],
)
def test_a_checkpoint_that_is_not_of_a_run_is_refused_in_one_line(extras, tmp_path):
    with checkpoints.Checkpointer(tmp_path / "checkpoints") as saver:
        saver.save(1, test_checkpoint.make_state(1), extras)
    assert problem(loading.load, str(tmp_path)) == ""


ROLLOUT = {"step": 1, "prompt": "1+1=", "completion": "2", "reward": 1.0}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}\n",
        b"[]\n",
        b"null\n",
        b"{\n",
        DEEP + b"\n",
        b'{"step": "1"}\n',
        b'{"step": 1}\n',
        b"\xff\n",
        bytes(100) + b"\n",
        gzip.compress(b"{}", mtime=0) + b"\n",
        *(json.dumps({**ROLLOUT, name: 7}).encode() + b"\n" for name in ("prompt", "completion")),
        *(json.dumps({**ROLLOUT, name: "x"}).encode() + b"\n" for name in ("reward", "parts", "advantage")),
        json.dumps({**ROLLOUT, "parts": {"format": None}}).encode() + b"\n",
        json.dumps({**ROLLOUT, "outcome": []}).encode() + b"\n",
    ],
)
def test_malformed_rollouts_are_refused_in_one_line(data, tmp_path):
    def show(folder):
        show_rollouts.show(folder, console=rich.console.Console(file=io.StringIO()))

    (tmp_path / "rollouts.jsonl").write_bytes(json.dumps(ROLLOUT).encode() + b"\n")
    show(tmp_path)
    (tmp_path / "rollouts.jsonl").write_bytes(data)
    assert problem(show, tmp_path) == ""


# --- the commands ---------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("case", ["convert", "train", "problems", "rollouts"])
def test_a_command_ends_with_one_line_and_code_2(case, tmp_path):
    folder = sound(tmp_path / "model")
    if case == "convert":
        FOLDERS["num_hidden_layers=10000000"](folder)
        command = ["convert", str(folder)]
    elif case == "train":
        FOLDERS["config deep"](folder)
        command = ["--config=quickstart", f"--config.model.weights={folder}", f"--workdir={tmp_path / 'run'}"]
    elif case == "problems":
        folder = problems(tmp_path / "problems")
        DATA["line half a pair"](folder)
        command = ["--config=pretrained:quick", f"--config.task=gsm8k(path={str(folder)!r})"]
    else:
        (tmp_path / "rollouts.jsonl").write_bytes(DEEP + b"\n")
        command = ["rollouts", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "rljax", *command], capture_output=True, text=True)
    lines = [text for text in done.stderr.splitlines() if text.strip()]
    assert done.returncode == 2 and len(lines) == 1 and lines[0].startswith("error: "), done.stderr
    assert str(tmp_path) in lines[0]
