"""Fixtures that several files of this folder use."""

import sys
import textwrap

import pytest

from rljax.environments.verifiers.sandbox import start
from tests.environments.verifiers.rewards_cases import MODULE


@pytest.fixture
def judge(tmp_path, monkeypatch):
    (tmp_path / "judges_of_test_rewards.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.syspath_prepend(tmp_path)
    import judges_of_test_rewards  # pyright: ignore[reportMissingImports]

    yield judges_of_test_rewards.judge
    del sys.modules["judges_of_test_rewards"]


@pytest.fixture(scope="module")
def namespaces():
    """Skip where the kernel refuses the sandbox its namespaces."""
    try:
        start.check(unsafe=False)
    except ValueError as error:
        pytest.skip(str(error))
