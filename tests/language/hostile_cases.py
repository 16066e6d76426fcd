"""What the tests of hostile share."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]

# Runs each command line in a process of its own, forked after the imports.
COMMANDS = """
import json, os, sys
from rljax import __main__
from rljax.config import files, resolve
from rljax.run import convert, train
from rljax.run.evaluation import evaluate, sample
resolve.phases(files.load("quickstart"))
for number, words in enumerate(json.load(open("commands.json"))):
    if os.fork() == 0:
        os.dup2(os.open(f"{number}.stderr", os.O_CREAT | os.O_WRONLY), 2)
        sys.argv = ["rljax", *words]
        try:
            __main__.main(words)
        except SystemExit as end:
            sys.stderr.flush()
            os._exit(end.code)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
"""


def commands(folder, *lines):
    """Return exit code and standard error of command lines."""
    (folder / "commands.json").write_text(json.dumps(lines))
    path = os.pathsep.join([str(folder), str(ROOT)])
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run([sys.executable, "-c", COMMANDS], env=environment, cwd=folder, capture_output=True, text=True)
    codes = [int(line) for line in done.stdout.splitlines() if line.lstrip("-").isdigit()]
    return [(code, (folder / f"{number}.stderr").read_text()) for number, code in enumerate(codes)]
