"""Fixtures that several files of this folder use."""

import sys
import textwrap

import pytest

from tests.environments.questions_cases import MODULE, ROWS, write


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return the current folder, with rows and a module of reward functions."""
    (tmp_path / "rewards_of_test_questions.py").write_text(textwrap.dedent(MODULE))
    write(tmp_path / "my.jsonl", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("rewards_of_test_questions", None)
