"""Fixtures that several files of this folder use."""

import pytest

from rljax.environments.verifiers.sandbox import start
from rljax.environments.worlds.host import calls
from rljax.environments.worlds.host.shipped import interpreter


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


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "lands").mkdir()
    (tmp_path / "lands" / "france.txt").write_text("The capital of France is Paris.\n\nParis lies on the Seine.\n")
    (tmp_path / "peru.md").write_text("The capital of Peru is Lima.")
    (tmp_path / "twins.txt").write_text("zebra one\n\nzebra two\n\nzebra ten")
    (tmp_path / "picture.png").write_bytes(b"\x89zebra")
    (tmp_path / "bad.txt").write_bytes(b"\xff\xfe zebras \0 other")
    return str(tmp_path)
