"""What makes a run the same run: its config, and the code outside rljax that the config reaches."""

import importlib
import json
import os
import signal
import sys

import pytest

from rljax.config import files, resolve
from rljax.host import processes, workdirs
from rljax.language import reached
from rljax.run import loop
from rljax.run.records import forks, identity
from tests.support import tiny

PIECES = """
import numpy, optax
from rljax.training.learning import optimizers
from identity_study import constants as c, missing_is_no_module
from . import inner

@optimizers.optimizer
def slow(rate: float = 0.1):
    def unused():
        from identity_study import late
    return optax.sgd(rate * c.SCALE)
"""


@pytest.fixture
def study(tmp_path, monkeypatch):
    """Return a package of somebody's code, importable until the end of the test."""
    folder = tmp_path / "identity_study"
    (folder / "inner").mkdir(parents=True)
    (folder / "__init__.py").write_text("missing_is_no_module = 1\n")
    (folder / "pieces.py").write_text(PIECES)
    (folder / "constants.py").write_text("SCALE = 1.0\n")
    (folder / "late.py").write_text("")
    (folder / "unused.py").write_text("")
    (folder / "inner" / "__init__.py").write_text("from .. import constants\nfrom . import deep\n")
    (folder / "inner" / "deep.py").write_text("import json\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield folder
    for name in [name for name in sys.modules if name.startswith("identity_study")]:
        del sys.modules[name]


def config(**fields):
    return tiny.config(phase__main__optimizer="identity_study.pieces.slow()", **fields)


def test_the_code_of_a_run_is_what_its_config_reaches_outside_rljax(study):
    names = ("__init__", "constants", "inner/__init__", "inner/deep", "late", "pieces")
    code = resolve.run(config()).code
    assert list(code) == [f"identity_study/{name}.py" for name in names]
    assert resolve.run(tiny.config()).code == {}
    (study / "unused.py").write_text("A = 1\n")
    assert resolve.run(config()).code == code
    (study / "late.py").write_text("A = 1\n")  # not imported yet
    changed = resolve.run(config()).code
    assert [line.partition(": ")[0] for line in reached.differences(code, changed)] == [
        "code of identity_study/late.py"
    ]


def test_code_that_changed_after_its_import_is_refused_until_it_is_reloaded(study):
    code = resolve.run(config()).code
    (study / "constants.py").write_text("SCALE = -1.0\n")
    with pytest.raises(ValueError, match=r"constants\.py has changed since this process imported it\. Restart Python"):
        _ = resolve.run(config()).code
    importlib.reload(sys.modules["identity_study.constants"])
    assert len(reached.differences(code, resolve.run(config()).code)) == 1


def earlier(place, config, code):
    """Write what a run leaves in its work directory, as far as its identity is concerned."""
    directory = workdirs.WorkDirectory(place)
    place.mkdir(exist_ok=True)
    directory.write("config.json", files.dumps(config))
    directory.write("code.json", json.dumps(code))
    return directory


def test_changed_code_is_refused_as_a_changed_config_is(tmp_path):
    old, new = {"mine.py": "0" * 64}, {"mine.py": "1" * 64, "other.py": "2" * 64}
    directory = earlier(tmp_path / "run", tiny.config(), old)
    identity.claim(directory, tiny.config(), old)
    directory.close()
    with pytest.raises(ValueError, match="--allow_config_change") as error:
        identity.claim(directory, tiny.config(), new)
    assert str(error.value).splitlines()[1:] == [
        "  code of mine.py: 00000000 -> 11111111",
        "  code of other.py: none -> 22222222",
    ]
    directory.close()
    identity.claim(directory, tiny.config(), new, allow_change=True)
    directory.close()
    with pytest.raises(ValueError, match=r"code of mine\.py: 00000000 -> none"):  # before anything is compiled
        loop.train(tiny.config(), tmp_path / "run", progress=False)


def test_a_fresh_run_renames_the_earlier_one(tmp_path, capsys):
    for number in (1, 2):
        directory = earlier(tmp_path / "run", tiny.config(seed=number), {})
        identity.claim(directory, tiny.config(), {}, fresh=True)
        assert [file.name for file in (tmp_path / "run").iterdir()] == [".lock"]
        directory.close()
        assert f"the earlier run is now {tmp_path / f'run.old-{number}'}\n" in capsys.readouterr().out
        assert json.loads((tmp_path / f"run.old-{number}" / "config.json").read_text())["seed"] == number
    identity.claim(directory, tiny.config(), {}, fresh=True)  # there is nothing to rename
    directory.close()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run", "run.old-1", "run.old-2"]


def test_the_default_work_directory_names_what_was_changed_and_is_another_for_other_code():
    base = tiny.config()

    def name(code=None, **fields):
        return identity.default_workdir(tiny.config(**fields), code or {}, base).name.rpartition("-")

    assert name()[0] == "tiny"
    assert name(algorithm="my.study.rloo()", seed=1)[0] == "tiny-rloo-seed1"
    assert name(algorithm="grpo(kl=0.1, low=0.2)", seam__penalty="+ kl('k1', 1e-3)")[0] == (
        "tiny-grpo-kl0.1-low0.2-penalty-kl-k1-1e-3"
    )
    assert name(checkpoint__init="runs/first@300", batch__samples=8)[0] == "tiny-samples8-init-first-300"
    assert len(name(task="../" * 50, name="../x", phase__main__steps=7)[0]) < 70
    outside = identity.default_workdir(tiny.config(name="/../../x/.."), {}, base)
    assert outside.parts[0] == "runs" and len(outside.parts) == 2 and outside.name.startswith("x-")
    assert len({name()[2], name(code={"mine.py": "0"})[2], name(code={"mine.py": "1"})[2], name(seed=1)[2]}) == 4


def test_a_fork_names_a_checkpoint_that_exists(tmp_path):
    earlier(tmp_path / "run", tiny.phases(phase__warm__steps=3), {})
    for step in (2, 3, 5):
        (tmp_path / "run" / "checkpoints" / str(step)).mkdir(parents=True)

    def init(text):
        return forks.complete(tiny.config(checkpoint__init=f"{tmp_path}/{text}")).checkpoint.init

    assert [init(text).rpartition("/")[2] for text in ("run", "run@warm", "run@main", "run@7")] == [
        *("run@5", "run@3", "run@5"),
        "run@7",  # read when the fork begins; a fork that resumes needs no other run
    ]
    with pytest.raises(ValueError, match=r"no phase 'wram'\. Did you mean 'warm'"):
        init("run@wram")
    with pytest.raises(ValueError, match=r"not the work directory of a run \(no .*nothing/config\.json\)"):
        init("nothing")
    (tmp_path / "run" / "checkpoints" / "3").rmdir()
    with pytest.raises(ValueError, match=r"no checkpoint of step 3, only of steps 2, 5\."):
        init("run@warm")
    other = tiny.config(checkpoint__init=f"{tmp_path}/run@2", tokenizer__kind="bytes")
    with pytest.raises(ValueError, match=r"its config differs:\n  kind: 'char' -> 'bytes'"):
        forks.tokenizer(other)


@pytest.mark.parametrize(
    ("number", "kind", "name"),
    [(signal.SIGINT, KeyboardInterrupt, "Ctrl-C"), (signal.SIGTERM, loop.Interrupted, "SIGTERM")],
)
def test_ctrl_c_stops_like_sigterm_and_reaches_the_caller(number, kind, name, capfd):
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(kind, match=f"{name}: stopped and saved"), loop.signals() as stopping:
            assert not stopping(1)
            os.kill(os.getpid(), number)
            assert stopping(2) and processes.received() == name
            assert ("Ctrl-C: stopping" in capfd.readouterr().err) == (name == "Ctrl-C")
            raise loop.Interrupted("stopped and saved")
        assert processes.received() == "" and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt), loop.signals():
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)  # the second one at once
    finally:
        signal.signal(signal.SIGINT, before)
