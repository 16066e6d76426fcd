"""What the tests of programs that are judged share."""

import textwrap

import pytest

needs_namespaces = pytest.mark.usefixtures("namespaces")  # of conftest.py


def fenced(program):
    return f"So:\n```python\n{textwrap.dedent(program)}\n```\nDone."
