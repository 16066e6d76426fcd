"""What the tests of stored rows share."""

import json
import warnings

import jax

from rljax.data import stored_groups, tokenizers
from rljax.run import programs
from tests.support import tiny

BYTES = tokenizers.make("bytes", [])

PAIRS = [{"id": i, "prompt": f"{i}+0=", "chosen": str(i), "rejected": str(i + 3)} for i in range(9)]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def reader(kind="rows", **fields):
    return stored_groups.Reader(kind, BYTES, **{"prompt_length": 6, "completion_length": 4, **fields})


def config(algorithm, call, **fields):
    fields = {"seam__source": call, "phases": ("main",), "mesh__data": 1, "log__rollouts": 0, **fields}
    return tiny.config(algorithm, **fields)


def built(algorithm, call, **fields):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", stored_groups.RemainderWarning)
        return programs.build(config(algorithm, call, **fields), devices=jax.devices()[:1])
