"""What the tests of loop share."""

import os
import pathlib
import subprocess
import sys

import jax

from tests.support import compiler

ONE = jax.devices()[:1]

ROOT = pathlib.Path(__file__).parents[2]


def command(module, *arguments, prefix=()):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": compiler.QUICK}
    return {
        "args": [*prefix, sys.executable, "-m", "rljax", *filter(None, [module]), *arguments],
        "env": environment,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
    }
